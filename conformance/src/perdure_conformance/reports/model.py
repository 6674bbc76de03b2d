"""A report as data. Its JSON is what `--json` writes; every other form of a report is made from it."""

from __future__ import annotations

import re
from datetime import date, datetime
from enum import IntEnum, StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from perdure_conformance.levels import Standing
from perdure_conformance.runner import Outcome

SCHEMA: Final = "perdure-conformance-report/1"
"""The version of the JSON. A field may be added to a version; none is removed or changes its meaning."""


class ExitCode(IntEnum):
    """How the command ends."""

    HELD = 0
    LAW_FAILED = 1
    WRONG_USE = 2
    NOTHING_RUN = 3
    OPENER_FAILED = 4
    CUT = 5


class Data(BaseModel):
    """Base of everything in a report."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CallData(Data):
    """One call that a law made: as Python, and what came."""

    text: str
    answer: str


class FailureData(Data):
    """How a law failed.

    Attributes:
        what: What was looked at.
        where: The first place that differs inside of it, such as `.records[2].score`; empty: all of it.
        expected: What the contract promises, with its type where that differs.
        got: What came.
        why: Why it matters.
        case: The drawn case, the smallest that was found, as Python; `None` for a law that draws none.
        calls: The calls that the law made, the last ones.
        calls_left_out: How many came before those.
        seed: The seed of the round that it failed in.
        replay: The command that tries it again.
        test: A test module that fails in the same way; `None` if the law needs more than one process.
    """

    what: str
    where: str
    expected: str
    got: str
    why: str
    case: str | None
    calls: tuple[CallData, ...]
    calls_left_out: int
    seed: int
    replay: str
    test: str | None


class ExcuseData(Data):
    """The entry of the known failures that names a law, and whether it holds.

    Attributes:
        reason: Why the law is broken.
        link: Where that is followed up.
        expires: The last day on which it is excused.
        problem: Why the entry is an error: the law passed, or the day is over; empty if it excuses.
    """

    reason: str
    link: str
    expires: date
    problem: str


class LawData(Data):
    """What became of one law.

    Attributes:
        id: The law.
        sentence: What it says.
        area: What it is about.
        parts: The stores that it is about; none: all together.
        needs: The capabilities that switch it on.
        promise: The number of the promise in the contract, or `None`.
        since: The version of the kit that it came in with.
        outcome: What became of it.
        message: Why it failed, was not claimed or was not run; empty if it passed.
        rounds: How often it was tried.
        seconds: How long that took.
        tried: At how many points it stopped or failed a call; 0 for a law that does not sweep over such.
        points: How many such points there were.
        excuse: Its entry among the known failures.
        failure: How it failed.
    """

    id: str
    sentence: str
    area: str
    parts: tuple[str, ...]
    needs: tuple[str, ...]
    promise: int | None
    since: str
    outcome: Outcome
    message: str
    rounds: int
    seconds: float
    tried: int = 0
    points: int = 0
    excuse: ExcuseData | None
    failure: FailureData | None

    @property
    def is_error(self) -> bool:
        """Whether it makes the check fail: it failed without an excuse, or its excuse is wrong."""
        if self.excuse is not None:
            return bool(self.excuse.problem)
        return self.outcome is Outcome.FAILED


class LevelData(Data):
    """What became of one level."""

    name: str
    meaning: str
    standing: Standing
    passed: int
    laws: int
    why: str


class Versions(Data):
    """What was tested by what."""

    kit: str
    perdure: str
    contract: int
    python: str


class ProfileData(Data):
    """How the laws were tried.

    Attributes:
        name: The profile.
        examples: How many cases a law draws that is tried on many.
        points: How many points of each sweep are tried; `None`: each.
        rounds: How often every law was to be tried.
        seeds: The seed of each round.
        max_time: The limit of the whole check, in seconds.
    """

    name: str
    examples: int
    points: int | None = None
    rounds: int
    seeds: tuple[int, ...]
    max_time: float


class Verdict(StrEnum):
    """The check as a whole."""

    HELD = "held"
    FAILED = "failed"
    NOTHING_RUN = "nothing was run"
    OPENER_FAILED = "the opener failed"
    CUT = "cut"


class Report(Data):
    """What a check found.

    Attributes:
        schema_version: The version of this form.
        target: The store under test, as it was named, without secrets.
        verdict: The check as a whole.
        exit_code: What the command ends with.
        versions: What was tested by what.
        profile: How the laws were tried.
        started_at: When the check began.
        seconds: How long it took.
        capabilities: What each part declares that the store has.
        levels: What became of each level.
        not_tested: What this check says nothing about, in sentences.
        laws: What became of each law that was chosen.
    """

    schema_version: Literal["perdure-conformance-report/1"] = SCHEMA
    target: str
    verdict: Verdict
    exit_code: int
    versions: Versions
    profile: ProfileData
    started_at: datetime
    seconds: float
    capabilities: dict[str, dict[str, bool]]
    levels: tuple[LevelData, ...]
    not_tested: tuple[str, ...]
    laws: tuple[LawData, ...]

    def count(self, outcome: Outcome) -> int:
        """Return how many laws ended so."""
        return sum(law.outcome is outcome for law in self.laws)

    @property
    def errors(self) -> tuple[LawData, ...]:
        """The laws that make the check fail."""
        return tuple(law for law in self.laws if law.is_error)


_MESSAGE = re.compile(
    r"(?P<what>.*?)(?: at (?P<where>[.\[].*?))?: expected (?P<expected>.*?),? (?:got|but) (?P<got>.*)", re.DOTALL
)


def taken_apart(message: str) -> tuple[str, str, str, str]:
    """Return what was looked at, where in it, what was expected and what came, from the message of a failed law.

    A message that is worded in another way is all about what came.
    """
    found = _MESSAGE.fullmatch(message)
    if found is None:
        return "", "", "", message
    return found["what"], found["where"] or "", found["expected"], found["got"]
