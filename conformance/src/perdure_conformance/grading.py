"""Grade the kit itself: which stores that are broken on purpose it catches, and whether it leaves a right one alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from perdure_conformance.checking import versions
from perdure_conformance.laws.register import Law, all_laws
from perdure_conformance.profiles import Profile
from perdure_conformance.reports.grade import AlarmData, CatchData, CleanData, Grade, PlantedData
from perdure_conformance.reports.model import ExitCode
from perdure_conformance.resolve import Named
from perdure_conformance.runner import Outcome, Verdict, run_law
from perdure_conformance.target import Target

HUNG = 3.0
"""How long a law may take on a store that is known to hang, in seconds: what the law gives it would only be waited for."""


class Planted(Protocol):
    """A store that is broken on purpose."""

    @property
    def name(self) -> str:
        """Its name, for what is wrong with it."""
        ...

    @property
    def laws(self) -> tuple[str, ...]:
        """The ids of the laws that are each meant to catch it."""
        ...

    @property
    def hangs(self) -> bool:
        """Whether it never answers, so that a law need not take all of its time."""
        ...

    def target(self) -> Target:
        """Return the store as a target."""
        ...


@dataclass(frozen=True)
class Clean:
    """A store that is right, to see whether a law fails on it.

    Attributes:
        named: The store.
        seeds: With how many seeds to try each law that draws cases.
        rounds: How often to try each of the others.
    """

    named: Named
    seeds: int
    rounds: int = 1


Listener = Callable[[int, int, str], None]
"""Told after each planted store and each law on the right one: which it was, of how many, and its name."""


@dataclass
class Grading:
    """One run.

    Attributes:
        planted: The planted stores.
        seeds: The seeds to try each with.
        profile: How much of a law is tried.
        clean: A store that is right; `None`: none.
        laws: All laws that there are.
        listener: Hears of the progress.
    """

    planted: Sequence[Planted]
    seeds: Sequence[int]
    profile: Profile
    clean: Clean | None = None
    laws: Sequence[Law] = field(default_factory=all_laws)
    listener: Listener = lambda number, total, name: None

    def run(self) -> Grade:
        """Try everything, one after another.

        Raises:
            KeyError: A planted store names a law that there is not.
        """
        began, started_at = time.perf_counter(), datetime.now(UTC)
        self._by_id = {law.id: law for law in self.laws}
        planted = tuple(self._planted())
        clean = None if self.clean is None else self._clean(self.clean)
        grade = Grade(
            versions=versions(),
            profile=self.profile.name,
            started_at=started_at,
            seconds=round(time.perf_counter() - began, 3),
            planted=planted,
            clean=clean,
            exit_code=ExitCode.NOTHING_RUN,
        )
        return grade.model_copy(update={"exit_code": exit_code(grade)})

    # --- planted stores ---

    def _planted(self) -> Iterator[PlantedData]:
        for number, one in enumerate(self.planted, 1):
            yield self._tried(one)
            self.listener(number, len(self.planted), one.name)

    def _tried(self, planted: Planted) -> PlantedData:
        own = {name: [self._trial(planted, self._by_id[name], seed) for seed in self.seeds] for name in planted.laws}
        missed = [
            seed
            for place, seed in enumerate(self.seeds)
            if not any(verdicts[place].outcome is Outcome.FAILED for verdicts in own.values())
        ]
        others = [other for seed in missed if (other := self._other(planted, seed)) is not None]
        return PlantedData(
            name=planted.name,
            seeds=len(self.seeds),
            own=tuple(_catch(name, verdicts) for name, verdicts in own.items()),
            caught=len(self.seeds) - len(missed) + len(others),
            others=tuple(others),
        )

    def _other(self, planted: Planted, seed: int) -> str | None:
        """Return the first law that catches a planted store, of those that are not named for it."""
        others = (law for law in self.laws if law.id not in planted.laws)
        return next((law.id for law in others if self._trial(planted, law, seed).outcome is Outcome.FAILED), None)

    def _trial(self, planted: Planted, law: Law, seed: int) -> Verdict:
        limited = replace(law, timeout=HUNG) if planted.hangs else law
        return self._run(planted.target(), limited, seed)

    def _run(self, target: Target, law: Law, seed: int) -> Verdict:
        return run_law(target, law, seed=seed, examples=self.profile.examples, points=self.profile.points)

    # --- a right store ---

    def _clean(self, clean: Clean) -> CleanData:
        trials, alarms = 0, []
        for number, law in enumerate(self.laws, 1):
            for seed in range(clean.rounds if law.cases is None else clean.seeds):
                verdict = self._run(clean.named.target, law, seed)
                if verdict.outcome in (Outcome.NOT_CLAIMED, Outcome.NOT_RUN):
                    break
                trials += 1
                if verdict.outcome is Outcome.FAILED:
                    alarms.append(AlarmData(law=law.id, seed=seed, message=verdict.message))
            self.listener(number, len(self.laws), law.id)
        drawn = sum(law.cases is not None for law in self.laws)
        return CleanData(
            target=clean.named.text,
            seeds=clean.seeds,
            drawn=drawn,
            rounds=clean.rounds,
            fixed=len(self.laws) - drawn,
            trials=trials,
            alarms=tuple(alarms),
        )


def _catch(law: str, verdicts: Iterable[Verdict]) -> CatchData:
    failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED]
    calls = [len(verdict.trace.calls) + verdict.trace.left_out for verdict in failed]
    return CatchData(
        law=law,
        caught=len(failed),
        calls=statistics.median(calls) if calls else None,
        message=failed[0].message.partition("\n")[0] if failed else "",
    )


def exit_code(grade: Grade) -> ExitCode:
    """Return what the command ends with, from what became of the stores."""
    if not grade.planted and (grade.clean is None or not grade.clean.trials):
        return ExitCode.NOTHING_RUN
    missed = not all(one.caught_by_own for one in grade.planted)
    alarmed = grade.clean is not None and bool(grade.clean.alarms)
    return ExitCode.LAW_FAILED if missed or alarmed else ExitCode.HELD
