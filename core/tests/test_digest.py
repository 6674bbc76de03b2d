"""What is kept of a transcript: the messages and what is said beside them, wherever somebody else's records are."""

from __future__ import annotations

import asyncio
import gc
import pickle
import tracemalloc
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from perdure import Agent, AgentStore, Message, Session, ToolCall, codec, tool
from perdure.errors import StoreCorruptedError
from perdure.models import FunctionModel, ModelRequest, ModelResponse, ScriptedModel
from perdure.runtime.transcript.digest import Digest
from perdure.runtime.transcript.history import turn_starts

pytestmark = pytest.mark.anyio

FOREIGN: list[dict[str, Any]] = [
    {"kind": "note"},
    {"kind": 1, "message": {}},
    {"message": {}},
    {},
    {"kind": "message"},
]


def own(text: str, role: str = "user", **facts: Any) -> dict[str, Any]:
    return {"v": 1, "kind": "message", "at": "", **facts, "message": {"role": role, "content": text}}


SUMMARY = own("sum") | {"kind": "summary", "run_id": "none", "kept": 3, "turns": [], "spent": {"steps": 1}}
RECORDS: list[dict[str, Any]] = [
    SUMMARY,
    FOREIGN[0],
    own("a", run_id="r1", input_id="i1"),
    own("b", "assistant", run_id="r1", spent={"steps": 2}, usage={"requests": 1, "input_tokens": 7}),
    FOREIGN[1],
    FOREIGN[2],
    own("c"),
    own("d", "assistant"),
    own("e"),
    own("f", run_id="r2", input_id="i2", spent={"steps": 5}),
    FOREIGN[3],
]


def seen(read: Digest) -> tuple[object, ...]:
    return read.count, read.messages, read.runs, read.notes, read.foreign, read.records


def test_what_is_kept() -> None:
    read = Digest(RECORDS)
    assert [message.text for message in read.messages] == ["sum", *"abcdef"]
    assert read.runs == [None, "r1", "r1", None, None, None, "r2"]
    assert list(read.notes) == [0, 1, 2, 6]
    assert read.notes[1] == {name: value for name, value in RECORDS[2].items() if name != "message"}
    assert (read.count, read.foreign, read.records) == (len(RECORDS), [1, 4, 5, 10], [])
    assert Digest(FOREIGN).foreign == list(range(len(FOREIGN)))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("cut", range(len(RECORDS) + 1))
def test_it_does_not_matter_in_how_many_readings(cut: int, whole: bool) -> None:
    at_once, in_pages = Digest(RECORDS, whole=whole), Digest(RECORDS[:cut], whole=whole)
    later = Digest(RECORDS[:cut], whole=whole)
    in_pages.add(RECORDS[cut:])
    later.extend(Digest(RECORDS[cut:], whole=whole))
    assert seen(at_once) == seen(in_pages) == seen(later)
    assert at_once.records == RECORDS * whole


@pytest.mark.parametrize("count", range(len(RECORDS) + 1))
def test_what_the_first_records_say(count: int) -> None:
    read, part = Digest(RECORDS), Digest(RECORDS[:count])
    assert read.messages_in(count) == len(part.messages)
    told = [record["spent"]["steps"] for record in RECORDS[:count] if "spent" in record]
    assert read.spent(count).steps == part.spent(count).steps == (told[-1] if told else 0)
    assert part.turns == len(turn_starts(RECORDS[:count]))


def test_which_summary_begins_it() -> None:
    assert Digest(RECORDS).opening["kept"] == 3
    for records in ([], [FOREIGN[0], SUMMARY], RECORDS[2:], [{"kind": "summary", "kept": 3}]):
        assert Digest(records).opening == {}


async def test_a_session_holds_its_messages_and_not_their_records(store: AgentStore) -> None:
    records = [own(f"{number} " + "x" * 1000, run_id=f"run-{number // 4}") for number in range(2000)]
    await store.sessions.append("s", records)
    session = Agent(model=ScriptedModel([]), store=store).session("s")
    gc.collect()
    tracemalloc.start()
    try:
        loaded = await session.load()
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    size = sum(len(codec.encode(record)) for record in records)
    assert (len(loaded), held < 1.3 * size, peak < 1.7 * size) == (2000, True, True), (held / size, peak / size)


async def test_an_input_comes_again_with_the_same_bytes_written_in_another_way(store: AgentStore) -> None:
    parts = [{"type": "image", "data": "aGl=", "encoding": "base64"}]  # its last letter may be any of g to j
    first = await Agent(model=ScriptedModel(["hi"]), store=store).session("s").send(parts, input_id="one")
    for same in (parts, [{"type": "image", "data": b"hi"}], Message("user", [{"type": "image", "data": b"hi"}])):
        again = await Agent(model=ScriptedModel([]), store=store).session("s").send(same, input_id="one")
        assert again == first


def test_a_message_that_was_read_is_like_any_other() -> None:
    record = {"role": "user", "content": "hi", "metadata": {"a": 1}, "new": True}
    (read,) = Digest([{"kind": "message", "message": record}]).messages
    made = Message("user", "hi", metadata={"a": 1}, extra={"new": True})
    assert (type(read), read, repr(read), replace(read)) == (Message, made, repr(made), made)
    assert pickle.loads(pickle.dumps(read)) == made
    with pytest.raises(FrozenInstanceError):
        read.role = "tool"  # type: ignore[misc]  # reason: it is refused
    with pytest.raises(StoreCorruptedError, match="not a message"):
        Digest([{"kind": "message", "message": {"content": "of nobody"}}])


async def _streamed(session: Session) -> None:
    async with session.stream("go") as run:
        async for _ in run:
            pass


USES: dict[str, Callable[[Session], Awaitable[object]]] = {
    "load": lambda session: session.load(),
    "send": lambda session: session.send("go"),
    "stream": _streamed,
    "submit": lambda session: session.submit("go"),
    "compact": lambda session: session.compact(keep=0, summarize=lambda _: "sum"),
    "fork": lambda session: session.fork(),
    "clear": lambda session: session.clear(),
}


@pytest.mark.parametrize("use", USES)
async def test_what_was_read_goes_with_its_session_object(store: AgentStore, use: str) -> None:
    """Where none is kept for the next one: at once, as nobody else has it: the collector would come after the next ones were read."""

    @tool(idempotent=True)
    async def look_up(order: int) -> str:
        """Look an order up."""
        return f"order {order}"

    async def answer(request: ModelRequest) -> ModelResponse:
        called = request.messages[-1].role == "tool"
        return ModelResponse("done", [] if called else [ToolCall("c", "look_up", {"order": 7})])

    await store.sessions.append("s", [own("hello", run_id="r")])
    store.transcripts.limit = 0
    session = Agent(model=FunctionModel(answer), tools=[look_up], store=store).session("s")
    view = weakref.ref(session._view)
    gc.collect()
    gc.disable()
    try:
        await USES[use](session)
        del session
        await asyncio.sleep(0)  # the loop lets go of what it ran last
        assert view() is None
    finally:
        gc.enable()
