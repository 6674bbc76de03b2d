"""An agent: a model, its tools and its instructions, run on stores."""

from __future__ import annotations

import copy
import hashlib
import logging
import uuid
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from perdure import codec
from perdure.bundle import AgentStore
from perdure.contracts.approvals import CANCELLED, Approval
from perdure.contracts.checkpoints import CLAIM_STATUSES, FINISHED, TURN_STATUSES
from perdure.contracts.ids import check_name
from perdure.contracts.records import encode_object
from perdure.errors import (
    AgentChangedError,
    ApprovalAlreadyResolvedError,
    ApprovalOrphanedError,
    InvalidArgumentError,
    UnsupportedOperationError,
)
from perdure.runtime.ephemeral import EphemeralCheckpoints, with_turns
from perdure.runtime.pending import as_it_stands, is_kept
from perdure.runtime.results import PendingTurn, TurnResult
from perdure.runtime.runs import Run
from perdure.runtime.session import Session
from perdure.runtime.tools import Tool, ToolArgumentsError, make_tool
from perdure.runtime.turn.limits import check_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime, timedelta

    from perdure.contracts.checkpoints import CheckpointHead
    from perdure.contracts.records import Page, Record
    from perdure.models import Model
    from perdure.runtime.messages import Given
    from perdure.runtime.transcript.compaction_policy import Compaction
    from perdure.runtime.turn.limits import Limits
    from perdure.runtime.turns import TurnPolicy

OnChange: TypeAlias = Literal["warn", "error", "ignore"]

_log = logging.getLogger("perdure.agents")


class Agent:
    """Runs turns of conversations with a model and tools, on stores that keep them alive.

    Attributes:
        model: What answers.
        tools: The tools by name.
        instructions: What the model is told to be.
        store: Where sessions are kept, unless they bring a store of their own.
        limits: What a turn may spend.
        name: An agent touches only turns that carry its name.
        on_change: What to do with a turn that was begun when the agent had another model, other instructions or other
            tools: `warn` (log it, say it in `run.resumed`, go on), `error` (`AgentChangedError`), or `ignore`.
        approvals: The approvals, and `resolve`, which continues a turn.

    Example:
        >>> agent = Agent(model=model, tools=[pay], store=store)  # doctest: +SKIP
        >>> result = await agent.session("user-42").send("Refund order 7")  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        model: Model,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        instructions: str | None = None,
        store: AgentStore | None = None,
        limits: Limits | None = None,
        name: str = "agent",
        on_change: OnChange = "warn",
    ) -> None:
        if not hasattr(model, "stream"):
            kind = type(model).__name__
            raise InvalidArgumentError("model", f"must be a Model, not a {kind}; FunctionModel makes one of a function")
        self.model = model
        self.tools = _by_name(tools)
        if instructions is not None and type(instructions) is not str:
            raise InvalidArgumentError("instructions", f"must be text, or None; not {type(instructions).__name__}")
        self.instructions = instructions
        self.limits = check_limits(limits)
        self.name = check_name(name, "name")
        if on_change not in get_args(OnChange):
            raise InvalidArgumentError("on_change", f"must be one of {', '.join(get_args(OnChange))}")
        self.on_change = on_change
        self.store = None if store is None else self._usable(store)
        self.approvals = AgentApprovals(self)

    def using(self, store: AgentStore) -> Agent:
        """Return the same agent on another store: for one that was made without, as that of a module for workers is.

        Raises:
            InvalidArgumentError: It is no open bundle of stores.
            UnsupportedOperationError: The store lacks what the agent's tools need.
        """
        same = copy.copy(self)
        same.store = same._usable(store)
        same.approvals = AgentApprovals(same)
        return same

    @property
    def fingerprint(self) -> str:
        """A hash of what the agent is made of: model, instructions, and the tools' names and schemas."""
        parts = [self.model.name, self.instructions, [[t.name, t.parameters] for t in self.tools.values()]]
        return hashlib.sha256(codec.encode(parts, "agent")).hexdigest()

    def changed_since(self, head: CheckpointHead) -> bool:
        """Whether the agent is not what it was when a turn began, as far as its policy asks.

        Raises:
            AgentChangedError: It is not, and `on_change` is `error`. The turn stays pending.
        """
        # One that has finished is only to be saved, and one that nobody has run yet begins with this agent.
        same = head.fingerprint in (None, self.fingerprint)
        if self.on_change == "ignore" or head.status == FINISHED or head.attempts == 0 or same:
            return False
        if self.on_change == "error":
            problem = "its model, its instructions or its tools are not those that the turn began with"
            raise AgentChangedError(head.run_id or "", problem)
        said = "the agent has changed (%s) since the turn %s began"
        _log.warning(said, self.name, head.run_id, extra={"perdure": {"run_id": head.run_id, "agent": self.name}})
        return True

    def session(
        self,
        session_id: str | None = None,
        *,
        scope: str | None = None,
        store: AgentStore | None = None,
        turn_policy: TurnPolicy = "wait",
        busy_timeout: timedelta | None = None,
        limits: Limits | None = None,
        compaction: Compaction | None = None,
    ) -> Session:
        """Return a conversation; nothing is read or written yet.

        Args:
            session_id: Its id; `None`: a new UUID. `perdure.safe_id(text)` makes one of any text.
            scope: What a new session is created for; an existing one must have the same.
            store: A store of its own; `None`: the agent's.
            turn_policy: What an input does while this process runs a turn of the conversation. `wait`: it is a turn of its
                own, afterwards. `queue`: it joins that turn after the step that runs. `steer`: as `queue`, and calls that
                have not started are not run, and a request of the model that has brought nothing yet is made again.
            busy_timeout: How long an input waits while another process runs the conversation; `None`: not at all.
            limits: What the conversation may spend in all its turns. Each turn keeps those that it began with, whoever
                finishes it; with `None`, one that was begun without has none.
            compaction: When to compact the transcript before a turn that `send` or `stream` begins, and how; `None`: only
                when `compact` is called. It is not stored: give it to workers, too.

        Raises:
            InvalidIdError: The id breaks its rule.
            InvalidArgumentError: The policy or the time to wait is none.
            UnsupportedOperationError: The store lacks what the agent's tools need.
        """
        return Session(
            self,
            self.store_of(store),
            uuid.uuid4().hex if session_id is None else session_id,
            scope,
            turn_policy=turn_policy,
            busy_timeout=busy_timeout,
            limits=limits,
            compaction=compaction,
        )

    async def run(self, given: Given, /, *, run_id: str | None = None) -> TurnResult:
        """Run an input durably without a session. The run is kept as finished until it is pruned.

        Args:
            given: Text, a message, messages, or the parts of one message.
            run_id: Names the run, by the rule of session ids; the same name again finishes that run, whatever the input,
                or returns its result, and does not run twice. `None`: a new name.

        Returns:
            The result; `finish_reason="awaiting-approval"` if the run waits for decisions.

        Raises:
            UnsupportedOperationError: The store has no checkpoint store; nothing was written.
            NotJsonError, RecordTooLargeError: The input cannot be stored; nothing was.
            SessionBusyError: Somebody else runs it right now.
            Exception: What the model or a `PropagatingToolError` raises; the run stays pending.
        """
        return await Run(self, self._durable(), uuid.uuid4().hex if run_id is None else run_id).run(given)

    async def resume(self, pending_id: str) -> TurnResult | None:
        """Finish the pending turn of a session, given its id; see `Session.resume`. Or a run without one, given its run id."""
        if "." in check_name(pending_id, "pending_id"):
            return await Run.of(self, self._durable(), pending_id).resume()
        return await self.session(pending_id).resume()

    async def discard(self, pending_id: str, *, force: bool = False) -> bool:
        """Drop the pending turn of a session, given its id; see `Session.discard_pending`. Or a run without one, by its run id.

        The name of a run that was dropped is free: `run` begins it anew. One that has finished is kept.

        Args:
            pending_id: A session id, or a run id.
            force: Fence off a live owner instead of raising `SessionBusyError`.

        Returns:
            Whether a turn was dropped.
        """
        if "." in check_name(pending_id, "pending_id"):
            return await Run.of(self, self._durable(), pending_id).discard(force=force)
        return await self.session(pending_id).discard_pending(force=force)

    def _durable(self) -> AgentStore:
        """Return the store, which must keep turns: a run has nothing else."""
        if self.store is not None and isinstance(self.store.checkpoints, EphemeralCheckpoints):
            raise UnsupportedOperationError("the store", "checkpoints, which a run without a session needs")
        return self.store_of(None)

    async def pending(self) -> list[PendingTurn]:
        """Return this agent's turns that have not ended, those that run right now and runs without a session included.

        A turn that is being dropped, cleared or deleted, or was so by a process that died, has the `status` of that.
        """
        store = self.store_of(None)
        turns: list[PendingTurn] = []
        for status in (*TURN_STATUSES, *CLAIM_STATUSES):
            cursor: str | None = None
            while True:
                page = await store.checkpoints.list(status=status, agent=self.name, cursor=cursor)
                # A claim may be on a conversation without a turn, and a run without a session stays when it has ended.
                unended = [info for info in page.items if info.head.run_id is not None and not is_kept(info)]
                turns += [await as_it_stands(store, info) for info in unended]
                cursor = page.cursor
                if cursor is None:
                    break
        return turns

    def store_of(self, own: AgentStore | None) -> AgentStore:
        """Return the store that a session uses: its own, or the agent's."""
        if own is not None:
            return self._usable(own)
        if self.store is None:
            raise InvalidArgumentError(
                "store",
                "is missing: make the agent with one, or take `agent.using(store)` or `agent.session(id, store=store)`",
            )
        return self.store

    def _usable(self, store: object) -> AgentStore:
        """Return the store, or say now what it lacks: not in the middle of a turn."""
        if not isinstance(store, AgentStore):
            raise InvalidArgumentError(
                "store", f"must be an open AgentStore, as `async with open_store(...)` gives it; not a {kind_of(store)}"
            )
        asking = [t.name for t in self.tools.values() if t.needs_approval is not False or t.in_doubt == "ask"]
        for part in ("checkpoints", "approvals") if asking else ():
            if part not in store:
                raise UnsupportedOperationError("the store", f"{part}, which the tool {asking[0]!r} needs")
        if "sessions" not in store:
            raise UnsupportedOperationError("the store", "sessions")
        return with_turns(store)


class AgentApprovals:
    """An agent's view of approvals: the store's own, and `resolve`, which continues the turn."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def list(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        status: str | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Approval]:
        """List approvals; see `ApprovalStore.list`."""
        return await self._agent.store_of(None).approvals.list(
            session_id=session_id, run_id=run_id, status=status, before=before, cursor=cursor, limit=limit
        )

    async def get(self, approval_id: str) -> Approval | None:
        """Return an approval, or `None`."""
        return await self._agent.store_of(None).approvals.get(approval_id)

    async def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Approval:
        """Store a decision; the turn goes on when somebody resumes it. See `AgentStore.decide`.

        Edited arguments are held against the tool's schema first, which the store alone cannot do.
        """
        if approved and type(arguments) is dict:
            await self._require_fit(approval_id, arguments)
        return await self._agent.store_of(None).decide(
            approval_id, approved=approved, note=note, arguments=arguments, decided_by=decided_by, at=at
        )

    async def _require_fit(self, approval_id: str, arguments: Record) -> None:
        """Refuse edited arguments that the tool would refuse: a decision cannot be taken back."""
        asked = await self.get(approval_id)
        if asked is None or asked.agent != self._agent.name or asked.tool_name not in self._agent.tools:
            return
        encode_object(arguments, "arguments", self._agent.store_of(None).approvals.max_record)
        try:
            self._agent.tools[asked.tool_name].check(arguments)
        except ToolArgumentsError as error:
            raise InvalidArgumentError("arguments", f"are not those of {asked.tool_name}: {error}") from error

    async def resolve(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
    ) -> TurnResult:
        """Store a decision and continue the turn here, after any restart: the approval names its session and run.

        Returns:
            The turn's result; `finish_reason="awaiting-approval"` while other approvals of it are undecided, or while
            somebody else runs it. The same decision again gives the same answer.

        Raises:
            ApprovalNotFoundError: There is no such approval.
            InvalidArgumentError: The edited arguments do not fit the tool; nothing was decided.
            ApprovalAlreadyResolvedError: Another decision is recorded.
            ApprovalExpiredError: It had expired, and counts as rejected; `resume` continues the turn.
            ApprovalOrphanedError: Its run was dropped; nothing ran.
            AgentChangedError: It belongs to another agent; nothing was decided.
        """
        agent = self._agent
        asked = await self.get(approval_id)
        if asked is not None and asked.agent != agent.name:
            raise AgentChangedError(asked.run_id, f"it belongs to the agent {asked.agent!r}, not to {agent.name!r}")
        try:
            approval = await self.decide(
                approval_id, approved=approved, note=note, arguments=arguments, decided_by=decided_by
            )
        except ApprovalAlreadyResolvedError as error:
            if error.approval.status != CANCELLED:
                raise
            raise ApprovalOrphanedError(approval_id, error.approval.run_id) from error
        if approval.session_id is None:
            run = Run.of(agent, agent.store_of(None), approval.run_id)
            return await run.continue_run(approval.run_id, approval_id)
        return await agent.session(approval.session_id).continue_run(approval.run_id, approval_id)


def kind_of(value: object) -> str:
    """Return the name of a value's class; the blocking API has some of the same names."""
    kind = type(value)
    return f"perdure.blocking.{kind.__name__}" if kind.__module__.startswith("perdure.blocking") else kind.__name__


def _by_name(tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    named: dict[str, Tool] = {}
    if callable(tools) or isinstance(tools, Tool):
        raise InvalidArgumentError("tools", "must be a list of tools, not one tool")
    for given in tools:
        made = given if isinstance(given, Tool) else make_tool(given)
        if made.name in named:
            raise InvalidArgumentError("tools", f"has two tools of the name {made.name!r}")
        named[made.name] = made
    return named
