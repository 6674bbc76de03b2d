"""Figures: what was measured, against what, with which durability, and what it must reach."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Goal:
    """What a ratio must reach: at least, or at most, so much."""

    bound: float
    kind: Literal["at least", "at most"]

    def met(self, ratio: float) -> bool:
        """Whether a ratio reaches it."""
        return ratio >= self.bound if self.kind == "at least" else ratio <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.kind == 'at least' else '≤'} {self.bound:g}"


def at_least(bound: float) -> Goal:
    """A rate must be so much of the anchor's."""
    return Goal(bound, "at least")


def at_most(bound: float) -> Goal:
    """A time, or a size, must be no more than so much of the anchor's."""
    return Goal(bound, "at most")


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        what: What was measured.
        anchor: What it was measured against; for a missing anchor, what is missing.
        durability: When a write counts as done, on both sides.
        unit: Of `ours` and `theirs`.
        ours: The median of what we took.
        theirs: The median of what the anchor took; `None`: it is missing, or there is none.
        ratios: Of each pair, ours to the anchor's; of a rate, the anchor's time to ours.
        goal: What the median of the ratios must reach; `None`: it is reported.
    """

    what: str
    anchor: str
    durability: str
    unit: str
    ours: float
    theirs: float | None = None
    ratios: Sequence[float] = field(default=(), repr=False)
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """The median of the ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The quartiles of the ratios."""
        if len(self.ratios) < 4:
            return None
        first, _, third = statistics.quantiles(self.ratios, n=4)
        return first, third

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; `None`: there is no goal, or no anchor."""
        return None if self.goal is None or self.ratio is None else self.goal.met(self.ratio)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, with what follows from it."""
        spread = self.spread
        return asdict(self) | {
            "ratios": [_short(ratio) for ratio in self.ratios],
            "ours": _short(self.ours),
            "theirs": None if self.theirs is None else _short(self.theirs),
            "goal": None if self.goal is None else str(self.goal),
            "ratio": None if self.ratio is None else _short(self.ratio),
            "spread": None if spread is None else [_short(one) for one in spread],
            "met": self.met,
        }


def _short(number: float) -> float:
    """Keep four figures that count."""
    return float(f"{number:.4g}")
