"""The runner: each law on a fresh event loop of its own, within a time of its own, without pytest."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, NotRunError
from perdure_conformance.effort import Effort
from perdure_conformance.laws.register import Law, LawFunction, all_laws
from perdure_conformance.no_exit import no_exit
from perdure_conformance.places import Places
from perdure_conformance.recording import CallLog, RecordedCall, printable
from perdure_conformance.target import Target

CUT = "it was cut: the time of the check was over"

CALL_SHARE = 2 / 3
"""How much of the time of its law one call may take: a store that hangs is told by the call that did."""

GRACE = 10.0
"""How much longer than its law a loop may live, in seconds, before it is given up."""


class Outcome(StrEnum):
    """What became of a law."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not claimed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Trace:
    """How a law came to fail.

    Attributes:
        calls: The last calls that it made, in order.
        left_out: How many calls came before those.
        case: The drawn case that it failed on, the smallest that was found; a tuple of none or one.
    """

    calls: tuple[RecordedCall, ...] = ()
    left_out: int = 0
    case: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one law on one target.

    Attributes:
        law: The law.
        target: The target's name.
        outcome: What became of it. Only a law that ran can pass.
        message: What was expected and what came, or why it did not run; empty if it passed.
        seconds: How long it took.
        trace: How it came to fail; empty if it did not.
        tried: At how many stopping points something happened, for a law that sweeps over such.
        points: How many stopping points there were.
    """

    law: Law
    target: str
    outcome: Outcome
    message: str
    seconds: float
    trace: Trace = Trace()
    tried: int = 0
    points: int = 0

    def __str__(self) -> str:
        """Say it in one paragraph."""
        if self.outcome is Outcome.PASSED:
            return f"{self.law.id}: passed on {self.target}"
        return f"{self.law.id}: {self.outcome} on {self.target}\n  law: {self.law.sentence}\n  {self.message}"


def run_laws(
    target: Target, only: Iterable[str] | None = None, *, seed: int | None = None, examples: int | None = None
) -> list[Verdict]:
    """Try the laws on a target, one after another.

    Args:
        target: The store under test.
        only: The ids of the laws to try; `None`: all.
        seed: For the laws that draw cases; `None`: the same cases each time.
        examples: How many cases such a law draws; `None`: as many as it says.

    Returns:
        One verdict for each law tried.

    Raises:
        KeyError: An id of `only` names no law.
    """
    known = {law.id: law for law in all_laws()}
    chosen = list(known.values()) if only is None else [known[name] for name in only]
    return [run_law(target, law, seed=seed, examples=examples) for law in chosen]


def all_held(verdicts: Sequence[Verdict]) -> bool:
    """Whether at least one law ran, and each that ran passed. Nothing run is not a pass."""
    ran = [verdict for verdict in verdicts if verdict.outcome in (Outcome.PASSED, Outcome.FAILED)]
    return bool(ran) and all(verdict.outcome is Outcome.PASSED for verdict in ran)


def run_law(
    target: Target,
    law: Law,
    *,
    seed: int | None = None,
    examples: int | None = None,
    points: int | None = None,
    time_left: float = math.inf,
) -> Verdict:
    """Try one law on a target, in a thread that is left behind if the store blocks it.

    Args:
        target: The store under test.
        law: The law.
        seed: For a law that draws cases; `None`: the same cases each time.
        examples: How many cases such a law draws; `None`: as many as it says.
        points: How many points of each sweep a law tries that stops or fails calls; `None`: each.
        time_left: After how many seconds the law is cut, and counts as not run.
    """
    began = time.perf_counter()
    told: list[tuple[Outcome, str]] = []
    with Places() as places, no_exit():
        trial = _Trial(target, law, places, seed, examples or law.examples, Effort(points))
        thread = threading.Thread(target=lambda: told.append(trial.run()), name=f"law {law.id}", daemon=True)
        thread.start()
        patience = trial.patience
        thread.join(min(patience, time_left))
        if not told and time_left < patience:
            told.append((Outcome.NOT_RUN, CUT))
        if not told:
            told.append((Outcome.FAILED, f"the store blocked its event loop for more than {law.timeout:g} seconds"))
    outcome, message = told[0][0], printable(told[0][1])
    trace = trial.trace() if outcome is Outcome.FAILED else Trace()
    effort, seconds = trial.effort, time.perf_counter() - began
    return Verdict(law, target.name, outcome, message, seconds, trace, effort.tried, effort.points)


@dataclass(slots=True)
class _Trial:
    """One law on one target."""

    target: Target
    law: Law
    places: Places
    seed: int | None
    examples: int
    effort: Effort
    bench: Bench | None = field(default=None, init=False)
    case: tuple[Any, ...] = field(default=(), init=False)
    calls: int | None = field(default=None, init=False)

    @property
    def patience(self) -> float:
        """How long the whole trial may take, in seconds: of a law that draws cases each has the law's time, but few need it."""
        tens = 0 if self.law.cases is None else self.examples // 10 + 1
        return (self.law.timeout + GRACE) * (1 + tens)

    def trace(self) -> Trace:
        """Return what was asked up to the failure, of drawn cases in the last and smallest."""
        if self.bench is None:
            return Trace()
        log = self.bench.log
        made = log.total if self.calls is None else self.calls
        calls = tuple(log.calls)[: len(log.calls) - (log.total - made) or None]
        return Trace(calls, made - len(calls), self.case)

    def run(self) -> tuple[Outcome, str]:
        try:
            with asyncio.Runner() as runner:
                if self.law.cases is None:
                    runner.run(self._with_bench(self.law.function))
                else:
                    runner.run(self._with_bench(_nothing))
                    self._on_drawn_cases(runner)
        except NotClaimedError as reason:
            return Outcome.NOT_CLAIMED, str(reason)
        except NotRunError as reason:
            return Outcome.NOT_RUN, str(reason)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a store raises, a cancellation too, is a verdict
            return Outcome.FAILED, self._explain(error)
        return Outcome.PASSED, ""

    async def _with_bench(self, function: LawFunction, *case: Any) -> None:
        self.bench = bench = Bench(self.target, self.places, self.effort)
        self.case, self.calls = case, None
        try:
            await self._in_time(bench, function, case)
        except BaseException:
            self.calls = bench.log.total
            with contextlib.suppress(Exception):  # what went wrong first is told
                await _finished(bench)
            raise
        self.calls = bench.log.total
        await _finished(bench)

    async def _in_time(self, bench: Bench, function: LawFunction, case: tuple[Any, ...]) -> None:
        loop, log, limit = asyncio.get_running_loop(), bench.log, asyncio.timeout(self.law.timeout)
        log.patience, log.on_hang = self.law.timeout * CALL_SHARE, lambda: limit.reschedule(loop.time())
        try:
            async with limit:
                await bench.start()
                bench.demand(self.law.parts, self.law.needs)
                await function(bench, *case)
                await bench.close()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _Hung(self._hung(log, _place(error.__cause__ or error))) from error
        finally:
            log.on_hang = None

    def _hung(self, log: CallLog, place: str) -> str:
        """Say which call did not answer, or what a law was waiting for at its end."""
        if log.hung is not None:
            return f"`{log.hung.text}`: expected an answer within {log.patience:g} seconds, got none {place}"
        waits = ", ".join(f"`{call.text}`" for call in log.running()[:3])
        return f"the law did not end within {self.law.timeout:g} seconds: {f'{waits} runs, ' if waits else ''}{place}"

    def _on_drawn_cases(self, runner: asyncio.Runner) -> None:
        assert self.law.cases is not None
        import hypothesis  # it takes as long to import as all else of the kit, and few laws draw cases

        @hypothesis.settings(
            max_examples=self.examples,
            derandomize=self.seed is None,
            database=None,
            deadline=None,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            suppress_health_check=tuple(map(hypothesis.HealthCheck, hypothesis.HealthCheck)),
            print_blob=False,
            report_multiple_bugs=False,
        )
        @hypothesis.given(self.law.cases())
        def on_case(case: Any) -> None:
            runner.run(self._with_bench(self.law.function, case))

        if self.seed is not None:
            on_case = hypothesis.seed(self.seed)(on_case)
        try:
            on_case()
        except Exception:
            self._shorten(runner)
            raise

    def _shorten(self, runner: asyncio.Runner) -> None:
        """Leave out steps of a list of steps while the law still fails: Hypothesis gives up on long ones before the end.

        Raises:
            Exception: The failure on the shortest list that was found.
        """
        (case,) = self.case or (None,)
        if not isinstance(case, list):
            return
        for place in reversed(range(len(case))):
            shorter = case[:place] + case[place + 1 :]
            if self._fails(runner, shorter):
                case = shorter
        runner.run(self._with_bench(self.law.function, case))

    def _fails(self, runner: asyncio.Runner, case: list[Any]) -> bool:
        try:
            runner.run(self._with_bench(self.law.function, case))
        except Exception:  # noqa: BLE001  # reason: whatever the law fails with, it fails
            return True
        return False

    def _explain(self, error: BaseException) -> str:
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        text = str(error).strip()
        if isinstance(error, (AssertionError, _Hung)) and text:
            return text + notes
        if isinstance(error, AssertionError):
            return f"expected what was written, but got nothing {_place(error)}{notes}"
        return f"{type(error).__name__} escaped {_place(error)}: {text or 'without a message'}{notes}"


class _Hung(BaseException):  # reason: no error that a search for a smaller case may catch: each would hang again
    """A law did not end in its time."""


async def _finished(bench: Bench) -> None:
    async with asyncio.timeout(GRACE / 2):
        await bench.finish()


async def _nothing(bench: Bench) -> None:
    """Find out whether the store claims a law, before cases are drawn for it."""


def _place(error: BaseException) -> str:
    """Say where the law was when an error passed through it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "perdure_conformance" in frame.filename]
    lines = [frame for frame in frames if "laws" in Path(frame.filename).parts] or frames
    return (
        f"at `{lines[-1].line}` ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else "outside the laws"
    )
