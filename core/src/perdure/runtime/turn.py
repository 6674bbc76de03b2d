"""One turn, run by its owner: ask the model, run its calls, wait for decisions, write each step before the next.

The runner never looks at the last entry alone: `TurnState` says for every call what is recorded, and each loop decides
from that what may happen next. A recorded response is not asked for again, and a recorded result's tool never runs
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.contracts.approvals import APPROVED, CANCELLED, EXPIRY, Approval
from perdure.contracts.records import decode_object, encode_object
from perdure.errors import (
    AgentChangedError,
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    NotJsonError,
    OutcomeUnknownError,
    PropagatingToolError,
    RecordTooLargeError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
)
from perdure.events import TextStreamed, ToolStarted
from perdure.models import ModelError, ModelRequest, respond
from perdure.owned_journal import OwnershipLostError
from perdure.runtime.limits import LIMIT, finish_reason
from perdure.runtime.messages import Message, stamp
from perdure.runtime.tools import (
    ToolArgumentsError,
    ToolContext,
    ToolDidNotRun,
    ToolRan,
    ToolResultError,
    as_text,
)
from perdure.runtime.turn_state import CallState, Step, entry, largest_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.models import ModelResponse, TextDelta
    from perdure.owned_journal import OwnedJournal
    from perdure.runtime.agent import Agent
    from perdure.runtime.limits import Limits, Spent
    from perdure.runtime.telling import Teller
    from perdure.runtime.tools import Tool

STOP: Final = "stop"
AWAITING: Final = "awaiting-approval"
ABORTED: Final = "aborted"

_log = logging.getLogger("perdure.turns")


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Start:
    """A call that is about to run."""

    call: CallState
    tool: Tool
    arguments: Record
    attempt: int


@dataclass(slots=True)
class _Plan:
    """What may happen next in a step: entries to write first, and calls to run then."""

    entries: list[Record] = field(default_factory=list)
    starts: list[_Start] = field(default_factory=list)


class Turn:
    """Runs one turn on a journal that this task owns, up to its end or up to where it must wait."""

    def __init__(
        self,
        agent: Agent,
        store: AgentStore,
        journal: OwnedJournal,
        teller: Teller,
        history: Sequence[Message],
        limits: Sequence[tuple[Limits, Spent]],
    ) -> None:
        """Take what the turn runs on.

        Args:
            agent: Whose turn.
            store: Where it is kept.
            journal: Its journal.
            teller: What it tells of itself, and its state.
            history: The messages before it.
            limits: What may be spent, each with what was spent before the turn.
        """
        self.agent = agent
        self.store = store
        self.journal = journal
        self.teller = teller
        self.state = teller.state
        self.history = tuple(history)
        self.waiting_for: tuple[str, ...] = ()
        self._limits = limits
        self._asking: asyncio.Task[ModelResponse] | None = None
        self._heard = False
        self._probed: set[str] = set()

    async def advance(self) -> str:
        """Go on until the turn ends or waits.

        Returns:
            How it ended; `awaiting-approval` if it waits, with the undecided approvals in `waiting_for`.
        """
        while True:
            step = self.state.steps[-1] if self.state.steps else None
            if step is not None:
                if not await self._finish_calls(step):
                    return AWAITING
                if not step.calls:
                    return STOP
            reason = self._limit_met() or await self._ask_model()
            if reason is not None:
                return reason

    def steer(self) -> None:
        """Have an input that was accepted just now be heard: a request that has brought nothing yet is made again."""
        if self._asking is not None and not self._heard:
            self._asking.cancel()

    def is_urged(self) -> bool:
        """Whether an input waits that shall be heard as soon as it can be, and calls are in its way."""
        return self.state.steered and bool(self._idle(self.state.steps[-1].unanswered()))

    def now(self) -> str:
        """The current instant as entries hold it."""
        return stamp(self.store.clock.now())

    def _limit_met(self) -> str | None:
        """Return why the turn ends, if a limit is met."""
        spent = self.state.running(self.store.clock.now())
        for limits, before in self._limits:
            met = limits.met(before + spent)
            if met is not None:
                return finish_reason(met[0])
        return None

    def _seconds_left(self) -> float | None:
        spent = self.state.running(self.store.clock.now())
        left = [limits.seconds_left(before + spent) for limits, before in self._limits]
        return min((seconds for seconds in left if seconds is not None), default=None)

    # --- the model ---

    async def _ask_model(self) -> str | None:
        """Ask for the next response, and write it; return why the turn ends if no time was left for one."""
        while True:
            inputs = len(self.state.inputs)
            request = ModelRequest(
                messages=(*self.history, *self.state.asking),
                tools=[tool.schema for tool in self.agent.tools.values()],
                instructions=self.agent.instructions,
            )
            self._heard = False
            self._asking = asyncio.create_task(respond(self.agent.model, request, self._on_delta))
            timeout = asyncio.timeout(self._seconds_left())
            try:
                async with timeout:
                    response = await self._asking
            except TimeoutError:
                if timeout.expired():
                    return LIMIT
                raise
            except asyncio.CancelledError as error:
                if _cancelled_from_outside():
                    raise
                if len(self.state.inputs) == inputs:
                    raise ModelError(f"the model {self.agent.model.name} cancelled itself") from error
                continue  # steered: the request is made again, with the new input
            finally:
                self._asking = None
            await self._write(self._response_entries(response, inputs))
            return None

    def _on_delta(self, delta: TextDelta) -> None:
        self._heard = True
        self.teller.tell(TextStreamed, text=delta.text)

    def _response_entries(self, response: ModelResponse, inputs: int) -> list[Record]:
        """Return the response's entry, which holds what is gated, and at once the answers to calls that cannot run."""
        said = Message("assistant", response.text, tuple(response.tool_calls), metadata=response.metadata).to_record()
        # Of bytes, not of the model's objects, which it may go on changing.
        record = decode_object(self._fitting(said, "response"), "response")
        message = Message.from_record(record)
        gated: list[int] = []
        answers: list[Record] = []
        step = len(self.state.steps)
        for place, call in enumerate(message.tool_calls):
            tool = self.agent.tools.get(call.name)
            problem = f"there is no tool {call.name!r}" if tool is None else _misfit(tool, call.arguments)
            if problem is not None:
                answer = Message("tool", problem, tool_call_id=call.id, is_error=True)
                answers.append(entry("tool", self.now(), step=step, call=place, message=answer.to_record()))
            elif tool is not None and tool.is_gated(call.arguments):
                gated.append(place)
        usage = response.usage.to_record()
        recorded = entry("model", self.now(), message=record, usage=usage, gated=gated, inputs=inputs)
        return [recorded, *answers]

    def _fitting(self, message: Record, where: str) -> bytes:
        """Return a message as bytes, or raise: one that is journaled and cannot be saved would stop the turn for good."""
        if self.journal.head.session_id is not None:
            saved = largest_record(self.state.run_id, self.now(), message)
            encode_object(saved, where, self.store.sessions.max_record)
        return encode_object(message, where, self.store.checkpoints.max_record)

    # --- the calls of a response ---

    async def _finish_calls(self, step: Step) -> bool:
        """Bring every call of a response to its result; False if some must wait for a decision."""
        while calls := step.unanswered():
            tools = {call.place: self._tool_of(call) for call in calls}
            if await self._make_way(calls) or await self._find_out(calls, tools):
                continue
            for call in calls:
                self._require_policy(call, tools[call.place])
            approvals = await self._ask_humans(calls, tools)
            plan = _Plan()
            for call in calls:
                self._plan(plan, call, tools[call.place], approvals)
            if plan.entries or plan.starts:
                if await self._write(plan.entries, unless=self.is_urged):
                    await self._run(plan.starts)
            elif not self.is_urged():
                self.waiting_for = tuple(approval.id for approval in approvals.values() if not approval.decided)
                return False
        return True

    def _tool_of(self, call: CallState) -> Tool:
        """Return a call's tool; one that is gone since the call was recorded stops the turn."""
        tool = self.agent.tools.get(call.call.name)
        if tool is None:
            raise AgentChangedError(self.state.run_id, f"it has no tool {call.call.name!r} any more")
        return tool

    def _require_policy(self, call: CallState, tool: Tool) -> None:
        if call.in_doubt and not tool.idempotent and tool.in_doubt is None:
            raise ToolOutcomeUnknownError(self.state.run_id, call.call.id, call.call.name)

    async def _make_way(self, calls: Sequence[CallState]) -> bool:
        """Answer the calls that have not started, if the user steers; return whether there were any."""
        idle = self._idle(calls)
        if not idle or not self.state.steered:
            return False
        for call in idle:
            if call.gated:  # first: if this is all that happens, the call counts as rejected
                with contextlib.suppress(ApprovalAlreadyResolvedError, ApprovalNotFoundError):
                    await self.store.approvals.cancel(call.id, reason="the user went on")
        not_run = "not run: the user has sent a new message"
        await self._write([self._answer(call, not_run, is_error=True) for call in idle])
        return True

    def _idle(self, calls: Sequence[CallState]) -> list[CallState]:
        """Return the calls that have certainly not started."""
        return [call for call in calls if not self._may_have_started(call, self._tool_of(call))]

    def _may_have_started(self, call: CallState, tool: Tool) -> bool:
        if call.attempts or not tool.idempotent:
            return call.attempts > 0
        if call.gated and call.id not in call.decisions:
            return False
        return self._earlier_attempts(call, tool, first=False) > 0

    async def _find_out(self, calls: Sequence[CallState], tools: dict[int, Tool]) -> bool:
        """Ask the probes of calls in doubt, each once, and write what they found; return whether they found anything."""
        found: list[Record] = []
        for call in calls:
            tool = tools[call.place]
            if call.in_doubt and not tool.idempotent and call.doubt_id not in self._probed:
                self._probed.add(call.doubt_id)
                found += await self._probe(call, tool)
        await self._write(found)
        return bool(found)

    async def _probe(self, call: CallState, tool: Tool) -> list[Record]:
        try:
            outcome = await tool.find_out(tool.check(call.arguments), self._context(call, call.attempts))
        except Exception:  # noqa: BLE001  # reason: what a probe raises leaves the call in doubt, and is logged
            _log.exception("a probe failed", extra={"perdure": {"run_id": self.state.run_id, "tool": call.call.name}})
            return []
        if isinstance(outcome, ToolRan):
            return [self._found(call, outcome.result)]
        if isinstance(outcome, ToolDidNotRun):
            said = "a probe found that it did not run"
            return [entry("tool-failed", self.now(), step=call.step, call=call.place, error=said)]
        return []

    def _found(self, call: CallState, result: object) -> Record:
        """Return what a probe found as an answer; that the tool ran is known, also if its result cannot be told."""
        try:
            return self._kept(call, as_text(result), is_error=False)
        except ToolResultError as error:
            return self._kept(call, str(error), is_error=True)

    def _question(self, call: CallState, tool: Tool) -> tuple[str, str] | None:
        """Return the approval that a call needs next, as id and kind, or `None`."""
        if call.gated and call.id not in call.decisions:
            return call.id, "approve"
        if call.in_doubt and not tool.idempotent and tool.in_doubt == "ask" and call.doubt_id not in call.decisions:
            return call.doubt_id, "in-doubt"
        return None

    async def _ask_humans(self, calls: Sequence[CallState], tools: dict[int, Tool]) -> dict[str, Approval]:
        """Store the approvals that the calls need and do not have yet; return all of them as they stand."""
        found: dict[str, Approval] = {}
        requested: list[Record] = []
        for call in calls:
            question = self._question(call, tools[call.place])
            if question is None:
                continue
            approval = await self.store.approvals.create(self._request(call, tools[call.place], *question))
            if not approval.decided and approval.expired(self.store.clock.now()):
                approval = await self.store.approvals.expire(approval.id)
            found[approval.id] = approval
            if approval.id not in call.asked:
                self.teller.requests[approval.id] = approval
                requested.append(
                    entry("approval-requested", self.now(), step=call.step, call=call.place, approval_id=approval.id)
                )
        await self._write(requested)
        return found

    def _request(self, call: CallState, tool: Tool, approval_id: str, kind: str) -> Approval:
        now = self.store.clock.now()
        return Approval(
            id=approval_id,
            run_id=self.state.run_id,
            tool_call_id=call.call.id,
            tool_name=call.call.name,
            arguments=call.arguments,
            created_at=now,
            session_id=self.journal.head.session_id,
            agent=self.agent.name,
            kind=kind,
            expires_at=None if tool.approval_timeout is None else now + tool.approval_timeout,
            on_expiry=tool.on_expiry,
        )

    def _plan(self, plan: _Plan, call: CallState, tool: Tool, approvals: dict[str, Approval]) -> None:
        """Add what may happen to one call: nothing while it waits, an answer, or a start."""
        question = self._question(call, tool)
        arguments = call.arguments
        if question is not None:
            approval = approvals[question[0]]
            if not approval.decided:
                return
            plan.entries.append(self._applied(call, approval))
            if approval.status != APPROVED:
                plan.entries.append(self._answer(call, _rejection(approval), is_error=True))
                return
            arguments = approval.effective_arguments
        elif call.in_doubt and tool.in_doubt == "fail" and not tool.idempotent:
            plan.entries.append(self._answer(call, _unknown(call), is_error=True))
            return
        problem = _misfit(tool, arguments)
        if problem is not None:
            plan.entries.append(self._answer(call, problem, is_error=True))
            return
        attempt = 1 + self._earlier_attempts(call, tool, first=question is not None)
        if not tool.idempotent:
            plan.entries.append(entry("tool-started", self.now(), step=call.step, call=call.place, attempt=attempt))
        plan.starts.append(_Start(call, tool, arguments, attempt))

    def _earlier_attempts(self, call: CallState, tool: Tool, *, first: bool) -> int:
        """How often a call may have run before; `first`: its gate is opened in this very step."""
        if not tool.idempotent:
            return call.attempts
        # Its starts are not recorded: it may have run in each life of the turn since it could.
        return 0 if first else self.state.resumed - call.resumed_before

    def _applied(self, call: CallState, approval: Approval) -> Record:
        decision = approval.decision
        applied = entry(
            "approval-applied",
            self.now(),
            step=call.step,
            call=call.place,
            approval_id=approval.id,
            status=approval.status,
        )
        for name in ("note", "arguments", "decided_by"):
            value = getattr(decision, name, None)
            if value is not None:
                applied[name] = value
        return applied

    def _answer(self, call: CallState, text: str, *, is_error: bool) -> Record:
        message = Message("tool", text, tool_call_id=call.call.id, is_error=is_error)
        return entry("tool", self.now(), step=call.step, call=call.place, message=message.to_record())

    # --- running tools ---

    async def _run(self, starts: Sequence[_Start]) -> None:
        """Run calls at once, and record each result as it comes.

        A call that stops the turn lets the others end and be recorded first; a journal that was lost does not.
        """
        if not starts:
            return
        await self.journal.renew_if_lapsed()
        for start in starts:
            if start.tool.idempotent:  # of the others, the entry has told
                self._tell_start(start)
        tasks = [asyncio.create_task(self._run_one(start)) for start in starts]
        try:
            pending: set[asyncio.Task[None]] = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
                if any(not task.cancelled() and isinstance(task.exception(), OwnershipLostError) for task in done):
                    break
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        lost = [failure for failure in failures if isinstance(failure, OwnershipLostError)]
        for failure in lost or failures:
            raise failure

    def _tell_start(self, start: _Start) -> None:
        call = start.call.call
        facts = {"tool_name": call.name, "tool_call_id": call.id, "arguments": start.arguments}
        self.teller.tell(ToolStarted, attempt=start.attempt, **facts)

    async def _run_one(self, start: _Start) -> None:
        call = start.call
        try:
            answer = self._kept(call, await self._call(start), is_error=False)
        except PropagatingToolError as error:
            if not start.tool.idempotent:
                # The tool says itself that it failed: the attempt is not in doubt, and a resume may try again.
                failed = entry("tool-failed", self.now(), step=call.step, call=call.place, error=str(error))
                await self._write_outcome(failed)
            raise
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            answer = self._answer(call, "the tool cancelled itself", is_error=True)
        except Exception as error:  # noqa: BLE001  # reason: the model is told of whatever a tool raises
            answer = self._kept(call, _failure(error), is_error=True)
        await self._write_outcome(answer)

    async def _call(self, start: _Start) -> str:
        """Call a tool; an idempotent one again, as often as it allows, if it raises."""
        last = start.attempt + start.tool.retries
        for attempt in range(start.attempt, last):
            try:
                return await self._call_once(start, attempt)
            except (PropagatingToolError, ToolResultError):
                raise
            except Exception as error:  # noqa: BLE001  # reason: whatever it is, the call may be repeated
                said = {"run_id": self.state.run_id, "tool": start.call.call.name, "attempt": attempt}
                await self.journal.renew_if_lapsed()
                _log.warning("a tool failed and is called again: %s", type(error).__name__, extra={"perdure": said})
        return await self._call_once(start, last)

    async def _call_once(self, start: _Start, attempt: int) -> str:
        # Checked for each attempt: the function may change what it is given.
        return await start.tool.call(start.tool.check(start.arguments), self._context(start.call, attempt))

    def _context(self, call: CallState, attempt: int) -> ToolContext:
        session_id = self.journal.head.session_id
        return ToolContext(session_id, self.state.run_id, call.call.id, attempt, idempotency_key=call.id)

    def _kept(self, call: CallState, text: str, *, is_error: bool) -> Record:
        """Return what a tool said as an answer; one that cannot be stored becomes an error that says that it ran."""
        answer, where = self._answer(call, text, is_error=is_error), f"the result of {call.call.name}"
        try:
            encode_object(answer, where, self.store.checkpoints.max_record)
            self._fitting(answer["message"], where)
        except (NotJsonError, RecordTooLargeError) as error:
            return self._answer(call, f"the tool ran, but what it said cannot be stored: {error}", is_error=True)
        return answer

    async def _write_outcome(self, outcome: Record) -> None:
        """Write what became of a call; if the store fails, the append that gives the turn up tries to say it too.

        Otherwise a store that is away for one moment would leave a call in doubt of which the outcome is known here.
        """
        try:
            await self._write([outcome])
        except (StoreUnavailableError, OutcomeUnknownError):
            self.journal.leave([outcome])
            raise

    async def _write(self, entries: Sequence[Record], *, unless: Callable[[], bool] = _never) -> bool:
        """Write entries, unless; the journal tells the state of them. Return whether they are written, if there are any."""
        return await self.journal.append(entries, unless=unless) if entries else not unless()


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _misfit(tool: Tool, arguments: Record) -> str | None:
    try:
        tool.check(arguments)
    except ToolArgumentsError as error:
        return str(error)
    return None


def _failure(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the tool did not end in time; whether it had an effect is not known ({error})".replace(" ()", "")
    if isinstance(error, ToolResultError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _unknown(call: CallState) -> str:
    return f"whether attempt {call.attempts} of this call had an effect is not known, and it was not repeated"


def _rejection(approval: Approval) -> str:
    """Return what the model is told of a call that was not approved."""
    decision = approval.decision
    by = None if decision is None else decision.decided_by
    reason = "cancelled" if approval.status == CANCELLED else "expired" if by == EXPIRY else "rejected"
    said: dict[str, Any] = {"status": reason, "tool": approval.tool_name}
    if approval.kind == "in-doubt":
        said["outcome"] = "unknown; the call was not repeated"
    if decision is not None and decision.note is not None:
        said["note"] = decision.note
    return json.dumps(said)
