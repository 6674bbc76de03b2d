"""Levels: granted only when each of their laws ran and passed, whatever was skipped."""

from typing import Any

import pytest

from perdure_conformance.laws import Law, all_laws
from perdure_conformance.levels import LEVELS, Grant, Standing, grants
from perdure_conformance.runner import Outcome

LAWS = all_laws()
EVERYTHING = dict.fromkeys(("replace", "delete", "list", "durable", "shared", "atomic"), True)
BUNDLE = dict.fromkeys(("sessions", "checkpoints", "approvals"), EVERYTHING)


async def nothing(bench: Any) -> None:
    """Ask nothing."""


def law(id: str, *needs: str, area: str = "area", parts: tuple[str, ...] = ("sessions",)) -> Law:
    return Law(id, "A sentence.", area, nothing, parts, needs)


def granted(laws: Any, outcomes: dict[str, Outcome], declared: Any = None) -> dict[str, Grant]:
    declared = {"sessions": EVERYTHING} if declared is None else declared
    return {grant.level.name: grant for grant in grants(laws, outcomes, declared)}


def test_all_passed_is_every_level_that_has_laws() -> None:
    found = granted(LAWS, {one.id: Outcome.PASSED for one in LAWS}, BUNDLE)
    tested = {name for name, grant in found.items() if grant.standing is not Standing.NOT_TESTED}
    assert {"plain", "complete", "durable", "shared", "atomic"} <= tested
    assert {found[name].standing for name in tested} == {Standing.GRANTED}
    assert {found[name].why for name in tested} == {""}


def test_nothing_run_grants_nothing() -> None:
    standings = {grant.standing for grant in granted(LAWS, {}, BUNDLE).values()}
    assert standings <= {Standing.REFUSED, Standing.NOT_TESTED}


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.NOT_RUN])
def test_one_law_less_refuses_its_levels_alone(outcome: Outcome) -> None:
    laws = [law("a-plain-law"), law("a-listing-law", "list"), law("a-durable-law", "durable")]
    outcomes = {one.id: Outcome.PASSED for one in laws} | {"a-listing-law": outcome}
    found = granted(laws, outcomes)
    assert found["plain"].standing is Standing.GRANTED
    assert found["durable"].standing is Standing.GRANTED
    assert (found["complete"].standing, found["complete"].passed, found["complete"].laws) == (Standing.REFUSED, 1, 2)
    assert "a-listing-law" in found["complete"].why


def test_a_law_that_was_left_out_refuses() -> None:
    found = granted([law("tried-law"), law("left-law")], {"tried-law": Outcome.PASSED})
    assert (found["plain"].standing, found["plain"].why) == (Standing.REFUSED, "left-law did not run")


def test_what_is_not_declared_is_not_claimed() -> None:
    declared = {"sessions": EVERYTHING | {"list": False, "durable": False}}
    laws = [law("a-plain-law"), law("a-listing-law", "list"), law("a-durable-law", "durable")]
    found = granted(laws, {"a-plain-law": Outcome.PASSED}, declared)
    assert found["plain"].standing is Standing.GRANTED
    for name, lacking in (("complete", "list"), ("durable", "durable")):
        assert (found[name].standing, found[name].why) == (
            Standing.NOT_CLAIMED,
            f"sessions does not declare {lacking}",
        )


def test_one_part_that_declares_less_takes_the_level_from_all() -> None:
    declared = {"sessions": EVERYTHING, "approvals": EVERYTHING | {"shared": False}}
    assert granted(LAWS, {}, declared)["shared"].why == "approvals does not declare shared"


def test_laws_of_a_part_that_is_absent_are_not_due() -> None:
    laws = [law("of-sessions"), law("of-approvals", parts=("approvals",))]
    found = granted(laws, {"of-sessions": Outcome.PASSED, "of-approvals": Outcome.NOT_CLAIMED})
    assert (found["plain"].standing, found["plain"].laws) == (Standing.GRANTED, 1)


def test_a_law_that_has_nothing_to_ask_neither_raises_nor_lowers() -> None:
    laws = [law("undeclared-refuses"), law("a-plain-law")]
    outcomes = {"undeclared-refuses": Outcome.NOT_CLAIMED, "a-plain-law": Outcome.PASSED}
    assert granted(laws, outcomes)["plain"].standing is Standing.GRANTED
    alone = granted(laws[:1], outcomes)["plain"]
    assert (alone.standing, alone.why) == (Standing.REFUSED, "none of its laws ran")


def test_power_loss_is_never_part_of_durable() -> None:
    laws = [law("survives-reopening", "durable"), law("survives-power-loss", "durable")]
    found = granted(laws, {"survives-reopening": Outcome.PASSED, "survives-power-loss": Outcome.NOT_RUN})
    assert found["durable"].standing is Standing.GRANTED
    assert found["power-loss"].standing is Standing.NOT_TESTED
    assert found["power-loss"].why == "its laws did not run; they need the target's `power_loss`"
    found = granted(laws, {"survives-reopening": Outcome.PASSED, "survives-power-loss": Outcome.FAILED})
    assert found["durable"].standing is Standing.GRANTED
    assert found["power-loss"].standing is Standing.REFUSED


def test_approvals_alone_lack_nothing_that_their_contract_does_not_have() -> None:
    declared = {"approvals": {"delete": True, "list": True, "replace": False, "durable": True, "atomic": False}}
    found = granted(LAWS, {one.id: Outcome.PASSED for one in LAWS}, declared)
    assert {name: found[name].standing for name in ("plain", "complete", "durable", "atomic", "power-loss")} == {
        "plain": Standing.GRANTED,
        "complete": Standing.GRANTED,
        "durable": Standing.GRANTED,
        "atomic": Standing.NOT_CLAIMED,
        "power-loss": Standing.GRANTED,
    }
    assert found["atomic"].why == "the store has no part that could"


def test_what_no_law_is_about_says_so() -> None:
    found = granted([law("a-plain-law")], {"a-plain-law": Outcome.PASSED})
    assert found["power-loss"].standing is Standing.NOT_TESTED
    assert "no law" in found["power-loss"].why


def test_every_law_belongs_to_a_level() -> None:
    assert [one.id for one in LAWS if not any(level.belongs(one) for level in LEVELS)] == []
