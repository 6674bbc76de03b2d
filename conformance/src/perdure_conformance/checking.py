"""A whole check: the opener first, then the laws in rounds, then the report."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from importlib import metadata

from perdure.contracts.hookspecs import CONTRACT
from perdure_conformance import processes
from perdure_conformance.bench import Bench
from perdure_conformance.known_failures import KnownFailure
from perdure_conformance.laws.opening import namespaces_make_places
from perdure_conformance.laws.register import Law, all_laws
from perdure_conformance.levels import PARTS, Declared, Standing, grants
from perdure_conformance.profiles import Profile
from perdure_conformance.reports.failures import failure_data, replay_command
from perdure_conformance.reports.model import (
    ExcuseData,
    ExitCode,
    FailureData,
    LawData,
    LevelData,
    ProfileData,
    Report,
    Verdict,
    Versions,
)
from perdure_conformance.resolve import Named
from perdure_conformance.runner import CUT, Outcome, run_law
from perdure_conformance.runner import Verdict as LawVerdict

OPENING = "opening"
"""The area of the laws about the opener, which every other law takes for granted."""

OPENER_LAW = "opener-opens"
NOT_TRIED = "it was not tried: the opener failed"


@dataclass(frozen=True)
class Plan:
    """What to check, and how.

    Attributes:
        named: The store under test.
        profile: How the laws are tried.
        only: The ids of the laws to try; `None`: all.
        known: The known failures, by law.
        today: The day by which known failures expire.
    """

    named: Named
    profile: Profile
    only: Sequence[str] | None = None
    known: Mapping[str, KnownFailure] = field(default_factory=dict)
    today: date = field(default_factory=lambda: datetime.now(UTC).date())

    def laws(self) -> list[Law]:
        """Return the laws to try, those about the opener first.

        Raises:
            KeyError: An id of `only` names no law.
        """
        known = {law.id: law for law in all_laws()}
        chosen = list(known.values()) if self.only is None else [known[name] for name in dict.fromkeys(self.only)]
        return sorted(chosen, key=lambda law: law.area != OPENING)


@dataclass
class Tried:
    """What became of one law in all rounds."""

    law: Law
    verdict: LawVerdict | None = None
    failure: FailureData | None = None
    rounds: int = 0
    seconds: float = 0.0
    tried: int = 0
    points: int = 0

    def take(self, verdict: LawVerdict) -> None:
        """Add one round. What was cut takes nothing from rounds that were not."""
        self.seconds += verdict.seconds
        if verdict.outcome is Outcome.NOT_RUN and self.rounds:
            return
        self.rounds += verdict.outcome in (Outcome.PASSED, Outcome.FAILED)
        self.verdict = verdict
        self.tried, self.points = verdict.tried, verdict.points

    @property
    def done(self) -> bool:
        """Whether another round could tell nothing new: it did not pass, or was tried at each of its points.

        What is killed by time too, as durable stores are, dies elsewhere in each round.
        """
        if self.verdict is None:
            return False
        whole = 0 < self.points == self.tried and "durable" not in self.law.needs
        return whole or self.verdict.outcome is not Outcome.PASSED


Listener = Callable[[int, int, LawVerdict], None]
"""Told after each trial: which it was, of how many, and what became of it."""


class Check:
    """One run of a plan."""

    def __init__(self, plan: Plan, listener: Listener | None = None) -> None:
        """Prepare; nothing is opened yet."""
        self.plan = plan
        self._listener = listener
        self._tried = [Tried(law) for law in plan.laws()]
        self._declared: dict[str, dict[str, bool]] = {}
        self._trials = 0
        self._was_cut = False
        self._opener_failed = False

    def run(self) -> Report:
        """Try the laws and return the report."""
        self._began = time.perf_counter()
        self._started_at = datetime.now(UTC)
        seeds = self.plan.profile.seeds()
        if self.plan.only is None:
            processes.prepare()
        self._look(seeds[0])
        if not (self._opener_failed or self._was_cut):
            self._rounds(seeds)
        return self._report(seeds)

    # --- the opener ---

    def _look(self, seed: int) -> None:
        """Open the store once, and note what it declares."""
        law = Law(
            OPENER_LAW, "The opener opens a store at a fresh place, and the store closes.", OPENING, self._note, ()
        )
        verdict = run_law(self.plan.named.target, law, time_left=self._time_left())
        if verdict.outcome is not Outcome.PASSED:
            opener = Tried(law)
            self._take(opener, verdict, seed)
            self._tried.insert(0, opener)
            self._was_cut = _is_cut(verdict)
            self._opener_failed = not self._was_cut

    async def _note(self, bench: Bench) -> None:
        for part in PARTS:
            if part in bench.store:
                declared = bench.capabilities(part)
                self._declared[part] = {name: getattr(declared, name) for name in declared.__dataclass_fields__}
        template = self.plan.named.target.template
        if template is not None and "{dir}" not in template and "{place}" not in template:
            await namespaces_make_places(bench, self.plan.named.text)

    # --- the rounds ---

    def _rounds(self, seeds: Sequence[int]) -> None:
        total = len(self._tried) * len(seeds)
        for seed in seeds:
            for tried in self._tried:
                if self._opener_failed and tried.law.area != OPENING:
                    return
                if tried.done:
                    total -= 1
                    continue
                if self._time_left() <= 0:
                    self._was_cut = True
                    return
                self._try(tried, seed, total)

    def _try(self, tried: Tried, seed: int, total: int) -> None:
        profile = self.plan.profile
        verdict = run_law(
            self.plan.named.target,
            tried.law,
            seed=seed,
            examples=profile.examples if tried.law.cases is not None else None,
            points=profile.points,
            time_left=self._time_left(),
        )
        self._take(tried, verdict, seed)
        self._trials += 1
        if tried.law.area == OPENING and verdict.outcome is Outcome.FAILED:
            self._opener_failed = True
        if self._listener is not None:
            self._listener(self._trials, total, verdict)

    def _take(self, tried: Tried, verdict: LawVerdict, seed: int) -> None:
        """Add one round, and tell at once how it failed: of what was cut a thread may be left that goes on meanwhile."""
        tried.take(verdict)
        if verdict.outcome is Outcome.FAILED:
            tried.failure = self._failure(verdict, seed)

    def _time_left(self) -> float:
        return self.plan.profile.max_time - (time.perf_counter() - self._began)

    # --- the report ---

    def _report(self, seeds: Sequence[int]) -> Report:
        laws = tuple(self._law(tried) for tried in self._tried)
        verdict, code = self._verdict(laws)
        profile = self.plan.profile
        levels = _levels(laws, self._declared)
        return Report(
            target=self.plan.named.text,
            verdict=verdict,
            exit_code=code,
            versions=versions(),
            profile=ProfileData(
                name=profile.name,
                examples=profile.examples,
                points=profile.points,
                rounds=profile.rounds,
                seeds=tuple(seeds),
                max_time=profile.max_time,
            ),
            started_at=self._started_at,
            seconds=round(time.perf_counter() - self._began, 3),
            capabilities=self._declared,
            levels=levels,
            not_tested=tuple(self._not_tested(levels, laws)),
            laws=laws,
        )

    def _law(self, tried: Tried) -> LawData:
        law, verdict = tried.law, tried.verdict
        outcome = Outcome.NOT_RUN if verdict is None else verdict.outcome
        message = (NOT_TRIED if self._opener_failed else CUT) if verdict is None else verdict.message
        return LawData(
            id=law.id,
            sentence=law.sentence,
            area=law.area,
            parts=law.parts,
            needs=law.needs,
            promise=law.promise,
            since=law.since,
            outcome=outcome,
            message=message,
            rounds=tried.rounds,
            seconds=round(tried.seconds, 3),
            tried=tried.tried,
            points=tried.points,
            excuse=self._excuse(law.id, outcome),
            failure=tried.failure,
        )

    def _failure(self, verdict: LawVerdict, seed: int) -> FailureData:
        named, profile = self.plan.named, self.plan.profile
        law = None if verdict.law.id == OPENER_LAW else verdict.law.id
        return failure_data(named, verdict, seed, replay_command(named.text, law, profile.name, seed))

    def _excuse(self, law: str, outcome: Outcome) -> ExcuseData | None:
        known = self.plan.known.get(law)
        if known is None:
            return None
        problem = ""
        if outcome is Outcome.PASSED:
            problem = "the law passed: remove it from the known failures"
        elif known.expires < self.plan.today:
            problem = f"it is excused until {known.expires.isoformat()} only"
        return ExcuseData(reason=known.reason, link=known.link, expires=known.expires, problem=problem)

    def _verdict(self, laws: Iterable[LawData]) -> tuple[Verdict, ExitCode]:
        if self._opener_failed:
            return Verdict.OPENER_FAILED, ExitCode.OPENER_FAILED
        if any(law.is_error for law in laws):
            return Verdict.FAILED, ExitCode.LAW_FAILED
        if any(_is_cut(law) for law in laws):
            return Verdict.CUT, ExitCode.CUT
        if not any(law.outcome in (Outcome.PASSED, Outcome.FAILED) for law in laws):
            return Verdict.NOTHING_RUN, ExitCode.NOTHING_RUN
        return Verdict.HELD, ExitCode.HELD

    def _not_tested(self, levels: Sequence[LevelData], laws: Sequence[LawData]) -> Iterable[str]:
        for level in levels:
            if level.standing is Standing.NOT_TESTED:
                yield f"{level.name}: {level.why}"
        for part in PARTS:
            if self._declared and part not in self._declared:
                yield f"{part}: the store has none"
        partly = [law for law in laws if law.tried < law.points]
        if partly:
            yield (
                f"{sum(law.points - law.tried for law in partly)} of {sum(law.points for law in laws)} points at which a call "
                f"is stopped or fails, in {len(partly)} law{'s'[: len(partly) != 1]}: the profile tries {self.plan.profile.points} of each sweep"
            )
        if self.plan.only is not None:
            yield f"{len(all_laws()) - len(self.plan.laws())} laws: only some were chosen"
        if self._was_cut:
            tried = sum(law.outcome is not Outcome.NOT_RUN for law in laws)
            yield (
                f"after {self.plan.profile.max_time:g} seconds the check was cut: {tried} of {len(laws)} laws were tried, "
                f"in {max((law.rounds for law in laws), default=0)} of {self.plan.profile.rounds} rounds"
            )


def _is_cut(trial: LawVerdict | LawData) -> bool:
    """Whether the time was over before a law had been tried."""
    return trial.outcome is Outcome.NOT_RUN and trial.message == CUT


def _levels(laws: Sequence[LawData], declared: Declared) -> tuple[LevelData, ...]:
    outcomes = {law.id: law.outcome for law in laws}
    return tuple(
        LevelData(
            name=grant.level.name,
            meaning=grant.level.meaning,
            standing=grant.standing,
            passed=grant.passed,
            laws=grant.laws,
            why=grant.why,
        )
        for grant in grants(all_laws(), outcomes, declared)
    )


def versions() -> Versions:
    """Return what tests what here."""
    return Versions(
        kit=metadata.version("perdure-conformance"),
        perdure=metadata.version("perdure"),
        contract=CONTRACT,
        python=platform.python_version(),
    )
