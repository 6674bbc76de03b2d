"""The same names without `await`; see `__init__.py`.

Made of the async classes by `python core/tests/blocking_stub.py`: do not edit.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import EllipsisType, TracebackType
from typing import Any, Self

from perdure.at_rest.codecs import AnyCodec
from perdure.blocking.loop import BlockingCallError
from perdure.clock import Clock
from perdure.contracts.approvals import Approval
from perdure.contracts.approvals import ApprovalStore as AsyncApprovalStore
from perdure.contracts.capabilities import Capabilities
from perdure.contracts.checkpoints import Checkpoint, CheckpointHead, CheckpointInfo, CheckpointReplace
from perdure.contracts.checkpoints import CheckpointStore as AsyncCheckpointStore
from perdure.contracts.records import Page, Record
from perdure.contracts.sessions import SessionAppend, SessionInfo, Transcript
from perdure.contracts.sessions import SessionStore as AsyncSessionStore
from perdure.conversations.prune import PruneReport
from perdure.events import RunEvent
from perdure.models import Model
from perdure.ownership.leases import Lease, Process
from perdure.runtime.agent import OnChange
from perdure.runtime.messages import Given, Message
from perdure.runtime.results import PendingTurn, TurnResult
from perdure.runtime.tools import Tool
from perdure.runtime.transcript.compaction import CompactionResult
from perdure.runtime.transcript.compaction_policy import Compaction, Summarize
from perdure.runtime.turn.limits import Limits
from perdure.runtime.turns import TurnPolicy
from perdure.runtime.workers.sweeps import SweepReport

__all__ = [
    "Agent",
    "AgentApprovals",
    "AgentStore",
    "ApprovalStore",
    "BlockingCallError",
    "CheckpointStore",
    "RunStream",
    "Session",
    "SessionStore",
    "Worker",
    "open_store",
]

class AgentStore:
    """Bundles a session store, a checkpoint store and an approval store; each may come from a different backend."""
    @property
    def sessions(self) -> SessionStore: ...
    @property
    def checkpoints(self) -> CheckpointStore: ...
    @property
    def approvals(self) -> ApprovalStore: ...
    @property
    def clock(self) -> Clock: ...
    def __init__(
        self,
        *,
        sessions: SessionStore | AsyncSessionStore | None = None,
        checkpoints: CheckpointStore | AsyncCheckpointStore | None = None,
        approvals: ApprovalStore | AsyncApprovalStore | None = None,
        clock: Clock | None = None,
        lease: Lease | None = None,
        process: Process | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
        transcript_cache: int = ...,
    ) -> None:
        """Bundle stores that are open already."""
    def __contains__(self, part: str) -> bool:
        """Whether a part (`sessions`, `checkpoints`, `approvals`) is there."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Close what this bundle opened. Idempotent; stores that were handed in stay open."""
    @property
    def atomic(self) -> bool:
        """Whether the session and the turn journal of a conversation can be written in one step."""
    def write(self, append: SessionAppend, replace: CheckpointReplace) -> tuple[int, int]:
        """Append to a transcript and replace the turn journal of the same conversation, both or neither."""
    def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Approval:
        """Decide an approval, and mark its turn `ready` when that was the last decision it waits for."""
    def delete_session(self, session_id: str, *, force: bool = False) -> bool:
        """Delete a conversation whole: its session, its approvals, and its turn journal last."""
    def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        """Remove conversations of which every part is older, each whole or not at all."""

class SessionStore:
    """Keeps transcripts: for each session id an ordered, versioned list of records, with a small `state` beside it."""
    def load(
        self, session_id: str, *, after: int | None = None, limit: int | None = None, last: int | None = None
    ) -> Transcript | None:
        """Read a transcript, or a part of it, as of one instant. Reading never creates anything."""
    def append(
        self,
        session_id: str,
        records: Sequence[Record],
        *,
        expected_version: int | None = None,
        state: Record | None = None,
        scope: str | None = None,
        at: datetime | None = None,
        version: int | None = None,
    ) -> int:
        """Add records behind those that are there, and create the session if it is absent."""
    def replace(
        self,
        session_id: str,
        records: Sequence[Record],
        *,
        expected_version: int | None,
        keep: int = 0,
        state: Record | None = None,
        at: datetime | None = None,
    ) -> int:
        """Keep the first records, and put others behind them in the place of the rest."""
    def delete(self, session_id: str, *, expected_version: int | None = None) -> bool:
        """Remove a session with its records and state."""
    def list(
        self,
        *,
        scope: str | None = None,
        before: datetime | None = None,
        order: str = "id",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionInfo]:
        """List sessions without reading their records."""
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def max_record(self) -> int: ...
    @property
    def title(self) -> str:
        """A short name for messages."""
    def require(self, capability: str) -> None:
        """Raise `UnsupportedOperationError` unless the store declares a capability."""

class CheckpointStore:
    """Keeps turn journals: for each key an ordered list of entries, with a head that is also the conversation's lock."""
    @property
    def capabilities(self) -> Capabilities: ...
    def load(self, key: str) -> Checkpoint | None:
        """Read a turn journal, as of one instant. Reading never creates anything."""
    def append(
        self,
        key: str,
        entries: Sequence[Record],
        *,
        expected_version: int | None,
        head: CheckpointHead,
        at: datetime | None = None,
        version: int | None = None,
    ) -> int:
        """Add entries and replace the head, in one step; create the turn journal if it is absent."""
    def replace(
        self,
        key: str,
        entries: Sequence[Record],
        *,
        expected_version: int | None,
        head: CheckpointHead,
        at: datetime | None = None,
    ) -> int:
        """Put entries in the place of all that are there, and replace the head, in one step."""
    def delete(self, key: str, *, expected_version: int | None = None) -> bool:
        """Remove a turn journal."""
    def list(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        before: datetime | None = None,
        order: str = "id",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[CheckpointInfo]:
        """List the heads of turn journals, without their entries."""
    @property
    def clock(self) -> Clock: ...
    @property
    def max_record(self) -> int: ...
    @property
    def title(self) -> str:
        """A short name for messages."""
    def require(self, capability: str) -> None:
        """Raise `UnsupportedOperationError` unless the store declares a capability."""

class ApprovalStore:
    """Keeps approvals. A decision is a stored fact, made once and never consumed by reading it."""
    @property
    def capabilities(self) -> Capabilities: ...
    def create(self, approval: Approval, *, version: int | None = None) -> Approval:
        """Store a request, unless one with its id is there: then that one is returned unchanged, decided or not."""
    def get(self, approval_id: str) -> Approval | None:
        """Read an approval. Reading never creates or consumes anything."""
    def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Approval:
        """Decide, once. It needs no agent and no session."""
    def cancel(self, approval_id: str, *, reason: str, at: datetime | None = None) -> Approval:
        """Cancel a request that nobody needs any more."""
    def expire(self, approval_id: str, *, at: datetime | None = None) -> Approval:
        """Record the rejection of an approval whose time is over; leave every other one as it is."""
    def list(
        self,
        *,
        session_id: str | None = None,
        run_id: str | None = None,
        status: str | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Approval]:
        """List approvals, oldest first (by `created_at`, then id)."""
    def delete(self, approval_id: str, *, expected_version: int | None = None) -> bool:
        """Remove an approval."""
    @property
    def clock(self) -> Clock: ...
    @property
    def max_record(self) -> int: ...
    @property
    def title(self) -> str:
        """A short name for messages."""
    def require(self, capability: str) -> None:
        """Raise `UnsupportedOperationError` unless the store declares a capability."""

class Agent:
    """Runs turns of conversations with a model and tools, on stores that keep them alive."""
    @property
    def model(self) -> Model: ...
    @property
    def tools(self) -> dict[str, Tool]: ...
    @property
    def instructions(self) -> str | None: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def name(self) -> str: ...
    @property
    def on_change(self) -> OnChange: ...
    @property
    def store(self) -> AgentStore | None: ...
    @property
    def approvals(self) -> AgentApprovals: ...
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
    ) -> None: ...
    def using(self, store: AgentStore) -> Agent:
        """Return the same agent on another store: for one that was made without, as that of a module for workers is."""
    @property
    def fingerprint(self) -> str:
        """A hash of what the agent is made of: model, instructions, and the tools' names and schemas."""
    def changed_since(self, head: CheckpointHead) -> bool:
        """Whether the agent is not what it was when a turn began, as far as its policy asks."""
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
        """Return a conversation; nothing is read or written yet."""
    def run(self, given: Given, /, *, run_id: str | None = None) -> TurnResult:
        """Run an input durably without a session. The run is kept as finished until it is pruned."""
    def resume(self, pending_id: str) -> TurnResult | None:
        """Finish the pending turn of a session, given its id; see `Session.resume`. Or a run without one, given its run id."""
    def discard(self, pending_id: str, *, force: bool = False) -> bool:
        """Drop the pending turn of a session, given its id; see `Session.discard_pending`. Or a run without one, by its run id."""
    def pending(self) -> list[PendingTurn]:
        """Return this agent's turns that have not ended, those that run right now and runs without a session included."""
    def store_of(self, own: AgentStore | None) -> AgentStore:
        """Return the store that a session uses: its own, or the agent's."""

class AgentApprovals:
    """An agent's view of approvals: the store's own, and `resolve`, which continues the turn."""
    def list(
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
    def get(self, approval_id: str) -> Approval | None:
        """Return an approval, or `None`."""
    def decide(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
        at: datetime | None = None,
    ) -> Approval:
        """Store a decision; the turn goes on when somebody resumes it. See `AgentStore.decide`."""
    def resolve(
        self,
        approval_id: str,
        *,
        approved: bool,
        note: str | None = None,
        arguments: Record | None = None,
        decided_by: str | None = None,
    ) -> TurnResult:
        """Store a decision and continue the turn here, after any restart: the approval names its session and run."""

class Session:
    """One conversation: make it with `agent.session(id)`. Nothing that matters is kept in this object."""
    @property
    def id(self) -> str: ...
    @property
    def agent(self) -> Agent: ...
    @property
    def store(self) -> AgentStore: ...
    @property
    def scope(self) -> str | None: ...
    @property
    def messages(self) -> Sequence[Message]:
        """The messages as they were read or saved last since this object was made, as a snapshot; `load` reads what is new."""
    @property
    def state(self) -> Record:
        """The user's own object beside the transcript, as read last."""
    def load(self) -> Sequence[Message]:
        """Read what is new of the transcript, and return all of its messages. Reading never creates anything."""
    def on(self, listener: Callable[[Any], Awaitable[None] | None]) -> Callable[[], None]:
        """Have a function hear of the events of this conversation in this process, from whichever object they come."""
    def send(self, given: Given, /, *, input_id: str | None = None) -> TurnResult:
        """Run a turn on an input; a turn that is pending is finished first."""
    def stream(self, given: Given, /, *, input_id: str | None = None) -> RunStream:
        """Run a turn on an input as `send` does, and show its events as they come."""
    def submit(self, given: Given, /, *, input_id: str | None = None) -> str:
        """Record an input and return its run id, without running anything: a worker takes it, or `resume`."""
    def resume(self, *, rebase: bool = False) -> TurnResult | None:
        """Finish the pending turn."""
    def pending(self) -> PendingTurn | None:
        """Return what is known of a turn that has not ended, or `None`; one that is only to be saved is saved."""
    def result(self, run_id: str) -> TurnResult | None:
        """Return the result of a turn of this session that is in the transcript, or `None`."""
    def discard_pending(self, *, force: bool = False) -> bool:
        """Drop the pending turn; its open approvals become `cancelled`. One that has finished is saved instead."""
    def abort(self) -> bool:
        """Stop the turn that this process runs or is opening, and drop it; its `send` returns `finish_reason="aborted"`."""
    def clear(self) -> None:
        """Empty the transcript; a turn that nobody runs is dropped. The `state` stays, it is the user's."""
    def compact(self, *, keep: int = 2, summarize: Summarize | None = None, archive: bool = False) -> CompactionResult:
        """Put a summary in the place of all but the newest turns of the transcript."""
    def compact_if_due(self) -> None:
        """Compact as `compaction` says, if that is due and no turn is open; workers do, behind the turns that they finish."""
    def history(self) -> Sequence[Message]:
        """Return all messages of the conversation, also those of which archives were kept when it was compacted."""
    def fork(
        self, session_id: str | None = None, *, at: int | None = None, scope: str | EllipsisType | None = ...
    ) -> Session:
        """Copy the transcript, or the first of its records, into a new session; the pending turn is not part of it."""
    def update_state(self, function: Callable[[Record], Record | Awaitable[Record]]) -> Record:
        """Change the user's own object beside the transcript: read, apply, write at the version read, and repeat."""
    def continue_run(self, run_id: str, approval_id: str) -> TurnResult:
        """Go on with the turn of a decided approval: its result, or that it still waits; see `approvals.resolve`."""

class RunStream:
    """The events of one input, as an async context manager that is iterated; made by `session.stream`."""
    @property
    def result(self) -> TurnResult:
        """How the turn ended, or that it waits for approvals; raises what `send` would have raised."""
    def detach(self) -> None:
        """Let the turn go on when the block is left. What it raises is logged; closing the store ends it as a crash would."""
    def __enter__(self) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> RunEvent: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Worker:
    """Takes an agent's turns that nobody runs, and finishes them, a bounded number at a time."""
    @property
    def agent(self) -> Agent: ...
    @property
    def store(self) -> AgentStore: ...
    @property
    def limits(self) -> Limits | None: ...
    @property
    def compaction(self) -> Compaction | None: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def poll(self) -> timedelta: ...
    @property
    def slow_poll(self) -> timedelta: ...
    def __init__(
        self,
        agent: Agent,
        *,
        store: AgentStore | None = None,
        concurrency: int = 4,
        poll: timedelta = ...,
        slow_poll: timedelta = ...,
        max_attempts: int = 5,
        limits: Limits | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        """Check the arguments; nothing is read yet."""
    def run(self) -> None:
        """Take turns until `stop` is called. A store that is away delays that, nothing more."""
    def stop(self) -> None:
        """Have `run` take no more turns, cancel those that run here, so that they give their leases back, and return."""
    def sweep(self, *, slow: bool = False) -> SweepReport:
        """Pass over the turns once, and return when all that were taken have ended or wait."""

def open_store(
    url: str | None = None,
    *,
    sessions: str | (SessionStore | AsyncSessionStore) | None = None,
    checkpoints: str | (CheckpointStore | AsyncCheckpointStore) | None = None,
    approvals: str | (ApprovalStore | AsyncApprovalStore) | None = None,
    codec: AnyCodec | None = None,
    clock: Clock | None = None,
    transcript_cache: int = ...,
) -> AgentStore:
    """Open the stores of an agent. They are open when it returns; `with` closes them."""
