"""A turn of thousands of steps: what it holds, and what each step writes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Agent, AgentStore, Message, ToolCall, tool
from perdure.journal.stores import journal_stores
from perdure.models import FunctionModel, ModelRequest, ModelResponse
from perdure.runtime.messages import Usage
from perdure_conformance.interception import Call, InterceptedJournal, Interception
from perdure_sqlite.journal import SqliteJournal

pytestmark = pytest.mark.anyio

TEXT = 4_000


class LongTurn:
    """Runs a turn of so many steps, and looks at what it holds when the model is asked for the last time."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.asked = 0
        self.held: list[int] = []
        self.alone = 0

    async def answer(self, request: ModelRequest) -> ModelResponse:
        """Call a tool in each step but the last."""
        self.asked += 1
        if self.asked in (1, self.steps):
            gc.collect()
            self.held.append(tracemalloc.get_traced_memory()[0])
        if self.asked == self.steps:
            self.alone = _size_of(request.messages)
            return ModelResponse(text="done")
        call = ToolCall(f"c{self.asked}", "look", {"at": self.asked})
        return ModelResponse(f"{self.asked:08}" * (TEXT // 8), [call], Usage(requests=1))

    async def run(self, store: AgentStore) -> None:
        """Run it."""

        @tool(idempotent=True)
        async def look(at: int) -> str:
            return f"{at:08}" * (TEXT // 8)

        result = await Agent(model=FunctionModel(self.answer), tools=[look], store=store).session("s").send("go")
        assert (len(result.messages), result.usage.requests) == (2 * self.steps, self.steps - 1)


def _size_of(messages: Sequence[Message]) -> int:
    """Return what a list of the same messages holds, made anew."""
    before = tracemalloc.get_traced_memory()[0]
    copies = [Message.from_record(_anew(message.to_record())) for message in messages]
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] - before
    assert len(copies) == len(messages)
    return size


def _anew(record: object) -> dict[str, object]:
    copy = _copied(record)
    assert isinstance(copy, dict)
    return copy


def _copied(value: object) -> object:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.encode().decode() if isinstance(value, str) else value


class Weighed(Interception):
    """Counts writes and the bytes of their entries, and keeps none of them.

    Attributes:
        sizes: The bytes of each write.
    """

    def __init__(self) -> None:
        super().__init__(after=self._weigh)
        self.sizes: list[int] = []

    async def _weigh(self, call: Call) -> None:
        self.sizes.append(sum(len(item) for operation in call.operations for item in getattr(operation, "items", ())))
        self.calls.clear()


async def _check(steps: int, directory: Path) -> None:
    journal = SqliteJournal(directory / "long.db", synchronous="normal")
    await journal.open()
    interception = Weighed()
    stores = journal_stores(InterceptedJournal(journal, interception))
    store = AgentStore(sessions=stores.sessions, checkpoints=stores.checkpoints, approvals=stores.approvals)
    turn = LongTurn(steps)
    tracemalloc.start()
    try:
        await turn.run(store)
    finally:
        tracemalloc.stop()
        await journal.close()
    first, last = turn.held
    sizes, per_step = interception.sizes, 2  # the response, and the result
    assert len(sizes) == 2 + per_step * (steps - 1) + 2  # session, input; steps; last response, commit
    tenth, final = sizes[2 + per_step * 9 :][:per_step], sizes[-per_step - 2 : -2]
    assert all(abs(late - early) <= 16 for early, late in zip(tenth, final, strict=True))  # numbers have more digits
    assert last - first <= 1.3 * turn.alone
    print(
        f"{steps} steps: {(last - first) / turn.alone:.2f} of their messages; {tenth} bytes a step, {final} at the end"
    )


async def test_a_long_turn_holds_little_more_than_its_messages(tmp_path: Path) -> None:
    await _check(300, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1200)
async def test_a_turn_of_5000_steps(tmp_path: Path) -> None:
    await _check(5000, tmp_path)
