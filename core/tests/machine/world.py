"""What outlives every process, the processes that come and go, and what the outside world sees them do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from core.tests.machine.observed import Seen, observe, observe_run
from core.tests.machine.programs import KINDS, calls_at, fails_at, name_of, said_at

from perdure import Agent, AgentStore, Message, Session, Tool, ToolCall, ToolContext, tool
from perdure.backend import Journal, journal_stores
from perdure.contracts.approvals import Approval
from perdure.errors import PropagatingToolError
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.tools import ToolDidNotRun, ToolRan
from perdure_conformance.conversation_world import SimulatedProcess
from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception, at
from perdure_conformance.manual_clock import ManualClock

from datetime import timedelta  # isort: skip

PATIENCE: Final = timedelta(hours=1)
"""After how long a question of `sign` counts as answered with no."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at one write of a call: `die-before`, `die-after`, `unavailable`, `lost` or `unknown`."""

    write: int
    what: str

    def __repr__(self) -> str:
        return f"Fault({self.write}, {self.what!r})"


@dataclass(frozen=True)
class Effect:
    """A tool that ran."""

    key: str
    attempt: int
    tool: str
    what: str


@dataclass
class Gate:
    """Where a process stands still in the middle of a turn."""

    place: str
    opened: asyncio.Future[None]


@dataclass
class Watched(Interception):
    """An interception that knows how many calls are on their way, and takes a new fault for each call of a user."""

    on_their_way: int = 0
    fired: bool = False
    fault: Interception = field(default_factory=Interception)
    base: int = 0

    def plan(self, fault: Fault | None) -> None:
        """Plan what goes wrong from here on."""
        self.base, self.fired = len(self.calls), False
        self.fault = Interception() if fault is None else at(fault.write, fault.what)
        self.before, self.after = self._before, self._after

    async def around(self, kind: str, operations: Any, method: Any) -> Any:
        """Run one call of the backend."""
        self.on_their_way += 1
        try:
            return await super().around(kind, operations, method)
        finally:
            self.on_their_way -= 1

    async def _before(self, call: Call) -> None:
        await self._at(call, self.fault.before)

    async def _after(self, call: Call) -> None:
        await self._at(call, self.fault.after)

    async def _at(self, call: Call, what: Any) -> None:
        if what is None:
            return
        try:
            await what(replace(call, number=call.number - self.base))
        except BaseException:
            self.fired = True
            raise


class World:
    """The data, the time, and what happened outside the stores."""

    def __init__(self, journal: Journal, *, atomic: bool | None) -> None:
        self.clock = ManualClock()
        self.stores = journal_stores(journal)
        for part in (self.stores.sessions, self.stores.checkpoints, self.stores.approvals):
            part.bind(clock=self.clock)
        self.effects: list[Effect] = []
        self.tripped: set[str] = set()
        self.failed: set[tuple[str, int]] = set()
        self.problems: list[str] = []
        self._journal = journal
        self._atomic = atomic
        self._gone: dict[str, set[str]] = {"A": set(), "B": set()}
        self._pids = itertools.count(1000)
        self.slots = {name: self._slot(name) for name in self._gone}

    def _slot(self, name: str) -> Slot:
        identity = SimulatedProcess(f"host-{name}", "boot", "1", next(self._pids), "1", gone=self._gone[name])
        return Slot(self, name, identity, self._journal, atomic=self._atomic)

    async def see(self, *, alone: bool = False) -> Seen:
        """Read what the stores hold of the conversation, or of the run without one."""
        return await (observe_run(self.stores) if alone else observe(self.stores))

    async def kill(self, name: str) -> None:
        """Let a process die, and start another one in its place; its host knows that it is gone."""
        slot = self.slots[name]
        slot.interception.dead = True
        self._gone[name].add(str(slot.identity.pid))
        if slot.gate is not None and not slot.gate.opened.done():
            slot.gate.opened.set_result(None)
        tasks = [] if slot.held is None else [slot.held.task, *(task for _, task in slot.held.joined)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.slots[name] = self._slot(name)


@dataclass
class Held:
    """A call that stands at a gate, and those whose input joined its turn."""

    text: str | None
    task: asyncio.Task[Any]
    run_id: str
    joined: list[tuple[str, asyncio.Task[Any]]] = field(default_factory=list)
    owner: str | None = None
    in_flight: int | None = None

    @property
    def names(self) -> list[str]:
        """The names of the inputs that joined."""
        return [name for name, _ in self.joined]


class Slot:
    """One process: an identity, a bundle, an agent with its tools."""

    def __init__(
        self, world: World, name: str, identity: SimulatedProcess, journal: Journal, *, atomic: bool | None
    ) -> None:
        self.world = world
        self.name = name
        self.identity = identity
        self.interception = Watched()
        stores = journal_stores(InterceptedJournal(journal, self.interception, atomic=atomic))
        self.store = AgentStore(
            sessions=stores.sessions,
            checkpoints=stores.checkpoints,
            approvals=stores.approvals,
            clock=world.clock,
            process=identity,
        )
        self.agent = Agent(model=FunctionModel(self._answer), tools=self._tools(), store=self.store)
        self._sessions: dict[str, Session] = {}
        self.hold: str | None = None
        self.gate: Gate | None = None
        self.stood = asyncio.Event()
        self.held: Held | None = None

    def session(self, policy: Any = "wait") -> Session:
        """The conversation, as this process has it."""
        if policy not in self._sessions:
            self._sessions[policy] = self.agent.session("s", turn_policy=policy)
        return self._sessions[policy]

    async def quiet(self) -> None:
        """Wait until nothing moves."""
        spins = 0
        while spins < 30:
            await asyncio.sleep(0)
            spins = 0 if self.interception.on_their_way else spins + 1

    async def stands_or(self, task: asyncio.Task[Any]) -> None:
        """Wait until a task stands at the gate that is set up, or has ended, and nothing else moves."""
        self.stood = asyncio.Event()
        task.add_done_callback(lambda _: self.stood.set())
        await self.stood.wait()
        await self.quiet()

    async def _stand(self, place: str) -> None:
        """Stand still if that is asked for."""
        if self.hold == place:
            self.hold = None
            self.gate = Gate(place, asyncio.get_running_loop().create_future())
            self.stood.set()
            await self.gate.opened
        self._live()

    def _live(self) -> None:
        if self.interception.dead:
            raise Died

    def _problem(self, text: str) -> None:
        self.world.problems.append(f"{self.name}: {text}")

    # --- the model ---

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self._live()
        await self._judge(request.messages)
        places = [place for place, message in enumerate(request.messages) if message.role == "user"]
        text = request.messages[places[-1]].text
        number = sum(message.role == "assistant" for message in request.messages[places[-1] :])
        if fails_at(text, number) and (name_of(text), number) not in self.world.failed:
            self.world.failed.add((name_of(text), number))
            raise ConnectionError("the model is away")
        await self._stand("model")
        calls = [ToolCall(id=call.id, name=call.tool, arguments={"what": call.id}) for call in calls_at(text, number)]
        return ModelResponse(text=said_at(text, number), tool_calls=tuple(calls))

    async def _see(self, *, alone: bool) -> Seen:
        """Read what the stores hold; until that is done, this process does not stand still."""
        self.interception.on_their_way += 1
        try:
            return await self.world.see(alone=alone)
        finally:
            self.interception.on_their_way -= 1

    async def _judge(self, messages: Sequence[Message]) -> None:
        """See whether this response may be asked for."""
        seen = await self._see(alone=messages[0].text.startswith("r"))
        self._live()
        turn = seen.turn
        if turn is None or seen.owner not in self.identity.held:
            self._problem("the model was asked by one who does not own the turn")
            return
        before = sum(record["message"]["role"] == "assistant" for record in seen.records)
        place = sum(message.role == "assistant" for message in messages) - before
        if place != len(turn.steps):
            self._problem(f"response {place} was asked for, {len(turn.steps)} are recorded")

    # --- the tools ---

    def _tools(self) -> list[Tool]:
        return [
            replace(made, function=self._acting(name), probe=self._probe if KINDS[name].probe else None)
            for name, made in _TOOLS.items()
        ]

    def _acting(self, name: str) -> Any:
        async def act(what: str, context: ToolContext) -> str:
            return await self._act(name, what, context)

        return act

    async def _act(self, name: str, what: str, context: ToolContext) -> str:
        self._live()
        await self._judge_call(name, what, context)
        self.world.effects.append(Effect(context.idempotency_key, context.attempt, name, what))
        if KINDS[name].raises == "error":
            raise RuntimeError("boom")
        if KINDS[name].raises == "propagating" and context.idempotency_key not in self.world.tripped:
            self.world.tripped.add(context.idempotency_key)
            raise PropagatingToolError("tripped")
        if KINDS[name].raises is None:
            await self._stand("tool")
        return f"{name} {what}"

    async def _probe(self, what: str, context: ToolContext) -> ToolRan | ToolDidNotRun:
        self._live()
        ran = any(effect.key == context.idempotency_key for effect in self.world.effects)
        return ToolRan(f"check {what}") if ran else ToolDidNotRun()

    async def _judge_call(self, name: str, what: str, context: ToolContext) -> None:
        """See whether this call may run."""
        seen = await self._see(alone=context.session_id is None)
        self._live()
        yes = seen.approvals.get(context.idempotency_key)
        key, kind, turn = context.idempotency_key, KINDS[name], seen.turn
        if turn is None or turn.run_id != context.run_id or seen.owner not in self.identity.held:
            self._problem(f"{key} ran for one who does not own the turn")
            return
        step, place = (int(part[1:]) for part in key.removeprefix(turn.run_id + ".").split("."))
        call = turn.steps[step].calls[place]
        if call.answered:
            self._problem(f"{key} ran, and its result is recorded")
        if kind.gated and (yes is None or yes.status != "approved" or arguments_of(yes) != {"what": what}):
            said = None if yes is None else (yes.status, arguments_of(yes))
            self._problem(f"{key} ran with {what}, and nobody has approved that, but {said}")
        if not kind.idempotent:
            if call.starts != context.attempt:
                self._problem(f"{key} runs attempt {context.attempt}, {call.starts} are recorded")
            self._judge_attempts(key, name, seen)

    def _judge_attempts(self, key: str, name: str, seen: Seen) -> None:
        """See whether a call that has run may run again."""
        for effect in self.world.effects:
            answer = seen.approvals.get(f"{key}.d{effect.attempt}")
            said_yes = answer is not None and answer.status == "approved"
            if effect.key == key and KINDS[name].in_doubt != "rerun" and not said_yes:
                self._problem(f"{key} ran again after attempt {effect.attempt}, and nobody has said yes")


def arguments_of(approval: Approval) -> dict[str, Any]:
    """Return what an approved call is to run with."""
    decision = approval.decision
    return approval.arguments if decision is None or decision.arguments is None else decision.arguments


async def _nothing(what: str, context: ToolContext) -> str:
    raise NotImplementedError


# Made once: a schema costs more than a whole turn.
_TOOLS: Final[dict[str, Tool]] = {
    name: tool(
        name=name,
        description="",
        needs_approval=kind.gated,
        idempotent=kind.idempotent,
        in_doubt=kind.in_doubt,  # type: ignore[arg-type]  # reason: the table holds plain text
        approval_timeout=PATIENCE if kind.expires else None,
    )(_nothing)
    for name, kind in KINDS.items()
}
