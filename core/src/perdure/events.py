"""What a session tells while it works: typed events, the same objects for a stream, listeners and observers.

An event that announces something stored is sent only after it is stored. Tell events apart by their class, or by `type`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from perdure.contracts.approvals import Approval
    from perdure.contracts.records import Record
    from perdure.runtime.messages import Message, Usage
    from perdure.runtime.results import TurnResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events of a conversation have.

    Attributes:
        run_id: The run, `None` for what belongs to no run.
        session_id: The session, `None` for a run without one.
        seq: Counts the events of a conversation in this process, without a gap.
        at: When it was sent.
        resumed: Whether it is of a turn that was begun earlier and taken up again.
    """

    run_id: str | None
    session_id: str | None
    seq: int
    at: datetime
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A turn began to run: its input is in the turn journal."""

    type: Literal["run.started"] = field(default="run.started", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Event):
    """A turn that was begun earlier was taken up again.

    Attributes:
        attempt: How often it has been taken up, this time included.
        agent_changed: Whether the agent is made of other parts than the one that began the turn.
    """

    attempt: int
    agent_changed: bool = False
    type: Literal["run.resumed"] = field(default="run.resumed", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(Event):
    """The model wrote a piece of text. It is stored only with the whole response.

    Attributes:
        text: The piece.
    """

    text: str
    type: Literal["text.delta"] = field(default="text.delta", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponded(Event):
    """A response of the model is stored.

    Attributes:
        message: It, with its calls.
        usage: What it cost.
    """

    message: Message
    usage: Usage
    type: Literal["model.responded"] = field(default="model.responded", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted(Event):
    """A tool is about to be called; of a tool that is not idempotent, this is stored.

    Attributes:
        tool_name: The tool.
        tool_call_id: The call, as the model named it.
        arguments: The arguments that it runs with.
        attempt: 1 for the first attempt at the call.
    """

    tool_name: str
    tool_call_id: str
    arguments: Record
    attempt: int
    type: Literal["tool.started"] = field(default="tool.started", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFinished(Event):
    """The result of a call is stored; also of one that did not run.

    Attributes:
        tool_name: The tool.
        tool_call_id: The call, as the model named it.
        message: What the model is told.
    """

    tool_name: str
    tool_call_id: str
    message: Message
    type: Literal["tool.finished"] = field(default="tool.finished", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested(Event):
    """A call waits for a human's decision.

    Attributes:
        approval: The request, as it is in the approval store.
    """

    approval: Approval
    type: Literal["approval.requested"] = field(default="approval.requested", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(Event):
    """A decision was applied to its call.

    Attributes:
        approval_id: The approval.
        tool_call_id: The call, as the model named it.
        status: `approved`, `rejected` or `cancelled`.
    """

    approval_id: str
    tool_call_id: str
    status: str
    type: Literal["approval.decided"] = field(default="approval.decided", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputQueued(Event):
    """An input that joins the running turn is stored.

    Attributes:
        input_id: Its name.
    """

    input_id: str
    type: Literal["input.queued"] = field(default="input.queued", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputApplied(Event):
    """The model has answered a request that held a queued input.

    Attributes:
        input_id: Its name.
    """

    input_id: str
    type: Literal["input.applied"] = field(default="input.applied", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStarted(Event):
    """A compaction has claimed the conversation."""

    type: Literal["compaction.started"] = field(default="compaction.started", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionDone(Event):
    """A compaction has ended.

    Attributes:
        replaced: How many records the summary stands for; 0 if nothing was done.
        archive_id: The session that keeps them, if one does.
        error: Why it came to nothing; after an automatic one the turn goes on without it.
    """

    replaced: int
    archive_id: str | None = None
    error: str | None = None
    type: Literal["compaction.done"] = field(default="compaction.done", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCleared(Event):
    """The transcript was emptied."""

    type: Literal["context.cleared"] = field(default="context.cleared", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDone(Event):
    """A turn has ended: it is in the transcript, or was dropped (`aborted`).

    Attributes:
        result: How it ended.
    """

    result: TurnResult
    type: Literal["run.done"] = field(default="run.done", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Event):
    """A call on the conversation failed. A turn that was begun stays pending.

    Attributes:
        error: What it raises.
    """

    error: Exception
    type: Literal["error"] = field(default="error", init=False)


RunEvent: TypeAlias = (
    RunStarted
    | RunResumed
    | TextStreamed
    | ModelResponded
    | ToolStarted
    | ToolFinished
    | ApprovalRequested
    | ApprovalDecided
    | InputQueued
    | InputApplied
    | CompactionStarted
    | CompactionDone
    | ContextCleared
    | RunDone
    | RunFailed
)
"""Every event of a conversation; `event.type` tells them apart, for type checkers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCalled:
    """A store was called. For observers only; it has no id and no content.

    Attributes:
        part: `sessions`, `checkpoints` or `approvals`.
        operation: The method.
        duration: How long it took.
        outcome: `ok`, or the name of the error that it raised.
        size: How many bytes of records and heads were written or read.
        at: When it ended.
    """

    part: str
    operation: str
    duration: timedelta
    outcome: str
    size: int
    at: datetime
    type: Literal["store.called"] = field(default="store.called", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled:
    """A model was asked. For observers only; it has no id and no content.

    Attributes:
        model: The model's name.
        provider: Who offers it, if the model has an attribute `provider`; `None` if not.
        duration: How long it took.
        first_text: After which time the first piece of text came; `None`: none came before the response.
        outcome: `ok`, or the name of the error that it raised; `CancelledError` also of a request that was steered.
        usage: What it cost; nothing, if it raised.
        at: When it ended.
    """

    model: str
    provider: str | None
    duration: timedelta
    first_text: timedelta | None
    outcome: str
    usage: Usage
    at: datetime
    type: Literal["model.called"] = field(default="model.called", init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLeft:
    """This process runs a turn no longer, whether or not the turn has ended. For observers only.

    Attributes:
        run_id: The run.
        session_id: The session, `None` for a run without one.
        finish_reason: That of the result that its caller gets, `awaiting-approval` among them; `None`: it gets none.
        error: The name of what its caller gets raised instead; `CancelledError` of one that was cut off.
        at: When.
    """

    run_id: str
    session_id: str | None
    finish_reason: str | None
    error: str | None
    at: datetime
    type: Literal["run.left"] = field(default="run.left", init=False)


ObservedEvent: TypeAlias = Any
"""What an observer gets: a `RunEvent`, a `StoreCalled`, `ModelCalled` or `RunLeft`, and what later releases add."""
