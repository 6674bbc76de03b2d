"""The whole session runtime against an independent model, with faults at any write; see `core/tests/machine`."""

from __future__ import annotations

from pathlib import Path

import pytest
from core.tests.machine.planted import PLANTED, Planted
from core.tests.machine.runtime_machine import RuntimeMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from plugins.redis.tests.servers import VALKEY, shared


def machine(url: str, *, atomic: bool | None) -> type[RuntimeMachine]:
    """Return the machine over a backend."""
    return type("Machine", (RuntimeMachine,), {"url": url, "atomic": atomic})


def budget(examples: int, steps: int, *, derandomize: bool) -> settings:
    """Return the settings of a run; nothing is measured, and nothing is kept between runs."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
        report_multiple_bugs=False,
    )


@pytest.mark.timeout(600)  # a failing example is made small before it is shown
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "in-order"])
def test_every_call_comes_to_what_the_model_says(atomic: bool) -> None:
    run_state_machine_as_test(machine("memory:", atomic=atomic), settings=budget(70, 25, derandomize=True))


def test_an_abort_does_not_speak_for_a_turn_that_somebody_else_runs() -> None:
    state = machine("memory:", atomic=True)()
    try:
        state.send_and_stand(name="A", place="model", program="")
        state.pass_time(long=False)
        state.resume_and_stand(name="B", place="model")
        state.interrupt(name="A", how="abort", fault=None)
    finally:
        state.teardown()


def test_an_archive_goes_with_its_conversation() -> None:
    state = type("Machine", (machine("memory:", atomic=True),), {"strict": True})()
    try:
        for archive in (True, False):
            state.send(name="A", program="", fault=None)
            state.compact(name="A", keep=0, archive=archive, fault=None)
        state.delete(name="A", force=False, fault=None)
    finally:
        state.teardown()


@pytest.fixture(params=["memory", "sqlite", "file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place on each backend."""
    if request.param == "redis":
        return shared(VALKEY).url
    return {"memory": "memory:", "sqlite": f"sqlite:{tmp_path / 'm.db'}", "file": f"file:{tmp_path / 'm'}"}[
        request.param
    ]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "in-order"])
def test_every_call_comes_to_what_the_model_says_on_every_backend(url: str, atomic: bool) -> None:
    examples = 3000 if url == "memory:" else 300
    declared = None if atomic else False  # what a backend does not declare is not claimed for it
    run_state_machine_as_test(machine(url, atomic=declared), settings=budget(examples, 40, derandomize=False))


def finds(planted: Planted, patch: pytest.MonkeyPatch, examples: int) -> None:
    """Check that the machine finds a planted fault within so many examples."""
    planted.plant(patch)
    searching = settings(budget(examples, 30, derandomize=True), phases=[Phase.generate])
    with pytest.raises(Exception):  # noqa: B017, PT011  # reason: what it comes to is the fault's own affair
        run_state_machine_as_test(machine("memory:", atomic=planted.atomic), settings=searching)


@pytest.mark.parametrize("planted", [planted for planted in PLANTED if planted.quick], ids=str)
def test_planted_fault_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(planted, monkeypatch, 60)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_fault_is_found_in_time(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    finds(planted, monkeypatch, 1500)
