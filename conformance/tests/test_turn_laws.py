"""Laws about turns and compactions that another process sleeps or dies in can fail: a store for each that breaks it alone."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from conformance.tests.planted import RIGHT, over

from perdure.backend import Append, Part, Replace
from perdure_conformance.laws import all_laws
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Target
from perdure_memory.journal import MemoryJournal

LAWS = {law.id: law for law in all_laws()}
QUICK = 3


def changed(part: Part, kind: type[Any], **changes: Any) -> Target:
    """Return a store in which each operation of a kind on a part is changed; a function gets what is there."""

    class Changed(MemoryJournal):
        async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
            return await super().write([self.change(operation) for operation in operations])

        def change(self, operation: Any) -> Any:
            if not isinstance(operation, kind) or operation.key.part != part:
                return operation
            made = {name: one(getattr(operation, name)) if callable(one) else one for name, one in changes.items()}
            return replace(operation, **made)

    return Target("changed", over(Changed))


@pytest.mark.parametrize(
    ("law", "store", "said"),
    [
        (
            "compaction-that-sleeps-loses-no-turn",
            changed(Part.SESSIONS, Replace, expected_version=None),
            "a turn ran meanwhile: what transcript and summary hold",
        ),
        (
            "compaction-cut-anywhere-loses-nothing",
            changed(Part.SESSIONS, Replace, items=lambda items: items[:-1]),
            "what transcript and summary hold",
        ),
        (
            "turn-of-a-paused-owner-comes-out-whole",
            changed(Part.RUNS, Append, expected_version=lambda expected: expected and None),
            "an owner was paused before its write",
        ),
    ],
)
def test_a_law_fails_on_a_store_that_breaks_it(law: str, store: Target, said: str) -> None:
    verdict = run_law(store, LAWS[law], points=QUICK)
    assert verdict.outcome is Outcome.FAILED, str(verdict)
    assert said in verdict.message
    right = run_law(RIGHT, LAWS[law], points=1)
    assert right.outcome is Outcome.PASSED, str(right)


@pytest.mark.parametrize("seed", [6, 8])
def test_a_paused_owner_may_have_other_tools_under_way(seed: int) -> None:
    """A right store, some of whose calls take longer than others: a tool acts after another process took its turn over."""
    turns = random.Random(seed)

    class Uneven(MemoryJournal):
        async def read(self, *arguments: Any, **window: Any) -> Any:
            await some(turns)
            return await super().read(*arguments, **window)

        async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
            await some(turns)
            return await super().write(operations)

    verdict = run_law(Target("uneven", over(Uneven)), LAWS["turn-of-a-paused-owner-comes-out-whole"])
    assert verdict.outcome is Outcome.PASSED, str(verdict)


async def some(turns: random.Random) -> None:
    """Let the others go on for some turns of the loop, or none."""
    for _ in range(turns.choice((0, 0, 1, 3, 40))):
        await asyncio.sleep(0)
