"""What a session has read of its transcript: it reads again only what is new."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from perdure import codec
from perdure.runtime.history import is_own
from perdure.runtime.limits import Spent
from perdure.runtime.messages import Message, messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionStore, Transcript

_SAME_LIFE: Final = 2**20
"""A session that was deleted and created again starts at a random version of 40 bits, so it is not this near."""


class TranscriptView:
    """A session's records as of the version last read, and the messages of turns that were saved here since."""

    def __init__(self, sessions: SessionStore, session_id: str) -> None:
        self.sessions = sessions
        self.session_id = session_id
        self.head: Transcript | None = None
        self.records: list[Record] = []
        self.messages: list[Message] = []
        self._saved: list[Record] = []
        self._shown: list[Message] = []
        self._reading = asyncio.Lock()

    async def refresh(self) -> Transcript | None:
        """Read what is new, or all of it when it was rewritten; return the head, `None` if there is no session."""
        async with self._reading:  # two that read the same news would both take it in
            return await self._refresh()

    async def _refresh(self) -> Transcript | None:
        known = self.head
        if known is not None:
            new = await self.sessions.load(self.session_id, after=len(self.records))
            if new is not None and self._continues(known, new):
                self._take(new)
                return new
        fresh = await self.sessions.load(self.session_id)
        self.head, self.records, self.messages = None, [], []
        self._forget_saved()
        if fresh is not None:
            self._take(fresh)
        return fresh

    def add_saved(self, records: Sequence[Record]) -> None:
        """Show a turn that was saved just now, without reading it again."""
        self._saved.extend(records)

    @property
    def saved(self) -> Sequence[Message]:
        """The messages of turns that were saved here since the last reading; made when they are asked for."""
        self._shown.extend(messages_of(codec.copied(self._saved[len(self._shown) :])))
        return self._shown

    def spent(self, count: int) -> Spent:
        """Return what the conversation had spent in its first `count` records."""
        for record in islice(reversed(self.records), max(0, len(self.records) - count), None):
            if is_own(record) and "spent" in record:
                return Spent.from_record(record["spent"])
        return Spent()

    def _continues(self, known: Transcript, new: Transcript) -> bool:
        return (
            new.created_at == known.created_at
            and new.rewritten <= known.version
            and 0 <= new.version - known.version < _SAME_LIFE
            and new.count >= len(self.records)
        )

    def _take(self, part: Transcript) -> None:
        self.records.extend(part.records)
        self.messages.extend(messages_of(part.records))
        self.head = part
        self._forget_saved()

    def _forget_saved(self) -> None:
        self._saved, self._shown = [], []
