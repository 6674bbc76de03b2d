"""The class `StoreConformance` as an object: what it makes of an author's methods, and what it says of wrong ones."""

from typing import Any

import pytest
from conformance.tests import planted

import perdure
from perdure_conformance.checking import Check, Plan
from perdure_conformance.laws import all_laws
from perdure_conformance.profiles import PROFILES
from perdure_conformance.resolve import Named, TargetError, find_target
from perdure_conformance.runner import Outcome, Verdict, run_law
from perdure_conformance.target import Place
from perdure_conformance.testing import StoreConformance

LAWS = {law.id: law for law in all_laws()}
LAW = "sessions-write-adds-one"


def trial(owner: type[StoreConformance], law: str = LAW) -> Verdict:
    return run_law(owner().target(), LAWS[law])


def test_an_opener_may_return_an_awaitable_or_be_a_coroutine() -> None:
    class Returns(StoreConformance):
        def opener(self, place: Place) -> Any:
            return perdure.open_store(f"memory:{place.name}", clock=place.clock)

    class Awaits(StoreConformance):
        async def opener(self, place: Place) -> Any:
            return await perdure.open_store(f"memory:{place.name}", clock=place.clock)

    assert [trial(one).outcome for one in (Returns, Awaits)] == [Outcome.PASSED] * 2


def test_an_opener_that_drops_the_clock_is_told() -> None:
    class Forgets(StoreConformance):
        def opener(self, place: Place) -> Any:
            return perdure.open_store(f"memory:{place.name}")

    verdict = trial(Forgets)
    assert verdict.outcome is Outcome.FAILED
    assert "clock=place.clock" in verdict.message


def test_an_opener_that_returns_no_bundle_is_told() -> None:
    class Wrong(StoreConformance):
        def opener(self, place: Place) -> Any:
            return "a store"

    assert "must return an AgentStore or an awaitable of one, not a str" in trial(Wrong).message


@pytest.mark.parametrize(
    "law",
    [
        "sessions-damage-is-neither-absent-nor-empty",
        "sessions-one-of-many-processes-wins",
        "sessions-append-survives-kill",
        "sessions-namespaces-share-no-key",
    ],
)
def test_a_class_in_a_module_has_damage_namespaces_and_processes(law: str) -> None:
    verdict = trial(planted.RightStore, law)
    assert verdict.outcome is Outcome.PASSED, str(verdict)


def test_what_a_class_does_not_heed_leaves_laws_unrun() -> None:
    verdict = trial(planted.RightStore, "sessions-record-over-the-limit-is-refused")
    assert (verdict.outcome, "limit" in verdict.message) == (Outcome.NOT_RUN, True)


def test_a_class_in_a_function_has_no_processes() -> None:
    class Local(StoreConformance):
        def opener(self, place: Place) -> Any:
            return perdure.open_store(f"file:{place.directory}/x", clock=place.clock)

    assert trial(Local, "sessions-one-of-many-processes-wins").outcome is Outcome.NOT_RUN


def test_optional_helpers_are_part_of_the_target_when_they_are_there() -> None:
    killed: list[str] = []
    cut: list[str] = []

    class Helped(planted.RightStore):
        def kill_server(self, place: Place) -> None:
            killed.append(place.name)

        def power_loss(self, place: Place) -> Any:
            assert not any(place.directory.iterdir())
            return lambda: lambda: cut.append(place.name)

    plain, helped = planted.RightStore().target(), Helped().target()
    assert (plain.kill_server, plain.newer_schema, plain.power_loss) == (None, None, None)
    assert helped.newer_schema is None
    for law, called in (
        ("sessions-append-survives-server-kill", killed),
        ("sessions-append-survives-power-loss", cut),
    ):
        assert run_law(helped, LAWS[law]).outcome is Outcome.PASSED
        assert called


def test_the_command_takes_a_class() -> None:
    named = find_target("conformance.tests.planted:RightStore")
    report = Check(Plan(Named(named.text, named.target), PROFILES["quick"], only=[LAW])).run()
    assert report.verdict == "held"


# --- the hook of a plugin ---


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a plugin module that can be given a hook."""
    from perdure_memory import plugin

    def give(hook: Any) -> None:
        monkeypatch.setattr(plugin, "conformance_targets", hook, raising=False)

    return give


def test_a_plugin_names_its_targets(plugin: Any) -> None:
    plugin(lambda: {"own": "memory:{place}"})
    assert find_target("memory").target.name == "own"
    assert find_target("memory/own").text == "memory/own"
    plugin(lambda: {"one": "memory:{place}", "two": planted.RIGHT})
    assert find_target("memory/two").target is planted.RIGHT
    with pytest.raises(TargetError, match="several targets: memory/one, memory/two"):
        find_target("memory")


def test_a_plugin_without_targets_or_with_a_broken_hook_is_told(plugin: Any) -> None:
    plugin(dict)
    with pytest.raises(TargetError, match="names no targets; name a store URL"):
        find_target("memory")

    def broken() -> Any:
        raise ImportError("no module")

    plugin(broken)
    with pytest.raises(
        TargetError, match="conformance_targets of the plugin 'memory' failed with ImportError: no module"
    ):
        find_target("memory")
