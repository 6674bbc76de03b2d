"""Blind mutants of the memory journal: a law kills each, but for those that change nothing that anybody can see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conformance.tests.mutants import Mutant, mutants_of

import perdure_memory.journal
import perdure_memory.kept
from perdure import AgentStore
from perdure.clock import Clock
from perdure.contracts.ids import check_namespace
from perdure.journal.stores import journal_stores
from perdure_conformance.laws import Law, all_laws
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Place, Target

SOURCE = Path(perdure_memory.journal.__file__)
KEPT = Path(perdure_memory.kept.__file__)
"""What the journal keeps its keys in, in the orders of its listings."""
SEEN_FIRST = ("model", "order", "listing", "sessions", "compare_and_set", "lifecycle", "isolation", "versions")
"""The areas that are tried first: most mutants die there."""

SAME = {
    ("self._closed = True", "True -> False"): "a bundle that is closed has sealed its stores, so no call comes there",
    (
        "if new.group is None and new.status is None and new.data is None:",
        "new.status is None -> new.status is not None",
    ): "the stores write no status without its data",
    (
        "self.in_order = self.in_order and (self.latest is None or self.latest <= place)",
        "self.latest is None or self.latest <= place -> self.latest is None",
    ): "it sorts what is in order",
    (
        "self.in_order = self.in_order and (self.latest is None or self.latest <= place)",
        "self.latest <= place -> self.latest < place",
    ): "it sorts what is in order, when a key is written twice in one instant",
    ("self.in_order = True", "True -> False"): "it sorts once more what it has sorted",
    (
        "start = 0 if after is None or after.at is None else bisect_right(self.by_created, (after.at, after.id))",
        "after is None or after.at is None -> after is None",
    ): "the stores give every position in this order an instant; it is asked for the sake of types",
}
"""The changes that nobody can see, each by the line and what becomes of it, and why."""


def journal_of(mutant: Mutant, number: int) -> ModuleType:
    """Return the module of the memory journal that is a mutant, or keeps its keys in one."""
    module = mutant.load(f"mutant_{number}")
    if hasattr(module, "MemoryJournal"):
        return module
    source = SOURCE.read_text(encoding="utf-8").replace(perdure_memory.kept.__name__, module.__name__)
    return replace(mutant, source=source).load(f"journal_of_mutant_{number}")


def target(mutant: Mutant, number: int) -> Target:
    """Return a store over a mutant."""
    module: Any = journal_of(mutant, number)

    async def opener(place: Place, clock: Clock) -> AgentStore:
        journal: Any = module.MemoryJournal(place.name, namespace=check_namespace(place.namespace))
        await journal.open()
        stores = journal_stores(journal)
        parts = (stores.sessions, stores.checkpoints, stores.approvals)

        async def closing() -> None:
            for part in parts:
                part.seal()
            await journal.close()

        for part in parts:
            part.bind(max_record=place.max_record)
        sessions, checkpoints, approvals = parts
        return AgentStore(sessions=sessions, checkpoints=checkpoints, approvals=approvals, clock=clock, closing=closing)

    return Target(str(mutant), opener)


def laws() -> list[Law]:
    """Return the laws, those that kill most first, each with little time."""
    order = {area: number for number, area in enumerate(SEEN_FIRST)}
    chosen = [law for law in all_laws() if law.area not in ("protocol", "turns", "durability")]
    chosen.sort(key=lambda law: order.get(law.area, len(order)))
    return [replace(law, timeout=5.0) for law in chosen]


def killer(mutant: Mutant, number: int) -> str | None:
    """Return the first law that a mutant breaks."""
    try:
        broken = target(mutant, number)
    except Exception as error:  # noqa: BLE001  # reason: a mutant that cannot even be imported is dead
        return type(error).__name__
    for law in laws():
        if run_law(broken, law).outcome is Outcome.FAILED:
            return law.id
    return None


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", [SOURCE, KEPT], ids=lambda source: source.stem)
def test_laws_kill_blind_mutants(source: Path) -> None:
    mutants = list(mutants_of(source))
    assert len(mutants) > 30
    alive = [mutant for number, mutant in enumerate(mutants) if killer(mutant, number) is None]
    assert [str(mutant) for mutant in alive if changed(source, mutant) not in SAME] == []


def changed(source: Path, mutant: Mutant) -> tuple[str, str]:
    """Return the line that a mutant changes, and what becomes of it."""
    return source.read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip(), mutant.change


def test_what_nobody_can_see_is_among_the_mutants() -> None:
    assert (
        SAME.keys() - {changed(source, mutant) for source in (SOURCE, KEPT) for mutant in mutants_of(source)} == set()
    )


@pytest.mark.parametrize(
    ("source", "line", "lost"),
    [
        (SOURCE, "entry.items.extend(operation.items)", "pass"),
        (KEPT, "insort(self.by_id, name)", "pass"),
    ],
    ids=["items", "ids"],
)
def test_a_mutant_that_loses_writes_is_killed(source: Path, line: str, lost: str) -> None:
    whole = source.read_text(encoding="utf-8")
    mutant = Mutant(0, f"{line} -> {lost}", whole.replace(line, lost))
    assert mutant.source != whole
    assert killer(mutant, -1) is not None
