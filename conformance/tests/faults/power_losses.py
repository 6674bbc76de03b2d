"""Planted stores that acknowledge what was not synced: they lose it with the power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.tests.faults.planting import Fault, OnDisk, Scene

from perdure.backend import Delete, Part, Replace
from perdure_conformance.target import Place


class Synced(OnDisk):
    """A right store whose place tells what was synced: a second file, of which the first one is the cache."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        if self.syncs(operations[0]):
            self.sync()
        return versions

    def syncs(self, operation: Any) -> bool:
        return True

    def sync(self) -> None:
        self.file.with_name("synced").write_bytes(self.file.read_bytes())


class NeverSyncs(Synced):
    """Renames without a sync, and calls it durable."""

    def sync(self) -> None:
        """Do nothing."""


class SyncsAtClose(Synced):
    def syncs(self, operation: Any) -> bool:
        return False

    async def close(self) -> None:
        if self.file.exists():
            self.sync()
        await super().close()


class ReplaceIsNotSynced(Synced):
    def syncs(self, operation: Any) -> bool:
        return not isinstance(operation, Replace)


class DeleteIsNotSynced(Synced):
    def syncs(self, operation: Any) -> bool:
        return not isinstance(operation, Delete)


class HeartbeatsAreNotSynced(Synced):
    """Only the opening and the end of a turn are synced."""

    def syncs(self, operation: Any) -> bool:
        return bool(
            operation.key.part != Part.RUNS or operation.expected_version == 0 or isinstance(operation, Replace)
        )


class DecisionsAreNotSynced(Synced):
    """A request is synced, what becomes of it is not."""

    def syncs(self, operation: Any) -> bool:
        return bool(operation.key.part != Part.APPROVALS or operation.expected_version == 0)


def power_loss(place: Place) -> Callable[[], Callable[[], None]]:
    """Drop what was not synced when the power went."""
    data, synced = place.directory / "data", place.directory / "synced"

    def cut() -> Callable[[], None]:
        left = synced.read_bytes() if synced.exists() else None

        def drop() -> None:
            data.unlink(missing_ok=True)
            if left is not None:
                data.write_bytes(left)

        return drop

    return cut


# --- witnesses ---


async def powerless(scene: Scene) -> Any:
    """Whether each of some writes is among what was synced when it was acknowledged."""
    directory, seen = scene.place().directory, []

    def look() -> None:
        synced = directory / "synced"
        seen.append(synced.exists() and synced.read_bytes() == (directory / "data").read_bytes())

    await scene.append(1)
    look()
    await scene.store.sessions.replace("s1", [{"n": 2}], expected_version=None)
    look()
    await scene.turn({"a": 1}, at=0)
    version = await scene.turn({"b": 1})
    look()
    await scene.store.checkpoints.replace("s1", [], expected_version=version, head=await _idle(scene))
    await scene.ask()
    await scene.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    look()
    await scene.store.sessions.delete("s1")
    look()
    return seen


async def _idle(scene: Scene) -> Any:
    found = await scene.store.checkpoints.load("s1")
    assert found is not None
    return found.head


def of(journal: type[Synced], law: str) -> Fault:
    return Fault(journal.__name__, (law,), powerless, journal, options={"power_loss": power_loss}, beside=Synced)


FAULTS = (
    of(NeverSyncs, "sessions-append-survives-power-loss"),
    of(SyncsAtClose, "sessions-append-survives-power-loss"),
    of(ReplaceIsNotSynced, "sessions-replace-survives-power-loss"),
    of(DeleteIsNotSynced, "sessions-delete-survives-power-loss"),
    of(HeartbeatsAreNotSynced, "checkpoints-turn-survives-power-loss"),
    of(DecisionsAreNotSynced, "approvals-decision-survives-power-loss"),
)
RIGHT = Fault(
    "Synced", tuple(law for one in FAULTS for law in one.laws), powerless, Synced, options={"power_loss": power_loss}
)
"""The right store beside them, with all laws that are about it."""
