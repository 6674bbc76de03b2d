"""When a conversation is compacted, and how; and whether a store can."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import InvalidArgumentError
from perdure.runtime.messages import Message
from perdure.runtime.transcript.compacted import is_full

if TYPE_CHECKING:
    from perdure.bundle import AgentStore
    from perdure.runtime.transcript.digest import Digest

Summarize: TypeAlias = Callable[[Sequence[Message]], str | Awaitable[str]]
"""Makes the text of a summary from the messages that it shall stand for. A plain function is called in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """How a conversation is compacted.

    Attributes:
        keep: How many of the newest turns stay as they are, 0 or more.
        summarize: Makes the summary; `None`: the agent's model does.
        archive: Whether the full transcript is kept in a session of its own.
    """

    keep: int = 2
    summarize: Summarize | None = None
    archive: bool = False

    def __post_init__(self) -> None:
        if type(self.keep) is not int or self.keep < 0:
            raise InvalidArgumentError("keep", "must be a number of turns, 0 or more")
        if self.summarize is not None and not callable(self.summarize):
            raise InvalidArgumentError("summarize", "must be a function from messages to text, or None for the model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(CompactionOptions):
    """When a conversation is compacted before a turn, and how.

    Attributes:
        max_tokens: How many tokens the transcript may hold, 1 or more: as the model told, or a quarter of the characters.
        keep: How many of the newest turns stay as they are, 0 or more.
        summarize: Makes the summary; `None`: the agent's model does.
        archive: Whether the full transcript is kept in a session of its own.
    """

    max_tokens: int

    def __post_init__(self) -> None:
        CompactionOptions.__post_init__(self)
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise InvalidArgumentError("max_tokens", "must be 1 or more")


def due(read: Digest, policy: Compaction) -> bool:
    """Whether a transcript holds more than a policy allows, and more turns than shall stay.

    What it holds is what the last turn's one request has read and written, if that is known and still true; else a
    quarter of the number of characters that a model sees.
    """
    return is_full(read, policy.max_tokens) and read.turns > policy.keep


def check_compaction(store: AgentStore, value: object) -> Compaction | None:
    """Return a policy, or `None`; raise if it is none, or if the store cannot compact so."""
    if value is None:
        return None
    if not isinstance(value, Compaction):
        raise InvalidArgumentError("compaction", f"must be a Compaction, not a {type(value).__name__}")
    require_able(store, value)
    return value


def require_able(store: AgentStore, options: CompactionOptions) -> None:
    """Raise `UnsupportedOperationError` if a store cannot compact so."""
    store.sessions.require("replace")
    if options.archive:
        store.sessions.require("delete")
