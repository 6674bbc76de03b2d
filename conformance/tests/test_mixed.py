"""Bundles that are made of no journal, or of several: their calls are stopped at the stores, and they reach every level."""

from typing import Any

import pytest

import perdure
from perdure import AgentStore
from perdure.backend import ApprovalStore, Capabilities, CheckpointStore, SessionStore
from perdure.clock import Clock
from perdure.contracts.store import Store
from perdure_conformance.laws import all_laws
from perdure_conformance.laws.stopping import METHODS
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Place, Target

LAWS = {law.id: law for law in all_laws()}
OVER_ALL = (
    "turn-comes-out-whole-wherever-it-is-cut",
    "protocol-delete-fences-the-runner",
    "turn-queued-input-is-not-lost",
)


def foreign(contract: type[Store], part: str) -> type[Any]:
    """Return a store that is no journal: it does all by another one, which it hides."""

    def passing(name: str) -> Any:
        async def call(self: Any, *arguments: Any, **options: Any) -> Any:
            return await getattr(self.hidden, name)(*arguments, **options)

        return call

    return type(f"Foreign{contract.__name__}", (contract,), {name: passing(name) for name in METHODS[part]})


CONTRACTS: dict[str, type[Store]] = {
    "sessions": SessionStore,
    "checkpoints": CheckpointStore,
    "approvals": ApprovalStore,
}


def target(*parts: str, hidden: tuple[str, ...] = (), **changes: Any) -> Target:
    """Return a bundle of these parts, each of a journal of its own; of those that are hidden it cannot be told."""

    async def opener(place: Place, clock: Clock) -> AgentStore:
        made: dict[str, Any] = {}
        opened = []
        for part in parts:
            options = f"?namespace={place.namespace}" + (f"&max_record={place.max_record}" if place.max_record else "")
            opened.append(await perdure.open_store(f"memory:{place.name}-{part}{options}", clock=clock))
            made[part] = getattr(opened[-1], part)
            if part in hidden:
                store = foreign(CONTRACTS[part], part)()
                store.hidden, store.capabilities = (
                    made[part],
                    Capabilities(replace=True, delete=True, list=True),
                )
                store.bind(max_record=place.max_record)
                made[part] = store

        async def closing() -> None:
            for part in made.values():
                part.seal()
            for bundle in opened:
                await bundle.close()

        return AgentStore(**made, clock=clock, closing=closing)

    return Target("mixed", opener, **changes)


SEVERAL = target(*CONTRACTS)
NONE = target(*CONTRACTS, hidden=tuple(CONTRACTS))


@pytest.mark.parametrize("law", OVER_ALL)
@pytest.mark.parametrize("store", [SEVERAL, NONE], ids=["several", "none"])
def test_turns_are_stopped_over_several_journals_and_over_none(store: Target, law: str) -> None:
    verdict = run_law(store, LAWS[law], points=2)
    assert verdict.outcome is Outcome.PASSED, str(verdict)
    assert verdict.tried > 0


@pytest.mark.parametrize("part", CONTRACTS)
def test_a_store_that_is_no_journal_keeps_the_laws_that_stop_calls(part: str) -> None:
    alone = target(part, hidden=(part,))
    names = [name for name, law in LAWS.items() if law.area in ("crashes", "failures") and law.parts == (part,)]
    outcomes = {name: run_law(alone, LAWS[name]).outcome for name in names}
    assert len(outcomes) >= 3
    assert set(outcomes.values()) <= {Outcome.PASSED, Outcome.NOT_CLAIMED}
    assert outcomes[f"{part}-cut-anywhere-is-old-or-new"] is Outcome.PASSED


def test_what_one_journal_would_write_in_one_step_several_do_not_claim() -> None:
    assert run_law(SEVERAL, LAWS["atomic-write-writes-both"]).outcome is Outcome.NOT_CLAIMED
    assert run_law(SEVERAL, LAWS["undeclared-atomic-write-refuses"]).outcome is Outcome.PASSED


def test_calls_of_a_store_that_is_no_journal_are_told_in_a_failure() -> None:
    class Forgets(foreign(SessionStore, "sessions")):  # type: ignore[misc]  # reason: the class is made when it is needed
        async def _load(self, session_id: str, **options: Any) -> None:
            return None

    async def opener(place: Place, clock: Clock) -> AgentStore:
        inner = await perdure.open_store(f"memory:{place.name}", clock=clock)
        store = Forgets()
        store.hidden = inner.sessions
        return AgentStore(sessions=store, clock=clock, closing=inner.close)

    verdict = run_law(Target("forgets", opener), LAWS["sessions-typed-failure-passes-unchanged"])
    assert verdict.outcome is Outcome.FAILED
    assert "store.sessions.append('s1', [{'n': 1}], expected_version=None)" in [
        call.text for call in verdict.trace.calls
    ]


def test_a_target_without_namespaces_claims_none() -> None:
    verdict = run_law(target("sessions", namespaces=False), LAWS["sessions-namespaces-share-no-key"])
    assert (verdict.outcome, verdict.message) == (Outcome.NOT_CLAIMED, "the target keeps no namespaces apart")
