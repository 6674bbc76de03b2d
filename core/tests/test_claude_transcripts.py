"""Claude-shaped transcripts, in and out."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from core.tests.moving_world import agent, fill
from core.tests.test_calls_repair import problems
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import AgentStore, Message, open_store, safe_id
from perdure.archives import archive_id, archive_state
from perdure.errors import ImportDataError
from perdure.interchange import claude_from_transcripts, drafts_from_claude, export_claude, import_claude
from perdure_conformance.manual_clock import ManualClock

AT = "2031-01-01T00:00:00+00:00"
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


@pytest.fixture
async def target(clock: ManualClock) -> AsyncIterator[AgentStore]:
    async with open_store(f"memory:{uuid.uuid4().hex}", clock=clock) as opened:
        yield opened


def line(own: str, parent: str | None, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | more.pop("message", {})
    facts = {"sessionId": "b3f0", "isSidechain": False, "timestamp": f"2031-01-01T00:00:{len(own):02}Z", "cwd": "/home"}
    return {"uuid": own, "parentUuid": parent, "type": kind, "message": message} | facts | more


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"what": call_id}}


def result(call_id: str, content: Any = "seen", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def news(notes: Iterable[Any]) -> list[Any]:
    """What is said besides that lines are kept."""
    return [note for note in notes if "are kept, where" not in str(note)]


def data(lines: Iterable[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() + b"\n" for one in lines]


def seen(records: Iterable[dict[str, Any]]) -> list[tuple[str, Any]]:
    """What a model sees."""
    return [
        (record["message"]["role"], record["message"]["content"])
        for record in records
        if record["kind"] in ("message", "summary")
    ]


CHAT: list[dict[str, Any]] = [
    {"type": "summary", "summary": "Of another file", "leafUuid": "elsewhere"},
    {"type": "summary", "summary": "Looking", "leafUuid": "u9"},
    {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
    line("u1", None, "user", "Look."),
    line("u2", "u1", "assistant", [{"type": "thinking", "thinking": "hm", "signature": "s"}], message={"id": "m1"}),
    line("u3", "u2", "assistant", [{"type": "text", "text": "I look."}], message={"id": "m1"}),
    line("u4", "u3", "assistant", [use("c1")], message={"id": "m1", "usage": {"output_tokens": 5}}),
    line("u5", "u4", "assistant", [use("c2")], message={"id": "m1"}),
    line("u6", "u4", "user", [result("c1", is_error=True)], toolUseResult={"stdout": "seen"}),
    line("u7", "u5", "user", [result("c2", [{"type": "text", "text": "a"}, PIXEL])]),
    line("x", "u7", "system", None, subtype="turn_duration", durationMs=5),
    line("u8", "x", "user", [{"type": "text", "text": "And?"}, PIXEL]),
    line("u9", "u8", "assistant", [{"type": "text", "text": "Done."}], message={"id": "m2", "model": "m"}),
]


def test_pieces_of_a_message_and_results_beside_the_chain_belong_to_the_conversation() -> None:
    made = drafts_from_claude(data(CHAT))
    (draft,) = made.value
    assert draft.session_id == "b3f0"
    assert draft.state == {"claude_session_id": "b3f0", "title": "Looking"}
    image = {"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo=", "encoding": "base64"}
    assert seen(draft.records) == [
        ("user", "Look."),
        ("assistant", [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."}]),
        ("tool", "seen"),
        ("tool", [{"type": "text", "text": "a"}, image]),
        ("user", [{"type": "text", "text": "And?"}, image]),
        ("assistant", [{"type": "text", "text": "Done."}]),
    ]
    asked = next(record for record in draft.records if record.get("message", {}).get("tool_calls"))
    assert asked["message"]["tool_calls"] == [
        {"id": "c1", "name": "look", "arguments": {"what": "c1"}},
        {"id": "c2", "name": "look", "arguments": {"what": "c2"}},
    ]
    assert problems(list(draft.records)) == []
    assert [(note.where, note.outcome) for note in made.notes] == [
        *(("line 1", "kept"), ("line 3", "kept"), ("line 11", "kept")),
    ]
    assert str(made.notes[0]) == "line 1: 2 lines of the type 'summary' are kept, where no model sees them"
    kinds = [record["kind"] for record in draft.records if record["kind"] != "message"]
    assert kinds == ["claude.summary", "claude.summary", "claude.file-history-snapshot", "claude.system"]


def test_what_a_piece_says_behind_a_call_is_put_before_it_and_that_is_said() -> None:
    pieces = [
        line("u1", None, "user", "Look."),
        line("u2", "u1", "assistant", [use("c1")], message={"id": "m1"}),
        line("u3", "u2", "assistant", [{"type": "text", "text": "I look."}], message={"id": "m1"}),
        line("u4", "u3", "user", [result("c1")]),
    ]
    made = drafts_from_claude(data(pieces))
    assert seen(made.value[0].records)[1] == ("assistant", [{"type": "text", "text": "I look."}])
    assert [str(note) for note in made.notes] == ["line 3: what is said behind a call was put before it"]


def test_no_piece_is_lost_of_a_line_that_came_from_us() -> None:
    first = line(
        "u1", None, "assistant", [{"type": "text", "text": "one"}], message={"id": "m"}, perdure=[{"run_id": "r"}]
    )
    second = line("u2", "u1", "assistant", [{"type": "text", "text": "two"}], message={"id": "m"})
    (record,) = drafts_from_claude(data([first, second])).value[0].records
    assert record["run_id"] == "r"
    assert [part["text"] for part in record["message"]["content"]] == ["one", "two"]


def test_what_a_result_has_besides_goes_out_again_or_is_said() -> None:
    more = {"cache_control": {"type": "ephemeral"}, "tool_calls": 5, "metadata": 7}
    lines = [line("u1", None, "assistant", [use("c")]), line("u2", "u1", "user", [result("c", **more)])]
    made = drafts_from_claude(data(lines))
    assert [note.outcome for note in made.notes] == ["left-out"]
    assert "metadata, tool_calls" in str(made.notes[0])
    out = claude_from_transcripts("s", [made.value[0].records], at=AT).value
    assert out[1]["message"]["content"] == [result("c", cache_control={"type": "ephemeral"})]


def test_lines_of_odd_types_break_nothing() -> None:
    lines: list[dict[str, Any]] = [
        line("u1", None, "user", [{"type": "text", "text": "x", "encoding": "base64"}]),
        {"type": "summary", "summary": "Looking", "leafUuid": ["u1"]},
    ]
    made = drafts_from_claude(data(lines)).value[0]
    assert "title" not in made.state
    message = Message.from_record(made.records[0]["message"])
    assert message.content == [{"type": "claude.block", "value": lines[0]["message"]["content"][0]}]
    odd: dict[str, Any] = {"type": ["image"], "source": 5}
    for content in ([odd], [result("c", [odd])]):
        (read,) = drafts_from_claude(data([line("u1", None, "user", content)])).value
        assert str(odd) in str(claude_from_transcripts("s", [read.records], at=AT).value)


def test_a_torn_last_line_costs_itself_and_is_said() -> None:
    lines = [*data(CHAT), b'{"uuid":"u10","parentUuid":"u9","type":"user","mess']
    made = drafts_from_claude(lines)
    assert len(seen(made.value[0].records)) == 6
    assert [note.outcome for note in news(made.notes)] == ["left-out"]
    assert "torn" in str(made.notes[0])
    long = [line(f"n{n}", f"n{n - 1}" if n else None, "user", f"m {n}") for n in range(300)]
    made = drafts_from_claude([*data(long), b'{"uuid":"n300"'])
    assert len(made.value[0].records) == 300


@pytest.mark.parametrize("damage", [b'{"role":"us\n', b"42\n", b"\0\0\0\n", b"\xff\xfe\n", b"NaN\n"])
def test_a_damaged_line_is_an_error_or_is_passed_over_and_said(damage: bytes) -> None:
    lines = [*data(CHAT[:10]), damage, b"\n", *data(CHAT[10:])]
    with pytest.raises(ImportDataError, match="line 11"):
        drafts_from_claude(lines)
    made = drafts_from_claude(lines, strict=False)
    assert len(seen(made.value[0].records)) == 6
    assert [note.where.partition(" (")[0] for note in news(made.notes)] == ["line 11"]


def test_a_parent_that_is_not_there_loses_nothing() -> None:
    lines = [*CHAT[:8], CHAT[8] | {"parentUuid": "never-written"}, *CHAT[9:], line("u10", "gone", "user", "Bye.")]
    made = drafts_from_claude(data(lines))
    assert len(seen(made.value[0].records)) == 7
    assert [(note.where, note.outcome) for note in news(made.notes)] == [("line 14", "repaired")]


def test_a_loop_of_parents_ends() -> None:
    lines = [line("a", "b", "user", "1"), line("b", "a", "assistant", "2")]
    made = drafts_from_claude(data(lines))
    assert seen(made.value[0].records) == [("user", "1"), ("assistant", "2")]
    assert [note.outcome for note in made.notes] == ["repaired"]


def test_a_line_that_was_written_twice_counts_once() -> None:
    made = drafts_from_claude(data([*CHAT, CHAT[3], CHAT[12] | {"cwd": "/other"}]))
    assert len(seen(made.value[0].records)) == 6
    assert [note.where for note in news(made.notes)] == ["line 14", "line 15"]


def test_what_was_taken_back_is_kept_where_no_model_sees_it() -> None:
    lines = [
        line("a", None, "user", "one"),
        line("b", "a", "assistant", "two"),
        line("c", "b", "user", "a mistake"),
        line("d", "b", "user", "three"),
        line("e", "d", "assistant", "API Error: overloaded", isApiErrorMessage=True),
    ]
    made = drafts_from_claude(data(lines))
    assert seen(made.value[0].records) == [("user", "one"), ("assistant", "two"), ("user", "three")]
    assert [record["kind"] for record in made.value[0].records] == [
        *("message", "message", "claude.user", "message", "claude.assistant"),
    ]
    assert [(note.where, note.outcome) for note in made.notes] == [("line 3", "kept"), ("line 5", "kept")]


def test_what_was_taken_back_stays_so_when_it_goes_out_and_comes_in_again() -> None:
    lines = [
        line("u1", None, "user", "Look."),
        line("u2", "u1", "assistant", "Yes?"),
        line("x1", "u2", "system", None, subtype="turn_duration"),
        line("d1", "x1", "user", "taken back"),
        line("d2", "d1", "assistant", "an answer to that"),
        line("x2", "d2", "system", None, subtype="turn_duration"),
        line("u3", "x1", "user", "Look there."),
        line("u4", "u3", "assistant", "I see."),
    ]
    (made,) = drafts_from_claude(data(lines)).value
    out = claude_from_transcripts("b3f0", [made.records], at=AT).value
    assert {one["uuid"]: one["parentUuid"] for one in out} == {one["uuid"]: one["parentUuid"] for one in lines}
    (again,) = drafts_from_claude(data(out)).value
    assert seen(again.records) == seen(made.records)
    assert [text for _, text in seen(made.records)] == ["Look.", "Yes?", "Look there.", "I see."]


@pytest.mark.anyio
async def test_the_file_of_a_sidechain_does_not_take_the_place_of_its_conversation(target: AgentStore) -> None:
    side = [
        line("s1", None, "user", "Find it.", isSidechain=True, agentId="a7"),
        line("s2", "s1", "assistant", "Found.", isSidechain=True, agentId="a7"),
    ]
    for lines in (side, CHAT, side):
        assert (await import_claude(target, data(lines))).complete
    names = {info.session_id for info in (await target.sessions.list()).items}
    assert names == {"b3f0", safe_id("b3f0.sidechain-a7")}
    more = [line("t1", None, "user", "Find more.", isSidechain=True, agentId="a8")]
    assert (await import_claude(target, data([*side, *more]))).complete
    together = await import_claude(target, data([*CHAT, *side, *more]))
    assert (together.copied, together.present) == (0, 3)
    assert (await import_claude(target, data(side), session_id="mine")).sessions == ["mine"]


@pytest.mark.anyio
async def test_a_sidechain_that_has_gone_on_stays_one_conversation(target: AgentStore, clock: ManualClock) -> None:
    side = [line("s1", None, "user", "Find it.", isSidechain=True, agentId="a7")]
    (name,) = (await import_claude(target, data(side))).sessions
    await agent(target).session(name).send("Go on.")
    file = io.BytesIO()
    await export_claude(target, file, session_id=name)
    file.seek(0)
    async with open_store("memory:", clock=clock) as other:
        assert (await import_claude(other, file)).sessions == [name]
        there = await agent(other).session(name).load()
        assert [message.text for message in there] == ["Find it.", "Go on.", "heard Go on."]


def test_a_line_that_cannot_be_stored_is_named() -> None:
    lines = [*data([line("u1", None, "user", "Look.")]), b'{"type":"system","n":1e999}\n']
    with pytest.raises(ImportDataError, match=r"line 2 cannot be stored: value\.n is not JSON"):
        drafts_from_claude(lines)
    made = drafts_from_claude(lines, strict=False)
    assert [(note.where, note.outcome) for note in made.notes] == [("line 2", "left-out")]


def test_orphan_calls_and_results_are_repaired() -> None:
    lines = [
        line("a", None, "user", "go"),
        line("b", "a", "assistant", [use("c1"), use("c2")]),
        line("c", "b", "user", [result("c1"), result("c0", "stale"), result("c1", "twice")]),
        line("d", "c", "assistant", []),
        line("e", "d", "user", "well?"),
    ]
    made = drafts_from_claude(data(lines))
    assert problems(list(made.value[0].records)) == []
    assert [note.outcome for note in made.notes] == ["repaired"] * 3


COMPACTED: list[dict[str, Any]] = [
    line("a", None, "user", "one"),
    line("b", "a", "assistant", [{"type": "text", "text": "two"}]),
    line(
        "c",
        None,
        "system",
        None,
        subtype="compact_boundary",
        logicalParentUuid="b",
        compactMetadata={"trigger": "auto"},
    ),
    line("d", "c", "user", "It was about one and two.", isCompactSummary=True),
    line("e", "d", "assistant", [{"type": "text", "text": "three"}]),
    line("f", None, "system", None, subtype="compact_boundary"),
    line("g", "f", "user", "It was about three.", isCompactSummary=True),
    line("h", "g", "user", "four"),
]


@pytest.mark.anyio
async def test_compactions_become_archives_that_history_reads_through(target: AgentStore) -> None:
    report = await import_claude(target, data(COMPACTED))
    assert (report.copied, report.notes, report.not_copied, report.sessions) == (1, [], {}, ["b3f0"])
    session = agent(target).session("b3f0")
    assert [message.text for message in await session.load()] == ["It was about three.", "four"]
    assert [message.text for message in await session.history()] == ["one", "two", "three", "four"]
    assert (await session.send("five")).text == "heard five"
    again = await import_claude(target, data(COMPACTED))
    assert (again.present, again.copied, again.not_copied) == (1, 0, {})
    assert await target.delete_session("b3f0")
    assert (await target.sessions.list()).items == ()


@pytest.mark.anyio
@pytest.mark.parametrize("archived", [-1, "two", 2.5, None])
async def test_a_summary_that_is_damaged_is_said_to_be(target: AgentStore, archived: Any) -> None:
    archive = archive_id("s", 1)
    message = {"role": "user", "content": "It was about one."}
    await target.sessions.append(archive, [{"kind": "message", "message": message}], state=archive_state("s", 1))
    summary = {"kind": "summary", "archive": archive, "archived": archived, "message": message}
    await target.sessions.append("s", [summary])
    file = io.BytesIO()
    report = await export_claude(target, file, session_id="s")
    assert report.not_exported["s"].startswith("session s is damaged: its summary does not tell")
    assert file.getvalue() == b""


@pytest.mark.anyio
async def test_sidechains_become_sessions_of_their_own(target: AgentStore) -> None:
    side = [
        line("s1", None, "user", "sub-task", isSidechain=True),
        line("s2", "s1", "assistant", "sub-answer", isSidechain=True),
        line("t1", None, "user", "other", isSidechain=True, agentId="a7"),
    ]
    report = await import_claude(target, data([*CHAT[:9], *side, *CHAT[9:]]), session_id="main", scope="acme")
    assert report.sessions[0] == "main"
    assert [note.outcome for note in news(report.notes)] == ["changed", "changed"]
    found = [await target.sessions.load(name) for name in report.sessions[1:]]
    assert [transcript and seen(transcript.records) for transcript in found] == [
        [("user", "sub-task"), ("assistant", "sub-answer")],
        [("user", "other")],
    ]
    assert [transcript and transcript.state["sidechain_of"] for transcript in found] == ["main", "main"]
    alone = drafts_from_claude(data(side[:2]))
    assert [seen(draft.records) for draft in alone.value] == [[("user", "sub-task"), ("assistant", "sub-answer")]]


@pytest.mark.parametrize("lines", [CHAT, COMPACTED, COMPACTED[2:]], ids=["chat", "compacted", "cut"])
def test_lines_come_out_as_a_transcript_that_says_the_same(lines: list[dict[str, Any]]) -> None:
    draft = drafts_from_claude(data(lines)).value[0]
    out = claude_from_transcripts("b3f0", [*draft.archives, draft.records], at=AT).value
    known = {one["uuid"] for one in out if "uuid" in one}
    for number, one in enumerate(out):
        parent = one.get("parentUuid") or one.get("logicalParentUuid")
        if "uuid" in one and number:
            assert parent is None or parent in known
    again = drafts_from_claude(data(out)).value[0]
    assert [seen(part) for part in (*again.archives, again.records)] == [
        seen(part) for part in (*draft.archives, draft.records)
    ]
    assert claude_from_transcripts("b3f0", [*draft.archives, draft.records], at=AT).value == out
    assert {one["uuid"] for one in out if "uuid" in one} <= {one.get("uuid") for one in lines}


@pytest.mark.anyio
async def test_conversations_of_ours_go_out_and_come_in_again(store: AgentStore, target: AgentStore) -> None:
    await fill(store)
    for name in ("plain", "talk", "long", "cleared", "waiting"):
        file = io.BytesIO()
        report = await export_claude(store, file, session_id=name)
        assert report.conversations == 1
        if name == "cleared":
            continue  # there is nothing in it
        if name == "waiting":
            assert any("has not ended" in str(note) for note in report.notes[name])
            continue
        await import_claude(target, io.BytesIO(file.getvalue()), session_id=name)
        before, after = await store.sessions.load(name), await target.sessions.load(name)
        assert before is not None
        assert after is not None
        left = ("claude", "archive", "archived")
        assert [{k: v for k, v in record.items() if k not in left} for record in after.records] == [
            {k: v for k, v in record.items() if k not in left} for record in before.records
        ]
    history = await agent(store).session("long").history()
    assert await agent(target).session("long").history() == history


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
ODD = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["user", "assistant", "system", "summary", "perdure"]) | JSON,
        "uuid": st.sampled_from(["a", "b", "c"]) | JSON,
        "parentUuid": st.sampled_from(["a", "b", "c"]) | JSON,
        "logicalParentUuid": JSON,
        "isSidechain": st.booleans() | JSON,
        "isCompactSummary": st.booleans(),
        "subtype": st.just("compact_boundary"),
        "agentId": JSON,
        "sessionId": JSON,
        "timestamp": JSON,
        "perdure": JSON,
        "message": JSON
        | st.fixed_dictionaries(
            {"content": JSON | st.lists(JSON | st.sampled_from([use("a"), use("b"), result("a"), result("b"), PIXEL]))},
            optional={"id": st.sampled_from(["m", "n"]) | JSON},
        ),
    },
)


@settings(max_examples=60)
@given(st.lists(ODD, max_size=7))
def test_any_lines_are_read_or_refused_and_what_is_read_is_right(lines: list[dict[str, Any]]) -> None:
    try:
        made = drafts_from_claude(data(lines))
    except ImportDataError:
        return
    for draft in made.value:
        for part in (*draft.archives, draft.records):
            assert problems(list(part)) == []
        claude_from_transcripts(draft.session_id, [*draft.archives, draft.records], at=AT)
