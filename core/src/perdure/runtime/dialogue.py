"""What all turns of one conversation run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.observers.listening import Channel
    from perdure.runtime.agent import Agent
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.transcript.reading import TranscriptView
    from perdure.runtime.turn.limits import Limits


@dataclass(frozen=True, slots=True)
class Dialogue:
    """An agent and a conversation, as this process has them.

    Attributes:
        agent: Whose turns.
        store: Where they are kept.
        key: Of the turn journal.
        channel: Who hears of them.
        view: The transcript; `None` of a run without a session.
        limits: What the conversation may spend.
        compaction: When and how its transcript is compacted before a turn; `None`: not by itself.
    """

    agent: Agent
    store: AgentStore
    key: str
    channel: Channel
    view: TranscriptView | None = None
    limits: Limits | None = None
    compaction: Compaction | None = None
