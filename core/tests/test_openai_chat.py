"""Chat messages of OpenAI's form, in and out."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from core.tests.moving_world import agent, differences, everything, fill
from core.tests.processes import another, dead
from hypothesis import given
from hypothesis import strategies as st

from perdure import AgentStore, Message, open_store
from perdure.errors import ImportDataError, InvalidIdError
from perdure.interchange import (
    export_claude,
    export_openai,
    import_openai,
    openai_from_records,
    records_from_openai,
    repair_calls,
)
from perdure_conformance.interception import Died, at
from perdure_conformance.manual_clock import ManualClock

PIXEL = "iVBORw0KGgo="


@pytest.fixture
async def target(clock: ManualClock) -> AsyncIterator[AgentStore]:
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


def call(call_id: str, arguments: str, name: str = "look") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Look \ud800 at this", "name": "ann"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "and this"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}},
            {"type": "file", "file": {"file_id": "f1"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"}},
        ],
    },
    {"role": "assistant", "content": None, "tool_calls": [call("c1", '{"a":1}'), call("c2", '{"b":[1.0,true]}')]},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "one"}]},
    {"role": "assistant", "content": "Done.", "refusal": None, "annotations": []},
]


def test_messages_come_out_as_they_went_in() -> None:
    made = records_from_openai(CHAT)
    assert [(note.where, note.outcome) for note in made.notes] == [("messages[0]", "kept")]
    out = openai_from_records(made.value)
    assert out.notes == ()
    assert out.value == CHAT


def test_what_the_messages_say_is_what_a_model_of_ours_sees() -> None:
    made = records_from_openai(CHAT).value
    messages = [Message.from_record(record["message"]) for record in made if record["kind"] == "message"]
    assert messages[0].text == "Look \ud800 at this"
    assert isinstance(messages[1].content, list)
    assert messages[1].content[1]["data"] == b"\x89PNG\r\n\x1a\n"
    assert messages[2].tool_calls[1].arguments == {"b": [1.0, True]}
    assert [message.role for message in messages] == ["user", "user", "assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize(
    ("message", "outcome", "what"),
    [
        ({"role": "developer", "content": "x"}, "kept", "instructions belong to the agent"),
        ({"role": "critic", "content": "x"}, "kept", "'critic'"),
        ("text", "kept", "None"),
        ({"role": "user", "content": [{"type": "video_url", "video_url": {}}]}, "kept", "not known"),
        ({"role": "user", "content": ["plain"]}, "kept", "not known"),
        ({"role": "user", "content": 7}, "changed", "a int became a part"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}]},
            "kept",
            "",
        ),
    ],
)
def test_what_cannot_be_carried_over_is_kept_and_said_so(message: Any, outcome: str, what: str) -> None:
    made = records_from_openai([message])
    assert [note.outcome for note in made.notes] == [outcome]
    assert what in str(made.notes[0])
    out = openai_from_records(made.value).value
    assert out == [message] or message["content"] == 7


@pytest.mark.parametrize(
    "arguments", ["{torn", "[1]", '"text"', "", '{"a":1e999}', '{"a":' + "[" * 300 + "]" * 300 + "}"]
)
def test_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [call("c", arguments)]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ]
    made = records_from_openai(chat)
    assert [note.outcome for note in made.notes] == ["kept"]
    assert made.value[0]["message"]["tool_calls"][0]["arguments"] == {}
    assert openai_from_records(made.value).value == chat


def test_other_calls_are_kept_and_old_ones_become_tool_calls() -> None:
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select"}}
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "2"},
    ]
    made = records_from_openai(chat)
    assert [note.outcome for note in made.notes] == ["kept", "changed", "changed"]
    assert repair_calls(made.value).notes == ()
    out = openai_from_records(made.value).value
    assert out[:2] == chat[:2]
    assert out[2]["tool_calls"] == [call("function-f", "{}", "f")]


def test_what_ours_has_and_theirs_has_not_is_said() -> None:
    records: list[dict[str, Any]] = [
        {"kind": "summary", "archive": "x--1", "message": {"role": "user", "content": "before", "metadata": {"m": 1}}},
        {"kind": "else"},
        {"kind": "message", "message": {"role": "tool", "content": "no", "tool_call_id": "c", "is_error": True}},
    ]
    notes = openai_from_records(records).notes
    assert [(note.where, note.outcome) for note in notes] == [
        ("records[0]", "left-out"),
        ("records[0]", "changed"),
        ("records[0]", "left-out"),
        ("records[1]", "left-out"),
        ("records[2]", "left-out"),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TEXT = st.text(max_size=8)
PARTS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}),
        st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXT})}),
        st.builds(
            lambda data: {"type": "file", "file": {"file_data": f"data:a/b;base64,{data}"}},
            st.sampled_from(["", PIXEL, "AA", "AAA="]),
        ),
        st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    ),
    max_size=3,
)
PLAIN = st.builds(
    lambda role, content, extra: {**{f"x{k}": v for k, v in extra.items()}, "role": role, "content": content},
    st.sampled_from(["user", "assistant", "system"]),
    TEXT | PARTS,
    st.dictionaries(st.text(max_size=3), JSON, max_size=2),
)


@given(st.lists(PLAIN, max_size=6))
def test_any_messages_come_out_as_they_went_in(chat: list[dict[str, Any]]) -> None:
    assert openai_from_records(records_from_openai(chat).value).value == chat


@given(
    st.lists(
        JSON | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "function_call"]), JSON), max_size=4
    )
)
def test_nonsense_is_kept_and_breaks_nothing(chat: list[Any]) -> None:
    made = records_from_openai(chat)
    assert len(made.value) >= len(chat)
    openai_from_records(made.value)


@pytest.mark.anyio
@pytest.mark.parametrize("form", ["list", "object", "lines of messages", "lines of conversations"])
async def test_every_form_of_file_is_read_and_the_same_one_again_changes_nothing(target: AgentStore, form: str) -> None:
    data = {
        "list": json.dumps(CHAT, indent=1),
        "object": json.dumps({"messages": CHAT, "model": "x"}),
        "lines of messages": "\n".join(json.dumps(message) for message in CHAT),
        "lines of conversations": json.dumps({"session_id": "a b", "messages": CHAT})
        + "\n"
        + json.dumps({"messages": CHAT}),
    }[form].encode()
    report = await import_openai(target, data, session_id="chat", scope="acme")
    assert report.not_copied == {}
    assert report.sessions == (["chat-1", "chat-2"] if form == "lines of conversations" else ["chat"])
    before = await everything(target)
    again = await import_openai(target, data, session_id="chat", scope="acme")
    assert (again.copied, again.present) == (0, report.copied)
    assert differences(await everything(target), before) == []
    found = await target.sessions.load(report.sessions[0])
    assert found is not None
    assert (found.scope, openai_from_records(found.records).value) == ("acme", CHAT)


@pytest.mark.anyio
async def test_an_imported_conversation_goes_on(target: AgentStore) -> None:
    data = json.dumps(CHAT).encode()
    await import_openai(target, data, session_id="chat")
    assert (await agent(target).session("chat").send("more")).text == "heard more"
    report = await import_openai(target, data, session_id="chat")
    assert (report.present, report.not_copied) == (1, {})
    other = await import_openai(target, json.dumps(CHAT[:2] + CHAT[3:]).encode(), session_id="chat")
    assert list(other.not_copied) == ["chat"]


@pytest.mark.anyio
async def test_damaged_lines_end_it_or_are_passed_over_and_said(target: AgentStore) -> None:
    lines = [json.dumps({"role": "user", "content": str(number)}) for number in range(10)]
    lines[4] = '{"role":"us'
    data = ("\n".join([*lines, ""]) + "\n" + "\0\0\n").encode()
    with pytest.raises(ImportDataError, match=r"line 5 \(byte 132\)"):
        await import_openai(target, data, session_id="chat")
    assert (await target.sessions.list()).items == ()
    report = await import_openai(target, data, session_id="chat", strict=False)
    found = await target.sessions.load("chat")
    assert found is not None
    assert found.count == 9
    assert [note.where for note in report.notes] == ["line 5 (byte 132)", "line 12 (byte 310)"]
    with pytest.raises(ImportDataError, match="names no session id"):
        await import_openai(target, b"[]")


@pytest.mark.anyio
async def test_every_transcript_goes_out_and_what_is_not_in_it_is_said(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    file = io.BytesIO()
    report = await export_openai(store, file)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert {line["session_id"] for line in lines} == {
        *("plain", "empty", "talk", "long", "cleared", "failed", "waiting", "decided"),
    }
    assert any("has not ended (awaiting-approval)" in str(note) for note in report.notes["waiting"])
    assert any("archive" in str(note) for note in report.notes["long"])
    assert [note.outcome for note in report.notes["plain"]] == ["left-out"] * 3
    assert len(next(line for line in lines if line["session_id"] == "talk")["messages"]) == 8
    again = await import_openai(target, file.getvalue())
    assert again.copied == 8


@pytest.mark.anyio
async def test_of_a_file_that_is_refused_nothing_comes_in(target: AgentStore) -> None:
    first: dict[str, Any] = {"session_id": "a", "messages": [{"role": "user", "content": "hi"}]}
    second: dict[str, Any]
    for second, problem in (
        ({"messages": []}, "conversation 2"),
        ({"session_id": "b", "messages": 5}, "messages of b"),
    ):
        with pytest.raises(ImportDataError, match=problem):
            await import_openai(target, f"{json.dumps(first)}\n{json.dumps(second)}".encode())
        assert await everything(target) == {}


@pytest.mark.anyio
async def test_an_import_into_a_store_without_claims_is_whole_or_not_there(clock: ManualClock) -> None:
    """However long it is: nothing tells there that a half is one, and some such stores delete nothing."""
    chat = json.dumps([{"role": "user", "content": str(number)} for number in range(1_100)]).encode()
    for number, how in ((1, "die-before"), (1, "die-after"), (2, "die-before")):
        async with open_store("memory:", clock=clock) as store:
            alone = AgentStore(sessions=store.sessions, clock=clock)
            with contextlib.suppress(Died):
                process = another(store, at(number, how), process=dead())
                await import_openai(AgentStore(sessions=process.sessions, clock=clock), chat, session_id="s")
            report = await import_openai(alone, chat, session_id="s")
            assert (report.not_copied, report.copied + report.present) == ({}, 1)
            found = await store.sessions.load("s", limit=0)
            assert found is not None
            assert found.count == 1_100


@pytest.mark.anyio
async def test_an_empty_file_is_no_list_without_messages(target: AgentStore) -> None:
    with pytest.raises(ImportDataError, match="has no message"):
        await import_openai(target, b" \n", session_id="s")
    assert (await import_openai(target, b"[]", session_id="s")).copied == 1


@pytest.mark.anyio
async def test_an_empty_session_id_is_not_a_missing_one(target: AgentStore) -> None:
    with pytest.raises(InvalidIdError):
        await import_openai(target, b'[{"role": "user", "content": "hi"}]', session_id="")


@pytest.mark.anyio
async def test_what_is_there_for_another_scope_is_not_what_is_imported(target: AgentStore) -> None:
    data = b'[{"role": "user", "content": "hi"}]'
    for scope, outcome in (("one", (1, 0)), ("one", (0, 1)), (None, (0, 1))):
        report = await import_openai(target, data, session_id="s", scope=scope)
        assert (report.copied, report.present) == outcome
    report = await import_openai(target, data, session_id="s", scope="two")
    assert report.not_copied == {"s": "session s has another scope"}


@pytest.mark.anyio
@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"type": "else"}, {"type": "image", "data": "%"}])
async def test_a_part_that_says_that_it_has_base64_does_not_make_a_transcript_unreadable(
    target: AgentStore, part: dict[str, Any]
) -> None:
    chat = [{"role": "user", "content": [part | {"encoding": "base64"}]}]
    report = await import_openai(target, json.dumps(chat).encode(), session_id="s")
    assert [note.outcome for note in report.notes] == ["kept"]
    (message,) = await agent(target).session("s").load()
    assert message.role == "user"
    assert openai_from_records(records_from_openai(chat).value).value == chat


@pytest.mark.anyio
@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "nobody"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [5]},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "look"}]},
    ],
)
async def test_a_record_that_is_no_message_costs_its_conversation_and_no_other(
    target: AgentStore, message: Any
) -> None:
    await target.sessions.append("a", [{"kind": "message", "message": message}])
    await target.sessions.append("b", [{"kind": "message", "message": {"role": "user", "content": "hi"}}])
    file = io.BytesIO()
    report = await export_openai(target, file)
    assert report.not_exported["a"].startswith("records[0] is damaged: not a message: ")
    assert json.loads(file.getvalue()) == {"session_id": "b", "messages": [{"role": "user", "content": "hi"}]}
    assert list((await export_claude(target, file, session_id="a")).not_exported) == ["a"]


@pytest.mark.anyio
async def test_a_run_without_a_session_has_no_transcript_to_export(target: AgentStore) -> None:
    await agent(target).run("hello", run_id="job")
    file = io.BytesIO()
    assert (await export_openai(target, file)).conversations == 0
    named = await export_openai(target, file, session_ids=["job.run"])
    assert (named.conversations, list(named.not_exported), file.getvalue()) == (0, ["job.run"], b"")
