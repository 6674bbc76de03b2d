"""What a session has read of its transcript: it reads again only what is new."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from perdure import codec
from perdure.contracts.store import in_one_life
from perdure.errors import StoreCorruptedError, StoreError
from perdure.recent import memory_of
from perdure.runtime.messages import messages_of
from perdure.runtime.transcript.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from weakref import WeakMethod

    from perdure.contracts.records import Record
    from perdure.contracts.sessions import SessionStore, Transcript
    from perdure.runtime.messages import Message

PAGE: Final = 1000
"""How many records are read at once."""
_EMPTY: Final = 3000
"""About how many bytes of memory a view takes that has read nothing."""


class TranscriptView:
    """What a session's records say as of the version last read, and the messages of turns that were saved here since.

    All session objects of one id share one, within a bundle of stores, so that what one has read the next need not.

    Attributes:
        head: The transcript without its records, as read last; `None`: there is none, or it was not read.
        read: What its records said.
        news: Counts the readings, and the turns that were saved.
    """

    def __init__(
        self,
        sessions: SessionStore,
        session_id: str,
        *,
        whole: bool = False,
        keep: WeakMethod[Callable[[str, object, int], None]] | None = None,
    ) -> None:
        """Read nothing yet.

        Args:
            sessions: Where the transcript is.
            session_id: Whose.
            whole: Whether to keep the records, too.
            keep: What takes the id, this, and how many bytes of memory it holds, each time that that changes. It is not held,
                as it holds this.
        """
        self.sessions = sessions
        self.session_id = session_id
        self.head: Transcript | None = None
        self.read = Digest(whole=whole)
        self.news = 0
        self._whole = whole
        self._keep = keep
        self._saved: list[Record] = []
        self._shown: list[Message] = []

    async def refresh(self) -> Transcript | None:
        """Read what is new, or all of it when it was rewritten; return the head, `None` if there is no session."""
        while True:
            news = self.news
            found = await self._read(self.head, self.read.count)
            goes_on = found is not None and found[0] is not None
            while found is None:  # what was read before is no part of it: read all of it
                found = await self._read(None, 0)
            if news == self.news:
                break
            if self._is_as_new_as(found[0]):  # somebody else has read that much meanwhile
                return self.head
        self.head, new = found
        if goes_on:
            self.read.extend(new)
        else:  # not emptied: a turn may hold its messages
            self.read = new
        self._saved, self._shown = [], []
        self._has_news()
        return self.head

    def _is_as_new_as(self, head: Transcript | None) -> bool:
        known = self.head
        if known is None or head is None:
            return known is head
        return known.created_at == head.created_at and in_one_life(head.version, known.version)

    async def refresh_if_possible(self) -> None:
        """Read what is new, behind something that is done; if that fails, forget all, which the next call reads again."""
        try:
            await self.refresh()
        except StoreError:
            self.head, self.read, self._saved, self._shown = None, Digest(whole=self._whole), [], []
            self._has_news()

    def _has_news(self) -> None:
        self.news += 1
        keep = None if self._keep is None else self._keep()
        if keep is not None:
            beside = memory_of(self.read.last) + (0 if self.head is None else memory_of(self.head.state))
            # What was saved is there twice: as it was written, and as it is shown.
            keep(self.session_id, self, _EMPTY + beside + self.read.weight + 2 * memory_of(self._saved))

    async def _read(self, known: Transcript | None, place: int) -> tuple[Transcript | None, Digest] | None:
        """Read what is behind a place, in pages: their bytes and their records are in memory page by page.

        Args:
            known: The head as of which the records before the place were read; `None`: there are none.
            place: How many they are.

        Returns:
            The head as of which all is read, `None` if there is no session, and what was read; or `None` if what was
            read before is no part of the session any more.
        """
        new, last = Digest(whole=self._whole), self.read.last if place else None
        while True:
            so_far = place + new.count
            # With the last record that is known: a copy of an earlier state may have come to the same version.
            overlap = 0 if last is None else 1
            part = await self.sessions.load(self.session_id, after=so_far - overlap, limit=PAGE)
            if part is None:
                return None, Digest(whole=self._whole)
            if known is not None and not _continues(known, part, so_far):
                return None
            records = [*part.records]
            if records[:overlap] != [last][:overlap]:
                return None
            del records[:overlap]
            if not records and so_far < part.count:
                raise StoreCorruptedError(f"session {self.session_id}", "it has fewer records than it says")
            known, last = replace(part, records=()), None
            del part
            new.add(_taken_off(records))
            if place + new.count >= known.count:
                return known, new

    def add_saved(self, records: Sequence[Record], base_count: int) -> None:
        """Show a turn that was saved just now, behind so many records, without reading it again if it was read already."""
        if records[0]["run_id"] not in self.read.runs[self.read.messages_in(base_count) :]:
            self._saved.extend(records)
        self._has_news()

    @property
    def saved(self) -> Sequence[Message]:
        """The messages of turns that were saved here since the last reading; made when they are asked for."""
        self._shown.extend(messages_of(codec.copied(self._saved[len(self._shown) :])))
        return self._shown


def _taken_off(records: list[Record]) -> Iterator[Record]:
    """Take records off a list, so that they and what is made of them are not in memory together."""
    records.reverse()
    while records:
        yield records.pop()


def _continues(known: Transcript, new: Transcript, count: int) -> bool:
    """Whether the first so many records, read as of a head, are the first ones as of another."""
    return (
        new.created_at == known.created_at
        and new.rewritten <= known.version
        and in_one_life(known.version, new.version)
        and (new.version > known.version or new.updated_at == known.updated_at)
        and new.count >= count
    )
