"""What the command line makes of records, whatever is in them."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Agent, AgentStore, ToolCall, tool
from perdure.cli.conversations import read_conversation
from perdure.cli.delete import _left
from perdure.cli.output import print_json, safe, safe_line
from perdure.cli.transcripts import compact, record_lines
from perdure.cli.turns import turn_lines
from perdure.models import FunctionModel, ModelRequest, ModelResponse

TEXT = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    ["\x1b[2J", "\u202e", "\x9b1m", "a\nb\tc", "{role}"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool"]) | JSON,
        "content": TEXT
        | st.lists(
            st.fixed_dictionaries({"type": TEXT | st.just("text")}, optional={"text": JSON, "data": JSON}), max_size=2
        )
        | JSON,
        "tool_calls": st.lists(st.fixed_dictionaries({"id": TEXT, "name": TEXT, "arguments": JSON}), max_size=2) | JSON,
        "tool_call_id": JSON,
        "is_error": JSON,
    },
)
RECORD = st.fixed_dictionaries(
    {"kind": st.sampled_from(["message", "summary"]) | JSON},
    optional={"message": MESSAGE | JSON, "at": JSON, "run_id": JSON, "finish_reason": JSON, "archive": JSON},
)


def is_harmless(text: str) -> bool:
    return all(
        unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") or character == "\t" for character in text
    )


@given(RECORD)
def test_any_record_is_shown_as_harmless_lines(record: dict[str, Any]) -> None:
    lines = [line for line, _ in record_lines(record, 3)]
    assert lines[0].startswith("[3]")
    for line in lines:
        assert is_harmless(line)
        assert "\u202e" not in line
        line.encode("utf-8")


@given(TEXT, JSON)
def test_what_is_made_safe_stays_readable_and_safe(text: str, value: Any) -> None:
    assert is_harmless(safe_line(text))
    assert safe(safe(text)) == safe(text)
    assert is_harmless(compact(value))
    assert compact({"n": 10**5000}) == f'{{"n":1{"0" * 5000}}}'
    if is_harmless(text) and text.isascii() and "\t" not in text:
        assert safe_line(text) == text


def test_json_has_numbers_of_any_length(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("show", {"n": [10**5000, "é", None, 1.5], "at": datetime(2031, 1, 1, tzinfo=UTC), "age": timedelta(1)})
    shown = f'{{"n":[1{"0" * 5000},"\\u00e9",null,1.5],"at":"2031-01-01T00:00:00+00:00","age":86400.0}}'
    assert capsys.readouterr().out == f'{{"command":"show","exit_code":0,"result":{shown}}}\n'


@pytest.mark.anyio
async def test_what_a_deletion_leaves_is_found(store: AgentStore) -> None:
    await store.sessions.append("s", [{"n": 1}])
    await store.sessions.append("x--kept", [])
    before = await read_conversation(store, "s")
    assert await _left(store, before, ["x--kept"]) == ["the transcript", "archive x--kept"]
    await store.sessions.delete("s")
    await store.sessions.delete("x--kept")
    assert await _left(store, before, ["x--kept"]) == []


@pytest.mark.anyio
async def test_an_idempotent_call_that_has_begun_is_not_said_to_have_not_run(store: AgentStore) -> None:
    shown: list[str] = []

    @tool(idempotent=True)
    async def look() -> str:
        found = await store.checkpoints.load("s")
        assert found is not None
        shown.extend(line for line, _ in turn_lines(found, []))
        return "seen"

    async def answer(request: ModelRequest) -> ModelResponse:
        if request.messages[-1].role == "tool":
            return ModelResponse(text="done")
        return ModelResponse(tool_calls=[ToolCall("c1", "look", {})])

    await Agent(model=FunctionModel(answer), tools=[look], store=store).session("s").send("look")
    assert [line for line in shown if "look {}" in line] == ["    -> look {}  (c1): no result yet"]
