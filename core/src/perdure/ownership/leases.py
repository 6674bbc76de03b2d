"""Who owns a conversation: the identity of a process, and leases.

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
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from perdure.errors import InvalidArgumentError, PerdureError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from perdure.clock import Clock
    from perdure.contracts.checkpoints import Checkpoint, CheckpointHead, CheckpointInfo

TICK: Final = timedelta(microseconds=1)
LONGEST: Final = timedelta(days=366)
MOST_SEEN: Final = 10_000
"""How many journals of live owners are remembered: what is not asked for again would stay as long as the process."""


class OwnershipLostError(PerdureError):
    """Somebody else took the turn journal; whoever held it stops without writing anything more."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"the turn journal {self.key} was taken over"


def unowned_head(head: CheckpointHead) -> CheckpointHead:
    """Return the head of a journal that nobody owns any more."""
    return replace(head, owner=None, lease=None, lease_expires_at=None)


@dataclass(frozen=True, slots=True)
class Lease:
    """How long an owner's lease is, how often it is renewed, and how far the clocks of two hosts may differ.

    Attributes:
        length: How long, more than 0.
        heartbeat: The time between renewals, more than 0.
        max_clock_skew: How much longer than `length` another host waits before it takes a turn over, 0 or more.
    """

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
        return parts[3].isdecimal() and _is_gone(int(parts[3]), parts[4])


def _is_gone(pid: int, started: str) -> bool:
    """Whether there is certainly no such process any more: none of this pid, a zombie, or one that started later."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # a number that is no pid has no process
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


class Line:
    """Those who wait to be served, one after another, in the order in which they came.

    A lock in which one takes a place at once, and may do something else until it is one's turn.
    """

    def __init__(self) -> None:
        self._places: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many stand in line, the one that is being served included."""
        return len(self._places)

    def enter(self) -> asyncio.Future[None]:
        """Take a place; it is done when it is its turn. Whoever takes one leaves it, whatever happens."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._places.append(place)
        self._call_first()
        return place

    def leave(self, place: asyncio.Future[None]) -> None:
        """Give a place up, whether it was its turn or not."""
        self._places.remove(place)
        self._call_first()

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Wait for one's turn, and let nobody else be served until the block is left."""
        place = self.enter()
        try:
            await place
            yield
        finally:
            self.leave(place)

    def _call_first(self) -> None:
        if self._places and not self._places[0].done():  # one that was cancelled leaves soon, which calls the next
            self._places[0].set_result(None)


class Ownership:
    """What a bundle knows of owners: its process, its lease, what it has seen of others, and its own locks.

    Attributes:
        process: The identity that owners of this bundle carry.
        lease: The lease that they take.
        clock: The clock that leases are measured by.
        running: What runs here right now, by the key of its turn journal.
        serving: What stands for the call on a conversation that is being served, by the same key.
        waits: The conversations that are waited for within such a call, by what stands for it.
    """

    def __init__(self, clock: Clock, process: Process | None = None, lease: Lease | None = None) -> None:
        self.clock = clock
        self.lease = Lease() if lease is None else lease
        self.running: dict[str, Any] = {}
        self.serving: dict[str, object] = {}
        self.waits: dict[object, list[str]] = {}
        self._process = process
        self._awaited: dict[str, list[asyncio.Future[Any]]] = {}
        self._seen: dict[str, tuple[int, float]] = {}
        self._lines: WeakValueDictionary[str, Line] = WeakValueDictionary()

    @property
    def process(self) -> Process:
        """The identity of the process."""
        return self._process or this_process()

    def line(self, key: str) -> Line:
        """Return the line in which the calls on one conversation stand, within this bundle."""
        return self._lines.setdefault(key, Line())

    def run(self, key: str, runner: Any) -> None:
        """Enter what runs here from now on, and tell whoever waits for it."""
        self.running[key] = runner
        for waiting in self._awaited.pop(key, ()):
            if not waiting.done():
                waiting.set_result(runner)

    @contextlib.contextmanager
    def next_run(self, key: str) -> Iterator[asyncio.Future[Any]]:
        """Have a future that gets what runs the next turn that begins here."""
        waiting = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(key, []).append(waiting)
        try:
            yield waiting
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
        if head.lease_expires_at is not None and self.clock.now() - head.lease_expires_at > self.lease.max_clock_skew:
            return False
        now = self.clock.monotonic()
        version, since = self._seen.pop(found.key, (0, now))
        if version != found.version:
            since = now
        self._seen[found.key] = (found.version, since)
        if len(self._seen) > MOST_SEEN:
            self.forget(next(iter(self._seen)))  # nobody has asked for that one for the longest time
        length = self.lease.length if head.lease is None else head.lease
        return now - since < length.total_seconds()

    def forget(self, key: str) -> None:
        """Forget what was seen of a journal that nobody else owns now."""
        self._seen.pop(key, None)
