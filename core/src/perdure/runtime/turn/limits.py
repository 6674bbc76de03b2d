"""What a turn or a conversation may spend, and what it has spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from perdure.errors import InvalidArgumentError
from perdure.runtime.messages import Usage
from perdure.runtime.results import LIMIT, MAX_STEPS

if TYPE_CHECKING:
    from perdure.contracts.records import Record


@dataclass(frozen=True, slots=True)
class Spent:
    """What a turn or a conversation has spent.

    Attributes:
        usage: Of the model.
        steps: How many responses of the model.
        seconds: How long turns have run; the time in which one waits for a human, or for a process, does not count.
    """

    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.usage + other.usage, self.steps + other.steps, self.seconds + other.seconds)

    def to_record(self) -> Record:
        """Return it as a JSON object."""
        return {**self.usage.to_record(), "steps": self.steps, "seconds": float(self.seconds)}

    @classmethod
    def from_record(cls, record: Record) -> Spent:
        """Make it of a JSON object; what is missing counts nothing."""
        return cls(Usage.from_record(record), record.get("steps", 0), record.get("seconds", 0.0))


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent: by each turn if an agent has them, by the whole conversation if a session does.

    A limit that is met ends the turn after the calls of its last response were answered. `None`: no limit. Those of a
    conversation stand in the journal of each turn: it keeps the limits that it began with, whoever finishes it.

    Attributes:
        max_steps: How many responses of the model (`finish_reason="max-steps"`; of the others, `"limit"`).
        max_tokens: How many tokens, read and written together, as the model counts them.
        max_cost_usd: What the model may cost, in US dollars.
        max_seconds: How long it may run, in seconds; a request of the model that takes longer is given up.
    """

    max_steps: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidArgumentError(name, "must be a whole number of 1 or more, or None for no limit")
        for name in ("max_cost_usd", "max_seconds"):
            value = getattr(self, name)
            if value is not None and (type(value) not in (int, float) or not math.isfinite(value) or value <= 0):
                raise InvalidArgumentError(name, "must be a number of more than 0, or None for no limit")

    def to_record(self) -> Record:
        """Return them as a JSON object, without those that are none."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}

    @classmethod
    def from_record(cls, record: Record) -> Limits:
        """Make them of a JSON object; of those that a later release knows, nothing is known here."""
        return cls(**{name: record[name] for name in _NAMES if name in record})

    def met(self, spent: Spent) -> tuple[str, float, float] | None:
        """Return the first limit that is met: its name, what was spent, and what is allowed."""
        usage = spent.usage
        for name, value in (
            ("max_steps", spent.steps),
            ("max_tokens", usage.input_tokens + usage.output_tokens),
            ("max_cost_usd", usage.cost_usd),
            ("max_seconds", spent.seconds),
        ):
            allowed = getattr(self, name)
            if allowed is not None and value >= allowed:
                return name, value, allowed
        return None

    def seconds_left(self, spent: Spent) -> float | None:
        """Return for how much longer it may run, in seconds; `None`: without end."""
        return None if self.max_seconds is None else max(0.0, self.max_seconds - spent.seconds)


_NAMES: Final = tuple(item.name for item in fields(Limits))


def finish_reason(limit: str) -> str:
    """Return why a turn ends when it has met a limit."""
    return MAX_STEPS if limit == "max_steps" else LIMIT


def check_limits(value: object) -> Limits:
    """Return limits, none given counting as no limit, or raise `InvalidArgumentError`."""
    if value is None:
        return Limits()
    if not isinstance(value, Limits):
        raise InvalidArgumentError("limits", f"must be Limits, not a {type(value).__name__}")
    return value
