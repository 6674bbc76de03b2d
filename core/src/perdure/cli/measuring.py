"""What `perdure bench` measures: each figure is of calls that were repeated for a share of the time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from perdure.bundle import AgentStore
from perdure.contracts.records import Record

AT_ONCE: Final = 8
LONG: Final = 1_000
SESSIONS: Final = 200
LEAST: Final = 3
"""How often a call is measured at the least, however slow it is."""

_RECORD: Final[Record] = {"kind": "bench", "text": "x" * 1_000}

Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured.

    Attributes:
        what: The call.
        calls: How often it was made.
        per_second: Calls per second, all tasks together.
        median_ms: How long half of the calls took at the most, in milliseconds.
        p95_ms: The same for 95 of 100.
    """

    what: str
    calls: int
    per_second: float
    median_ms: float
    p95_ms: float


async def measure(store: AgentStore, seconds: float) -> list[Measured]:
    """Measure a store that is empty, for about so many seconds; what is written stays."""
    sessions = store.sessions
    share = seconds / 7
    figures = [await _timed("append 1 KiB", [_append(store, "one")], share * 2)]
    several = [_append(store, f"several-{number}") for number in range(AT_ONCE)]
    figures.append(await _timed(f"append 1 KiB, {AT_ONCE} sessions at once", several, share))
    await sessions.append("long", [_RECORD] * LONG, expected_version=0)
    figures.append(await _timed(f"load {LONG} records", [lambda: sessions.load("long")], share))
    figures.append(await _timed(f"load the newest 20 of {LONG}", [lambda: sessions.load("long", last=20)], share))
    await _fill(store, share)
    there = len((await sessions.list(limit=SESSIONS)).items)
    listing = [lambda: sessions.list(order="recent", limit=50)]
    figures.append(await _timed(f"list 50 of {there} sessions", listing, share))
    return figures


def _append(store: AgentStore, session_id: str) -> Work:
    """Return an append that expects the version that the one before has made, as a turn does."""
    version = 0

    async def append() -> None:
        nonlocal version
        version = await store.sessions.append(session_id, [_RECORD], expected_version=version)

    return append


async def _fill(store: AgentStore, seconds: float) -> None:
    """Make sessions to list, as many as are made in the time."""
    end = time.perf_counter() + seconds
    for number in range(SESSIONS):
        await store.sessions.append(f"listed-{number}", [], expected_version=0)
        if time.perf_counter() > end:
            return


async def _timed(what: str, works: Sequence[Work], seconds: float) -> Measured:
    """Repeat each of several works in a task of its own, until the time is over."""
    began = time.perf_counter()
    took = [one for many in await asyncio.gather(*(_repeat(work, began + seconds) for work in works)) for one in many]
    elapsed = time.perf_counter() - began
    middle = statistics.median(took) * 1000
    return Measured(what, len(took), len(took) / elapsed, middle, statistics.quantiles(took, n=20)[-1] * 1000)


async def _repeat(work: Work, end: float) -> list[float]:
    took: list[float] = []
    while len(took) < LEAST or time.perf_counter() < end:
        begin = time.perf_counter()
        await work()
        took.append(time.perf_counter() - begin)
    return took
