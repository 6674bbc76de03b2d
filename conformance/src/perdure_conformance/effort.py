"""How much of a sweep is tried: each of its points, or some of them, spread evenly and the same ones each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole part, fall into the widest gap that is left: each sweep of a law begins elsewhere."""


@dataclass(slots=True)
class Effort:
    """What one trial of a law may try, and what it tried.

    A sweep is a law's way through all places at which something can happen: a process is stopped before its n-th call, or
    its n-th write fails, for every n.

    Attributes:
        most: How many points of a sweep are tried; `None`: each.
        tried: How many points were tried so far.
        points: How many there were.
    """

    most: int | None = None
    tried: int = 0
    points: int = 0
    _sweeps: int = field(default=0, init=False)

    def sweep(self, points: Sequence[T], *, telling: Sequence[T] = ()) -> list[T]:
        """Return the points of a sweep that are to be tried, in order, and note how many of how many.

        Args:
            points: All points, in order.
            telling: Those of them that tell most; where not all points are tried, these come before all others.
        """
        count = len(points) if self.most is None else min(self.most, len(points))
        shift = self._sweeps * GOLDEN % 1
        self._sweeps += 1
        self.tried += count
        self.points += len(points)
        if count == len(points):
            return list(points)
        first = _spread(telling, min(count, len(telling)), shift)
        others = [point for point in points if point not in telling]
        return sorted([*first, *_spread(others, count - len(first), shift)], key=points.index)


def _spread(points: Sequence[T], count: int, shift: float) -> list[T]:
    """Return so many points, spread evenly; the last one, which ends what was begun, always."""
    if count == 0:
        return []
    *others, last = points
    step = len(others) / max(count - 1, 1)
    return [*(others[int((number + shift) * step)] for number in range(count - 1)), last]
