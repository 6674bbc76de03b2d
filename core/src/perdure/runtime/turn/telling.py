"""What a turn tells of itself: each entry, once it is stored, becomes part of the turn's state, and then an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from perdure.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    InputApplied,
    InputQueued,
    ModelResponded,
    ToolFinished,
    ToolStarted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perdure.contracts.approvals import Approval
    from perdure.contracts.records import Record
    from perdure.observers.listening import Channel
    from perdure.runtime.turn.state import TurnState

E = TypeVar("E", bound=Event)


@dataclass
class Teller:
    """Tells of one turn.

    Attributes:
        channel: The conversation's.
        state: The turn's, which `written` carries on.
        sink: The stream that shows the turn, if one does.
        resumed: Whether the turn was begun earlier.
        requests: The approvals that it asked for in this process.
    """

    channel: Channel
    state: TurnState
    sink: Callable[[Any], object] | None = None
    resumed: bool = False
    requests: dict[str, Approval] = field(default_factory=dict)

    def tell(self, kind: type[Event], **facts: Any) -> None:
        """Send an event of this turn, if anybody hears it."""
        self.channel.tell(kind, self.state.run_id, self.sink, resumed=self.resumed, **facts)

    def send(self, kind: type[E], **facts: Any) -> E:
        """Send an event of this turn, and return it."""
        return self.channel.emit(kind, self.state.run_id, self.sink, resumed=self.resumed, **facts)

    def written(self, entries: Sequence[Record]) -> None:
        """Take entries in that are stored now, and tell of each."""
        for item in entries:
            self.state.apply([item])
            handler = self._handlers.get(str(item.get("kind")))
            if handler is not None:
                handler(self, item)

    def _on_model(self, _: Record) -> None:
        number = len(self.state.steps) - 1
        for given in self.state.inputs[1:]:
            if given.before == number:
                self.tell(InputApplied, input_id=given.id)
        step = self.state.steps[number]
        self.tell(ModelResponded, message=step.message, usage=step.usage)

    def _on_tool_started(self, item: Record) -> None:
        call = self.state.call(item)
        self.tell(
            ToolStarted,
            tool_name=call.call.name,
            tool_call_id=call.call.id,
            arguments=call.arguments,
            attempt=item["attempt"],
        )

    def _on_tool(self, item: Record) -> None:
        call = self.state.call(item)
        self.tell(ToolFinished, tool_name=call.call.name, tool_call_id=call.call.id, message=call.result)

    def _on_approval_requested(self, item: Record) -> None:
        self.tell(ApprovalRequested, approval=self.requests.pop(item["approval_id"]))

    def _on_approval_applied(self, item: Record) -> None:
        call = self.state.call(item)
        self.tell(
            ApprovalDecided, approval_id=item["approval_id"], tool_call_id=call.call.id, status=item.get("status", "")
        )

    def _on_input_queued(self, item: Record) -> None:
        self.tell(InputQueued, input_id=item["input_id"])

    _handlers: ClassVar[dict[str, Callable[[Teller, Record], None]]] = {
        "model": _on_model,
        "tool-started": _on_tool_started,
        "tool": _on_tool,
        "approval-requested": _on_approval_requested,
        "approval-applied": _on_approval_applied,
        "input-queued": _on_input_queued,
    }
