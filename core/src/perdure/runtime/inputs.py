"""An input that is given to a session, from the call that gives it to the turn that it becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.errors import InvalidArgumentError
from perdure.runtime.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.contracts.records import Record
    from perdure.runtime.turn.runner import Runner, Sink


@dataclass(slots=True)
class Call:
    """An input that is given to a session.

    Attributes:
        messages: What it says, as it will be stored.
        input_id: Its name.
        named: Whether the caller gave the name, so that it may come again.
        sink: The stream that shows what becomes of it.
        runner: What runs the turn that it opened.
        opening: Whether that turn is being opened right now.
        aborted: Whether the caller wants nothing of it any more.
        until: When it waits no longer for others, on the clock of the store, once it has begun to.
    """

    messages: list[Record]
    input_id: str
    named: bool
    sink: Sink | None = None
    runner: Runner | None = None
    opening: bool = False
    aborted: bool = False
    until: float | None = None

    def require_same(self, messages: Sequence[Record]) -> None:
        """Raise if the messages of the input that has this name already say something else."""
        if _said(self.messages) != _said(messages):
            problem = f"{self.input_id!r} names an input that says something else; give this one a name of its own"
            raise InvalidArgumentError("input_id", problem)

    def runs(self, runner: Runner) -> None:
        """Take note of what runs its turn; that it is wanted no more, if so."""
        self.runner = runner
        if self.aborted:
            runner.refuse()


def _said(messages: Sequence[Record]) -> list[tuple[object, object]]:
    return [(message.role, message.content) for message in map(Message.from_record, messages)]
