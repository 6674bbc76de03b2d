"""Planted stores of the chapters on the protocol and the runtime: what a turn relies on is not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from conformance.tests.faults.deleting import DeleteLeavesTheTurnJournal, Deletes, deleted
from conformance.tests.faults.planting import HEAD, IDLE, Around, Fault, Scene, outcome
from conformance.tests.faults.prune import Prunes, PruneTakesDecisions
from conformance.tests.faults.versions import NoVersionCheck, VersionsRestart, created_twice, refusals

from perdure import AgentStore, codec
from perdure.backend import (
    Append,
    Approval,
    JournalSnapshot,
    Key,
    OutcomeUnknownError,
    Part,
    Replace,
    VersionConflictError,
)
from perdure.contracts.checkpoints import CheckpointHead, CheckpointReplace
from perdure.contracts.sessions import SessionAppend
from perdure.journal.stores import JournalApprovals, JournalCheckpoints


def loses(kind: str) -> type[Around]:
    """Return a journal that keeps no entries of a kind."""

    class Loses(Around):
        def change(self, operation: Any) -> Any:
            if not isinstance(operation, Append) or operation.key.part != Part.RUNS:
                return operation
            return replace(operation, items=tuple(one for one in operation.items if kept(one)))

    def kept(item: bytes) -> bool:
        return bool(codec.decode(item).get("kind") != kind)

    return Loses


class CommitsTwice(Around):
    """A turn that is saved is told as of unknown outcome, and can be saved again at the same version."""

    def __init__(self, place: Any) -> None:
        super().__init__(place)
        self.told: set[str] = set()

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        first = operations[0]
        saves = isinstance(first, Append) and first.key.part == Part.SESSIONS and len(first.items) > 1
        if not saves or first.key.id in self.told:
            return await super().write(operations)
        await super().write(operations[:1])
        self.told.add(first.key.id)
        self.stored(first.key).version -= 1
        raise OutcomeUnknownError("write", first.key.id)


class CommitsNever(Around):
    """A turn is closed, and its messages are not saved."""

    def change(self, operation: Any) -> Any:
        saves = isinstance(operation, Append) and operation.key.part == Part.SESSIONS and len(operation.items) > 1
        return replace(operation, items=()) if saves else operation


class LastResultLost(Around):
    """Of a long batch the last but one record is dropped."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Append) or operation.key.part != Part.SESSIONS or len(operation.items) < 3:
            return operation
        return replace(operation, items=(*operation.items[:-2], operation.items[-1]))


class TurnJournalIgnoresVersions(Around):
    """Whoever writes to a turn journal owns it."""

    def change(self, operation: Any) -> Any:
        if operation.key.part != Part.RUNS or operation.expected_version == 0:
            return operation
        return replace(operation, expected_version=None)


class ConflictsAreOverruled(Around):
    """A transcript is appended to at its version, and if that is refused, in any case."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        try:
            return await super().write(operations)
        except VersionConflictError:
            first = operations[0]
            if not isinstance(first, Append) or first.key.part != Part.SESSIONS or not first.items:
                raise
            return await super().write([replace(operation, expected_version=None) for operation in operations])


class LaggingReads(Around):
    """The first two reads of a transcript after a write to it show it as it was before."""

    lag: ClassVar[dict[tuple[str, Key], list[JournalSnapshot]]] = {}

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        keys = [operation.key for operation in operations if operation.key.part == Part.SESSIONS]
        before = {key: await self.inner.read(key) for key in keys}
        versions = await super().write(operations)
        for key, found in before.items():
            self.lag[self.place.name, key] = [] if found is None else [found, found]
        return versions

    async def read(self, key: Key, **window: Any) -> JournalSnapshot | None:
        lagging = self.lag.get((self.place.name, key))
        if not lagging:
            return await super().read(key, **window)
        found = lagging.pop()
        start = min(window.get("after") or 0, found.count)
        limit, last = window.get("limit"), window.get("last")
        if last is not None:
            start = max(found.count - last, 0)
        end = None if limit is None else start + limit
        return replace(found, items=found.items[start:end], start=start)


class TitleLostAtCommit(Around):
    """A batch of records resets the state."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Append) or operation.key.part != Part.SESSIONS or len(operation.items) < 2:
            return operation
        return replace(operation, head=replace(operation.head, data=operation.head.data or b""))


class OneApprovalForACall(JournalApprovals):
    """The question whether a call may be repeated is that of its gate."""

    async def _get(self, approval_id: str) -> Approval | None:
        base, _, tail = approval_id.rpartition(".")
        found = await super()._get(base if tail.startswith("d") else approval_id)
        return found and replace(found, id=approval_id)

    async def _create(self, approval: Approval) -> Approval:
        found = await self._get(approval.id)
        if found is None:
            return await super()._create(approval)
        return replace(found, kind=approval.kind, arguments=approval.arguments)


class PrunesWhatIsNotSaved(Prunes):
    """Conversations go by their session's age, whoever goes on with their turn."""

    async def old(self, info: Any, cutoff: Any) -> bool:
        return bool(info.updated_at < cutoff)


class HeartbeatSkipsAVersion(Around):
    """An append of no entries raises the version by two, and tells of one."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        if isinstance(operations[0], Append) and operations[0].key.part == Part.RUNS and not operations[0].items:
            self.stored(operations[0].key).version += 1
        return versions


class OwnersOfOtherHosts(JournalCheckpoints):
    """An owner is remembered under another host's name."""

    async def load(self, key: str) -> Any:  # type: ignore[misc]  # reason: the fault
        found = await JournalCheckpoints.load(self, key)
        if found is None or found.head.owner is None:
            return found
        return replace(found, head=replace(found.head, owner=f"far-{found.head.owner}"))


class DecisionsOfNeighbours(JournalApprovals):
    """The decision on one call is shown for the next one too."""

    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        call = approval_id.rpartition(".c")[2]
        if found is None or not call.isdigit() or not found.decided:
            return found
        before = await super()._get(f"{approval_id.rpartition('.c')[0]}.c{int(call) - 1}")
        return replace(found, decision=before.decision, status=before.status) if before and before.decided else found


class ForgetsDecisionsElsewhere(JournalApprovals):
    """A handle that has asked for an approval sees it as pending for ever."""

    async def _create(self, approval: Approval) -> Approval:
        made = await super()._create(approval)
        vars(self).setdefault("made", {})[approval.id] = made
        return made

    async def _get(self, approval_id: str) -> Approval | None:
        return vars(self).get("made", {}).get(approval_id) or await super()._get(approval_id)


class EditsOfNobody(JournalApprovals):
    """Whoever reads a decision gets the arguments that were asked for."""

    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        if found is None or found.decision is None:
            return found
        return replace(found, decision=replace(found.decision, arguments=None))


class ClosingKeepsEntries(Around):
    """A turn that is closed leaves its entries to the next one."""

    def change(self, operation: Any) -> Any:
        if not isinstance(operation, Replace) or operation.key.part != Part.RUNS:
            return operation
        return (
            replace(operation, keep=len(self.stored(operation.key).items)) if self._there(operation.key) else operation
        )

    def _there(self, key: Key) -> bool:
        return (self.namespace, key) in self.entries


# --- witnesses ---

KINDS = ("input", "model", "tool-started", "tool", "approval-applied", "input-queued", "finished")


async def kinds(scene: Scene) -> Any:
    """The kinds of entries that come back."""
    await scene.turn(*({"kind": kind} for kind in KINDS))
    found = await scene.entries()
    return [entry.get("kind") for entry in found[1]]


async def saved(scene: Scene) -> Any:
    """What a turn leaves that is saved and closed, by both ways to do that, with a title set before."""
    seen: list[Any] = []
    version = await scene.append(state={"title": "t"})
    turn = await scene.turn({"n": 1})
    records: list[Any] = [{"n": number} for number in range(4)]
    both = SessionAppend("s1", records, version), CheckpointReplace("s1", [], IDLE, turn)
    seen.append(isinstance(await outcome(scene.store.write(*both)), str))
    late = await outcome(scene.append(7, 8, 9, expected_version=version))
    found = await scene.store.sessions.load("s1")
    assert found is not None
    return seen, isinstance(late, str), list(found.records), found.state, (await scene.entries())[1]


async def turn_versions(scene: Scene) -> Any:
    """How a turn journal takes late writes, and what a heartbeat answers."""
    version = await scene.turn({"n": 1})
    beat = await scene.turn(at=version)
    late = await outcome(scene.turn({"late": 1}, at=version))
    next_one = await outcome(scene.turn({"n": 2}, at=beat))
    return beat - version, isinstance(late, str), isinstance(next_one, str)


async def owners(scene: Scene) -> Any:
    await scene.turn(head=replace(HEAD, owner="here/boot/1/2/3/x"))
    return (await scene.entries())[0].owner


async def lagging(scene: Scene) -> Any:
    await scene.append(1)
    await scene.append(2)
    return await scene.records()


async def questions(scene: Scene) -> Any:
    """What is decided of each of several approvals when one is, as two handles see it."""
    other = await scene.open()
    for call in range(3):
        await scene.ask(call)
    await other.approvals.decide("s1.turn-1.s0.c0", approved=True, arguments={"sum": 9})
    await other.approvals.decide("s1.turn-1.s0.c1", approved=False)
    ids = [f"s1.turn-1.s0.c{call}" for call in range(3)] + ["s1.turn-1.s0.c0.d1"]
    found = [await scene.store.approvals.get(one) for one in ids]
    return [one and (one.status, one.effective_arguments) for one in found]


async def unfinished(scene: Scene) -> Any:
    """Whether a prune takes a conversation whose turn is younger than its session."""
    await scene.append(1)
    scene.clock.advance(timedelta(days=14))
    await scene.turn({"n": 1}, head=CheckpointHead("finished", run_id="s1.turn-1", session_id="s1"))
    await scene.store.prune(older_than=timedelta(days=7))
    return await scene.records(), await scene.entries()


async def decided_and_old(scene: Scene) -> Any:
    await scene.append(1)
    asked = await scene.ask()
    await scene.store.approvals.decide(asked.id, approved=True)
    await scene.turn(head=CheckpointHead("ready", run_id="s1.turn-1", session_id="s1", approval_ids=[asked.id]))
    scene.clock.advance(timedelta(days=14))
    await scene.append(2)
    await scene.store.prune(older_than=timedelta(days=7))
    return await scene.ids("approvals")


def renamed(name: str, journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(name, laws, witness, journal)


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_approvals(approvals: type[JournalApprovals], *laws: str) -> Fault:
    return Fault(approvals.__name__, laws, questions, approvals=approvals)


def of_bundle(name: str, bundle: type[AgentStore], witness: Any, *laws: str) -> Fault:
    return Fault(name, laws, witness, bundle=bundle)


CUT = "turn-comes-out-whole-wherever-it-is-cut"

PROTOCOL = (
    renamed("RunIdsRepeat", VersionsRestart, created_twice, "protocol-run-ids-never-repeat"),
    of(LaggingReads, lagging, "sessions-second-handle-is-never-stale"),
    renamed("SavesBehindOtherTurns", NoVersionCheck, refusals, "protocol-turn-stands-behind-its-transcript"),
    of(ConflictsAreOverruled, saved, "protocol-dropped-turn-saves-nothing"),
    of(TitleLostAtCommit, saved, "protocol-title-survives-a-commit"),
    of_approvals(OneApprovalForACall, "protocol-approval-answers-its-own-question"),
    of_bundle(
        "PrunesUnappliedDecisions", PruneTakesDecisions, decided_and_old, "protocol-prune-keeps-the-approvals-of-a-turn"
    ),
    of_bundle("PrunesWhatIsNotSaved", PrunesWhatIsNotSaved, unfinished, "protocol-prune-takes-no-turn-that-goes-on"),
    of_bundle("DeletesLaterTurns", Deletes, deleted, "protocol-sleeping-claim-harms-no-later-turn"),
    of_bundle("DeletedRunnerGoesOn", DeleteLeavesTheTurnJournal, deleted, "protocol-delete-fences-the-runner"),
    renamed("OpensTwice", TurnJournalIgnoresVersions, turn_versions, "protocol-unknown-opening-runs-once"),
    Fault("OwnersOfOtherHosts", ("protocol-failed-claim-blocks-nobody",), owners, checkpoints=OwnersOfOtherHosts),
    of(HeartbeatSkipsAVersion, turn_versions, "protocol-heartbeat-conflicts-with-nobody"),
    of(TurnJournalIgnoresVersions, turn_versions, "protocol-two-turns-in-any-order", "turn-has-one-runner"),
)
RUNTIME = (
    renamed("LosesToolEntries", loses("tool"), kinds, CUT),
    renamed("LosesModelEntries", loses("model"), kinds, CUT),
    renamed("LosesStartedEntries", loses("tool-started"), kinds, "protocol-approval-answers-its-own-question"),
    renamed("LosesQueuedInputs", loses("input-queued"), kinds, "turn-queued-input-is-not-lost"),
    of(CommitsTwice, saved, "turn-decisions-are-applied-as-made"),
    of(CommitsNever, saved, "turn-decisions-are-applied-as-made"),
    of(LastResultLost, saved, "turn-decisions-are-applied-as-made"),
    of(ClosingKeepsEntries, saved, "turn-decisions-are-applied-as-made", "turn-that-is-aborted-leaves-nothing-open"),
    of_approvals(DecisionsOfNeighbours, "turn-decisions-are-applied-as-made"),
    of_approvals(EditsOfNobody, "turn-decisions-are-applied-as-made"),
    of_approvals(ForgetsDecisionsElsewhere, "turn-decided-elsewhere-goes-on-here"),
    renamed("StaleOwnersWrite", TurnJournalIgnoresVersions, turn_versions, "turn-of-a-stale-owner-writes-nothing"),
)
FAULTS = (*PROTOCOL, *RUNTIME)
