"""Planted stores whose instants are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from conformance.tests.faults.planting import Around, Fault, Scene

from perdure.backend import (
    Delete,
    JournalSnapshot,
    Key,
)


class UpdatedGoesBack(Around):
    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            if not isinstance(operation, Delete):
                self.entries[self.namespace, operation.key].updated_at = operation.at
        return versions


class SecondsOnly(Around):
    def change(self, operation: Any) -> Any:
        return (
            operation if isinstance(operation, Delete) else replace(operation, at=operation.at.replace(microsecond=0))
        )


class TimesAreLocal(Around):
    """Instants are kept without their zone, five hours off."""

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        found = await super().read(key, **window)
        return found and replace(found, created_at=found.created_at + timedelta(hours=5))


async def times(scene: Scene) -> Any:
    await scene.append(1)
    await scene.append(2, at=scene.clock.now() - timedelta(days=1))
    found = await scene.store.sessions.load("s1")
    assert found is not None
    return found.created_at, found.updated_at


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


FAULTS = (
    of(UpdatedGoesBack, times, "sessions-updated-never-goes-back"),
    of(SecondsOnly, times, "sessions-times-come-from-the-clock"),
    of(TimesAreLocal, times, "sessions-times-come-from-the-clock", "sessions-at-is-kept-as-an-instant"),
)
