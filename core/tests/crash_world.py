"""A world for crash tests: one conversation on one backend, and simulated processes that run it and die.

Tools and model look into the backend themselves whenever they are called, so a call that the design forbids (a recorded
result's tool again, a recorded response again, a start without its entry, an approval that is not applied) fails at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from perdure import Agent, Message, ToolCall, ToolContext, tool
from perdure.backend import Journal
from perdure.bundle import AgentStore
from perdure.contracts.checkpoints import Checkpoint
from perdure.errors import (
    ApprovalOrphanedError,
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
    TurnFailedError,
)
from perdure.journal.stores import journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.ownership.leases import Process
from perdure.runtime.results import TurnResult
from perdure.runtime.turn.state import CallState, TurnState
from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception
from perdure_conformance.manual_clock import ManualClock
from perdure_memory.journal import MemoryJournal
from perdure_sqlite.journal import SqliteJournal

SESSION = "s1"
User = Literal["send", "resume", "resolve"]
"""What a user calls after a restart: `send` again with the same input id, `resume`, or `resolve` for each approval."""

NO_POLICY = "none"
_names = itertools.count()
_pids = itertools.count(5_000_000)  # no system has pids that high: such a process is certainly dead


@dataclass(frozen=True)
class Say:
    """A decision on a call: approved or not, with other arguments or a note."""

    approved: bool = True
    arguments: dict[str, Any] | None = None
    note: str | None = None


@dataclass(frozen=True)
class Scenario:
    """What is sent, what the model answers, what is decided, and what the transcript must hold in the end.

    Attributes:
        script: What the model answers, by place.
        inputs: What the user sends, one turn after another.
        policy: The `in_doubt` policy of the tools that are not idempotent.
        decisions: By the id of the tool call; what is not named is approved.
        doubt: Whether a question about an attempt in doubt is approved.
        results: By the id of the tool call: the texts that its result may have.
    """

    script: Sequence[str | Sequence[ToolCall]]
    inputs: Sequence[str] = ("Go.",)
    policy: str = "rerun"
    decisions: dict[str, Say] = field(default_factory=dict)
    doubt: bool = True
    results: dict[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """A tool that ran: its name, its arguments, the key and the attempt that it was given."""

    tool: str
    arguments: dict[str, Any]
    key: str
    attempt: int
    call_id: str


class World:
    """The data that outlives every process, and what the outside world has seen."""

    def __init__(self, backend: str, directory: Path, scenario: Scenario) -> None:
        self.scenario = scenario
        self.clock = ManualClock()
        self.effects: list[Effect] = []
        self.asked: list[str] = []
        self.may_repeat: set[str] = set()
        self._backend = backend
        self._place = directory / f"w{next(_names)}.db"
        self._open: list[Journal] = []

    async def __aenter__(self) -> World:
        self.inner = await self.journal()
        self.stores = journal_stores(self.inner)
        return self

    async def __aexit__(self, *_: object) -> None:
        for journal in self._open:
            await journal.close()

    async def journal(self) -> Journal:
        """Open the data once more, as another process does."""
        journal: Journal
        if self._backend == "memory":
            journal = MemoryJournal(self._place.name)
        else:
            # A crash of a process, not of the machine: what the file system was told is there.
            journal = SqliteJournal(self._place, synchronous="normal")
        await journal.open()
        self._open.append(journal)
        return journal

    async def process(self, interception: Interception | None = None, *, atomic: bool) -> SimulatedProcess:
        """Start a process of this host; a later one knows that it is dead, and finds its claims at once."""
        return SimulatedProcess(self, await self.journal(), interception or Interception(), atomic=atomic)

    async def checkpoint(self) -> Checkpoint | None:
        """Read the turn journal."""
        return await self.stores.checkpoints.load(SESSION)

    async def turn(self) -> TurnState:
        """Return what is recorded of the turn in progress."""
        found = await self.checkpoint()
        return TurnState.of("" if found is None else found.head.run_id or "", () if found is None else found.entries)

    async def note_crash(self) -> None:
        """Note what may happen once more: what has happened, as the world knows, and is not recorded."""
        turn = await self.turn()
        self.may_repeat = {f"{turn.run_id} response {len(turn.steps)}"}
        for step in turn.steps:
            self.may_repeat |= {call.id for call in step.unanswered()}

    def repeated(self, twice: Collection[str] = ()) -> list[str]:
        """Return what happened again and had no reason to; `twice`: what had one two times."""
        happened = Counter(self.asked) + Counter(effect.key for effect in self.effects)
        return [what for what, times in happened.items() if times > 1 + (what in self.may_repeat) + (what in twice)]

    # --- the end ---

    async def check_end(self) -> None:
        """Check that every turn is in the transcript whole and once, and that nothing is left to do."""
        transcript = await self.stores.sessions.load(SESSION)
        assert transcript is not None
        messages = [Message.from_record(record["message"]) for record in transcript.records]
        _check_messages(messages, self.scenario)
        runs = list(dict.fromkeys(record["run_id"] for record in transcript.records))
        assert len(runs) == len(self.scenario.inputs), f"runs {runs}"
        ends = [record["input_id"] for record in transcript.records if "input_id" in record]
        assert ends == [f"i{n}" for n in range(len(self.scenario.inputs))]
        assert sum("finish_reason" in record for record in transcript.records) == len(runs)
        await self.check_idle()
        for approval in (await self.stores.approvals.list()).items:
            assert approval.decided, f"{approval.id} is left undecided"
            assert approval.run_id in runs

    async def check_idle(self) -> None:
        """Check that the turn journal is closed."""
        found = await self.checkpoint()
        assert found is not None
        assert (found.head.status, list(found.entries), found.head.owner) == ("idle", [], None)

    def check_effects(self, twice: Collection[str] = ()) -> None:
        """Check what the outside world has seen, call by call; `twice`: what may have been cut off two times."""
        assert self.repeated(twice) == [], "something happened again without a reason"
        calls = {call.id: call for call in _calls(self.scenario)}
        for key in {effect.key for effect in self.effects}:
            runs = [effect for effect in self.effects if effect.key == key]
            call_id = runs[0].call_id
            say = self.scenario.decisions.get(call_id, Say())
            assert say.approved, f"{call_id} was rejected and ran"
            for effect in runs:
                assert effect.call_id == call_id, f"{key} was the key of {call_id} and of {effect.call_id}"
                assert effect.arguments == (say.arguments or calls[call_id].arguments)
            attempts = [effect.attempt for effect in runs]
            assert attempts == sorted(set(attempts)), f"{call_id} had the attempts {attempts}"
        if self.scenario.policy != NO_POLICY:
            keys = {(effect.key, effect.call_id) for effect in self.effects}
            ran = Counter(call_id for _, call_id in keys)
            assert ran <= Counter(call.id for call in _calls(self.scenario)), f"calls that ran under two keys: {ran}"


class SimulatedProcess:
    """One process: an identity, a bundle, an agent with its tools. Dead, it neither writes, reads nor acts."""

    def __init__(self, world: World, journal: Journal, interception: Interception, *, atomic: bool) -> None:
        self.world = world
        self.interception = interception
        stores = journal_stores(InterceptedJournal(journal, interception, atomic=atomic))
        self.loop = asyncio.get_running_loop()
        self.identity = Process("host", "boot", "namespace", next(_pids), "1")
        self.store = AgentStore(
            sessions=stores.sessions,
            checkpoints=stores.checkpoints,
            approvals=stores.approvals,
            clock=world.clock,
            process=self.identity,
        )
        self.agent = Agent(model=FunctionModel(self._answer), tools=_tools(world.scenario.policy), store=self.store)
        self.session = self.agent.session(SESSION)

    # --- the model, the tools ---

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        turn = await self._recorded("the model")
        place = sum(message.role == "assistant" for message in request.messages)
        transcript = await self.world.stores.sessions.load(SESSION)
        assert transcript is not None, "a model was asked before the session was created"
        before = sum(record["message"]["role"] == "assistant" for record in transcript.records)
        assert place - before == len(turn.steps), f"response {place - before} was asked for, {len(turn.steps)} recorded"
        _check_pairs(request.messages)
        self.world.asked.append(f"{turn.run_id} response {place - before}")
        entry = self.world.scenario.script[place]
        return ModelResponse(text=entry) if isinstance(entry, str) else ModelResponse(tool_calls=tuple(entry))

    async def _recorded(self, who: str) -> TurnState:
        """Return what is recorded right now, by the one process that may act right now."""
        if self.interception.dead:
            raise Died
        found = await self.world.checkpoint()
        if self.interception.dead:
            raise Died
        assert found is not None, f"{who} was called without a turn"
        assert found.head.owner in self.identity.held, f"{who} was called by one who is not the owner"
        return TurnState.of(found.head.run_id or "", found.entries)

    async def run(self, name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        """Be a tool."""
        turn = await self._recorded(name)
        assert (context.session_id, context.run_id) == (SESSION, turn.run_id)
        call = next(call for step in turn.steps for call in step.calls if call.id == context.idempotency_key)
        _check_may_run(call, self.agent.tools[name].idempotent, self.world.scenario, context)
        self.world.effects.append(Effect(name, arguments, context.idempotency_key, context.attempt, context.call_id))
        return result_text(name, arguments)

    # --- the user ---

    async def use(self, user: User) -> None:
        """Do what a user does until every input has had its turn; whatever was done before is found done."""
        current.set(self)
        for number, text in enumerate(self.world.scenario.inputs):
            for _ in range(20):
                if await self._took_a_step(user, text, f"i{number}"):
                    break
            else:
                raise AssertionError(f"input {number} came to no end")

    async def _took_a_step(self, user: User, text: str, input_id: str) -> bool:
        """Take one step of a user; True when the input has had its turn."""
        try:
            result = await self._ask_for_result(user, text, input_id)
        except SessionAwaitingApprovalError as error:
            await self._decide(error.approval_ids, user)
            return False
        except (ToolOutcomeUnknownError, TurnFailedError):
            # No policy: the user looks at the outside world, and drops the turn.
            assert self.world.scenario.policy == NO_POLICY
            assert await self.session.discard_pending()
            self.world.may_repeat.clear()
            return False
        if result.finish_reason == "awaiting-approval":
            assert result.approval_ids
            await self._decide(result.approval_ids, user)
            return False
        assert result.finish_reason == "stop"
        records = [message.to_record() for message in result.messages]
        stored = await self.session.result(result.run_id)
        assert stored is not None, "a result was returned that is not in the transcript"
        assert [message.to_record() for message in stored.messages] == records
        return _is_input(result, text)

    async def _ask_for_result(self, user: User, text: str, input_id: str) -> TurnResult:
        if user != "send":
            resumed = await self.session.resume()
            if resumed is not None:
                return resumed
        return await self.session.send(text, input_id=input_id)

    async def _decide(self, approval_ids: Sequence[str], user: User) -> None:
        for approval_id in approval_ids:
            approval = await self.store.approvals.get(approval_id)
            assert approval is not None
            say = self.world.scenario.decisions.get(approval.tool_call_id, Say())
            if approval.kind == "in-doubt":
                say = Say(self.world.scenario.doubt)
            decide: Callable[..., Awaitable[object]] = self.store.decide
            if user == "resolve":
                decide = self.agent.approvals.resolve
            try:
                await decide(approval_id, **dataclasses.asdict(say), decided_by="ann")
            except ToolOutcomeUnknownError:
                assert self.world.scenario.policy == NO_POLICY


current: ContextVar[SimulatedProcess] = ContextVar("current")
"""The process that the current task runs in."""


@cache
def _tools(policy: str) -> tuple[Any, ...]:
    """Make the tools of every process."""
    in_doubt: Any = None if policy == NO_POLICY else policy

    def in_thread(name: str, arguments: dict[str, Any], context: ToolContext) -> str:
        process = current.get()
        return asyncio.run_coroutine_threadsafe(process.run(name, arguments, context), process.loop).result()

    @tool(idempotent=True)
    async def look(what: str, context: ToolContext) -> str:
        return await current.get().run("look", {"what": what}, context)

    @tool(idempotent=True)
    def read(what: str, context: ToolContext) -> str:
        return in_thread("read", {"what": what}, context)

    @tool(in_doubt=in_doubt)
    async def pay(to: str, context: ToolContext) -> str:
        return await current.get().run("pay", {"to": to}, context)

    @tool(in_doubt=in_doubt)
    def book(room: str, context: ToolContext) -> str:
        return in_thread("book", {"room": room}, context)

    @tool(needs_approval=True, in_doubt=in_doubt)
    async def wire(to: str, context: ToolContext) -> str:
        return await current.get().run("wire", {"to": to}, context)

    @tool(needs_approval=True, idempotent=True)
    async def sign(paper: str, context: ToolContext) -> str:
        return await current.get().run("sign", {"paper": paper}, context)

    return look, read, pay, book, wire, sign


def _is_input(result: TurnResult, text: str) -> bool:
    return result.messages[0].text == text


def _check_may_run(call: CallState, idempotent: bool, scenario: Scenario, context: ToolContext) -> None:
    assert call.result is None, f"{call.id} has a result, and was run again"
    if call.gated:
        assert call.id in call.decisions, f"{call.id} ran before its approval was applied"
        assert call.decisions[call.id]["status"] == "approved", f"{call.id} ran without a yes"
    if idempotent:
        return
    assert call.attempts == context.attempt, f"{call.id} started {call.attempts} times, attempt {context.attempt} runs"
    if context.attempt > 1:
        assert scenario.policy in ("rerun", "ask"), f"{call.id} was silently run again"
    if scenario.policy == "ask":
        for attempt in range(1, context.attempt):
            answer = call.decisions.get(f"{call.id}.d{attempt}")
            assert answer is not None, f"attempt {context.attempt} of {call.id} was not asked for"
            assert answer["status"] == "approved", f"attempt {context.attempt} of {call.id} was refused"


def _check_pairs(messages: Sequence[Message]) -> None:
    """Check that every call has its result right behind it, and every result its call."""
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id == open_calls.pop(0), "a result is out of place"
        else:
            assert not open_calls, f"no result for {open_calls}"
            open_calls = [call.id for call in message.tool_calls]
    assert not open_calls, f"no result for {open_calls}"


def _check_messages(messages: Sequence[Message], scenario: Scenario) -> None:
    """Check the whole conversation, message by message."""
    _check_pairs(messages)
    wanted: list[tuple[str, Sequence[str], str | None]] = []
    inputs = iter(scenario.inputs)
    begins = True
    for entry in scenario.script:
        if begins:
            wanted.append(("user", (next(inputs),), None))
        wanted.append(("assistant", (entry if isinstance(entry, str) else "",), None))
        begins = isinstance(entry, str)
        if not isinstance(entry, str):
            for call in entry:
                texts = scenario.results.get(call.id, (result_text(call.name, call.arguments),))
                wanted.append(("tool", texts, call.id))
    got = [(message.role, message.text, message.tool_call_id) for message in messages]
    assert [(role, call_id) for role, _, call_id in got] == [(role, call_id) for role, _, call_id in wanted]
    for (role, text, call_id), (_, texts, _) in zip(got, wanted, strict=True):
        assert text in texts, f"the {role} message of {call_id} is {text!r}"


def _calls(scenario: Scenario) -> list[ToolCall]:
    return [call for entry in scenario.script if not isinstance(entry, str) for call in entry]


def result_text(name: str, arguments: dict[str, Any]) -> str:
    """Return what a tool answers."""
    return f"{name} {arguments}"


@contextlib.asynccontextmanager
async def told_of(interception: Interception, what: str) -> AsyncIterator[None]:
    """Name the crash point in whatever fails."""
    try:
        yield
    except BaseException as error:
        calls = ", ".join(map(str, interception.calls))
        error.add_note(f"with {what}, among: {calls}")
        raise


async def survive(work: Awaitable[object]) -> BaseException | None:
    """Await what a process does, and return what became of it: its death, an error of its store, or nothing."""
    try:
        await work
    except (Died, StoreUnavailableError, OutcomeUnknownError, ApprovalOrphanedError) as error:
        return error
    return None


def away_from(number: int) -> Interception:
    """Return an interception by which the store is away from a write on: that one may have happened, no later one did."""

    async def before(call: Call) -> None:
        if call.number > number:
            raise StoreUnavailableError("write", "key", "the store is away")

    async def after(call: Call) -> None:
        if call.number == number:
            raise OutcomeUnknownError("write", "key", "the store went away before it answered")

    return Interception(before=before, after=after)
