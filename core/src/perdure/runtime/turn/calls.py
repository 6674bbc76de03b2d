"""The calls of one response: ask humans, find out about doubts, run what may run, and record each result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.contracts.approvals import APPROVED, Approval
from perdure.contracts.store import describe
from perdure.errors import (
    AgentChangedError,
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    OutcomeUnknownError,
    PropagatingToolError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
)
from perdure.events import ToolStarted
from perdure.ownership.leases import OwnershipLostError
from perdure.ownership.uninterrupted import Work, apart, foreign, interrupted, uninterrupted
from perdure.place import enter_call
from perdure.runtime.messages import stamp
from perdure.runtime.tools import (
    ToolArgumentsError,
    ToolContext,
    ToolDidNotRun,
    ToolRan,
    ToolResultError,
    as_text,
)
from perdure.runtime.turn.answers import UNSTORABLE_EDIT, Answers, failure, storable, unknown
from perdure.runtime.turn.state import CallState, Step, entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.bundle import AgentStore
    from perdure.contracts.records import Record
    from perdure.ownership.owned_journal import OwnedJournal
    from perdure.runtime.agent import Agent
    from perdure.runtime.tools import Tool
    from perdure.runtime.turn.telling import Teller

_log = logging.getLogger("perdure.turns")


def _never() -> bool:
    return False


@dataclass(slots=True)
class Start:
    """A call that is about to run.

    Attributes:
        call: Which.
        tool: Its tool.
        arguments: The arguments to run with, as they are recorded.
        values: The same as the function takes them, for the first attempt, which may change them.
        attempt: The number of that attempt.
    """

    call: CallState
    tool: Tool
    arguments: Record
    values: dict[str, Any]
    attempt: int


@dataclass(slots=True)
class Plan:
    """What may happen next in a step: entries to write first, and calls to run then."""

    entries: list[Record] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)


class Calls:
    """Brings the calls of responses to their results, on a journal that this task owns.

    Attributes:
        waiting_for: The approvals that the turn must wait for.
        answers: Makes the entries that answer calls.
        checked: The arguments of those calls of the last response that may run at once, by their place, as functions take
            them.
    """

    def __init__(self, agent: Agent, store: AgentStore, journal: OwnedJournal, teller: Teller) -> None:
        self.agent = agent
        self.store = store
        self.journal = journal
        self.teller = teller
        self.state = teller.state
        self.answers = Answers(store, journal, teller.state.run_id)
        self.waiting_for: tuple[str, ...] = ()
        self.checked: dict[int, dict[str, Any]] = {}
        self._probed: set[str] = set()

    def now(self) -> str:
        """The current instant as entries hold it."""
        return stamp(self.store.clock.now())

    def is_urged(self) -> bool:
        """Whether an input waits that shall be heard as soon as it can be, and calls are in its way."""
        return self.state.steered and bool(self._idle(self.state.steps[-1].unanswered()))

    async def finish(self, step: Step) -> bool:
        """Bring every call of a response to its result; False if some must wait for a decision."""
        while calls := step.unanswered():
            tools = {call.place: self._tool_of(call) for call in calls}
            if await self._make_way(calls) or await self._find_out(calls, tools):
                continue
            for call in calls:
                self._require_policy(call, tools[call.place])
            approvals = await self._ask_humans(calls, tools)
            plan = Plan()
            for call in calls:
                self._plan(plan, call, tools[call.place], approvals)
            if plan.entries or plan.starts:
                if await self.write(plan.entries, unless=self.is_urged):
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
        if not tool.idempotent and call.in_doubt and tool.in_doubt is None:
            raise ToolOutcomeUnknownError(self.state.run_id, call.call.id, call.call.name)

    async def _make_way(self, calls: Sequence[CallState]) -> bool:
        """Answer the calls that have not started, if the user steers; return whether there were any."""
        if not self.state.steered or not (idle := self._idle(calls)):
            return False
        for call in idle:
            if call.gated:  # first: if this is all that happens, the call counts as rejected
                with contextlib.suppress(ApprovalAlreadyResolvedError, ApprovalNotFoundError):
                    await self.store.approvals.cancel(call.id, reason="the user went on")
        not_run = "not run: the user has sent a new message"
        await self.write([self.answers.of(call, not_run) for call in idle])
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
            if not tool.idempotent and call.in_doubt and call.doubt_id not in self._probed:
                self._probed.add(call.doubt_id)
                found += await self._probe(call, tool)
        if found:
            await self.write(found)
        return bool(found)

    async def _probe(self, call: CallState, tool: Tool) -> list[Record]:
        try:
            outcome = await foreign(tool.find_out(tool.check(call.arguments), self._context(call, call.attempts)))
        except (Exception, asyncio.CancelledError) as error:  # of a probe: it leaves the call in doubt, and is logged
            if isinstance(error, asyncio.CancelledError) and interrupted():
                raise
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
            return self.answers.kept(call, as_text(result), is_error=False)
        except ToolResultError as error:
            return self.answers.kept(call, str(error), is_error=True)

    def _question(self, call: CallState, tool: Tool) -> tuple[str, str] | None:
        """Return the approval that a call needs next, as id and kind, or `None`."""
        if call.gated and call.id not in call.decisions:
            return call.id, "approve"
        if tool.in_doubt == "ask" and not tool.idempotent and call.in_doubt and call.doubt_id not in call.decisions:
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
        if requested:
            await self.write(requested)
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

    def _plan(self, plan: Plan, call: CallState, tool: Tool, approvals: dict[str, Approval]) -> None:
        """Add what may happen to one call: nothing while it waits, an answer, or a start."""
        question = self._question(call, tool)
        arguments = call.arguments
        if question is not None:
            approval = approvals[question[0]]
            if not approval.decided:
                return
            applied = self._applied(call, approval)
            plan.entries.append(applied)
            if approval.status != APPROVED:
                plan.entries.append(self.answers.rejected(call, approval))
                return
            arguments = approval.effective_arguments
            if applied.get("arguments", call.arguments) != arguments:
                plan.entries.append(self.answers.of(call, UNSTORABLE_EDIT))
                return
        elif tool.in_doubt == "fail" and not tool.idempotent and call.in_doubt:
            plan.entries.append(self.answers.of(call, unknown(call)))
            return
        try:
            values = self.checked.pop(call.place) if call.place in self.checked else tool.check(arguments)
        except ToolArgumentsError as error:
            plan.entries.append(self.answers.of(call, str(error)))
            return
        attempt = 1 + self._earlier_attempts(call, tool, first=question is not None)
        if not tool.idempotent:
            plan.entries.append(entry("tool-started", self.now(), step=call.step, call=call.place, attempt=attempt))
        plan.starts.append(Start(call, tool, arguments, values, attempt))

    def _earlier_attempts(self, call: CallState, tool: Tool, *, first: bool) -> int:
        """How often a call may have run before; `first`: its gate is opened in this very step."""
        if not tool.idempotent:
            return call.attempts
        # Its starts are not recorded: it may have run in each life of the turn since it could.
        return 0 if first else self.state.resumed - call.resumed_before

    def _applied(self, call: CallState, approval: Approval) -> Record:
        """Return the entry of a decision, without what a journal cannot hold that takes less than an approval store."""
        about = {"step": call.step, "call": call.place, "approval_id": approval.id, "status": approval.status}
        applied = entry("approval-applied", self.now(), **about)
        for name in ("decided_by", "arguments", "note"):
            value = getattr(approval.decision, name, None)
            if value is not None and self.answers.fits(applied | {name: value}):
                applied[name] = value
        return applied

    # --- running tools ---

    async def _run(self, starts: Sequence[Start]) -> None:
        """Run calls at once, and record each result as it comes.

        A call that stops the turn lets the others end and be recorded first; a journal that was lost does not.
        """
        if not starts:
            return
        await self.journal.renew_if_lapsed()
        for start in starts:
            if start.tool.idempotent:  # of the others, the entry has told
                self._tell_start(start)
        if len(starts) == 1:
            await apart(self._run_one(starts[0]))
        else:
            await self._run_together(starts)

    async def _run_together(self, starts: Sequence[Start]) -> None:
        works = [Work(self._run_one(start)) for start in starts]
        try:
            await _ended_or_lost(works)
        finally:
            failures = await uninterrupted(_stopped(works))
        lost = [failed for failed in failures if isinstance(failed, OwnershipLostError)]
        for first in lost or failures:
            raise first

    def _tell_start(self, start: Start) -> None:
        call = start.call.call
        facts = {"tool_name": call.name, "tool_call_id": call.id, "arguments": start.arguments}
        self.teller.tell(ToolStarted, attempt=start.attempt, **facts)

    async def _run_one(self, start: Start) -> None:
        call = start.call
        enter_call(call.call.id)
        try:
            answer = self.answers.kept(call, await self._call(start), is_error=False)
        except PropagatingToolError as error:
            if not start.tool.idempotent:
                # The tool says itself that it failed: the attempt is not in doubt, and a resume may try again.
                failed = entry(
                    "tool-failed", self.now(), step=call.step, call=call.place, error=storable(describe(error))
                )
                await self._write_outcome(failed)
            raise
        except asyncio.CancelledError:
            if interrupted():
                raise
            answer = self.answers.of(call, "the tool cancelled itself")
        except Exception as error:  # noqa: BLE001  # reason: the model is told of whatever a tool raises
            answer = self.answers.kept(call, failure(error), is_error=True)
        await self._write_outcome(answer)

    async def _call(self, start: Start) -> str:
        """Call a tool; an idempotent one again, as often as it allows, if it raises."""
        values, attempt = start.values, start.attempt
        while True:
            try:
                return await foreign(start.tool.call(values, self._context(start.call, attempt)))
            except (PropagatingToolError, ToolResultError):
                raise
            except Exception as error:
                if attempt == start.attempt + start.tool.retries:
                    raise
                said = {"run_id": self.state.run_id, "tool": start.call.call.name, "attempt": attempt}
                await self.journal.renew_if_lapsed()
                _log.warning("a tool failed and is called again: %s", type(error).__name__, extra={"perdure": said})
            values = start.tool.check(start.arguments)  # the function may have changed what it was given
            attempt += 1

    def _context(self, call: CallState, attempt: int) -> ToolContext:
        session_id = self.journal.head.session_id
        return ToolContext(session_id, self.state.run_id, call.call.id, attempt, idempotency_key=call.id)

    async def _write_outcome(self, outcome: Record) -> None:
        """Write what became of a call; if the store fails, the append that gives the turn up tries to say it too.

        Otherwise a store that is away for one moment would leave a call in doubt of which the outcome is known here.
        """
        try:
            await self.write([outcome])
        except (StoreUnavailableError, OutcomeUnknownError):
            self.journal.leave([outcome])
            raise

    async def write(self, entries: Sequence[Record], *, unless: Callable[[], bool] = _never) -> bool:
        """Write entries, unless; the journal tells the state of them. Return whether they are written, if there are any."""
        return await self.journal.append(entries, unless=unless) if entries else not unless()


async def _stopped(works: Sequence[Work[None]]) -> list[BaseException]:
    """Stop what still runs; return how those have failed that have.

    Looked at in any case: what a task has raised and nobody has looked at is logged.
    """
    running = [work for work in works if not work.done()]
    for work in running:
        work.interrupt()
    if running:
        await asyncio.wait(running)
    return [failed for work in works if (failed := _failure_of(work)) is not None]


async def _ended_or_lost(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all have ended, or one has found that the journal is another's."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
        if any(isinstance(_failure_of(task), OwnershipLostError) for task in done):
            return


def _failure_of(task: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
