"""The runner without pytest: verdicts, hanging stores, escaped errors, and what may be called a pass."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from perdure import AgentStore, open_store
from perdure.clock import Clock
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError
from perdure_conformance.laws.register import Law
from perdure_conformance.runner import Outcome, Verdict, all_held, run_law, run_laws
from perdure_conformance.target import Place, Target
from perdure_memory.journal import MemoryJournal

MEMORY = Target.from_url("memory:{place}")


def trial(function: Any, *, target: Target = MEMORY, timeout: float = 5.0, **more: Any) -> Verdict:
    return run_law(target, Law("a-law", "A sentence.", "area", function, ("sessions",), timeout=timeout, **more))


def test_laws_run_and_pass_without_pytest() -> None:
    names = ["sessions-write-adds-one", "approvals-decided-once"]
    verdicts = run_laws(MEMORY, names)
    assert [(one.law.id, one.outcome) for one in verdicts] == [(name, Outcome.PASSED) for name in names]
    assert all_held(verdicts)
    assert str(verdicts[0]) == "sessions-write-adds-one: passed on memory"


def test_an_unknown_law_is_an_error() -> None:
    with pytest.raises(KeyError):
        run_laws(MEMORY, ["no-such-law"])


def test_nothing_run_is_not_a_pass() -> None:
    verdicts = run_laws(MEMORY, ["sessions-append-survives-kill"])
    assert [(one.outcome, one.message) for one in verdicts] == [
        (Outcome.NOT_CLAIMED, "sessions does not declare durable")
    ]
    assert not all_held(verdicts)
    assert not all_held([])


def test_a_law_that_cannot_be_tried_says_why() -> None:
    async def law(bench: Bench) -> None:
        raise NotRunError("no way to try")

    assert (trial(law).outcome, trial(law).message) == (Outcome.NOT_RUN, "no way to try")


def test_a_place_that_opens_once_leaves_laws_unrun() -> None:
    once = Target("once", MEMORY.opener, reopens=False)
    (verdict,) = run_laws(once, ["sessions-second-handle-finds-the-data"])
    assert (verdict.outcome, verdict.message) == (Outcome.NOT_RUN, "the target cannot open a place a second time")


def test_a_store_that_hangs_is_a_failed_law() -> None:
    async def law(bench: Bench) -> None:
        await asyncio.Event().wait()

    began = time.monotonic()
    verdict = trial(law, timeout=0.2)
    assert verdict.outcome is Outcome.FAILED
    assert "did not end within 0.2 seconds" in verdict.message
    assert time.monotonic() - began < 5


def hanging(call: int) -> Target:
    """Return a store of which the append of this number never ends."""
    from conformance.tests.planted import over

    class Hangs(MemoryJournal):
        writes = 0

        async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
            self.writes += 1
            if self.writes == call:
                await asyncio.Event().wait()
            return await super().write(operations)

    return Target("hanging", over(Hangs))


def test_a_call_that_hangs_is_named_before_the_time_of_its_law_is_over() -> None:
    async def law(bench: Bench) -> None:
        await asyncio.gather(*(bench.store.sessions.append(f"s{number}", [{}]) for number in range(3)))

    verdict = trial(law, target=hanging(2), timeout=0.3)
    assert (verdict.outcome, verdict.message.partition(" at ")[0]) == (
        Outcome.FAILED,
        "`store.sessions.append('s1', [{}])`: expected an answer within 0.2 seconds, got none",
    )


def test_a_call_that_hangs_is_told_whatever_its_law_makes_of_it() -> None:
    async def law(bench: Bench) -> None:
        await asyncio.gather(bench.store.sessions.append("s1", []), return_exceptions=True)

    assert "`store.sessions.append('s1', [])`: expected an answer" in trial(law, target=hanging(1), timeout=0.3).message


def test_calls_that_answer_in_time_use_up_nobody_elses() -> None:
    async def law(bench: Bench) -> None:
        for _ in range(5):
            await bench.store.sessions.append("s1", [{}])
        await asyncio.sleep(0.35)

    assert trial(law, timeout=0.5).outcome is Outcome.PASSED


def test_an_opening_that_hangs_is_named() -> None:
    async def opener(place: Place, clock: Clock) -> AgentStore:
        return await asyncio.Future[AgentStore]()

    async def law(bench: Bench) -> None:
        """Ask nothing."""

    assert "`store = open()`: expected an answer" in trial(law, target=Target("hanging", opener), timeout=0.3).message


def test_a_law_that_waits_for_something_else_tells_which_calls_run() -> None:
    async def law(bench: Bench) -> None:
        bench.log.begin("a call of long ago")
        await asyncio.Event().wait()

    message = trial(law, timeout=0.2).message
    assert "did not end within 0.2 seconds: `a call of long ago` runs, at `await function(bench, *case)`" in message


def test_a_close_that_hangs_after_a_failure_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure_conformance.runner.GRACE", 0.2)

    async def opener(place: Place, clock: Clock) -> AgentStore:
        inner = await open_store(f"memory:{place.name}", clock=clock)
        return AgentStore(sessions=inner.sessions, clock=clock, closing=asyncio.Event().wait)  # type: ignore[arg-type]  # reason: what it answers is not looked at

    async def law(bench: Bench) -> None:
        raise AssertionError("this went wrong first")

    assert trial(law, target=Target("stubborn", opener)).message == "this went wrong first"


def test_a_law_that_finds_nothing_where_something_must_be_says_so() -> None:
    async def law(bench: Bench) -> None:
        raise AssertionError

    assert trial(law).message.startswith("expected what was written, but got nothing at `")


def test_a_store_that_blocks_its_loop_is_a_failed_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure_conformance.runner.GRACE", 0.1)

    async def law(bench: Bench) -> None:
        time.sleep(1.0)  # noqa: ASYNC251  # reason: this is what a blocking store does

    verdict = trial(law, timeout=0.1)
    assert (verdict.outcome, "blocked its event loop" in verdict.message) == (Outcome.FAILED, True)


@pytest.mark.parametrize(
    "error", [KeyError("x"), RuntimeError(), asyncio.CancelledError(), SystemExit(3), TimeoutError()]
)
def test_whatever_escapes_is_a_failed_law_with_a_message(error: BaseException) -> None:
    async def law(bench: Bench) -> None:
        raise error

    verdict = trial(law)
    assert verdict.outcome is Outcome.FAILED
    assert type(error).__name__ in verdict.message


def test_a_store_that_does_not_open_is_a_failed_law() -> None:
    async def opener(place: Place, clock: Clock) -> AgentStore:
        raise OSError("no such disk")

    async def law(bench: Bench) -> None:
        """Ask nothing."""

    verdict = trial(law, target=Target("broken", opener))
    assert verdict.outcome is Outcome.FAILED
    assert "no such disk" in verdict.message


def test_a_store_that_does_not_close_is_a_failed_law() -> None:
    async def closing() -> None:
        raise OSError("still busy")

    async def opener(place: Place, clock: Clock) -> AgentStore:
        inner = await open_store(f"memory:{place.name}", clock=clock)
        return AgentStore(sessions=inner.sessions, closing=closing)

    async def law(bench: Bench) -> None:
        """Ask nothing."""

    verdict = trial(law, target=Target("stubborn", opener))
    assert verdict.outcome is Outcome.FAILED
    assert "still busy" in verdict.message


def test_a_part_that_is_absent_claims_nothing() -> None:
    async def opener(place: Place, clock: Clock) -> AgentStore:
        inner = await open_store(f"memory:{place.name}", clock=clock)
        return AgentStore(sessions=inner.sessions, clock=clock, closing=inner.close)

    names = ["sessions-write-adds-one", "approvals-decided-once"]
    outcomes = [one.outcome for one in run_laws(Target("sessions only", opener), names)]
    assert outcomes == [Outcome.PASSED, Outcome.NOT_CLAIMED]


def test_each_law_has_a_loop_and_a_place_of_its_own() -> None:
    seen: list[Any] = []

    async def law(bench: Bench) -> None:
        seen.append((asyncio.get_running_loop(), bench.place.name))

    assert [trial(law).outcome, trial(law).outcome] == [Outcome.PASSED] * 2
    assert seen[0][0] is not seen[1][0]
    assert seen[0][1] != seen[1][1]


def test_a_place_has_its_directory_from_when_it_is_asked_for_until_the_law_is_over() -> None:
    places: list[Place] = []

    async def law(bench: Bench) -> None:
        places.extend((bench.place, bench.another_place()))
        assert not any(place.path.exists() for place in places)
        (places[0].directory / "data").write_text("kept")
        assert replace(places[0], namespace="other").directory == places[0].directory
        assert [place.path.exists() for place in places] == [True, False]

    assert trial(law).outcome is Outcome.PASSED
    assert not any(place.path.exists() for place in places)


def test_of_drawn_cases_the_smallest_that_fails_is_told_each_time() -> None:
    def cases() -> Any:
        from hypothesis import strategies as st

        return st.integers(0, 1000)

    async def law(bench: Bench, case: int) -> None:
        assert case < 500, f"expected less than 500, got {case}"

    verdicts = [trial(law, cases=cases, examples=15) for _ in range(2)]
    assert [one.outcome for one in verdicts] == [Outcome.FAILED] * 2
    assert verdicts[0].message == verdicts[1].message
    assert "got 500" in verdicts[0].message


def test_the_url_of_a_place_holds_all_of_it(tmp_path: Any) -> None:
    def url(text: str, **place: Any) -> str | None:
        target = Target.from_url(text)
        assert target.url is not None
        return target.url(Place("p1", tmp_path, **place))

    assert url("memory:{place}") == "memory:p1"
    assert url("sqlite:{dir}/x.db", namespace="a", max_record=5) == f"sqlite:{tmp_path}/x.db?namespace=a&max_record=5"
    assert url("redis://host/0?ssl=1") == "redis://host/0?ssl=1&namespace=p1-default"
    assert url("redis://host", namespace="ab") == "redis://host?namespace=p1-ab"
