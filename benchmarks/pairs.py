"""Two works timed in turn in one run, so that what else the machine does falls on both."""

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure, Goal

Work = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Pairs:
    """What the pairs took: seconds a call, ours and the anchor's."""

    ours: list[float]
    theirs: list[float]

    def figure(
        self, what: str, *, anchor: str, durability: str, goal: Goal | None = None, rate: bool = False
    ) -> Figure:
        """Make the figure: of times, or of rates, which are the other way round."""
        ratios = [own / other for own, other in zip(self.ours, self.theirs, strict=True)]
        return Figure(
            what=what,
            anchor=anchor,
            durability=durability,
            unit="µs",
            ours=statistics.median(self.ours) * 1e6,
            theirs=statistics.median(self.theirs) * 1e6,
            ratios=[1 / ratio for ratio in ratios] if rate else ratios,
            goal=goal,
        )


async def in_turn(ours: Work, theirs: Work, *, pairs: int, calls: int) -> Pairs:
    """Time two works in turn, so many calls each; who begins alternates. One pair before the first is not counted.

    Args:
        ours: One call of what is measured.
        theirs: One call of the anchor.
        pairs: How many pairs.
        calls: How many calls of each a pair has.
    """
    found = Pairs([], [])
    for number in range(pairs + 1):
        sides = [(ours, found.ours), (theirs, found.theirs)]
        for work, times in sides if number % 2 else reversed(sides):
            took = await _timed(work, calls)
            if number:
                times.append(took)
    return found


async def alone(ours: Work, *, pairs: int, calls: int) -> list[float]:
    """Time a work that has no anchor: seconds a call."""
    await _timed(ours, calls)
    return [await _timed(ours, calls) for _ in range(pairs)]


async def _timed(work: Work, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        await work()
    return (time.perf_counter() - begin) / calls
