"""A world of one conversation: an agent with one-step turns, simulated processes, and the promises checked at the end."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from perdure import Agent, AgentStore, Lease, Message, Session, Tool, ToolCall, ToolContext, TurnResult, tool
from perdure.backend import journal_stores
from perdure.errors import (
    SessionAwaitingApprovalError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    ToolOutcomeUnknownError,
)
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.ownership.leases import Process
from perdure.runtime.tools import InDoubt
from perdure_conformance.interception import Died, InterceptedJournal, Interception, at
from perdure_conformance.manual_clock import ManualClock
from perdure_conformance.stepping import SteppedProcess, has_died

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from perdure.backend import Journal
    from perdure.contracts.approvals import Approval
    from perdure.contracts.checkpoints import Checkpoint
    from perdure.contracts.records import Record

SESSION: Final = "s"
LAPSE: Final = Lease().length + Lease().max_clock_skew + timedelta(seconds=1)
"""After so long without a write a lease is nobody's, whoever looks."""

TYPED: Final = (SessionBusyError, SessionAwaitingApprovalError, SessionConflictError, SessionDeletedError)
"""What a call on a session may raise because of another process."""


@dataclass(frozen=True)
class SimulatedProcess(Process):
    """The identity of a process that is no process of this machine.

    Attributes:
        gone: The pids of its host that have ended; shared by all of the host.
    """

    gone: set[str] = field(default_factory=set, compare=False)

    def knows_dead(self, owner: str) -> bool:
        """Answer as a real process does, with `gone` in place of the machine's process table."""
        parts = owner.split("/")
        if owner in self.held or parts[:3] != [self.host, self.boot, self.namespace]:
            return False
        return parts[3] == str(self.pid) or parts[3] in self.gone


async def _act(context: ToolContext) -> str:
    raise NotImplementedError("each world brings its own")


# Made once: a schema costs more than a whole turn.
_PAY = tool(name="pay")(_act)
_ASK = tool(name="ask", needs_approval=True)(_act)


@dataclass
class Facts:
    """What happened outside the stores.

    Attributes:
        effects: The idempotency keys of all effects, in order.
        asked: What the model was asked: the input's text, the number of the response, and the texts before the input.
        problems: Broken promises that were seen while it happened.
    """

    effects: list[str] = field(default_factory=list)
    asked: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class ConversationWorld:
    """One conversation, `s`, and the processes that work on it.

    Inputs say what a turn does: `pay ...` calls a tool that is not idempotent, `ask ...` one that a human approves
    first, anything else none. Each turn ends with `did <input>`.

    Attributes:
        journal: The backend.
        clock: What all of the world goes by.
        facts: What happened outside the stores.
        keeps: Whether no program drops turns, so that an accepted input must be in the transcript.
    """

    def __init__(
        self,
        journal: Journal,
        programs: Mapping[str, Callable[[ConversationWorld, AgentStore], Coroutine[Any, Any, Any]]] | None = None,
        *,
        allowed: tuple[type[BaseException], ...] = TYPED,
        keeps: bool = True,
        same_host: bool = True,
        slow_switches: bool = False,
        in_doubt: InDoubt | None = None,
        after: Callable[[ConversationWorld, Mapping[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """Set up.

        Args:
            journal: The backend; what is in it is where the world starts.
            programs: What each process does, by name.
            allowed: What a program may raise.
            keeps: Whether no program drops turns.
            same_host: Whether the processes know of each other that they live or died.
            slow_switches: Whether a lease lapses while one process stops and another goes on.
            in_doubt: The policy of the tools.
            after: More to check, before anything is settled.
        """
        self.journal = journal
        self.programs = dict(programs or {})
        self.clock = ManualClock()
        self.facts = Facts()
        self.allowed = allowed
        self.keeps = keeps
        self.slow_switches = slow_switches
        self.in_doubt = in_doubt
        self._same_host = same_host
        self._after = after
        self._gone: set[str] = set()
        self._pids: dict[str, int] = {}

    # --- processes ---

    def identity(self, name: str) -> Process:
        """Return the identity of a process, the same each time."""
        pid = self._pids.setdefault(name, 1000 + len(self._pids))
        host = "here" if self._same_host else f"host-of-{name}"
        return SimulatedProcess(host, "boot", "1", pid, "1", gone=self._gone)

    def died(self, name: str) -> None:
        """Let the host know that a process is gone."""
        self.identity(name)
        self._gone.add(str(self._pids[name]))

    def switched(self) -> None:
        """Let time pass, in a world where switches are slow."""
        if self.slow_switches:
            self.clock.advance(LAPSE)

    def store(self, name: str, journal: Journal) -> AgentStore:
        """Return a bundle of a process's own."""
        stores = journal_stores(journal)
        return AgentStore(
            sessions=stores.sessions,
            checkpoints=stores.checkpoints,
            approvals=stores.approvals,
            clock=self.clock,
            process=self.identity(name),
        )

    def program(self, process: SteppedProcess) -> Coroutine[Any, Any, Any]:
        """Return what a process does."""
        return self.programs[process.name](self, self.store(process.name, process.journal))

    def fresh(self, name: str = "settler") -> AgentStore:
        """Return the bundle of a process that nobody stops, to look and to tidy up."""
        return self.store(name, InterceptedJournal(self.journal, Interception()))

    @cached_property
    def _judge(self) -> AgentStore:
        """The bundle that is only looked with."""
        return self.fresh("judge")

    def agent(self, store: AgentStore) -> Agent:
        """Return the agent, as one process runs it."""
        return Agent(model=FunctionModel(self._model(store)), tools=self._tools(), store=store)

    def session(self, store: AgentStore) -> Session:
        """Return the conversation, as one process sees it."""
        return self.agent(store).session(SESSION)

    def _tools(self) -> list[Tool]:
        async def act(context: ToolContext) -> str:
            self.facts.effects.append(context.idempotency_key)
            return "paid"

        return [
            replace(_PAY, function=act, in_doubt=self.in_doubt),
            replace(_ASK, function=act, in_doubt=self.in_doubt),
        ]

    def _model(self, store: AgentStore) -> Callable[[ModelRequest], Awaitable[ModelResponse]]:
        async def answer(request: ModelRequest) -> ModelResponse:
            start = max(place for place, message in enumerate(request.messages) if message.role == "user")
            given, turn = request.messages[start].text, request.messages[start + 1 :]
            step = sum(message.role == "assistant" for message in turn)
            before = tuple(message.text for message in request.messages[:start])
            self.facts.asked.append((given, step, before))
            await self._judge_request(store, given, step)
            kind = given.partition(" ")[0]
            if step == 0 and kind in ("pay", "ask"):
                return ModelResponse(tool_calls=(ToolCall(id=f"call-{given}", name=kind, arguments={}),))
            return ModelResponse(text=f"did {given}")

        return answer

    async def _judge_request(self, store: AgentStore, given: str, step: int) -> None:
        """Note a request for a response that is recorded, made by the turn's own owner."""
        found = await self._judge.checkpoints.load(SESSION)
        if found is None or found.head.owner is None:
            return
        asker = store.ownership.process
        recorded = sum(entry.get("kind") == "model" for entry in found.entries)
        if found.head.owner.split("/")[3] == str(asker.pid) and recorded > step:
            self.facts.problems.append(f"response {step} to {given!r} is recorded, and was asked for again")

    # --- where a test starts ---

    async def turn(self, given: str) -> TurnResult:
        """Run a turn that nobody disturbs."""
        return await self.session(self.fresh("earlier")).send(given)

    async def cut(self, given: str, writes: int, *, atomic: bool | None = None) -> None:
        """Leave a turn of which so many writes were made when its process died, long enough ago for everybody to see."""
        dying = InterceptedJournal(self.journal, at(writes, "die-after"), atomic=atomic)
        with contextlib.suppress(Died):
            await self.session(self.store("the dead", dying)).send(given)
        self.died("the dead")
        self.clock.advance(LAPSE)

    # --- what must hold ---

    async def check(self, outcomes: Mapping[str, Any]) -> None:
        """Settle the conversation with a fresh process, go on with it, and check all promises.

        Args:
            outcomes: What each process returned, or the exception that it raised.
        """
        somebody_died = any(map(has_died, outcomes.values()))
        for name, outcome in outcomes.items():
            known = isinstance(outcome, self.allowed) or has_died(outcome)
            if isinstance(outcome, BaseException) and not known:
                raise AssertionError(f"{name} raised {type(outcome).__name__}: {outcome}") from outcome
            self.died(name)
        if self._after is not None:
            await self._after(self, outcomes)
        if not somebody_died:
            await self.check_approvals()
        await self.settle()
        if not somebody_died:
            await self.check_whole()
        self._check_inputs(outcomes, await self.transcript())
        await self.check_goes_on()
        await self.check_approvals()
        self.check_effects()
        check_transcript(await self.transcript())
        assert not self.facts.problems, self.facts.problems

    async def settle(self) -> list[str]:
        """Bring the conversation to rest, as a user would who comes back a day later; return the calls in doubt."""
        self.clock.advance(timedelta(days=1))
        store, doubts = self.fresh(), list[str]()
        session = self.session(store)
        for _ in range(5):
            try:
                if await session.resume() is None:
                    break
            except SessionAwaitingApprovalError as error:
                for approval_id in error.approval_ids:
                    await store.decide(approval_id, approved=True)
            except ToolOutcomeUnknownError as error:
                doubts.append(error.args[1])
                await session.discard_pending()
            except SessionConflictError:
                await session.discard_pending()
            except SessionDeletedError:
                break
        found = await self.turn_journal()
        assert found is None or found.head.status == "idle", f"it does not come to rest: {found.head}"
        return doubts

    async def check_goes_on(self) -> None:
        """Check that the conversation takes a turn, and that what a death has left is pruned then."""
        result = await self.turn("pay at last")
        assert result.text == "did pay at last", result
        await self.fresh().prune(older_than=timedelta(hours=1))
        found = await self.transcript()
        assert found, "the conversation was pruned while it was young"

    async def check_whole(self) -> None:
        """Check that no part is there without its session."""
        if await self._judge.sessions.load(SESSION) is None:
            await self.check_nothing_left()

    async def check_approvals(self) -> None:
        """Check that whatever asks for a decision has its run."""
        found = await self.turn_journal()
        run_id = None if found is None or found.head.status == "idle" else found.head.run_id
        for approval in await self.approvals():
            assert approval.decided or approval.run_id == run_id, f"{approval.id} is pending without its run"

    def check_effects(self) -> None:
        """Check that no call had its effect twice."""
        for key, times in Counter(self.facts.effects).items():
            assert times == 1 or self.in_doubt == "rerun", f"{key} had its effect {times} times"

    async def approvals(self) -> Sequence[Approval]:
        """Return all approvals."""
        return (await self._judge.approvals.list(session_id=SESSION)).items

    async def turn_journal(self) -> Checkpoint | None:
        """Return the turn journal as it is."""
        return await self._judge.checkpoints.load(SESSION)

    async def transcript(self) -> Sequence[Record]:
        """Return the records as they are."""
        found = await self._judge.sessions.load(SESSION)
        return () if found is None else found.records

    async def check_nothing_left(self) -> None:
        """Check that no part holds anything of the conversation."""
        store = self._judge
        assert await store.sessions.load(SESSION) is None, "the session is left"
        assert await store.checkpoints.load(SESSION) is None, "the turn journal is left"
        left = await self.approvals()
        assert not left, f"approvals are left: {[approval.id for approval in left]}"

    def _check_inputs(self, outcomes: Mapping[str, Any], records: Sequence[Record]) -> None:
        inputs = Counter(Message.from_record(record["message"]).text for record in records if "input_id" in record)
        for given, times in inputs.items():
            assert times == 1, f"the input {given!r} is in the transcript {times} times"
        for name, outcome in outcomes.items():
            if isinstance(outcome, TurnResult) and outcome.finish_reason == "stop":
                given = outcome.messages[0].text
                assert outcome.text == f"did {given}", f"{name} got the answer {outcome.text!r} to {given!r}"
                assert not self.keeps or inputs[given] == 1, f"{name} was accepted, and {given!r} is not there"
        if self.keeps:
            self._check_history(records)

    def _check_history(self, records: Sequence[Record]) -> None:
        """Check that each turn was made from the transcript that it stands behind."""
        texts = [Message.from_record(record["message"]).text for record in records]
        for place, record in enumerate(records):
            if "input_id" in record:
                made_from = [before for given, step, before in self.facts.asked if (given, step) == (texts[place], 0)]
                assert tuple(texts[:place]) in made_from, f"{texts[place]!r} was made from {made_from}"


def check_transcript(records: Sequence[Record]) -> None:
    """Check that each turn is there whole, once, and each call has its result."""
    runs = [
        record["run_id"]
        for place, record in enumerate(records)
        if place == 0 or records[place - 1]["run_id"] != record["run_id"]
    ]
    assert len(runs) == len(set(runs)), f"a turn is in the transcript twice: {runs}"
    for run_id in runs:
        own = [record for record in records if record["run_id"] == run_id]
        messages = [Message.from_record(record["message"]) for record in own]
        calls = [call.id for message in messages for call in message.tool_calls]
        results = [message.tool_call_id for message in messages if message.role == "tool"]
        assert messages[0].role == "user", f"{run_id} has no input"
        assert "input_id" in own[0], f"{run_id} has lost its beginning"
        assert "finish_reason" in own[-1], f"{run_id} has lost its end"
        assert calls == results, f"{run_id} has the calls {calls} and the results {results}"
        assert messages[-1].text == f"did {messages[0].text}", f"{run_id} ends with {messages[-1]}"
