"""What a session has read of its transcript: it reads again only what is new."""

from __future__ import annotations

import asyncio
from itertools import islice
from sys import intern
from typing import TYPE_CHECKING, Final

from perdure import codec
from perdure.errors import StoreCorruptedError
from perdure.runtime.history import SAME_LIFE, is_own
from perdure.runtime.limits import Spent
from perdure.runtime.messages import Message, messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionStore, Transcript

PAGE: Final = 1000
"""How many records are read at once."""


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
        found = await self._read(self.head, len(self.records))
        goes_on = found is not None and found[0] is not None
        while found is None:  # what was read before is no part of it: read all of it
            found = await self._read(None, 0)
        head, new = found
        messages = messages_of(new)
        if not goes_on:
            self.records, self.messages = [], []  # not emptied: a turn may hold them
        self.records.extend(new)
        self.messages.extend(messages)
        self.head, self._saved, self._shown = head, [], []
        return head

    async def _read(self, known: Transcript | None, place: int) -> tuple[Transcript | None, list[Record]] | None:
        """Read what is behind a place, in pages: their bytes and what is decoded of them are in memory page by page.

        Args:
            known: The head as of which the records before the place were read; `None`: there are none.
            place: How many they are.

        Returns:
            The head as of which all is read, `None` if there is no session, and the records; or `None` if those that
            were read before are no part of the session any more.
        """
        records: list[Record] = []
        while True:
            so_far = place + len(records)
            part = await self.sessions.load(self.session_id, after=so_far, limit=PAGE)
            if part is None:
                return None, []
            if known is not None and not _continues(known, part, so_far):
                return None
            known = part
            records.extend(map(_sharing, part.records))
            if place + len(records) >= part.count:
                return part, records
            if not part.records:
                raise StoreCorruptedError(f"session {self.session_id}", "it has fewer records than it says")

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


def _sharing(record: Record) -> Record:
    """Return a record of which the texts that many others have, too, are in memory once."""
    try:  # `suppress` alone would take longer than all of it
        record["kind"] = intern(record["kind"])
        message = record["message"]
        message["role"] = intern(message["role"])
        record["run_id"] = intern(record["run_id"])
    except (LookupError, TypeError):
        pass  # it is somebody else's, or of another form
    return record


def _continues(known: Transcript, new: Transcript, count: int) -> bool:
    """Whether the first so many records, read as of a head, are the first ones as of another."""
    return (
        new.created_at == known.created_at
        and new.rewritten <= known.version
        and 0 <= new.version - known.version < SAME_LIFE
        and new.count >= count
    )
