"""Approvals: who is asked, what a decision does, and that it reaches exactly the call that it was made for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, dead, writes_nothing

from perdure import Agent, AgentStore, ToolCall, ToolContext, TurnResult, tool
from perdure.contracts.approvals import Approval, hash_arguments
from perdure.errors import (
    AgentChangedError,
    ApprovalAlreadyResolvedError,
    ApprovalExpiredError,
    ApprovalNotFoundError,
    ApprovalOrphanedError,
    InvalidArgumentError,
    InvalidIdError,
    NotJsonError,
    SessionAwaitingApprovalError,
    VersionConflictError,
)
from perdure.models import ScriptedModel
from perdure_conformance.manual_clock import TICK, ManualClock

pytestmark = pytest.mark.anyio

PAY = [ToolCall("c1", "pay", {"to": "ann", "amount": 7})]
THREE = [ToolCall(f"c{n}", "pay", {"to": "ann", "amount": 7}) for n in range(3)]


class Desk:
    """An agent whose payments a human decides, and what was paid."""

    def __init__(self, store: AgentStore, calls: list[ToolCall] | None = None, **options: Any) -> None:
        self.paid: list[tuple[str, str, int]] = []
        self.looked = 0

        @tool(needs_approval=options.pop("needs_approval", True), **options)
        async def pay(to: str, amount: int, context: ToolContext) -> str:
            self.paid.append((context.call_id, to, amount))
            return f"paid {to} {amount}"

        @tool
        async def look() -> str:
            self.looked += 1
            return "seen"

        self.store = store
        self.model = ScriptedModel([PAY if calls is None else calls, "done"])
        self.agent = Agent(model=self.model, tools=[pay, look], store=store)
        self.session = self.agent.session("s")

    async def ask(self) -> str:
        """Start the turn, and return the id of its first approval."""
        result = await self.session.send("go")
        assert (result.finish_reason, result.text) == ("awaiting-approval", "")
        return result.approval_ids[0]

    async def get(self, approval_id: str) -> Approval:
        approval = await self.store.approvals.get(approval_id)
        assert approval is not None
        return approval

    def elsewhere(self) -> Desk:
        """The same agent in another process, which shares nothing but the store."""
        fresh = Desk(another(self.store, process=dead()))
        fresh.model._script[:] = self.model._script
        return fresh


def answers(result: TurnResult | None) -> list[str]:
    assert result is not None
    return [message.text for message in result.messages if message.role == "tool"]


async def test_an_approval_tells_all_that_a_human_needs(any_store: AgentStore) -> None:
    desk = Desk(any_store, approval_timeout=timedelta(hours=1), on_expiry="keep")
    approval_id = await desk.ask()
    approval = await desk.get(approval_id)
    now = any_store.clock.now()
    pending = await desk.session.pending()
    assert pending is not None
    assert approval_id == f"{pending.run_id}.s0.c0"
    assert (approval.session_id, approval.run_id, approval.agent) == ("s", pending.run_id, "agent")
    assert (approval.tool_call_id, approval.tool_name) == ("c1", "pay")
    assert approval.arguments == {"to": "ann", "amount": 7}
    assert approval.arguments_sha256 == hash_arguments({"amount": 7, "to": "ann"})
    assert (approval.kind, approval.status, approval.created_at) == ("approve", "pending", now)
    assert (approval.expires_at, approval.on_expiry) == (now + timedelta(hours=1), "keep")
    assert desk.paid == []


async def test_approved(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    result = await desk.agent.approvals.resolve(await desk.ask(), approved=True, decided_by="eve")
    assert (result.finish_reason, result.text, answers(result)) == ("stop", "done", ["paid ann 7"])
    assert desk.paid == [("c1", "ann", 7)]


async def test_rejected_with_a_note(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    result = await desk.agent.approvals.resolve(await desk.ask(), approved=False, note="too much")
    (answer,) = answers(result)
    assert json.loads(answer) == {"status": "rejected", "tool": "pay", "note": "too much"}
    assert desk.paid == []


async def test_edited_arguments_run_and_are_recorded(store: AgentStore) -> None:
    desk = Desk(store)
    approval_id = await desk.ask()
    result = await desk.agent.approvals.resolve(approval_id, approved=True, arguments={"to": "zoe", "amount": "1"})
    assert desk.paid == [("c1", "zoe", 1)]
    approval = await desk.get(approval_id)
    assert approval.arguments == {"to": "ann", "amount": 7}
    assert approval.effective_arguments == {"to": "zoe", "amount": "1"}
    assert result.messages[1].tool_calls[0].arguments == {"to": "ann", "amount": 7}


async def test_edited_arguments_are_validated_again(store: AgentStore) -> None:
    desk = Desk(store)
    # By the store, which knows no tools: an agent refuses such a decision before it is stored.
    await store.decide(await desk.ask(), approved=True, arguments={"to": "zoe"})
    result = await desk.session.resume()
    assert result is not None
    assert (result.finish_reason, desk.paid) == ("stop", [])
    assert answers(result) == ["the arguments do not fit: amount: Field required"]


async def test_a_predicate_decides_once_who_is_asked(store: AgentStore) -> None:
    asked: list[dict[str, Any]] = []

    def large(arguments: dict[str, Any]) -> bool:
        asked.append(dict(arguments))
        return bool(arguments["amount"] > 100)

    calls = [ToolCall("c1", "pay", {"to": "a", "amount": 1}), ToolCall("c2", "pay", {"to": "b", "amount": 900})]
    desk = Desk(store, calls, needs_approval=large)
    approval_id = await desk.ask()
    assert approval_id.endswith(".s0.c1")
    assert desk.paid == [("c1", "a", 1)]
    await desk.agent.approvals.resolve(approval_id, approved=True)
    assert desk.paid == [("c1", "a", 1), ("c2", "b", 900)]
    assert [arguments["amount"] for arguments in asked] == [1, 900]


async def test_a_predicate_that_fails_asks(store: AgentStore) -> None:
    desk = Desk(store, needs_approval=lambda arguments: arguments["no such argument"])
    await desk.ask()
    assert desk.paid == []


async def test_the_gate_that_was_recorded_counts_not_the_one_of_today(store: AgentStore) -> None:
    desk = Desk(store)
    await desk.ask()
    relaxed = Desk(store, needs_approval=False)
    with pytest.raises(SessionAwaitingApprovalError):
        await relaxed.session.resume()
    assert relaxed.paid == []


# --- several at once ---


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_same_calls_get_their_own_approvals_and_answers(any_store: AgentStore, order: tuple[int, ...]) -> None:
    """B091: three gated calls of one tool with the same arguments have three ids, and each answer its call."""
    desk = Desk(any_store, THREE)
    asked = await desk.session.send("go")
    assert len(set(asked.approval_ids)) == 3
    results = [await desk.agent.approvals.resolve(asked.approval_ids[n], approved=n != 1, note=f"n{n}") for n in order]
    left = [set(result.approval_ids) for result in results]
    assert left == [set(asked.approval_ids) - {asked.approval_ids[n] for n in order[: k + 1]} for k in range(3)]
    assert [result.finish_reason for result in results] == ["awaiting-approval"] * 2 + ["stop"]
    assert sorted(desk.paid) == [("c0", "ann", 7), ("c2", "ann", 7)]
    yes, no, _ = answers(results[-1])
    assert (yes, json.loads(no)["note"]) == ("paid ann 7", "n1")


async def test_free_calls_run_while_gated_ones_wait_and_never_again(store: AgentStore) -> None:
    """B092, B097: what ran before the pause does not run again, and a settled pause is not asked again."""
    desk = Desk(store, [ToolCall("c0", "look"), *THREE[1:], ToolCall("c3", "look")])
    asked = await desk.session.send("go")
    assert (desk.looked, len(asked.approval_ids)) == (2, 2)
    first = await desk.agent.approvals.resolve(asked.approval_ids[0], approved=True)
    assert first.approval_ids == (asked.approval_ids[1],)
    await desk.agent.approvals.resolve(asked.approval_ids[1], approved=True)
    assert (desk.looked, len(desk.paid), len(desk.model.calls)) == (2, 2, 2)
    assert len((await store.approvals.list()).items) == 2


# --- who decides, and from where ---


async def test_decided_from_another_bundle_and_continued_here(any_store: AgentStore) -> None:
    """B088: every entry point reads the store; nothing of an approval lives in memory alone."""
    desk = Desk(any_store)
    approval_id = await desk.ask()
    web = another(any_store)
    (listed,) = (await web.approvals.list(status="pending")).items
    decided = await web.decide(listed.id, approved=True, decided_by="eve", note="fine")
    assert decided.decision is not None
    assert (decided.decision.decided_by, decided.decision.note) == ("eve", "fine")
    pending = await desk.session.pending()
    assert pending is not None
    assert pending.status == "ready"
    result = await desk.session.resume()
    assert (answers(result), approval_id) == (["paid ann 7"], listed.id)


@pytest.mark.parametrize("entry", ["resolve", "agent.resume", "session.resume", "send"])
async def test_after_a_restart_by_id_alone(any_store: AgentStore, entry: str) -> None:
    """B080, B086, B088: a fresh process needs the id and the store, whatever way it goes on."""
    approval_id = await Desk(another(any_store, process=dead())).ask()
    desk = Desk(any_store)
    assert [turn.approval_ids for turn in await desk.agent.pending()] == [(approval_id,)]
    if entry == "resolve":
        await desk.agent.approvals.resolve(approval_id, approved=True)
    else:
        await desk.agent.approvals.decide(approval_id, approved=True)
        if entry == "send":
            desk.model._script.append("next")
            assert (await desk.session.send("more")).text == "next"
        else:
            await (desk.agent.resume("s") if entry == "agent.resume" else desk.session.resume())
    assert desk.paid == [("c1", "ann", 7)]
    assert await desk.agent.pending() == []


async def test_deciding_twice(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    approval_id = await desk.ask()
    first = await desk.agent.approvals.resolve(approval_id, approved=True, note="first", decided_by="a")
    again = await desk.agent.approvals.resolve(approval_id, approved=True, note="second", decided_by="b")
    assert again == first
    assert len(desk.paid) == 1
    differences: list[dict[str, Any]] = [
        {"approved": False},
        {"approved": True, "arguments": {"to": "eve", "amount": 9}},
    ]
    for different in differences:
        with pytest.raises(ApprovalAlreadyResolvedError) as caught:
            await desk.agent.approvals.resolve(approval_id, **different)
        assert caught.value.approval.decision is not None
        assert caught.value.approval.decision.note == "first"


async def test_answers_that_come_again_with_the_whole_history(any_store: AgentStore) -> None:
    """B095: a client that gives all its answers again, also to a turn that is over, has each applied once, by its id."""
    desk = Desk(any_store, THREE[:1])
    desk.model._script.append(THREE[:1])  # the next turn, whose call has the same id
    desk.model._script.append("done again")
    first = await desk.ask()
    cards = {first: True}
    await desk.agent.approvals.resolve(first, approved=True)
    cards[await desk.ask()] = False
    for _ in range(2):
        for approval_id, approved in cards.items():
            await desk.agent.approvals.resolve(approval_id, approved=approved)
    assert desk.paid == [("c0", "ann", 7)]
    messages = await desk.session.load()
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"] * 2
    assert [message.tool_call_id for message in messages if message.role == "tool"] == ["c0", "c0"]


@pytest.mark.parametrize("first", [True, False])
async def test_no_answer_to_one_call_covers_another(store: AgentStore, first: bool) -> None:
    """B082, B083: a decision is bound to its call; an earlier yes lets nothing else through, nor undoes a no."""
    desk = Desk(store, THREE[:2])
    one, two = (await desk.session.send("go")).approval_ids
    await desk.agent.approvals.resolve(one, approved=first)
    with pytest.raises(SessionAwaitingApprovalError):
        await desk.session.resume()
    await desk.agent.approvals.resolve(two, approved=not first)
    assert [call for call, _, _ in desk.paid] == (["c0"] if first else ["c1"])


async def test_an_approval_under_the_id_with_other_arguments_stops_the_turn(store: AgentStore) -> None:
    """B083: an approval is bound to the hash of the arguments; one for others is not taken for it."""
    desk = Desk(store)
    approval_id = await desk.ask()
    asked = await desk.get(approval_id)
    await store.approvals.delete(approval_id)
    await store.approvals.create(
        Approval(
            *(approval_id, asked.run_id, "c1", "pay", {"to": "eve", "amount": 900}, asked.created_at),
            session_id="s",
        )
    )
    await store.approvals.decide(approval_id, approved=True)
    with pytest.raises(VersionConflictError):
        await desk.session.resume()
    assert desk.paid == []
    assert await desk.session.discard_pending() is True


async def test_bad_decisions_are_refused_before_anything_is_written(store: AgentStore) -> None:
    approval_id = await Desk(store).ask()
    async with writes_nothing(store) as watched:
        approvals = Desk(watched).agent.approvals
        wrong: list[tuple[type[Exception], dict[str, Any]]] = [
            (InvalidArgumentError, {"approved": "yes"}),
            (InvalidArgumentError, {"approved": None}),
            (InvalidArgumentError, {"approved": True, "note": 5}),
            (InvalidArgumentError, {"approved": True, "decided_by": "expiry"}),
            (InvalidArgumentError, {"approved": False, "arguments": {}}),
            (NotJsonError, {"approved": True, "arguments": {"to": {1}}}),
            (NotJsonError, {"approved": True, "arguments": []}),
        ]
        for error, options in wrong:
            with pytest.raises(error):
                await approvals.resolve(approval_id, **options)
        with pytest.raises(InvalidIdError):
            await approvals.resolve("no id", approved=True)
        with pytest.raises(ApprovalNotFoundError):
            await approvals.resolve("s.turn-1.s0.c0", approved=True)


# --- expiry ---


@pytest.mark.parametrize("early", [True, False])
async def test_expiry_denies_from_the_instant_on(any_store: AgentStore, clock: ManualClock, early: bool) -> None:
    desk = Desk(any_store, approval_timeout=timedelta(hours=1))
    approval_id = await desk.ask()
    clock.advance(timedelta(hours=1) - (TICK if early else timedelta(0)))
    if early:
        with pytest.raises(SessionAwaitingApprovalError):
            await desk.session.resume()
        await desk.agent.approvals.resolve(approval_id, approved=True)
        assert len(desk.paid) == 1
        return
    pending = await desk.session.pending()
    assert pending is not None
    assert pending.status == "ready"
    (answer,) = answers(await desk.session.resume())
    assert json.loads(answer)["status"] == "expired"
    approval = await desk.get(approval_id)
    assert approval.decision is not None
    assert (approval.status, approval.decision.decided_by, desk.paid) == ("rejected", "expiry", [])


async def test_deciding_an_expired_one(store: AgentStore, clock: ManualClock) -> None:
    desk = Desk(store, approval_timeout=timedelta(hours=1))
    approval_id = await desk.ask()
    clock.advance(timedelta(hours=1))
    for approved in (True, False):
        with pytest.raises(ApprovalExpiredError):
            await desk.agent.approvals.resolve(approval_id, approved=approved)
    assert (await desk.get(approval_id)).status == "rejected"
    found = await store.checkpoints.load("s")
    assert found is not None
    assert found.head.status == "ready"  # nothing is left to decide: workers see it
    (answer,) = answers(await desk.session.resume())
    assert (json.loads(answer)["status"], desk.paid) == ("expired", [])


async def test_expiry_that_keeps_waiting(store: AgentStore, clock: ManualClock) -> None:
    desk = Desk(store, approval_timeout=timedelta(hours=1), on_expiry="keep")
    approval_id = await desk.ask()
    clock.advance(timedelta(days=1))
    with pytest.raises(SessionAwaitingApprovalError):
        await desk.session.resume()
    await desk.agent.approvals.resolve(approval_id, approved=True)
    assert len(desk.paid) == 1


# --- dropped, deleted, somebody else's ---


async def test_resolving_what_was_dropped(any_store: AgentStore) -> None:
    desk = Desk(any_store)
    approval_id = await desk.ask()
    await desk.session.discard_pending()
    for approved in (True, False):
        with pytest.raises(ApprovalOrphanedError):
            await desk.agent.approvals.resolve(approval_id, approved=approved)
    await any_store.delete_session("s")
    with pytest.raises(ApprovalNotFoundError):
        await desk.agent.approvals.resolve(approval_id, approved=True)
    assert desk.paid == []


async def test_decided_and_then_dropped(store: AgentStore) -> None:
    desk = Desk(store)
    approval_id = await desk.ask()
    await desk.agent.approvals.decide(approval_id, approved=True)
    await desk.session.discard_pending()
    with pytest.raises(ApprovalOrphanedError):
        await desk.agent.approvals.resolve(approval_id, approved=True)
    assert desk.paid == []


async def test_a_deleted_approval_is_asked_again_never_taken_for_a_yes(store: AgentStore) -> None:
    desk = Desk(store)
    approval_id = await desk.ask()
    await store.approvals.delete(approval_id)
    result = await desk.session.resume()
    assert result is not None
    assert (result.finish_reason, result.approval_ids, desk.paid) == ("awaiting-approval", (approval_id,), [])
    await desk.agent.approvals.resolve(approval_id, approved=True)
    assert len(desk.paid) == 1


async def test_one_cancelled_in_a_live_turn_counts_as_rejected(store: AgentStore) -> None:
    desk = Desk(store)
    await store.approvals.cancel(await desk.ask(), reason="the shop closed")
    (answer,) = answers(await desk.session.resume())
    assert json.loads(answer) == {"status": "cancelled", "tool": "pay", "note": "the shop closed"}
    assert desk.paid == []


async def test_another_agents_approval(store: AgentStore) -> None:
    desk = Desk(store)
    approval_id = await desk.ask()
    other = Agent(model=ScriptedModel([]), store=store, name="other")
    with pytest.raises(AgentChangedError):
        await other.approvals.resolve(approval_id, approved=True)
    assert desk.paid == []
    assert (await desk.get(approval_id)).status == "pending"
