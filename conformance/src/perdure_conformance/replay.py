"""Replay: one failure of a report, tried again exactly as it was tried."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from perdure_conformance.checking import Plan
from perdure_conformance.laws.register import all_laws
from perdure_conformance.profiles import Profile
from perdure_conformance.reports.model import LawData, Report
from perdure_conformance.resolve import find_target

SCHEMA: Final = "perdure-conformance-case/1"


class CaseError(ValueError):
    """A file is no case that can be replayed; the message says why."""


class Case(BaseModel):
    """What replays one failure.

    Attributes:
        schema_version: The version of this form.
        target: The store, as it was named, without secrets.
        law: The law that failed.
        examples: How many cases it draws.
        points: How many points of each sweep it tries; `None`: each.
        seed: The seed of its round.
        case: The drawn case that it failed on, for the reader; the seed finds it again.
        message: What was expected and what came.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal["perdure-conformance-case/1"] = SCHEMA
    target: str
    law: str
    examples: int
    points: int | None = None
    seed: int
    case: str | None
    message: str

    @classmethod
    def of(cls, report: Report, law: LawData) -> Self:
        """Return the case of a failure."""
        assert law.failure is not None
        return cls(
            target=report.target,
            law=law.id,
            examples=report.profile.examples,
            points=report.profile.points,
            seed=law.failure.seed,
            case=law.failure.case,
            message=law.message,
        )

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a case from its file.

        Raises:
            CaseError: It is not there, or is none.
        """
        try:
            case = cls.model_validate_json(file.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise CaseError(f"{file}: {place or 'the file'}: {first['msg']}") from error
        except OSError as error:
            raise CaseError(f"{file}: {error}") from error
        if case.law not in {law.id for law in all_laws()}:
            raise CaseError(f"{file}: this release has no law {case.law!r}")
        return case

    def plan(self, target: str | None = None) -> Plan:
        """Return the plan that tries the law again.

        Args:
            target: Another store than the one of the case; needed where its URL has a secret.

        Raises:
            TargetError: The text names no target.
        """
        profile = Profile("replay", "", self.examples, self.points, rounds=1, max_time=600, seed=self.seed)
        return Plan(find_target(target or self.target), profile, only=[self.law])
