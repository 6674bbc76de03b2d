"""A scripted agent over the store under test: free and gated calls at once, edits, rejections, and processes that die."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure import Agent, Message, Session, Tool, ToolCall, ToolContext, TurnResult, tool
from perdure.errors import OutcomeUnknownError, StoreUnavailableError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.ownership.leases import Process
from perdure.runtime.turn.state import TurnState
from perdure_conformance.checks import broken, equal
from perdure_conformance.conversation_world import LAPSE
from perdure_conformance.interception import Died, Interception
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.manual_clock import ManualClock
from perdure_conformance.parts import Stores

if TYPE_CHECKING:
    from perdure.contracts.approvals import Approval

SESSION = "s1"
CALLS = (
    ToolCall(id="look", name="look", arguments={"what": "order"}),
    ToolCall(id="note", name="note", arguments={"what": "order"}),
    ToolCall(id="pay-ann", name="pay", arguments={"to": "ann"}),
    ToolCall(id="pay-bob", name="pay", arguments={"to": "bob"}),
)
EDITED = {"to": "ann the second"}
EXPECTED = {"look": "looked", "note": "noted", "pay-ann": "paid ann the second"}
"""What the results of the calls hold; Bob's is rejected."""


async def _look_at(what: str, context: ToolContext) -> str:
    raise NotImplementedError("each desk brings its own")


async def _pay_to(to: str, context: ToolContext) -> str:
    raise NotImplementedError("each desk brings its own")


# Made once: a schema costs more than a whole turn.
_LOOK = tool(name="look", idempotent=True)(_look_at)
_NOTE = tool(name="note", in_doubt="rerun")(_look_at)
_PAY = tool(name="pay", needs_approval=True, in_doubt="rerun")(_pay_to)


@dataclass
class Desk:
    """What outlives every process: the store, the clock, and what happened outside.

    Attributes:
        stores: The bundle under test, which nobody stops.
        clock: The clock of all.
        effects: The calls that had an effect, by the id of the call, with their arguments.
        asked: Which responses the model was asked for, by place.
        may_repeat: What may happen once more, since a death hid that it had happened.
        hold: What a tool waits for before it acts.
    """

    stores: Stores
    clock: ManualClock
    effects: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    may_repeat: Counter[str] = field(default_factory=Counter)
    hold: Callable[[], Any] | None = None
    _pids: int = 7000
    _deaths: int = 0
    _in_doubt: set[str] = field(default_factory=set)

    # --- processes ---

    def process(self, interception: Interception | None = None) -> Stores:
        """Return the bundle of a new process of a host of its own."""
        self._pids += 1
        return tapped(self.stores, interception, process=Process("host", "boot", "1", self._pids, "1"))

    def agent(self, store: Stores) -> Agent:
        """Return the agent, as one process runs it."""
        return Agent(model=FunctionModel(self._answer), tools=self._tools(), store=store)

    def session(self, store: Stores, **options: Any) -> Session:
        """Return the conversation, as one process sees it."""
        return self.agent(store).session(SESSION, **options)

    async def life(self, store: Stores, given: str = "go") -> TurnResult:
        """Do what a user does until the input has had its turn; whatever was done before is found done."""
        for _ in range(10):
            result = await self.session(store).send(given, input_id=f"input-{given}")
            if result.finish_reason != "awaiting-approval":
                return result
            for approval_id in result.approval_ids:
                found = await store.approvals.get(approval_id)
                if found is None:
                    raise broken(f"a turn waits for {approval_id}, which is not stored")
                await self.decide(store, found)
        raise broken("a turn still waits after all its approvals were decided ten times")

    async def decide(self, store: Stores, asked: Approval) -> None:
        """Approve what is for Ann, with other arguments, and reject what is for Bob."""
        if asked.tool_call_id == "pay-ann":
            await store.decide(asked.id, approved=True, arguments=EDITED, decided_by="eve")
        else:
            await store.decide(asked.id, approved=False, note="not Bob")

    async def lives(self, cut: Interception, given: str = "go") -> bool:
        """Run a process that is cut, and if it was, another to the end; return whether it was cut."""
        try:
            await self.life(self.process(cut), given)
        except (Died, StoreUnavailableError, OutcomeUnknownError):
            await self.note_death()
            await self.life(self.process(), given)
            return True
        return False

    async def note_death(self) -> None:
        """Note what may happen once more, and let leases lapse."""
        turn = await self.turn()
        recorded = {call.call.id for step in turn.steps for call in step.calls if call.result is not None}
        open_calls = {call.call.id for step in turn.steps for call in step.unanswered()}
        happened = {call for call, _ in self.effects}
        self.may_repeat.update(call for call, _ in self.effects if call in open_calls and call not in recorded)
        self.may_repeat.update([f"response {len(turn.steps)}"])
        self._deaths += 1
        self._in_doubt = open_calls - recorded - happened
        self.clock.advance(LAPSE)

    def wake(self) -> None:
        """Note that one which was taken for dead goes on: from here on nothing that it does is excused."""
        self._in_doubt.clear()

    # --- the model and the tools ---

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        before = await self.messages()
        own = request.messages[len(before) :]
        step, given = sum(message.role == "assistant" for message in own), own[0].text
        turn = await self.turn()
        if len(turn.steps) > step:
            raise broken(f"response {step} is recorded, and the model was asked for it again")
        self.asked.append(f"response {step}")
        if step == 0 and given == "go":
            return ModelResponse(tool_calls=CALLS)
        if step == 0 and given == "work":
            return ModelResponse(tool_calls=CALLS[1:2])
        return ModelResponse(text=f"did {given}")

    def _tools(self) -> list[Tool]:
        life = self._deaths

        async def look(what: str, context: ToolContext) -> str:
            return await self._act(life, "look", f"looked {what}", context)

        async def note(what: str, context: ToolContext) -> str:
            return await self._act(life, "note", f"noted {what}", context)

        async def pay(to: str, context: ToolContext) -> str:
            return await self._act(life, f"pay {to}", f"paid {to}", context)

        return [replace(_LOOK, function=look), replace(_NOTE, function=note), replace(_PAY, function=pay)]

    async def _act(self, life: int, what: str, answer: str, context: ToolContext) -> str:
        if self.hold is not None:
            await self.hold()
        turn = await self.turn()
        recorded = {call.call.id for step in turn.steps for call in step.calls if call.result is not None}
        if context.call_id in recorded:
            raise broken(f"the result of {context.call_id} is recorded, and the call ran again")
        self.effects.append((context.call_id, what))
        if life != self._deaths and context.call_id in self._in_doubt:
            # A pause holds one write; a tool that was under way beside it may act a moment later, as before a death.
            self._in_doubt.remove(context.call_id)
            self.may_repeat.update([context.call_id])
        return answer

    # --- what is there ---

    async def turn(self) -> TurnState:
        """Return what is recorded of the turn in progress."""
        found = await self.stores.checkpoints.load(SESSION)
        return TurnState.of("" if found is None else found.head.run_id or "", () if found is None else found.entries)

    async def messages(self) -> list[Message]:
        """Return the messages of the transcript."""
        found = await self.stores.sessions.load(SESSION)
        return [] if found is None else [Message.from_record(record["message"]) for record in found.records]

    async def check(self, where: str) -> None:
        """Check that the turn came out whole and once, each decision as it was made, and nothing is left to do."""
        await self.check_transcript(where)
        happened = Counter(self.asked) + Counter(call for call, _ in self.effects)
        for what, times in happened.items():
            allowed = 1 + self.may_repeat[what]
            if times > allowed:
                raise broken(f"{where}: {what} happened {times} times, where {allowed} were to be expected")
        paid = {what for call, what in self.effects if call.startswith("pay")}
        equal(paid, {"pay ann the second"}, f"{where}: what was paid")
        found = await self.stores.checkpoints.load(SESSION)
        state = found and (found.head.status, len(found.entries), found.head.owner)
        equal(state, ("idle", 0, None), f"{where}: status, entries and owner of the turn journal")
        statuses = {one.tool_call_id: one.status for one in (await self.stores.approvals.list()).items}
        equal(statuses, {"pay-ann": "approved", "pay-bob": "rejected"}, f"{where}: the approvals")

    async def check_transcript(self, where: str) -> None:
        """Check that input, response, every result and the last response are there once and in order."""
        messages = await self.messages()
        roles = [message.role for message in messages]
        equal(roles, ["user", "assistant", "tool", "tool", "tool", "tool", "assistant"], f"{where}: the transcript")
        equal(sorted(call.id for call in messages[1].tool_calls), sorted(call.id for call in CALLS), f"{where}: calls")
        results = {message.tool_call_id: message for message in messages[2:6]}
        equal(sorted(map(str, results)), sorted(call.id for call in CALLS), f"{where}: the calls that have results")
        for call, said in EXPECTED.items():
            if said not in results[call].text or results[call].is_error:
                raise broken(f"{where}: the result of {call}: expected {said!r} in it, got {results[call].text!r}")
        if "not Bob" not in results["pay-bob"].text:
            raise broken(
                f"{where}: the rejected call: expected the note in its result, got {results['pay-bob'].text!r}"
            )
        equal(messages[6].text, "did go", f"{where}: the last response")


async def gate() -> tuple[asyncio.Event, asyncio.Event, Callable[[], Any]]:
    """Return an event that is set when a tool is reached, one that lets it go on, and what the tool waits for."""
    reached, opened = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await opened.wait()

    return reached, opened, hold
