"""A grade of the kit as data, and as text: which stores that are broken on purpose it catches, and how."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from perdure_conformance.reports.model import Data, Versions
from perdure_conformance.reports.text import section

SCHEMA: Final = "perdure-conformance-grade/1"
"""The version of the JSON. A field may be added to a version; none is removed or changes its meaning."""


HEADER = ("law", "planted store", "by this law", "by any law", "seeds", "median calls")
"""What stands above the cells of `rows_of`."""


class CatchData(Data):
    """What one law made of one planted store.

    Attributes:
        law: The law.
        caught: With how many seeds it failed, as it is meant to.
        calls: How many calls of the store it took, the median of those seeds; `None` if there are none.
        message: How it failed with the first of them, in its first line; empty if it did not.
    """

    law: str
    caught: int
    calls: float | None
    message: str


class PlantedData(Data):
    """What became of one planted store.

    Attributes:
        name: Its name, for what is wrong with it.
        seeds: With how many seeds it was tried.
        own: What the laws made of it that are named for it.
        caught: With how many seeds any law caught it.
        others: The laws that caught it where none of its own did, the first of each such seed.
    """

    name: str
    seeds: int
    own: tuple[CatchData, ...]
    caught: int
    others: tuple[str, ...]

    @property
    def caught_by_own(self) -> bool:
        """Whether each of its own laws caught it with every seed."""
        return all(one.caught == self.seeds for one in self.own)

    @property
    def caught_by_any(self) -> bool:
        """Whether some law caught it with every seed."""
        return self.caught == self.seeds


class AlarmData(Data):
    """A law that failed on a store that is right."""

    law: str
    seed: int
    message: str


class CleanData(Data):
    """What became of a store that is right.

    Attributes:
        target: The store.
        seeds: With how many seeds each law was tried that draws cases.
        drawn: How many laws draw cases.
        rounds: How often each of the other laws was tried.
        fixed: How many those are.
        trials: How many trials passed or failed; the others were not claimed or not run.
        alarms: Those that failed.
    """

    target: str
    seeds: int
    drawn: int
    rounds: int
    fixed: int
    trials: int
    alarms: tuple[AlarmData, ...]


class Grade(Data):
    """What grading the kit found.

    Attributes:
        schema_version: The version of this form.
        versions: What was graded.
        profile: How much of a law was tried.
        started_at: When it began.
        seconds: How long it took.
        planted: What became of each planted store.
        clean: What became of the store that is right; `None` if none was asked for.
        exit_code: What the command ends with.
    """

    schema_version: Literal["perdure-conformance-grade/1"] = SCHEMA
    versions: Versions
    profile: str
    started_at: datetime
    seconds: float
    planted: tuple[PlantedData, ...]
    clean: CleanData | None
    exit_code: int


def grade_text(grade: Grade, *, every_store: bool = True) -> str:
    """Return a grade as text.

    Args:
        grade: The grade.
        every_store: Show each planted store, not only those that were missed.
    """
    shown = [one for one in grade.planted if every_store or not one.caught_by_own]
    rows = [HEADER, *(row for planted in shown for row in rows_of(planted))]
    return "\n\n".join(filter(None, [section("planted stores", rows) if shown else "", *_ends(grade)]))


def rows_of(planted: PlantedData) -> list[tuple[str, ...]]:
    """Return what each law made of a planted store that is named for it, as cells."""
    return [
        (
            one.law,
            planted.name,
            str(one.caught),
            str(planted.caught),
            str(planted.seeds),
            "-" if one.calls is None else f"{one.calls:g}",
        )
        for one in planted.own
    ]


def _ends(grade: Grade) -> list[str]:
    ends = []
    if grade.planted:
        own = sum(one.caught_by_own for one in grade.planted)
        caught = sum(one.caught_by_any for one in grade.planted)
        count = len(grade.planted)
        ends.append(
            f"{counted(count, 'planted store')}, profile {grade.profile}: {own} caught by each law that is named for "
            f"{'it' if count == 1 else 'them'}, {caught} by any law ({100 * caught / count:.1f} %)"
        )
    ends += [
        f"{planted.name}: other laws caught it: {', '.join(dict.fromkeys(planted.others))}"
        for planted in grade.planted
        if planted.others
    ]
    if grade.clean is not None:
        clean = grade.clean
        ends.append(
            f"{clean.target}: {counted(clean.drawn, 'law')} with {counted(clean.seeds, 'seed')}, "
            f"{counted(clean.fixed, 'law')} {counted(clean.rounds, 'time')}: "
            f"{counted(len(clean.alarms), 'false alarm')} in {counted(clean.trials, 'trial')}"
        )
        ends += [f"FALSE ALARM {alarm.law}, seed {alarm.seed}\n  {alarm.message}" for alarm in clean.alarms]
    ends.append(f"graded in {grade.seconds:.1f} s")
    return ends


def counted(number: int, name: str) -> str:
    """Return a number of things, by the name of one."""
    return f"{number} {name}{'s'[: number != 1]}"
