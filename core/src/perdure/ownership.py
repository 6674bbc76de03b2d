"""Who owns a conversation: the identity of a process, leases, and the one queue of appends of an owner.

A turn journal is also the lock of its conversation. Whoever appends at the expected version owns it; the head names the
owner and its lease. Nothing here asks a clock to be right: a lease that looks live is never broken by age alone unless
it ran out longer ago than clocks may differ, or its journal was seen unchanged for the lease's length on our own
monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from perdure.contracts.store import draw_version
from perdure.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    PerdureError,
    StoreError,
    StoreUnavailableError,
    VersionConflictError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from perdure.clock import Clock
    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead, CheckpointInfo, CheckpointStore
    from perdure.contracts.records import Record

T = TypeVar("T")
TICK: Final = timedelta(microseconds=1)
LONGEST: Final = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Lease:
    """How long an owner's lease is, how often it is renewed, and how far the clocks of two hosts may differ."""

    length: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=10)
    max_clock_skew: timedelta = timedelta(seconds=60)

    def __post_init__(self) -> None:
        """Refuse what is no duration of use: a lease, and the time between renewals, must be longer than nothing."""
        for name, at_least in (("length", TICK), ("heartbeat", TICK), ("max_clock_skew", timedelta(0))):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < at_least:
                raise InvalidArgumentError(name, f"must be a timedelta of {at_least} or more")
            if value > LONGEST:
                raise InvalidArgumentError(name, f"must not be longer than {LONGEST}")


@dataclass(frozen=True)
class Process:
    """What tells one process from every other: host, boot, pid namespace, pid and start time.

    `held` has the owners that tasks of this process hold right now.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: str
    held: set[str] = field(default_factory=set, compare=False)

    def new_owner(self) -> str:
        """Return the text that names a new owner in this process; no two are the same."""
        return "/".join((self.host, self.boot, self.namespace, str(self.pid), self.started, secrets.token_hex(8)))

    def knows_dead(self, owner: str) -> bool:
        """Whether an owner is known to be gone; False if that cannot be known from here."""
        if owner in self.held:
            return False
        parts = owner.split("/")
        if len(parts) != 6 or parts[:3] != [self.host, self.boot, self.namespace] or not self.started:
            return False
        if parts[3:5] == [str(self.pid), self.started]:
            return True  # of this very process, and no task holds it
        return parts[3].isdigit() and _is_gone(int(parts[3]), parts[4])


def _is_gone(pid: int, started: str) -> bool:
    """Whether there is certainly no such process any more: none of this pid, a zombie, or one that started later."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is somebody else's
    now = _start_time(pid)
    return now != "" and now != started


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; `zombie` of one, and empty if it cannot be read."""
    try:
        # The second field is the program's name in parentheses, which may hold anything; the rest follows the last one.
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = text.rpartition(")")[2].split()
    return "zombie" if state in "ZX" else rest[18]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


_this: Process | None = None


def this_process() -> Process:
    """Return the identity of the running process; another one in a forked child."""
    global _this  # noqa: PLW0603  # reason: one identity a process, replaced after a fork
    if _this is None or _this.pid != os.getpid():
        namespace = ""
        with contextlib.suppress(OSError):
            namespace = "".join(filter(str.isdigit, str(Path("/proc/self/ns/pid").readlink())))
        host = socket.gethostname().replace("/", "_")
        boot = _read("/proc/sys/kernel/random/boot_id")
        _this = Process(host, boot, namespace, os.getpid(), _start_time(os.getpid()))
    return _this


class Ownership:
    """What a bundle knows of owners: its process, its lease, what it has seen of others, and its own locks.

    Attributes:
        process: The identity that owners of this bundle carry.
        lease: The lease that they take.
        clock: The clock that leases are measured by.
        running: What runs here right now, by the key of its turn journal.
    """

    def __init__(self, clock: Clock, process: Process | None = None, lease: Lease | None = None) -> None:
        self.clock = clock
        self.lease = Lease() if lease is None else lease
        self.running: dict[str, Any] = {}
        self._process = process
        self._awaited: dict[str, list[asyncio.Future[Any]]] = {}
        self._seen: dict[str, tuple[int, float]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def process(self) -> Process:
        """The identity of the process."""
        return self._process or this_process()

    def lock(self, key: str) -> asyncio.Lock:
        """Return the lock that serves the calls on one conversation in call order within this bundle."""
        return self._locks.setdefault(key, asyncio.Lock())

    def run(self, key: str, runner: Any) -> None:
        """Enter what runs here from now on, and tell whoever waits for it."""
        self.running[key] = runner
        for waiting in self._awaited.pop(key, ()):
            if not waiting.done():
                waiting.set_result(runner)

    async def next_run(self, key: str) -> Any:
        """Wait for the next turn that begins to run here, and return what runs it."""
        waiting = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(key, []).append(waiting)
        try:
            return await waiting
        finally:
            if waiting in (others := self._awaited.get(key, [])):
                others.remove(waiting)
            if not others:
                self._awaited.pop(key, None)

    def is_live(self, found: Checkpoint | CheckpointInfo) -> bool:
        """Whether somebody owns the turn journal, as far as can be known; asking again may tell more."""
        head = found.head
        if head.owner is None or self.process.knows_dead(head.owner):
            self.forget(found.key)
            return False
        if head.lease_expires_at is not None and head.lease_expires_at + self.lease.max_clock_skew < self.clock.now():
            return False
        now = self.clock.monotonic()
        version, since = self._seen.get(found.key, (0, now))
        if version != found.version:
            since = now
        self._seen[found.key] = (found.version, since)
        length = self.lease.length if head.lease is None else head.lease
        return now - since < length.total_seconds()

    def forget(self, key: str) -> None:
        """Forget what was seen of a journal that nobody else owns now."""
        self._seen.pop(key, None)


class OwnershipLostError(PerdureError):
    """Somebody else took the turn journal; whoever held it stops without writing anything more."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"the turn journal {self.key} was taken over"


class OwnedJournal:
    """A turn journal that this task owns, and the one queue through which all of its appends go.

    The queue holds the version. An append whose outcome is unknown is repeated at the same version, so that at most
    one lands. A conflict means that the journal is no longer ours.
    """

    def __init__(
        self, ownership: Ownership, checkpoints: CheckpointStore, key: str, *, version: int, head: CheckpointHead
    ) -> None:
        self.key = key
        self.version = version
        self.head = head
        self.owner = head.owner or ""
        self._ownership = ownership
        self._checkpoints = checkpoints
        self._queue = asyncio.Lock()
        self._left: list[Record] = []
        self._doubtful: list[CheckpointHead] = []
        self._renewed = ownership.clock.monotonic()
        self._lost = False
        self._released = False

    @classmethod
    async def take(
        cls,
        ownership: Ownership,
        checkpoints: CheckpointStore,
        key: str,
        found: Checkpoint | CheckpointInfo | None,
        entries: Callable[[int], Sequence[Record]],
        head: Callable[[int], CheckpointHead],
        *,
        at: datetime | None = None,
    ) -> OwnedJournal:
        """Become the owner, by an append at the version that was read.

        Args:
            ownership: Of the bundle.
            checkpoints: Where.
            key: Which turn journal.
            found: What was read; `None` if it was absent.
            entries: Makes the entries, given the version that the journal will have.
            head: Makes the head, given that version; owner and lease are set here.
            at: The instant of the write; `None`: now.

        Raises:
            VersionConflictError: Somebody else was first; read again.
            OutcomeUnknownError: It may be ours now. An absent journal is never opened twice.
        """
        owner = ownership.process.new_owner()
        version = draw_version() if found is None else found.version + 1
        full = _renewed(ownership, replace(head(version), owner=owner))
        owned = cls(ownership, checkpoints, key, version=version - 1, head=full)
        ownership.process.held.add(owner)
        try:
            await uninterrupted(owned._open(found, list(entries(version)), version, at))
        except asyncio.CancelledError:
            if owned.version == version:  # it was written: nobody shall have to wait for a lease that nobody keeps
                with contextlib.suppress(StoreError, OwnershipLostError):
                    await owned.give_up()
            ownership.process.held.discard(owner)
            raise
        except BaseException as error:
            ownership.process.held.discard(owner)
            if isinstance(error, VersionConflictError) and isinstance(error.__cause__, OutcomeUnknownError):
                # It may have landed, been run and been closed by another; only the caller can look for its work.
                raise error.__cause__ from None
            raise
        ownership.forget(key)
        return owned

    async def append(self, entries: Sequence[Record] = (), *, at: datetime | None = None, **changes: Any) -> None:
        """Append entries and change fields of the head; renews the lease."""
        await uninterrupted(self._append(entries, at, changes))

    async def replace(self, entries: Sequence[Record], head: CheckpointHead, *, at: datetime | None = None) -> None:
        """Put entries in the place of all, set the head as given, and give the journal up."""
        await uninterrupted(self._replace(entries, head, at))

    async def delete(self) -> None:
        """Delete the journal, the last step of deleting a conversation."""
        await uninterrupted(self._delete())

    async def give_up(self, entries: Sequence[Record] = (), *, at: datetime | None = None, **changes: Any) -> None:
        """Append, and own it no longer; one that was released already is left alone."""
        if self._released:
            return
        changes |= {"owner": None, "lease": None, "lease_expires_at": None}
        try:
            await self.append(entries, at=at, **changes)
        finally:
            self.forget()

    def forget(self) -> None:
        """Stop holding it without writing anything, so that this process may take it again at once."""
        self._released = True
        self._ownership.process.held.discard(self.owner)

    def note(self, **changes: Any) -> None:
        """Change fields of the head, to be written with the next append."""
        self.head = replace(self.head, **changes)

    def leave(self, entries: Sequence[Record]) -> None:
        """Have entries that tell of something that happened, and could not be written, go out with the next append."""
        self._left.extend(entries)

    async def renew_if_lapsed(self) -> None:
        """Renew the lease if it ran out on our own clock; called right before a tool is."""
        if self._idle_for(self._ownership.lease.length):
            await self.append()

    @contextlib.asynccontextmanager
    async def heartbeat(self, lost: Callable[[], object]) -> AsyncIterator[None]:
        """Renew the lease in the background; call `lost` once when the journal is no longer ours."""
        task = asyncio.create_task(self._beat(lost))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def beat(self) -> None:
        """Renew the lease, unless another append did so lately."""
        if self._idle_for(self._ownership.lease.heartbeat):
            await uninterrupted(self._beat_in_turn())

    async def exclusively(self, action: Callable[[int], Awaitable[T]]) -> T:
        """Run an action that closes the journal at the version given to it, while no append goes out, to its end."""

        async def run() -> T:
            async with self._queue:
                self._require_ours()
                result = await action(self.version)
                self.forget()
                return result

        return await uninterrupted(run())

    async def _open(
        self, found: Checkpoint | CheckpointInfo | None, entries: list[Record], version: int, at: datetime | None
    ) -> None:
        """Write the append by which the journal becomes ours."""
        key, head = self.key, self.head
        if found is None:
            await self._checkpoints.append(key, entries, expected_version=0, head=head, at=at, version=version)
        else:
            await self.repeat(
                lambda: self._checkpoints.append(key, entries, expected_version=found.version, head=head, at=at), head
            )
        self.version = version

    async def _append(self, entries: Sequence[Record], at: datetime | None, changes: dict[str, Any]) -> None:
        async with self._queue:
            await self._append_in_turn(entries, at, changes)
            if self.head.owner is None:
                self.forget()

    async def _beat_in_turn(self) -> None:
        async with self._queue:
            # While this one waited, another append may have gone out, or have given the journal up.
            if not self._released and self._idle_for(self._ownership.lease.heartbeat):
                await self._append_in_turn((), None, {})

    async def _append_in_turn(self, entries: Sequence[Record], at: datetime | None, changes: dict[str, Any]) -> None:
        self._require_ours()
        head = replace(_renewed(self._ownership, self.head), **changes)
        left = len(self._left)
        items = [*self._left, *entries]
        try:
            await self._write(
                lambda: self._checkpoints.append(self.key, items, expected_version=self.version, head=head, at=at),
                head,
            )
        except OutcomeUnknownError:
            if not items:  # whoever appends entries stops, and whoever comes later reads them; a heartbeat just goes on
                self._doubtful.append(head)
            raise
        del self._left[:left]

    async def _replace(self, entries: Sequence[Record], head: CheckpointHead, at: datetime | None) -> None:
        async with self._queue:
            self._require_ours()
            await self._write(
                lambda: self._checkpoints.replace(self.key, entries, expected_version=self.version, head=head, at=at),
                head,
            )
            self.forget()

    async def _delete(self) -> None:
        async with self._queue:
            self._require_ours()
            try:
                await self._checkpoints.delete(self.key, expected_version=self.version)
            except VersionConflictError as error:
                self._lost = True
                raise OwnershipLostError(self.key) from error
            finally:
                self.forget()

    async def _write(self, write: Callable[[], Awaitable[int]], head: CheckpointHead) -> None:
        while True:
            began = (
                self._ownership.clock.monotonic()
            )  # the lease in the head runs from here, however long the write takes
            try:
                await self.repeat(write, head)
                break
            except VersionConflictError as error:
                if not await self._beat_landed():
                    self._lost = True
                    raise OwnershipLostError(self.key) from error
        self.version += 1
        self.head = head
        self._doubtful.clear()
        self._renewed = began

    async def _beat_landed(self) -> bool:
        """Whether a heartbeat of ours, whose outcome was unknown, has moved the version; what comes next goes behind it."""
        for head in self._doubtful:
            if await self._landed(head):
                self.version += 1
                self._doubtful.clear()
                return True
        return False

    async def repeat(self, write: Callable[[], Awaitable[object]], head: CheckpointHead) -> None:
        """Write; after an unknown outcome write once more at the same version, and on a conflict look who won.

        Args:
            write: A write at the version held, which sets the head.
            head: That head, by which a write that landed is known.

        Raises:
            VersionConflictError: Somebody else wrote.
            OutcomeUnknownError: Nobody knows.
        """
        try:
            await write()
        except OutcomeUnknownError as unknown:
            try:
                await self._write_again(write, head, unknown)
            except StoreUnavailableError:
                raise unknown from None  # the first write may have happened, whatever became of the second

    async def _write_again(
        self, write: Callable[[], Awaitable[object]], head: CheckpointHead, unknown: OutcomeUnknownError
    ) -> None:
        try:
            await write()
        except VersionConflictError as conflict:
            if not await self._landed(head):
                raise conflict from unknown

    async def _landed(self, head: CheckpointHead) -> bool:
        found = await self._checkpoints.load(self.key)
        return found is not None and found.version == self.version + 1 and found.head == head

    def _require_ours(self) -> None:
        if self._lost:
            raise OwnershipLostError(self.key)

    def _idle_for(self, length: timedelta) -> bool:
        return self._ownership.clock.monotonic() - self._renewed >= length.total_seconds()

    async def _beat(self, lost: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(self._ownership.lease.heartbeat.total_seconds())
            try:
                await self.beat()
            except OwnershipLostError:
                lost()
                return
            except StoreError:
                continue  # the store is away; whoever needs the lease renews it before it acts


def _renewed(ownership: Ownership, head: CheckpointHead) -> CheckpointHead:
    length = ownership.lease.length
    return replace(head, lease=length, lease_expires_at=ownership.clock.now() + length)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end also when the caller is cancelled meanwhile; the cancellation follows. A second one breaks in."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise asyncio.CancelledError from task.exception()
        raise
