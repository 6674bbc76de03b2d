"""The laws can fail: each planted fault is caught by each law that is named beside it, and the right stores pass all."""

import asyncio
import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conformance.tests.faults import durability, power_losses, server_kills, torn_writes
from conformance.tests.faults.every import FAULTS, RIGHT, RIGHT_ON_DISK
from conformance.tests.faults.planting import Fault, Scene, outcome

from perdure_conformance.laws import Law, all_laws
from perdure_conformance.profiles import PROFILES
from perdure_conformance.runner import Outcome, run_law

LAWS = {law.id: law for law in all_laws()}
NAMED = sorted({law for one in FAULTS for law in one.laws})
PLANTED = [pytest.param(one, law, id=f"{one.name}-by-{law}") for one in FAULTS for law in one.laws]
PROCESSES = [LAWS[name] for name in NAMED if "durable" in LAWS[name].needs]
TELLING = (*durability.RIGHT, power_losses.RIGHT, server_kills.RIGHT, *torn_writes.RIGHT)
"""Right stores that tell, or declare, what other targets do not."""
DRAWN = [law for law in LAWS.values() if law.cases is not None]
SEEDS = range(10)
QUICK = PROFILES["quick"]
_numbers = itertools.count()


def caught(fault: Fault, law: str, *, seed: int | None = None, points: int | None = None) -> None:
    # A store that hangs is caught by the law's own time; it need not be the whole of it here.
    limited = replace(LAWS[law], timeout=3.0) if fault.hangs else LAWS[law]
    verdict = run_law(fault.target(), limited, seed=seed, points=points)
    assert verdict.outcome is Outcome.FAILED, f"{fault.name} passed {law}: {verdict}"
    assert len(verdict.message) > 20


@pytest.mark.parametrize(("fault", "law"), PLANTED)
def test_a_planted_fault_is_caught_in_the_quick_profile(fault: Fault, law: str) -> None:
    caught(fault, law, points=QUICK.points)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("fault", "law"), PLANTED)
def test_a_planted_fault_is_caught_with_any_seed(fault: Fault, law: str) -> None:
    for seed in SEEDS:
        caught(fault, law, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("law", DRAWN, ids=lambda law: law.id)
def test_a_thousand_seeds_raise_no_false_alarm(law: Law) -> None:
    for seed in range(1000):
        verdict = run_law(RIGHT.target(), law, seed=seed, examples=1)
        assert verdict.outcome is Outcome.PASSED, f"seed {seed}: {verdict}"


@pytest.mark.parametrize("law", NAMED)
def test_the_right_store_passes(law: str) -> None:
    verdict = run_law(RIGHT.target(), LAWS[law], points=QUICK.points)
    assert verdict.outcome is not Outcome.FAILED, str(verdict)


@pytest.mark.parametrize("law", PROCESSES, ids=lambda law: law.id)
def test_the_right_store_on_disk_passes(law: Law) -> None:
    verdict = run_law(RIGHT_ON_DISK.target(), law)
    assert verdict.outcome is not Outcome.FAILED, str(verdict)


@pytest.mark.parametrize(("right", "law"), [(right, law) for right in TELLING for law in right.laws])
def test_a_right_store_that_tells_more_passes(right: Fault, law: str) -> None:
    verdict = run_law(right.target(), LAWS[law])
    assert verdict.outcome is Outcome.PASSED, str(verdict)


# --- witnesses ---


def shown(fault: Fault, directory: Path) -> Any:
    """Return what a fault's witness sees at a fresh place."""

    async def look() -> Any:
        number = next(_numbers)
        folder = directory / str(number)
        folder.mkdir()
        scene = Scene(fault, folder, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await scene.start()
                return await outcome(fault.witness(scene))
        return "it hangs"

    return asyncio.run(look())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_witness_shows_the_fault(fault: Fault, tmp_path: Path) -> None:
    expected = shown(fault.right(), tmp_path)
    assert shown(fault.right(), tmp_path) == expected, "the witness sees something else each time"
    assert shown(fault, tmp_path) != expected


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))
    assert len(names) >= 130
