"""Faults that users met when they read long conversations, and when they moved conversations that somebody else had made."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.tests.compaction_world import session
from core.tests.moving_world import everything, fill

from perdure import AgentStore, open_store
from perdure.errors import InvalidArgumentError, InvalidIdError
from perdure.interchange import export_conversations, import_conversations, import_openai
from perdure.moving import copy_conversations

pytestmark = pytest.mark.anyio

LONG = 2_501
"""More than any page, chunk or window has."""


async def test_no_way_of_reading_a_long_conversation_ends_early(store: AgentStore, tmp_path: Path) -> None:
    """B116: whoever reads, forks, copies, exports or imports thousands of messages has all of them."""
    said = [{"v": 1, "kind": "message", "message": {"role": "user", "content": str(n)}} for n in range(LONG)]
    await store.sessions.append("s", said)
    live = session(store)
    assert [message.text for message in await live.load()] == [str(n) for n in range(LONG)]
    assert len(await live.history()) == LONG
    await live.fork("fork")
    file = io.BytesIO()
    async with open_store(f"sqlite:{tmp_path / 'a.db'}") as copied, open_store(f"file:{tmp_path / 'b'}") as imported:
        await copy_conversations(store, copied)
        await export_conversations(copied, file)
        file.seek(0)
        await import_conversations(imported, file)
        for name in ("s", "fork"):
            found = await imported.sessions.load(name)
            assert found is not None
            assert [record["message"]["content"] for record in found.records] == [str(n) for n in range(LONG)]


Change = Callable[[dict[str, Any]], None]


def set_in(kind: str, name: str, value: Any) -> Change:
    def change(line: dict[str, Any]) -> None:
        if line["type"] == kind:
            within = line["approval"] if kind == "approval" and name in line["approval"] else line
            within[name] = value

    return change


def head_of(**fields: Any) -> Change:
    def change(line: dict[str, Any]) -> None:
        if line["type"] == "turn":
            line["head"] |= fields

    return change


def renamed(name: str) -> Change:
    """Another id for the whole conversation, wherever it stands."""

    def change(line: dict[str, Any]) -> None:
        for field in ("key", "session_id"):
            for place in (line, line.get("head", {}), line.get("approval", {})):
                if field in place:
                    place[field] = name

    return change


BAD: dict[str, Change] = {
    **{f"all of {name!r}": renamed(name) for name in ("../../x", "/etc/x", "a\0b", "..", "", "x/", "C:x")},
    **{
        f"transcript of {name!r}": set_in("session", "session_id", name) for name in ("../../x", "other", "waiting.run")
    },
    **{f"turn of {name!r}": set_in("turn", "key", name) for name in ("..", "other", "other.run")},
    **{f"approval of {name!r}": set_in("approval", "session_id", name) for name in ("a\0b", "other", None)},
    **{f"approval {name!r}": set_in("approval", "id", name) for name in ("../x.turn-1", "other.turn-1.s0.c0")},
    **{f"version {value!r}": set_in("session", "version", value) for value in (0, -1, "1", None, True)},
    **{f"count {value!r}": set_in("session", "count", value) for value in (-1, 1, 99, "1")},
    **{f"turn that is {status!r}": head_of(status=status) for status in ("deleting", "copying", "compacting", "wild")},
    **{f"turn with the head {head!r}": set_in("turn", "head", head) for head in ("x", 5, None)},
    "turn that waits for an approval '../x'": head_of(approval_ids=["../x"]),
    "turn of more entries": set_in("turn", "count", 99),
    "a scope that is none": set_in("session", "scope", 5),
    "a state that is none": set_in("session", "state", [1]),
}


def changed(data: bytes, key: str, change: Change) -> bytes:
    """Change lines of one conversation in an export, which then is whole by its hash all the same."""
    made: list[bytes] = []
    start, inside = 0, False
    for line in map(json.loads, data.splitlines()):
        if line["type"] == "conversation":
            start, inside = len(made), line["key"] == key
        if inside:
            change(line)
        if line["type"] == "conversation-end":
            line |= {"lines": len(made) - start, "sha256": hashlib.sha256(b"".join(made[start:])).hexdigest()}
            inside = False
        made.append(json.dumps(line).encode() + b"\n")
    return b"".join(made)


async def test_a_file_that_somebody_made_up_writes_nothing_of_what_is_not_sound(
    store: AgentStore, tmp_path: Path
) -> None:
    """B010, B041: bad ids, parts of another conversation and wrong numbers cost their conversation, whole, and no other."""
    await fill(store)
    file = io.BytesIO()
    await export_conversations(store, file, session_ids=["waiting", "talk"])
    inside = tmp_path / "inside"
    async with open_store(f"file:{inside}") as target:
        await target.sessions.append("other", [{"mine": True}])
        await import_conversations(target, io.BytesIO(changed(file.getvalue(), "waiting", renamed("../x"))))
        before = await everything(target)
        assert await target.sessions.load("talk") is not None
        for name, change in BAD.items():
            report = await import_conversations(target, io.BytesIO(changed(file.getvalue(), "waiting", change)))
            assert (report.copied, report.present) == (0, 1), name
            assert len(report.not_copied) + len(report.notes) == 1, name
            assert await everything(target) == before, name
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]  # noqa: ASYNC240  # reason: nothing else runs


@pytest.mark.parametrize("wrong", ["scope", "session_id"])
async def test_an_argument_that_is_refused_late_leaves_no_half(store: AgentStore, wrong: str) -> None:
    options: dict[str, Any] = {"session_id": "s", wrong: 5}
    with pytest.raises((InvalidArgumentError, InvalidIdError)):
        await import_openai(store, b'[{"role": "user", "content": "hi"}]', **options)
    assert (await store.sessions.list()).items == ()
    assert (await store.checkpoints.list()).items == ()


async def test_no_file_makes_somebody_the_owner_of_a_turn(store: AgentStore) -> None:
    """Who imports a turn resumes it: an owner that a file names would keep everybody from it."""
    await fill(store)
    file = io.BytesIO()
    await export_conversations(store, file, session_ids=["waiting"])
    owned = head_of(owner="me", lease=9.0, lease_expires_at="2999-01-01T00:00:00+00:00")
    async with open_store("memory:") as target:
        assert (await import_conversations(target, io.BytesIO(changed(file.getvalue(), "waiting", owned)))).copied == 1
        found = await target.checkpoints.load("waiting")
        assert found is not None
        assert (found.head.status, found.head.owner, found.head.lease_expires_at) == ("awaiting-approval", None, None)
