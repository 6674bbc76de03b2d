"""Writing again, by the codec as it is now, whatever was written by other keys or without a codec.

A conversation is claimed for it as `copy` claims it, so that no turn begins or ends meanwhile. Its session and its turn
journal are rewritten, each by one guarded write. A turn that is pending stays what it is: its journal names the version
of the transcript that it was made from, so both are written in one step, where the store can do that. Whoever is
killed on the way leaves a claim, which the next one to come undoes, and data of which every item can be read.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from perdure.at_rest.encoded_journal import EncodedJournal
from perdure.contracts.checkpoints import COPYING, TURN_STATUSES, CheckpointReplace
from perdure.contracts.ids import is_run
from perdure.conversations.claims import Claim, busy, settle
from perdure.errors import (
    CodecError,
    InvalidArgumentError,
    RecordTooLargeError,
    SessionBusyError,
    StoreCorruptedError,
    VersionConflictError,
)
from perdure.journal.contract import Append, Key, Operation, Part, Replace
from perdure.journal.stores import JournalCheckpoints, JournalStore
from perdure.ownership.leases import OwnershipLostError, unowned_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.bundle import AgentStore
    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead
    from perdure.journal.contract import JournalSnapshot

_UNWRITABLE: Final = (CodecError, RecordTooLargeError, StoreCorruptedError)
"""What is wrong with one key, and stops no other."""

_MOVED: Final = "it was written to meanwhile"
_PENDING: Final = "a turn is pending, and this store cannot rewrite it together with its transcript"
_CONFLICT: Final = "a turn is pending, and other records came in since it began"


@dataclass(frozen=True, slots=True)
class ReencryptReport:
    """What `reencrypt` has done.

    Attributes:
        sessions: The ids of the sessions rewritten.
        runs: The keys of the turn journals rewritten.
        approvals: The ids of the approvals rewritten.
        current: How many keys needed nothing.
        kept: What is still as it was, such as `sessions user-42`, and why.
    """

    sessions: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    current: int = 0
    kept: dict[str, str] = field(default_factory=dict)


async def reencrypt(store: AgentStore, *, mend: bool = False) -> ReencryptReport:
    """Write again whatever was not written by the first key of the store's codec.

    Run it when every process has the new key. It can be cut anywhere and be run again, and other processes may work on the
    store meanwhile. What is current is only read.

    Args:
        store: A store that `open_store` has opened with a codec which reads all that is there.
        mend: Accept that records of transcripts are gone, as after a salvage, and write those behind them for the places at
            which they stand now. Without it whoever can write to the store could leave out what they like.

    Returns:
        What was rewritten, and what was not and why: run it again for that.

        Times, order and content stay. The version of what is rewritten rises, as by any other write, and whoever has an older
        one in hand gets `VersionConflictError` and loads again; a pending turn is told the new version of its transcript.

    Raises:
        InvalidArgumentError: The store was opened without a codec.
        StoreUnavailableError, OutcomeUnknownError: The store went away; run it again.
    """
    work = _Reencryption(store, mend=mend)
    for part in (Part.SESSIONS, Part.RUNS):
        await work.each(part, work.conversation)
    await work.each(Part.APPROVALS, work.approval)
    done = {part.value: tuple(ids) for part, ids in work.done.items()}
    return ReencryptReport(**done, current=work.current, kept=work.kept)


class _Reencryption:
    """One run, and what it has done so far."""

    def __init__(self, store: AgentStore, *, mend: bool) -> None:
        self.store, self.mend = store, mend
        self.journals = _journals(store)
        if not self.journals:
            raise InvalidArgumentError("store", "was opened without a codec")
        self.done: dict[Part, list[str]] = {part: [] for part in Part}
        self.current = 0
        self.kept: dict[str, str] = {}

    async def each(self, part: Part, rewrite: Callable[[str], Awaitable[None]]) -> None:
        """Go through the keys of a part; none that cannot be rewritten keeps the others from it."""
        if part not in self.journals:
            return
        async for name in self.journals[part].ids(part):
            try:
                if await self._is_old(part, name):
                    await rewrite(name)
                else:
                    self.current += name not in self.done[part]
                    await self._undo_left(part, name)
            except (VersionConflictError, OwnershipLostError):
                self._keep(part, name, _MOVED)
            except (*_UNWRITABLE, SessionBusyError) as error:
                self._keep(part, name, str(error))

    async def _undo_left(self, part: Part, name: str) -> None:
        """Undo the claim of one that was killed when all was rewritten; what somebody else does here is left to them."""
        if part is not Part.RUNS:
            return
        found = await self.journals[part].read(Key(part, name), limit=0)
        if found is not None and found.head.status == COPYING:
            with contextlib.suppress(SessionBusyError):
                await settle(self.store, name)

    async def approval(self, name: str) -> None:
        """Rewrite an approval, whoever decides it meanwhile."""
        key, journal = Key(Part.APPROVALS, name), self.journals[Part.APPROVALS]
        while (found := await journal.read(key)) is not None:
            try:
                await journal.write((_again(key, found),))
            except VersionConflictError:
                continue  # whoever was first wrote all of it
            self.done[Part.APPROVALS].append(name)
            return

    async def conversation(self, name: str) -> None:
        """Rewrite a session with its turn journal, under a claim."""
        if "checkpoints" not in self.store:
            await self._write_session(name, await self._old_session(name))
            return
        found = await settle(self.store, name)
        if found is not None and self.store.ownership.is_live(found):
            raise busy(found)
        session = await self._old_session(name)
        times = [part.updated_at for part in (found, session) if part is not None]
        if not times:
            return  # it was deleted meanwhile
        with await Claim.take(self.store, name, found, COPYING, at=max(times)) as claim:
            try:
                await self._claimed(claim, found)
            except (*_UNWRITABLE, VersionConflictError):
                await claim.let_go()
                raise

    async def _claimed(self, claim: Claim, found: Checkpoint | None) -> None:
        name = claim.journal.key
        pending = found is not None and found.head.status in TURN_STATUSES
        session = await self._old_session(name)
        if found is None or not pending:
            await self._write_session(name, session, claim)
            await claim.let_go()  # writes an idle journal anew
        elif session is None or found.head.base_version is None:
            await self._write_session(name, session, claim)
            await claim.journal.replace(found.entries, unowned_head(found.head), at=found.updated_at)
        elif why := self._why_not(found.head, session):
            self._keep(Part.SESSIONS, name, why)
            await claim.let_go()
            return
        else:
            await self._write_both(claim, found, session)
        if found is not None and Part.RUNS in self.journals:
            self.done[Part.RUNS].append(name)

    def _why_not(self, head: CheckpointHead, session: JournalSnapshot) -> str | None:
        """Say why a pending turn and its transcript cannot be rewritten; `None` if they can."""
        if session.count != (head.base_count or 0) or session.rewritten > (head.base_version or 0):
            return _CONFLICT
        return None if self.store.atomic else _PENDING

    async def _write_both(self, claim: Claim, found: Checkpoint, session: JournalSnapshot) -> None:
        """Rewrite a transcript and the turn that was made from it in one step."""
        name, checkpoints = found.key, self.store.checkpoints
        assert isinstance(checkpoints, JournalCheckpoints)  # as it is in every atomic bundle

        async def write(version: int) -> None:
            head = replace(unowned_head(found.head), base_version=session.version + 1)
            turn = CheckpointReplace(name, found.entries, head, expected_version=version, at=found.updated_at)
            both = (_again(Key(Part.SESSIONS, name), session), checkpoints.operation(turn))
            await checkpoints.write_together(name, both)

        await claim.journal.exclusively(write)
        self.done[Part.SESSIONS].append(name)

    async def _write_session(self, name: str, session: JournalSnapshot | None, claim: Claim | None = None) -> None:
        if session is None:
            return
        if claim is not None:  # read, prove, write
            claim.note = claim.note | {"session_version": session.version}
            await claim.affirm()
        await self.journals[Part.SESSIONS].write((_again(Key(Part.SESSIONS, name), session),))
        self.done[Part.SESSIONS].append(name)

    async def _old_session(self, name: str) -> JournalSnapshot | None:
        """Read a session if there is one to rewrite."""
        if is_run(name) or not await self._is_old(Part.SESSIONS, name):
            return None
        journal, key = self.journals[Part.SESSIONS], Key(Part.SESSIONS, name)
        return await (journal.read_behind_gaps(key) if self.mend else journal.read(key))

    async def _is_old(self, part: Part, name: str) -> bool:
        if part not in self.journals:
            return False
        journal, key = self.journals[part], Key(part, name)
        if self.mend and part is Part.SESSIONS:
            try:
                await journal.read(key)
            except StoreCorruptedError:
                return True
        return await journal.is_current(key) is False

    def _keep(self, part: Part, name: str, why: str) -> None:
        self.kept[f"{part.value} {name}"] = why


def _journals(store: AgentStore) -> dict[Part, EncodedJournal]:
    """Return the journals that a codec is around."""
    stores = (store.sessions, store.checkpoints, store.approvals)
    journals = {one.part: one.journal for one in stores if isinstance(one, JournalStore)}
    return {part: journal for part, journal in journals.items() if isinstance(journal, EncodedJournal)}


def _again(key: Key, found: JournalSnapshot) -> Operation:
    """Return the write that puts what was read in the place of itself, at its version and its time."""
    if not found.count:
        return Append(key, (), found.head, found.version, found.updated_at, found.version)
    return Replace(key, 0, tuple(found.items), found.head, found.version, found.updated_at)
