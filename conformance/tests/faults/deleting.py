"""Planted bundles that delete conversations, and decide for their turns, in a way of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from conformance.tests.faults.planting import Fault, Scene, outcome
from conformance.tests.faults.prune import claims_of_a_prune

from perdure import AgentStore
from perdure.backend import Approval
from perdure.contracts.checkpoints import AWAITING_APPROVAL, READY
from perdure_conformance.laws.conversations import head_of, left, owned, waiting


class Deletes(AgentStore):
    """Deletes in a way of its own, without a claim."""

    order: Sequence[str] = ("approvals", "sessions", "checkpoints")
    page = 1000

    async def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        removed = False
        for part in self.order:
            keys = [session_id]
            if part == "approvals":
                keys = [one.id for one in (await self.approvals.list(session_id=session_id, limit=self.page)).items]
            for key in keys:
                removed |= await getattr(self, part).delete(key)
        return removed


class DeleteLeavesApprovals(Deletes):
    """The approvals of a deleted session stay."""

    order = ("sessions", "checkpoints")


class DeleteLeavesTheTurnJournal(Deletes):
    """The turn journal of a deleted session stays."""

    order = ("approvals", "sessions")


class DeletesTheJournalFirst(Deletes):
    """The lock goes first."""

    order = ("checkpoints", "sessions", "approvals")


class DeleteStopsAtAPage(Deletes):
    """A hundred approvals go at most."""

    page = 100


class DeletesRunningTurns(AgentStore):
    """Every deletion is forced."""

    async def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        return await super().delete_session(session_id, force=True)


class DeleteAnswersTrue(AgentStore):
    """A deletion says that there was something, whatever there was."""

    async def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        await super().delete_session(session_id, force=force)
        return True


class DeletesWhatBeginsAlike(AgentStore):
    """Sessions whose ids begin with the one that is deleted go too."""

    async def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        removed = await super().delete_session(session_id, force=force)
        for info in (await self.sessions.list()).items:
            if info.session_id.startswith(session_id):
                await super().delete_session(info.session_id, force=force)
        return removed


class Decides(AgentStore):
    """Decides, and marks in a way of its own."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:
        approval = await self.approvals.decide(approval_id, **options)
        await self.mark(approval)
        return approval

    async def mark(self, approval: Approval) -> None:
        """Do nothing."""

    async def set_ready(self, key: str) -> None:
        found = await self.checkpoints.load(key)
        if found is not None:
            head = replace(found.head, status=READY)
            await self.checkpoints.append(key, [], expected_version=found.version, head=head)


class DecideMarksNothing(Decides):
    """A decided turn waits until somebody looks."""


class DecideMarksAtTheFirst(Decides):
    """The first decision marks the turn, whatever else it waits for."""

    async def mark(self, approval: Approval) -> None:
        found = await self.checkpoints.load(approval.session_id or "")
        if found is not None and found.head.status == AWAITING_APPROVAL and found.head.run_id == approval.run_id:
            await self.set_ready(found.key)


class DecideMarksWhateverRuns(Decides):
    """A decision marks the turn of its session, waiting or not, of the same run or not."""

    async def mark(self, approval: Approval) -> None:
        await self.set_ready(approval.session_id or "")


class DecideMarksFirst(AgentStore):
    """The turn is marked before the decision is stored."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:
        asked = await self.approvals.get(approval_id)
        if asked is not None and not asked.decided:
            await Decides.set_ready(self, asked.session_id or "")  # type: ignore[arg-type]  # reason: it needs no more
        return await self.approvals.decide(approval_id, **options)


class DecideFailsWithItsMark(Decides):
    """A decision that could not mark its turn is told as failed."""

    async def mark(self, approval: Approval) -> None:
        found = await self.checkpoints.load(approval.session_id or "")
        if found is not None and found.head.status == AWAITING_APPROVAL:
            await self.set_ready(found.key)


class ExpiredMarksNothing(AgentStore):
    """A decision that came too late leaves its turn waiting."""

    async def decide(self, approval_id: str, **options: Any) -> Approval:
        asked = await self.approvals.get(approval_id)
        if asked is not None and asked.expired(self.clock.now()):
            return await self.approvals.decide(approval_id, **options)
        return await super().decide(approval_id, **options)


async def deleted(scene: Scene) -> Any:
    """What a deletion answers and leaves, of a conversation among others, of none, and of one that runs."""
    for name in ("s1", "s10"):
        await waiting(scene.store, name, calls=2)
    answers = [await scene.store.delete_session("s1"), await scene.store.delete_session("s1")]
    await owned(scene.store, "busy", lease=timedelta(days=1))
    answers.append(await outcome(scene.store.delete_session("busy")))
    return answers, await left(scene.store)


async def deleted_in_bulk(scene: Scene) -> Any:
    await scene.append(1)
    for call in range(101):
        await scene.ask(call)
    await scene.store.delete_session("s1")
    return await left(scene.store)


async def marks(scene: Scene) -> Any:
    """The statuses of turns after each decision: of two calls, of another run, and of an expired one."""
    store, seen = scene.store, []
    until = scene.clock.now() + timedelta(hours=1)
    for one in await waiting(store, "s1", calls=2):
        await store.decide(one.id, approved=True)
        found = await store.checkpoints.load("s1")
        seen.append(found and found.head.status)
    (other,) = await waiting(store, "s2")
    (late,) = await waiting(store, "s3", expires_at=until)
    head = head_of("s2", "awaiting-approval", turn=2, approval_ids=["s2.turn-2.s0.c0"])
    await store.checkpoints.append("s2", [], expected_version=None, head=head)
    await outcome(store.decide(other.id, approved=True))
    scene.clock.set(until)
    await outcome(store.decide(late.id, approved=True))
    for name in ("s2", "s3"):
        found = await store.checkpoints.load(name)
        seen.append(found and found.head.status)
    return seen


async def failing_marks(scene: Scene) -> Any:
    """What a decider is told whose mark fails, and which write comes first."""
    (one,) = await waiting(scene.store, "s1")
    journal: Any = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    inner, parts = journal.inner.write, []

    async def write(operations: Any) -> Any:
        parts.append(str(operations[0].key.part))
        if len(parts) == 2:
            raise ConnectionError("away")
        return await inner(operations)

    journal.inner.write = write
    answer = await outcome(scene.store.decide(one.id, approved=True))
    return isinstance(answer, str), parts


def of(bundle: type[AgentStore], witness: Any, *laws: str) -> Fault:
    return Fault(bundle.__name__, laws, witness, bundle=bundle)


FAULTS = (
    of(DeleteLeavesApprovals, deleted, "delete-session-leaves-nothing"),
    of(DeleteLeavesTheTurnJournal, deleted, "delete-session-leaves-nothing"),
    of(DeletesTheJournalFirst, claims_of_a_prune, "delete-session-cut-short-keeps-its-journal-to-the-end"),
    of(DeleteStopsAtAPage, deleted_in_bulk, "delete-session-has-no-cap"),
    of(DeletesRunningTurns, deleted, "delete-session-respects-a-live-owner"),
    of(DeleteAnswersTrue, deleted, "delete-session-tells-whether-there-was-anything"),
    of(DeletesWhatBeginsAlike, deleted, "delete-session-leaves-nothing"),
    of(DecideMarksNothing, marks, "decide-marks-the-turn-ready", "protocol-decision-is-seen-by-one-of-the-two"),
    of(DecideMarksAtTheFirst, marks, "decide-marks-the-turn-ready"),
    of(DecideMarksWhateverRuns, marks, "decide-marks-no-other-turn"),
    of(DecideMarksFirst, failing_marks, "decide-stores-the-decision-first"),
    of(DecideFailsWithItsMark, failing_marks, "decide-stands-without-its-mark"),
    of(ExpiredMarksNothing, marks, "decide-of-an-expired-one-marks-too"),
)
