"""Conversations on their way in from another format, before they have versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.archives import SUMMARY, archive_id, archive_state
from perdure.contracts.sessions import Transcript
from perdure.contracts.store import draw_version
from perdure.moving.snapshots import Snapshot
from perdure.runtime.messages import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from perdure.contracts.records import Record


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation that another format has told of.

    Attributes:
        session_id: Its session id.
        records: Its transcript.
        state: What stands beside it.
        archives: What earlier compactions have replaced, the oldest first: the records of each archive.
    """

    session_id: str
    records: Sequence[Record]
    state: Record = field(default_factory=dict)
    archives: Sequence[Sequence[Record]] = ()

    def snapshot(self, at: datetime, scope: str | None) -> Snapshot:
        """Return the conversation as it is to be stored: made at an instant, for a scope, at versions that are drawn."""
        made = [
            _transcript(archive_id(self.session_id, number), records, archive_state(self.session_id, number), at, scope)
            for number, records in enumerate(self.archives, 1)
        ]
        main = _transcript(self.session_id, self.records, self.state, at, scope)
        return Snapshot(self.session_id, (*made, main))


def summary_record(session_id: str, number: int, archived: int, message: Record) -> Record:
    """Return the summary that begins a transcript and stands for an archive.

    Args:
        session_id: Whose.
        number: Which archive, from 1.
        archived: How many records it has.
        message: The summary itself.
    """
    marked = message | {"metadata": message.get("metadata", {}) | {"summary": True}}
    return {
        "v": RECORD_VERSION,
        "kind": SUMMARY,
        "kept": 0,
        "turns": [],
        "archive": archive_id(session_id, number),
        "archived": archived,
        "message": marked,
    }


def _transcript(name: str, records: Sequence[Record], state: Record, at: datetime, scope: str | None) -> Transcript:
    return Transcript(
        session_id=name,
        version=draw_version() + 1,  # it may take several writes
        count=len(records),
        rewritten=0,
        start=0,
        records=records,
        state=state,
        scope=scope,
        created_at=at,
        updated_at=at,
    )
