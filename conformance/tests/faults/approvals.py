"""Planted stores of the chapter on approvals: requests and decisions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from conformance.tests.faults.planting import Fault, Scene, at_once, outcome

from perdure.backend import Approval, ApprovalAlreadyResolvedError, Head, Key, Part, VersionConflictError
from perdure.journal.stores import JournalApprovals
from perdure_conformance.parts import request


class CreateResetsDecided(JournalApprovals):
    async def _create(self, approval: Approval) -> Approval:
        stored = await self._get(approval.id)
        if stored is not None and stored.decided:
            await self._delete(approval.id, expected_version=None)
        return await super()._create(approval)


class CopiesGetAnotherVersion(JournalApprovals):
    async def _create(self, approval: Approval) -> Approval:
        return await super()._create(replace(approval, version=approval.version + 1))


class LaterDecisionOverwrites(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        await asyncio.sleep(0)
        stored = await self._get(approval.id)
        if stored is not None and stored.decided:
            await self._delete(approval.id, expected_version=None)
            return await super()._create(replace(approval, version=stored.version + 1))
        return await super()._settle(approval)


class DecidingCreates(JournalApprovals):
    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        if found is None and approval_id.endswith("c1"):
            run = approval_id.partition(".s0")[0]
            return Approval(approval_id, run, "call", "tool", {}, datetime(2031, 1, 1, tzinfo=UTC), version=1)
        return found

    async def _settle(self, approval: Approval) -> Approval | None:
        return await super()._settle(approval) if await super()._get(approval.id) else approval


class NoteLost(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        decision = approval.decision and replace(approval.decision, note=None)
        return await super()._settle(replace(approval, decision=decision))


class StatusBeforeDecision(JournalApprovals):
    """A decision is written in two steps: first that there is one, then what it says."""

    async def _settle(self, approval: Approval) -> Approval | None:
        if approval.decision is None:
            return await super()._settle(approval)
        half = await super()._settle(replace(approval, decision=replace(approval.decision, note=None)))
        await asyncio.sleep(0)
        if half is not None:
            key = Key(Part.APPROVALS, approval.id)
            head = Head(data=approval.encode())
            entry = self.journal.entries[self.journal.namespace, key]  # type: ignore[attr-defined]  # reason: the fault's own journal
            entry.head = replace(entry.head, data=head.data)
        return half and replace(approval, version=half.version)


class EmptyEditsLost(JournalApprovals):
    async def _settle(self, approval: Approval) -> Approval | None:
        decision = approval.decision and replace(approval.decision, arguments=approval.decision.arguments or None)
        return await super()._settle(replace(approval, decision=decision))


class ExpiresATickLate(JournalApprovals):
    async def decide(self, approval_id: str, *, at: datetime | None = None, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        at = (self.clock.now() if at is None else at) - timedelta(microseconds=1)
        return await JournalApprovals.decide(self, approval_id, at=at, **options)


class DecisionIsConsumed(JournalApprovals):
    """Reading a decision twice finds it used up."""

    async def _get(self, approval_id: str) -> Approval | None:
        found = await super()._get(approval_id)
        reads: dict[str, int] = vars(self).setdefault("reads", {})
        if found is not None and found.decided:
            reads[approval_id] = reads.get(approval_id, 0) + 1
        return None if reads.get(approval_id, 0) > 1 else found


class Settles(JournalApprovals):
    """Changes decisions on their way in."""

    async def _settle(self, approval: Approval) -> Approval | None:
        decision = approval.decision and replace(approval.decision, **self.changes(approval))
        return await super()._settle(replace(approval, decision=decision))

    def changes(self, approval: Approval) -> dict[str, Any]:
        return {}


class DeciderLost(Settles):
    """Nobody is remembered to have decided."""

    def changes(self, approval: Approval) -> dict[str, Any]:
        return {"decided_by": None}


class DecidedAtCreation(Settles):
    """A decision has the time of the request."""

    def changes(self, approval: Approval) -> dict[str, Any]:
        return {"decided_at": approval.created_at}


class EditsMerged(Settles):
    """Edited arguments are laid over those that were asked for."""

    def changes(self, approval: Approval) -> dict[str, Any]:
        edited = None if approval.decision is None else approval.decision.arguments
        return {} if edited is None else {"arguments": approval.arguments | edited}


class EditsLost(Settles):
    """Edited arguments are not stored."""

    def changes(self, approval: Approval) -> dict[str, Any]:
        return {"arguments": None}


class RejectionIsNoDecision(JournalApprovals):
    """A rejection is stored as if nothing had been decided."""

    async def _settle(self, approval: Approval) -> Approval | None:
        if approval.status == "rejected":
            return await super()._get(approval.id)
        return await super()._settle(approval)


class SameAgainIsRefused(JournalApprovals):
    """The same decision again is an error."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        found = await self._get(approval_id)
        if found is not None and found.decided:
            raise ApprovalAlreadyResolvedError(found)
        return await JournalApprovals.decide(self, approval_id, **options)


class OtherAgainIsAnswered(JournalApprovals):
    """Another decision later gets the recorded one as its answer."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        try:
            return await JournalApprovals.decide(self, approval_id, **options)
        except ApprovalAlreadyResolvedError as error:
            return error.approval


class DecideRevives(JournalApprovals):
    """An approval that was deleted can be decided by who knew it."""

    async def _delete(self, approval_id: str, *, expected_version: int | None) -> bool:
        vars(self).setdefault("buried", {})[approval_id] = await self._get(approval_id)
        return await super()._delete(approval_id, expected_version=expected_version)

    async def _get(self, approval_id: str) -> Approval | None:
        buried = vars(self).get("buried", {}).get(approval_id)
        return await super()._get(approval_id) or buried

    async def _settle(self, approval: Approval) -> Approval | None:
        if await super()._get(approval.id) is None:
            await self._put(replace(approval, status="pending", decision=None), 0, approval.created_at)
        return await super()._settle(approval)


class OtherArgumentsAccepted(JournalApprovals):
    """A request with other arguments under a known id is taken for the same."""

    async def create(self, approval: Approval, *, version: int | None = None) -> Approval:  # type: ignore[misc]  # reason: the fault
        try:
            return await JournalApprovals.create(self, approval, version=version)
        except VersionConflictError:
            found = await self._get(approval.id)
            assert found is not None
            return found


class MetadataLost(JournalApprovals):
    """What the application wrote beside a request is dropped."""

    async def _create(self, approval: Approval) -> Approval:
        return await super()._create(replace(approval, metadata={}))


class ExpiresATickEarly(JournalApprovals):
    """An approval is over one tick before its time."""

    async def decide(self, approval_id: str, *, at: datetime | None = None, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        at = (self.clock.now() if at is None else at) + timedelta(microseconds=1)
        return await JournalApprovals.decide(self, approval_id, at=at, **options)


class TwoStepDecision(JournalApprovals):
    """A decision is stored by two writes: first rejected, then as it was made."""

    async def _settle(self, approval: Approval) -> Approval | None:
        stored = await self._get(approval.id)
        if stored is None or stored.decided or approval.decision is None:
            return await super()._settle(approval)
        first = replace(approval, decision=replace(approval.decision, note="deciding"))
        half = await super()._settle(first)
        assert half is not None
        await self._put(approval, half.version, approval.decision.decided_at)
        return await self._get(approval.id)


class CancelIsForgotten(JournalApprovals):
    """A cancelled approval is pending again for who decides."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:  # type: ignore[misc]  # reason: the fault
        stored = await self._get(approval_id)
        if stored is not None and stored.status == "cancelled":
            await self._delete(approval_id, expected_version=None)
            await self._create(replace(stored, status="pending", decision=None))
        return await JournalApprovals.decide(self, approval_id, **options)


# --- witnesses ---


async def decided(scene: Scene) -> Any:
    """One approval that is approved with edits, one rejected, one cancelled, and what is stored of them."""
    approvals = scene.store.approvals
    for call in range(4):
        await scene.ask(call, metadata={"m": 1})
    scene.clock.advance(timedelta(hours=1))
    await approvals.decide("s1.turn-1.s0.c0", approved=True, note="n", arguments={"sum": 2}, decided_by="ann")
    await approvals.decide("s1.turn-1.s0.c1", approved=False)
    await approvals.decide("s1.turn-1.s0.c2", approved=True, arguments={})
    await approvals.cancel("s1.turn-1.s0.c3", reason="no")
    found = (await approvals.list()).items
    return [(one.status, one.decision, one.metadata, one.effective_arguments) for one in found]


async def copied(scene: Scene) -> Any:
    """The version of a copy, by create and by a second create."""
    created = await scene.store.approvals.create(request(), version=77)
    again = await scene.store.approvals.create(request(), version=5)
    return created.version, again.version


async def again(scene: Scene) -> Any:
    """How a second creation and a second decision are met."""
    approvals = scene.store.approvals
    asked = await scene.ask()
    first = await approvals.decide(asked.id, approved=True, note="first")
    calls = (
        approvals.decide(asked.id, approved=True, note="second"),
        approvals.decide(asked.id, approved=False),
        scene.ask(),
        approvals.create(replace(asked, arguments={"other": 1}, arguments_sha256="")),
        approvals.decide("s1.turn-1.s0.c1", approved=True),
    )
    answers = [await outcome(call) for call in calls]
    stored = await approvals.get(asked.id)
    return [one if isinstance(one, str) else (one.id, one.status, one.decision) for one in answers], stored == first


async def deleted(scene: Scene) -> Any:
    asked = await scene.ask()
    await scene.store.approvals.delete(asked.id)
    answer = await outcome(scene.store.approvals.decide(asked.id, approved=True))
    return isinstance(answer, str), await scene.ids("approvals")


async def expiry(scene: Scene) -> Any:
    """Decisions a tick before the end, and at it."""
    until = scene.clock.now() + timedelta(hours=1)
    asked = [await scene.ask(call, expires_at=until) for call in range(2)]
    found = []
    for one, before in zip(asked, (1, 0), strict=True):
        scene.clock.set(until - timedelta(microseconds=before))
        answer = await outcome(scene.store.approvals.decide(one.id, approved=True))
        found.append(answer if isinstance(answer, str) else answer.status)
    return found


async def two_decide(scene: Scene) -> Any:
    asked = await scene.ask()
    decide = scene.store.approvals.decide
    return await at_once(*(decide(asked.id, approved=approved) for approved in (True, False)))


async def read_twice(scene: Scene) -> Any:
    asked = await scene.ask()
    await scene.store.approvals.decide(asked.id, approved=True)
    return [await scene.store.approvals.get(asked.id) is None for _ in range(3)]


async def steps_of_a_decision(scene: Scene) -> Any:
    """What a reader finds after each step of the loop while a decision is written, and how many writes it takes."""
    asked = await scene.ask()
    journal = scene.store.approvals.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    writes = []
    inner = journal.inner.write

    async def write(operations: Any) -> Any:
        writes.append(len(operations))
        return await inner(operations)

    journal.inner.write = write
    deciding = asyncio.ensure_future(scene.store.approvals.decide(asked.id, approved=True, note="n"))
    seen = set()
    while not deciding.done():
        await asyncio.sleep(0)
        found = await scene.store.approvals.get(asked.id)
        seen.add((found and found.status, found and found.decision and found.decision.note))
    return seen <= {("pending", None), ("approved", "n")}, len(writes)


async def cancelled(scene: Scene) -> Any:
    asked = await scene.ask()
    await scene.store.approvals.cancel(asked.id, reason="no")
    answer = await outcome(scene.store.approvals.decide(asked.id, approved=True))
    return isinstance(answer, str)


def of(approvals: type[JournalApprovals], witness: Any, *laws: str) -> Fault:
    return Fault(approvals.__name__, laws, witness, approvals=approvals)


FAULTS = (
    of(CopiesGetAnotherVersion, copied, "approvals-first-version-can-be-given"),
    of(CreateResetsDecided, again, "approvals-create-again-gives-the-stored"),
    of(OtherArgumentsAccepted, again, "approvals-create-with-other-arguments-conflicts"),
    of(DecidingCreates, again, "approvals-unknown-is-not-created"),
    of(SameAgainIsRefused, again, "approvals-same-decision-again-is-fine", "decide-again-is-as-the-first-time"),
    of(OtherAgainIsAnswered, again, "approvals-decided-once"),
    of(LaterDecisionOverwrites, two_decide, "approvals-one-of-many-tasks-decides"),
    of(NoteLost, decided, "approvals-decision-is-recorded-whole"),
    of(DeciderLost, decided, "approvals-decision-is-recorded-whole"),
    of(DecidedAtCreation, decided, "approvals-decision-comes-at-the-clock"),
    of(EditsMerged, decided, "approvals-decision-is-recorded-whole"),
    of(EditsLost, decided, "approvals-decision-is-recorded-whole"),
    of(EmptyEditsLost, decided, "approvals-decision-is-recorded-whole"),
    of(RejectionIsNoDecision, decided, "approvals-decision-is-recorded-whole"),
    of(MetadataLost, decided, "approvals-every-field-comes-back"),
    of(StatusBeforeDecision, steps_of_a_decision, "approvals-decision-is-seen-whole"),
    of(TwoStepDecision, steps_of_a_decision, "approvals-cut-anywhere-is-old-or-new"),
    of(DecideRevives, deleted, "approvals-deleted-is-not-revived"),
    of(CancelIsForgotten, cancelled, "approvals-cancelled-stays-cancelled"),
    of(ExpiresATickLate, expiry, "approvals-expired-is-rejected"),
    of(ExpiresATickEarly, expiry, "approvals-decidable-until-expiry"),
    of(DecisionIsConsumed, read_twice, "approvals-reading-consumes-nothing"),
)
