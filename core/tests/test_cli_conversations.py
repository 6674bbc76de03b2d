"""The commands on conversations: list, show, decide, resume, prune and delete, on a store that an agent has left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from core.tests import cli_world
from core.tests.cli_world import EVIL, fill
from core.tests.command_line import Perdure, Program

from perdure import open_store, safe_id
from perdure.backend import Approval
from perdure.cli.conversations import key_of
from perdure.cli.durations import duration
from perdure.cli.store_url import opened
from perdure.errors import SessionDeletedError

RAW = ("\x1b", "\x07", "\u202e")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a database and a directory store, each filled once, and the agent's module."""
    directory = tmp_path_factory.mktemp("filled")
    for url in (f"sqlite:{directory / 'a.db'}", f"file:{directory / 'files'}"):
        asyncio.run(fill(url))
    shutil.copy(cli_world.__file__, directory / "cli_world.py")
    return directory


@pytest.fixture
def perdure(filled: Path, tmp_path: Path) -> Perdure:
    """The command in a directory with a copy of all that."""
    directory = tmp_path / "work"
    shutil.copytree(filled, directory)
    return Perdure(directory, "sqlite:a.db")


def session_ids(perdure: Perdure, *arguments: str) -> list[str]:
    return [one["session_id"] for one in perdure.json("ls", *arguments)["sessions"]]


def approval_of(perdure: Perdure, conversation: str) -> str:
    (found,) = [
        one["id"] for one in perdure.json("approvals", "list")["approvals"] if one["id"].startswith(conversation)
    ]
    return str(found)


# --- reading ---


def test_sessions_are_listed_in_pages(perdure: Perdure) -> None:
    everything = session_ids(perdure, "--order", "id")
    assert everything == ["broken", "order-7", "queued", "user-1", "user-2"]
    assert session_ids(perdure, "--scope", "acme") == ["user-1"]
    assert session_ids(perdure, "--older-than", "1d") == session_ids(perdure, "--limit", "0") == []
    assert perdure("ls", "--limit", "0", code=0).out == ""
    assert session_ids(perdure, "--limit", "9" * 20) == session_ids(perdure)
    first = perdure.json("ls", "--order", "id", "--limit", "3")
    rest = perdure.json("ls", "--order", "id", "--limit", "3", "--cursor", first["cursor"])
    assert [one["session_id"] for page in (first, rest) for one in page["sessions"]] == everything
    assert rest["cursor"] is None
    shown = perdure("ls", "--limit", "3", code=0).out
    assert len(shown.splitlines()) == 5
    assert "There are more: --cursor " in shown
    assert "cursor" not in perdure("ls", code=0).out
    assert perdure("ls", "--cursor", "nonsense", code=2).err.startswith("perdure ls: cursor is not a cursor")
    assert perdure("ls", code=0, PERDURE_STORE="sqlite:a.db?namespace=other").out == "No sessions.\n"


def test_a_transcript_is_shown_and_cannot_steer_the_terminal(perdure: Perdure) -> None:
    shown = perdure("show", "user-1", code=0).out
    assert "scope acme" in shown
    assert "[0] user" in shown
    assert "You said hello." in shown
    assert r"\x1b]0;owned\x07\x1b[31mred\u202eback" in shown
    assert "[2] record" in shown
    assert re.search(r"^\[0\] user  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  user-1.turn-", shown, re.MULTILINE)
    assert "approvals" not in shown
    on_terminal = perdure.on_terminal("show", "user-1").out
    for unwanted in ("\x1b]0;owned", "\x1b[31mred", "\x07", "\u202e"):
        assert unwanted not in on_terminal
    assert "\x1b[1;32m[0] user" in on_terminal
    assert [mark for mark in RAW if mark in perdure("ls", code=0).out + shown] == []
    document = perdure.json("show", "user-1")
    assert document["records"][2] == {"note": EVIL}
    assert document["session"]["state"] == {"title": EVIL}


def test_only_the_newest_records_are_shown_unless_all_are_asked_for(perdure: Perdure) -> None:
    document = perdure.json("show", "user-1", "--last", "1")
    assert (document["start"], len(document["records"])) == (2, 1)
    shown = perdure("show", "user-1", "--last", "1", code=0).out
    assert "2 earlier records are not shown; --all shows them" in shown
    assert "[2] record" in shown
    assert "[1]" not in shown
    assert len(perdure.json("show", "user-1", "--all")["records"]) == 3
    assert "[0]" not in perdure("show", "user-1", "--last", "0", code=0).out


def test_a_turn_is_shown_with_its_calls_and_what_it_waits_for(perdure: Perdure) -> None:
    approval_id = approval_of(perdure, "order-7")
    shown = perdure("show", "order-7", code=0).out
    assert "awaiting-approval: 1 to decide" in shown
    assert '-> lookup {"order": 7}  (c1): done' in shown
    assert f'-> pay {{"amount": 5}}  (c2): waits for approval {approval_id}' in shown
    assert f'  {approval_id}  pending: pay {{"amount": 5}}' in shown
    turn = perdure.json("show", "order-7")["turn"]
    assert (turn["status"], turn["approvals"], turn["live"], turn["attempts"]) == (
        "awaiting-approval",
        [approval_id],
        False,
        1,
    )
    for other in (approval_id, approval_id.rpartition(".s0")[0]):
        assert perdure.json("show", other)["conversation"] == "order-7"
    for name in ("nightly", "nightly.run"):
        assert perdure.json("show", name)["conversation"] == "nightly.run"


def test_showing_writes_nothing(perdure: Perdure) -> None:
    before = (perdure.directory / "a.db").read_bytes()
    for command in (["ls"], ["pending"], ["show", "order-7"], ["approvals", "list"], ["doctor"]):
        perdure(*command, code=0)
    assert (perdure.directory / "a.db").read_bytes() == before


@pytest.mark.parametrize("given", ["nobody", "ann@example.org", "../../etc", "a\x1b[31m\nb", "", "x" * 300])
def test_what_is_not_there_is_said(perdure: Perdure, given: str) -> None:
    ran = perdure("show", "--", given, code=1)
    assert f"there is no conversation {key_of(given)}" in ran.err
    assert [mark for mark in RAW if mark in ran.err] == []


def test_any_text_names_the_session_of_its_safe_id(perdure: Perdure) -> None:
    async def write() -> None:
        async with open_store(f"sqlite:{perdure.directory / 'a.db'}") as store:
            await store.sessions.append(safe_id("ann@example.org"), [{"n": 1}])

    asyncio.run(write())
    assert perdure.json("show", "ann@example.org")["session"]["session_id"] == safe_id("ann@example.org")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("ann", "ann"),
        ("ann.run", "ann.run"),
        ("ann.turn-7", "ann"),
        ("ann.turn-7.s0.c12", "ann"),
        ("nightly.s1.c0.d2", "nightly"),
        ("ann.smith", safe_id("ann.smith")),
        ("ann.turn-7.smith", safe_id("ann.turn-7.smith")),
        ("ann.", safe_id("ann.")),
    ],
)
def test_only_ids_of_turns_and_approvals_name_the_conversation_before_their_dot(given: str, key: str) -> None:
    assert key_of(given) == key


def test_deleting_a_user_whose_id_has_a_dot_leaves_the_one_of_the_name_before_it(perdure: Perdure) -> None:
    async def write() -> None:
        async with open_store(f"sqlite:{perdure.directory / 'a.db'}") as store:
            for session_id in ("ann", safe_id("ann.smith")):
                await store.sessions.append(session_id, [{"n": 1}])

    asyncio.run(write())
    assert perdure.json("delete", "ann.smith", "--yes")["conversation"] == safe_id("ann.smith")
    assert perdure.json("show", "ann")["session"]["records"] == 1


def test_pending_turns_are_listed_with_where_they_stand(perdure: Perdure) -> None:
    turns = {turn["conversation"]: turn for turn in perdure.json("pending")["turns"]}
    assert sorted(turns) == ["broken", "nightly.run", "order-7", "queued"]
    assert turns["broken"]["last_error"] == "RuntimeError: the model is away"
    shown = perdure("pending", code=0).out
    assert "interrupted: nobody runs it; last error: RuntimeError: the model is away" in shown
    assert "in-progress: submitted, and not begun" in shown
    assert perdure.json("pending", "--agent", "nobody") == {"turns": [], "damaged": []}
    assert perdure("pending", "--agent", "nobody", code=0).out == "No turn is pending.\n"


# --- deciding and resuming ---


def test_an_approval_is_edited_approved_and_its_turn_resumed(perdure: Perdure) -> None:
    approval_id = approval_of(perdure, "order-7")
    assert perdure.json("approvals", "show", approval_id)["approval"]["expired"] is False
    (perdure.directory / "edited.json").write_text('{"amount": 4}')
    decided = perdure.json(
        "approvals", "approve", approval_id, "--arguments", "@edited.json", "--note", "less", "--by", "ann"
    )
    assert decided["undecided"] == []
    assert decided["approval"]["decision"]["arguments"] == {"amount": 4}
    again = perdure("approvals", "approve", approval_id, "--arguments", "-", given='{"amount": 4}', code=0)
    assert "approved with edited arguments by ann (less)" in again.out
    assert "perdure resume MODULE:AGENT order-7" in again.out
    assert '{"amount": 4}' in perdure("approvals", "list", "--status", "approved", code=0).out
    refused = perdure("approvals", "reject", approval_id, code=1)
    assert "The first decision stands: approved with edited arguments by ann (less)." in refused.err
    assert "ready: all is decided" in perdure("show", "order-7", code=0).out
    paid = perdure.directory / "paid"
    turn = perdure.json("resume", "cli_world:agent", "order-7", PAID=str(paid))["turn"]
    assert (turn["finish_reason"], turn["text"]) == ("stop", "Done.")
    assert paid.read_text() == "4\n"
    assert perdure("resume", "cli_world:agent", "order-7", code=0).out == "Nothing is pending in order-7.\n"
    assert "tool (c2)" in perdure("show", "order-7", code=0).out
    assert paid.read_text() == "4\n"


def test_a_rejection_reaches_the_model(perdure: Perdure) -> None:
    approval_id = approval_of(perdure, "nightly")
    assert (
        "rejected by ann (too much)"
        in perdure("approvals", "reject", approval_id, "--note", "too much", "--by", "ann", code=0).out
    )
    shown = perdure("resume", "cli_world:agent", "nightly", code=0).out
    assert "Done." in shown
    assert perdure.json("approvals", "list", "--status", "rejected", "--run", approval_id.rpartition(".s0")[0])[
        "approvals"
    ]
    assert (
        perdure.json("approvals", "list", "--status", "all", "--session", "order-7", "--limit", "1")["cursor"] is None
    )


def test_a_limit_of_zero_does_not_tell_that_there_are_no_approvals(perdure: Perdure) -> None:
    approval_of(perdure, "order-7")
    assert perdure("approvals", "list", "--limit", "0", code=0).out == ""


def test_arguments_that_are_no_object_decide_nothing(perdure: Perdure) -> None:
    approval_id = approval_of(perdure, "order-7")
    for arguments in ("{", "[1]", '{"amount": 1, "amount": 2}', "@nowhere.json"):
        perdure("approvals", "approve", approval_id, "--arguments", arguments, code=2)
    assert approval_of(perdure, "order-7") == approval_id


def test_arguments_that_are_empty_are_shown_as_edited(perdure: Perdure) -> None:
    approval_id = approval_of(perdure, "nightly")
    perdure("approvals", "approve", approval_id, "--arguments", "{}", code=0)
    assert "edited     {}\n" in perdure("approvals", "show", approval_id, code=0).out


def test_an_unknown_approval_is_said(perdure: Perdure) -> None:
    assert perdure("approvals", "approve", "nope", "--json", code=1).error["type"] == "ApprovalNotFoundError"
    assert perdure("approvals", "show", "a/../b", "--json", code=2).error["type"] == "InvalidIdError"


def test_a_turn_that_fails_again_stays_pending_and_its_traceback_is_shown(perdure: Perdure) -> None:
    ran = Program("perdure", perdure.directory, perdure.environment)("resume", "cli_world:agent", "broken", "--json")
    assert ran.code == 1
    assert 'raise RuntimeError("the model is away")' in ran.err
    assert "run failed" not in ran.err
    assert ran.error["message"].endswith("stopped by RuntimeError: the model is away, and stays pending")
    assert perdure.json("resume", "cli_world:agent", "broken", MENDED="1")["turn"]["finish_reason"] == "stop"


def test_all_turns_of_an_agent_are_resumed(perdure: Perdure) -> None:
    rows = {
        row["conversation"]: row["what"]
        for row in perdure.json("resume", "cli_world:agent", MENDED="1", code=1)["turns"]
    }
    assert rows == {"broken": "stop", "queued": "stop", "order-7": "waits", "nightly.run": "waits"}
    perdure("resume", "cli_world:agent", code=1)
    assert perdure("resume", "cli_world:another", code=0).out == "Nothing is pending.\n"


def test_a_turn_that_fails_and_is_set_aside_is_listed_once_with_the_way_out(perdure: Perdure) -> None:
    perdure("approvals", "approve", approval_of(perdure, "order-7"), code=0)
    rows = perdure.json("resume", "cli_world:changed", MENDED="1", code=1)["turns"]
    (what,) = [row["what"] for row in rows if row["conversation"] == "order-7"]
    assert what.startswith("set aside (failed): run order-7.turn-")
    assert what.endswith(
        "it has no tool 'pay' any more. Resume it with the agent that began it, or drop it with discard_pending()."
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cli_world:nothing", "order-7"], "has no attribute 'nothing'"),
        (["nowhere:agent"], "there is no module 'nowhere'"),
        (["cli_world:agent", "--rebase"], "--rebase needs an ID"),
    ],
)
def test_what_cannot_be_resumed_is_said(perdure: Perdure, arguments: list[str], says: str) -> None:
    assert says in perdure("resume", *arguments, code=2).err


def test_a_turn_of_another_agent_is_left_alone(perdure: Perdure) -> None:
    error = perdure("resume", "cli_world:another", "broken", "--json", code=1).error
    assert error["type"] == "AgentChangedError"
    assert perdure("resume", "cli_world:agent", "nobody", "--json", code=1).error["type"] == "CommandError"
    waits = perdure("resume", "cli_world:agent", "order-7", "--json", code=1).error
    assert waits["type"] == "SessionAwaitingApprovalError"


def test_an_agent_may_bring_its_own_store(perdure: Perdure) -> None:
    own = Perdure(perdure.directory)
    assert own.json("resume", "cli_world:with_store", "queued")["turn"]["finish_reason"] == "stop"
    assert "no store is given" in own("resume", "cli_world:agent", "queued", code=2).err


def test_an_approval_that_has_expired_can_no_longer_be_decided(perdure: Perdure) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    async def ask() -> None:
        async with open_store(f"sqlite:{perdure.directory / 'a.db'}") as store:
            call = ("user-1.turn-1.s0.c0", "user-1.turn-1", "c0", "pay", {"amount": 1})
            await store.approvals.create(Approval(*call, long_ago, session_id="user-1", expires_at=long_ago))

    asyncio.run(ask())
    assert "pending (expired 2020-01-01 00:00:00Z)" in perdure("approvals", "list", "--session", "user-1", code=0).out
    assert (
        perdure("approvals", "approve", "user-1.turn-1.s0.c0", "--json", code=1).error["type"] == "ApprovalExpiredError"
    )
    shown = perdure("approvals", "show", "user-1.turn-1.s0.c0", code=0).out
    assert "rejected by expiry" in shown


def test_what_somebody_runs_right_now_is_shown_and_not_taken(perdure: Perdure) -> None:
    url = f"sqlite:{perdure.directory / 'a.db'}"

    async def run() -> None:
        turn = asyncio.create_task(cli_world.say(url, "user-1", "hang"))
        loop = asyncio.get_running_loop()
        here = f"process {os.getpid()} on {socket.gethostname()}"
        while "IN DOUBT" not in (shown := (await loop.run_in_executor(None, perdure, "show", "user-1")).out):
            pass
        assert f"in-progress: {here} runs it" in shown
        assert "-> hang {}  (c1): IN DOUBT: started 1x, no result" in shown
        for command in (["resume", "cli_world:agent", "user-1"], ["delete", "user-1", "--yes"]):
            refused = await loop.run_in_executor(None, lambda: perdure(*command, "--json", code=1))  # noqa: B023  # reason: awaited at once
            assert (refused.error["type"], refused.error["retryable"]) == ("SessionBusyError", True)
            assert here in refused.error["message"]
        await loop.run_in_executor(None, lambda: perdure("delete", "user-1", "--yes", "--force", code=0))
        turn.cancel()
        with contextlib.suppress(asyncio.CancelledError, SessionDeletedError):
            await turn

    asyncio.run(run())
    assert perdure("show", "user-1", code=1).out == ""


def test_a_call_in_doubt_is_shown_and_asked_about(perdure: Perdure) -> None:
    python = Program("python", perdure.directory, perdure.environment)
    python("cli_world.py", "sqlite:a.db", "user-2", "die", code=-signal.SIGKILL)
    assert "-> die {}  (c1): IN DOUBT: started 1x, no result" in perdure("show", "user-2", code=0).out
    assert re.search(r"^  user  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$", perdure("show", "user-2", code=0).out, re.MULTILINE)
    for command in (["pending"], ["show", "user-2"]):
        stands = perdure(*command, code=0).out
        assert re.search(r"interrupted: nobody runs it; the last to was process \d+ on ", stands)
    (listed,) = [one for one in perdure.json("pending")["turns"] if one["conversation"] == "user-2"]
    assert listed == perdure.json("show", "user-2")["turn"]
    assert (listed["live"], listed["owner"].startswith("process ")) == (False, True)
    waits = perdure("resume", "cli_world:agent", "user-2", code=1).out
    assert "Waits for approval user-2.turn-" in waits
    assert "pending, in doubt whether it ran: die {}" in perdure("show", "user-2", code=0).out
    approval_id = approval_of(perdure, "user-2")
    perdure("approvals", "reject", approval_id, "--note", "it ran", code=0)
    assert "rejected, no result yet" not in (shown := perdure("show", "user-2", code=0).out)
    assert "IN DOUBT" in shown
    assert perdure.json("resume", "cli_world:agent", "user-2")["turn"]["finish_reason"] == "stop"


def test_a_file_of_arguments_that_cannot_be_read_is_refused(perdure: Perdure) -> None:
    approve = ("approvals", "approve", approval_of(perdure, "order-7"), "--arguments", "@given.json")
    given = perdure.directory / "given.json"
    for text in (b"[" * 50_000, b'{"a": "\xe9"}'):
        given.write_bytes(text)
        assert "--arguments is not JSON" in perdure(*approve, code=2).err
    given.write_bytes(b'{"a":' + b"[" * 300 + b"]" * 300 + b"}")
    assert "nested deeper" in perdure(*approve, code=2).err


# --- removing ---


def test_a_conversation_is_deleted_when_a_person_agrees(perdure: Perdure) -> None:
    refused = perdure.on_terminal("delete", "order-7", types="n\r", after="[y/N]")
    assert refused.code == 1
    assert "1 approvals, a turn (awaiting-approval: 1 to decide)" in refused.out
    assert "nothing was deleted" in refused.out
    assert "order-7" in session_ids(perdure)
    done = perdure.on_terminal("delete", "order-7", types="y\r", after="[y/N]")
    assert done.code == 0
    assert "nothing of it is left" in done.out
    assert "order-7" not in session_ids(perdure)
    with sqlite3.connect(perdure.directory / "a.db") as database:
        assert database.execute("SELECT count(*) FROM journal WHERE name LIKE 'order-7%'").fetchone() == (0,)
    assert perdure("delete", "order-7", "--yes", code=1).err.startswith("perdure delete: there is no conversation")


@pytest.mark.parametrize(("key", "code", "told"), [("\x03", 130, "interrupted"), ("\x04", 1, "nothing was deleted")])
def test_the_question_whether_to_delete_can_be_left(perdure: Perdure, key: str, code: int, told: str) -> None:
    left = perdure.on_terminal("delete", "order-7", types=key, after="[y/N]")
    assert left.code == code
    assert f"perdure delete: {told}" in left.out.splitlines()[-1]
    assert "order-7" in session_ids(perdure)


def test_nobody_who_could_be_asked_means_no(perdure: Perdure) -> None:
    assert "Give --yes" in perdure("delete", "user-1", code=2).err
    assert "Give --yes" in perdure("delete", "user-1", "--json", code=2).error["hint"]
    assert "a run without a session" in perdure("delete", "nightly", "--yes", code=1).err
    deleted = perdure.json("delete", "user-1", "--yes")
    assert (deleted["removed"]["records"], deleted["left"]) == (3, [])


def test_old_conversations_are_pruned_and_it_is_told_what_was_kept(perdure: Perdure) -> None:
    assert perdure.json("prune", "--older-than", "7d")["sessions"] == []
    planned = perdure.json("prune", "--older-than", "0", "--dry-run")
    assert planned["dry_run"] is True
    assert len(session_ids(perdure)) == 5
    shown = perdure("prune", "--older-than", "0s", code=0).out
    assert shown.startswith("Removed 4 sessions, ")
    assert "kept order-7: an approval of its turn is undecided" in shown
    assert session_ids(perdure) == ["order-7"]


def test_what_is_no_duration_is_refused(perdure: Perdure) -> None:
    assert "'-1d' is no duration. Write 7d" in " ".join(perdure("prune", "--older-than", "-1d", code=2).err.split())
    for text in ("", "7", "d", "-1d", "7y", "1.5d", "1d 2h", "٣d", "999999999w"):
        with pytest.raises(typer.BadParameter):
            duration(text)


def test_durations() -> None:
    assert duration("1w2d3h4m5s") == timedelta(days=9, hours=3, minutes=4, seconds=5)
    assert duration("0") == timedelta(0)


# --- damage ---


@pytest.fixture
def damaged(perdure: Perdure) -> Perdure:
    """A store in which the newest record of one session, the state of another and an approval are damaged."""
    with sqlite3.connect(perdure.directory / "a.db") as database:
        database.execute(
            "UPDATE item SET data = x'7b22' WHERE place = (SELECT id << 32 FROM journal WHERE name = 'user-1' AND part = 'sessions')"
        )
        database.execute("UPDATE journal SET data = x'5b5d' WHERE name = 'user-2' AND part = 'sessions'")
        database.execute("UPDATE journal SET data = x'7b7d' WHERE name LIKE 'order-7.%' AND part = 'approvals'")
    database.close()
    return perdure


def test_what_is_damaged_hides_nothing_else(damaged: Perdure) -> None:
    listed = damaged.json("ls", code=1)
    assert sorted(one["session_id"] for one in listed["sessions"]) == ["broken", "order-7", "queued", "user-1"]
    assert listed["damaged"] == ["session user-2: state is damaged: a stored list, where an object is needed"]
    shown = damaged("show", "user-1", code=1)
    assert "[0] is damaged" in shown.out
    assert "You said hello." in shown.out
    assert "session user-1: records[0] is damaged: the stored bytes are not JSON" in shown.err
    assert damaged.json("show", "user-1", code=1)["records"][0] is None
    approvals = damaged.json("approvals", "list", code=1)
    assert [one["id"][:8] for one in approvals["approvals"]] == ["nightly."]
    (problem,) = approvals["damaged"]
    assert problem.startswith("approval order-7.turn-")
    assert problem.endswith(
        ".s0.c1 is damaged: the stored object has no id, no run_id, no tool_call_id, no tool_name, no arguments, no created_at"
    )
    pending = damaged.json("pending", code=1)
    assert sorted(turn["conversation"] for turn in pending["turns"]) == ["broken", "nightly.run", "order-7", "queued"]
    assert len(pending["damaged"]) == 1
    assert damaged.json("delete", "user-1", "--yes")["left"] == []


def test_prune_goes_round_what_is_damaged_and_names_it(damaged: Perdure) -> None:
    pruned = damaged.json("prune", "--older-than", "0s", "--dry-run", code=1)
    assert sorted(name.partition(".")[0] for name in pruned["damaged"]) == ["order-7", "order-7", "user-1", "user-2"]
    assert sorted(pruned["sessions"]) == ["broken", "queued"]
    assert list(pruned["kept"]) == ["nightly.run"]
    shown = damaged("prune", "--older-than", "0s", "--dry-run", code=1)
    assert "kept user-2: session user-2: state is damaged: a stored list, where an object is needed" in shown.err


def test_a_damaged_file_hides_no_other(perdure: Perdure) -> None:
    files = Perdure(perdure.directory, "file:files")
    (path,) = perdure.directory.glob("files/default/sessions/user-1.jsonl")
    path.write_bytes(path.read_bytes().replace(b"hello", b"hullo", 1) + b"x\n")
    listed = files.json("ls", "--order", "id", code=1)
    assert [one["session_id"] for one in listed["sessions"]] == ["broken", "order-7", "queued", "user-2"]
    assert "user-1.jsonl" in listed["damaged"][0]
    assert len(files("show", "user-1", code=1).err.splitlines()) == 1
    assert files.json("show", "user-2")["session"]["records"] == 2


def test_a_file_that_may_not_be_written_is_read(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ids() -> list[str]:
        async with opened(f"sqlite:{perdure.directory / 'a.db'}", reading=True) as store:
            return [one.session_id for one in (await store.sessions.list()).items]

    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be allowed everything
    assert asyncio.run(ids()) == ["broken", "order-7", "queued", "user-1", "user-2"]
    assert sorted(path.name for path in perdure.directory.glob("a.db*")) == ["a.db"]
