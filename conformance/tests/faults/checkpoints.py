"""Planted stores of the chapter on checkpoints: heads and entries of turn journals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from conformance.tests.faults.planting import Around, Fault, Scene, outcome

from perdure.backend import Append, Delete, JournalSnapshot, Key, Part, Replace
from perdure.contracts.checkpoints import CheckpointHead
from perdure.journal.stores import JournalCheckpoints


class ExtraFieldsDropped(JournalCheckpoints):
    async def append(self, key: str, entries: Any, *, head: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        return await JournalCheckpoints.append(self, key, entries, head=replace(head, extra={}), **options)


class Heads(JournalCheckpoints):
    """Changes heads on their way in."""

    async def append(self, key: str, entries: Any, *, head: Any, **options: Any) -> int:  # type: ignore[misc]  # reason: the fault
        return await JournalCheckpoints.append(self, key, entries, head=self.kept(key, head), **options)

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        return head


class HeadOfAnotherRun(Heads):
    """All turn journals show the run that was written last."""

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        before = vars(self).setdefault("before", [])
        before.append(head.run_id)
        return replace(head, run_id=before[max(len(before) - 2, 0)])


class LeaseInSeconds(Heads):
    """A lease loses the fraction of its last second."""

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        return replace(head, lease=head.lease and timedelta(seconds=int(head.lease.total_seconds())))


class OwnerStays(Heads):
    """A head without an owner keeps the one before it."""

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        owners = vars(self).setdefault("owners", {})
        owners[key] = head.owner or owners.get(key)
        return replace(head, owner=owners[key])


class AttemptsRestart(Heads):
    """The number of attempts is always one."""

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        return replace(head, attempts=min(head.attempts, 1))


class ZeroIsNone(Heads):
    """A base of zero is read as none at all."""

    def kept(self, key: str, head: CheckpointHead) -> CheckpointHead:
        return replace(head, base_version=head.base_version or None, base_count=head.base_count or None)


class LateAppendRevives(Around):
    """An append at a version of a deleted key creates it again."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.gone: dict[Key, int] = {}

    def change(self, operation: Any) -> Any:
        there = self.entries.get((self.namespace, operation.key))
        if isinstance(operation, Delete) and there is not None:
            self.gone[operation.key] = there.version
        if (
            isinstance(operation, Append)
            and there is None
            and operation.expected_version == self.gone.get(operation.key)
        ):
            return replace(operation, expected_version=0)
        return operation


class HeartbeatClears(Around):
    """An append of no entries drops those that are there."""

    def change(self, operation: Any) -> Any:
        entry = self.entries.get((self.namespace, operation.key))
        if isinstance(operation, Append) and not operation.items and operation.key.part == Part.RUNS and entry:
            entry.items.clear()
        return operation


class HeadKeptByReplace(Around):
    """Closing a turn leaves its head as it was."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace) or operation.key.part != Part.RUNS:
            return operation
        return replace(operation, head=replace(operation.head, data=None, status=None))


class ReplaceLowersTheVersion(Around):
    """Closing a turn takes the version back to where the turn began."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        (operation,) = operations[-1:]
        if not isinstance(operation, Replace) or operation.key.part != Part.RUNS:
            return versions
        self.stored(operation.key).version -= 2
        return (*versions[:-1], versions[-1] - 2)


class KeysByPrefix(Around):
    """A turn journal is found by the first two characters of its key."""

    def cut(self, key: Key) -> Key:
        return Key(key.part, key.id[:2]) if key.part == Part.RUNS else key

    def change(self, operation: Any) -> Any:
        return replace(operation, key=self.cut(operation.key))

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(self.cut(key), **window)


class RunIsItsSession(Around):
    """The turn journal `a.run` is that of session `a`."""

    def change(self, operation: Any) -> Any:
        return replace(operation, key=Key(operation.key.part, operation.key.id.removesuffix(".run")))

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        return await super().read(Key(key.part, key.id.removesuffix(".run")), **window)


class HeadsAreMerged(Around):
    """A head of another status is stored, its fields are not."""

    def change(self, operation: Any) -> Any:
        there = self.entries.get((self.namespace, operation.key))
        if isinstance(operation, Append) and operation.key.part == Part.RUNS and there and not operation.items:
            return replace(operation, head=replace(operation.head, data=None))
        return operation


# --- witnesses ---

FULL = CheckpointHead(
    *("in-progress", "s1.turn-7", "s1"),
    base_version=0,
    base_count=0,
    owner="ann",
    lease=timedelta(seconds=30, microseconds=1),
    attempts=3,
    extra={"later": 1},
)


async def heads(scene: Scene) -> Any:
    """The heads of two turns, as they are written, beaten, closed and begun again."""
    seen = []
    await scene.turn({"n": 1}, to="s10", head=CheckpointHead("in-progress", "s10.turn-1", "s10"))
    version = await scene.turn({"n": 1}, {"n": 2}, head=FULL)
    seen.append(await scene.entries())
    await scene.turn(head=replace(FULL, owner=None, attempts=4), at=version)
    seen.append(await scene.entries())
    closed = await scene.store.checkpoints.replace("s1", [], expected_version=None, head=CheckpointHead("idle"))
    seen.append(await scene.entries())
    return seen, closed - version, await scene.entries("s10"), await scene.entries("s1.run")


async def late(scene: Scene) -> Any:
    version = await scene.turn({"n": 1})
    await scene.store.checkpoints.delete("s1")
    answer = await outcome(scene.turn({"late": 1}, at=version))
    return isinstance(answer, str), await scene.entries()


async def run_and_session(scene: Scene) -> Any:
    await scene.turn({"n": 1})
    return await scene.entries("s1.run")


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_heads(checkpoints: type[JournalCheckpoints], *laws: str) -> Fault:
    return Fault(checkpoints.__name__, laws, heads, checkpoints=checkpoints)


FAULTS = (
    of_heads(ExtraFieldsDropped, "checkpoints-every-head-field-comes-back"),
    of_heads(HeadOfAnotherRun, "checkpoints-every-head-field-comes-back", "checkpoints-head-is-replaced-whole"),
    of_heads(LeaseInSeconds, "checkpoints-every-head-field-comes-back"),
    of_heads(OwnerStays, "checkpoints-head-is-replaced-whole"),
    of_heads(AttemptsRestart, "checkpoints-every-head-field-comes-back"),
    of_heads(ZeroIsNone, "checkpoints-every-head-field-comes-back"),
    of(LateAppendRevives, late, "checkpoints-late-append-revives-nothing"),
    of(HeartbeatClears, heads, "checkpoints-heartbeat-keeps-entries"),
    of(HeadKeptByReplace, heads, "checkpoints-head-is-replaced-whole"),
    of(ReplaceLowersTheVersion, heads, "checkpoints-replace-adds-one"),
    of(KeysByPrefix, heads, "checkpoints-confusable-ids-stay-apart"),
    of(RunIsItsSession, run_and_session, "checkpoints-run-and-session-of-one-name-are-two"),
    of(HeadsAreMerged, heads, "checkpoints-heartbeat-keeps-entries"),
)
