"""The laws can fail: each planted fault is caught by each law that is named beside it, and the right stores pass all."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure_conformance.laws import Law, all_laws
from perdure_conformance.runner import Outcome, run_law


def _load() -> ModuleType:
    specification = importlib.util.spec_from_file_location("planted_faults", Path(__file__).with_name("faults.py"))
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


faults = _load()
LAWS = {law.id: law for law in all_laws()}
NAMED = sorted({law for one in faults.FAULTS for law in one.laws})
PLANTED = [pytest.param(one, law, id=f"{one.name}-by-{law}") for one in faults.FAULTS for law in one.laws]
HANGING = ("CancelledKeepsLock",)
PROCESSES = [law for law in LAWS.values() if "durable" in law.needs]


@pytest.mark.parametrize(("fault", "law"), PLANTED)
def test_a_planted_fault_is_caught(fault: Any, law: str) -> None:
    # A store that hangs is caught by the law's own time; it need not be the whole of it here.
    limited = replace(LAWS[law], timeout=3.0) if fault.name in HANGING else LAWS[law]
    verdict = run_law(fault.target(), limited)
    assert verdict.outcome is Outcome.FAILED, f"{fault.name} passed {law}: {verdict}"
    assert len(verdict.message) > 20


@pytest.mark.parametrize("law", NAMED)
def test_the_right_store_passes(law: str) -> None:
    verdict = run_law(faults.RIGHT.target(), LAWS[law])
    assert verdict.outcome is not Outcome.FAILED, str(verdict)


@pytest.mark.parametrize("law", PROCESSES, ids=lambda law: law.id)
def test_the_right_store_on_disk_passes(law: Law) -> None:
    verdict = run_law(faults.RIGHT_ON_DISK.target(), law)
    assert verdict.outcome is not Outcome.FAILED, str(verdict)


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in faults.FAULTS]
    assert len(names) == len(set(names))
