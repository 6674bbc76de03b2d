"""The demo, run as a user runs it, and made to fail."""

import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.demo_checks import Story, checks
from perdure.cli.demo_reading import Reading, Report

EFFECTS = ("stock reserved", "card charged", "money transferred")
COMMAND = (sys.executable, "-P", "-c", "from perdure.cli import main; main()", "demo")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of nobody's, and a folder for temporary files of the test's own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("TMPDIR", str(temporary))
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _demo(*arguments: str, command: tuple[str, ...] = COMMAND) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL, check=False
    )


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_every_effect_happens_once_and_nothing_is_left_behind(elsewhere: Path) -> None:
    ran = _demo()
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    for effect in EFFECTS:
        (row,) = (line for line in lines if line.strip().startswith(f"{effect} exactly once"))
        assert row.split(effect + " exactly once")[1].split()[0] == "1"
    assert "SIGKILL" in ran.stdout
    assert "FAILED" not in ran.stdout
    assert "\x1b" not in ran.stdout
    assert _files(elsewhere) == ["cwd", "tmp"]


def test_the_story_is_told_by_what_the_processes_read(elsewhere: Path) -> None:
    ran = _demo("--json")
    assert ran.returncode == 0
    told = json.loads(ran.stdout)
    assert [check["holds"] for check in told["checks"]] == [True] * len(told["checks"])
    story = told["story"]
    pids = [story[name]["pid"] for name in ("started", "resumed", "answered", "pruned")]
    assert len(set(pids)) == 4
    first, second, third, _ = pids
    assert story["pruned"]["found"]["effects"] == {
        "reserve_stock": [first],
        "charge_card": [first],
        "transfer_money": [third],
    }
    assert story["pruned"]["found"]["charge_requests"] == [first, second]
    assert story["resumed"]["found"] == story["started"]["left"]


def test_it_runs_on_a_store_of_ones_own_and_leaves_it_as_it_was(elsewhere: Path) -> None:
    url = f"sqlite:{elsewhere}/mine.db"
    theirs = f"""
import asyncio, datetime, sys
import perdure

async def main():
    async with perdure.open_store({url!r}) as store:
        if sys.argv[1] == "write":
            long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
            await store.sessions.append("order-1", [{{"role": "user"}}], at=long_ago)
        print([info.session_id for info in (await store.sessions.list()).items])

asyncio.run(main())
"""
    look = [sys.executable, "-c", theirs]
    subprocess.run([*look, "write"], check=True, capture_output=True, timeout=60)
    ran = _demo("--store", url)
    assert ran.returncode == 0, ran.stderr
    seen = subprocess.run([*look, "read"], check=True, capture_output=True, text=True, timeout=60)
    assert seen.stdout.strip() == "['order-1']"
    assert _files(elsewhere / "tmp") == []


def test_keep_leaves_the_store_with_the_conversation(elsewhere: Path) -> None:
    ran = _demo("--keep")
    assert ran.returncode == 0
    (folder,) = (elsewhere / "tmp").iterdir()
    assert {"agent.db", "bank.db", "stock.jsonl"} <= {path.name for path in folder.iterdir()}
    assert str(folder) in ran.stdout


def test_a_terminal_gets_colour_and_a_narrow_one_gets_every_word(elsewhere: Path) -> None:
    main, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "44"}
    with subprocess.Popen(
        COMMAND, stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(terminal)
        shown = b""
        while chunk := _read(main):
            shown += chunk
        os.close(main)
        assert process.wait(timeout=100) == 0
    text = shown.decode()
    assert "\x1b[1;32mAll" in text
    assert "SIGKILL" in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # what Linux says when the other end is closed
        return b""


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        ("memory:", "memory: cannot be shared by several processes"),
        ("sqlite::memory:", "sqlite: cannot be shared by several processes"),
        ("nope://user:secret-word@host", "no installed plugin owns the scheme 'nope'"),
        ("sqlite:x.db?namespace=mine", "a namespace of its own"),
        ("agent.db", "has no scheme"),
    ],
)
def test_a_store_that_cannot_carry_it_is_refused(elsewhere: Path, store: str, reason: str) -> None:
    ran = _demo("--store", store)
    assert ran.returncode == 2
    assert reason in ran.stderr
    assert "secret-word" not in ran.stdout + ran.stderr
    assert _files(elsewhere) == ["cwd", "tmp"]


SABOTAGE = {
    "the bank ignores the key": (
        "shop.charge = lambda self, key, *rest: charge(self, key + str(os.getpid()), *rest)",
        "card charged exactly once",
    ),
    "a resume repeats the reservation": (
        "worker.resume = repeat; worker.STEPS['resume'] = repeat",
        "stock reserved exactly once",
    ),
    "the approved call runs twice": (
        "shop.transfer = lambda self, *rest: (transfer(self, *rest), transfer(self, *rest))",
        "money transferred exactly once",
    ),
    "prune takes all": (
        "worker.WEEK = datetime.timedelta(0)",
        "prune removed what is old, and no more",
    ),
}


@pytest.mark.parametrize(("change", "claim"), SABOTAGE.values(), ids=SABOTAGE)
def test_what_goes_wrong_is_seen(elsewhere: Path, change: str, claim: str) -> None:
    """Each change is made in the processes of the demo, by a worker that differs from the real one."""
    worker = elsewhere / "worker.py"
    worker.write_text(
        textwrap.dedent(
            f"""
            import datetime, os
            import perdure.cli.demo_worker as worker
            from perdure.cli.demo_tools import Shop as shop

            charge, transfer, resume = shop.charge, shop.transfer, worker.resume

            async def repeat(job, shop):
                shop.reserve("lamp", 2)
                await resume(job, shop)

            {change}
            worker.main()
            """
        )
    )
    command = f"""
import sys
from perdure.cli import demo_processes, main
demo_processes.WORKER = (sys.executable, {str(worker)!r})
main()
"""
    ran = _demo(command=(sys.executable, "-c", command, "demo"))
    assert ran.returncode == 1, ran.stderr
    failed = [line for line in ran.stdout.splitlines() if "FAILED" in line]
    assert [line.strip().startswith(claim[:20]) for line in failed].count(True) == 1
    assert "checks failed" in ran.stdout


def test_a_process_that_fails_shows_its_error(elsewhere: Path) -> None:
    command = """
import sys
from perdure.cli import demo_processes, main
demo_processes.WORKER = (sys.executable, "-c", "raise SystemExit('the worker is ill')")
main()
"""
    ran = _demo(command=(sys.executable, "-c", command, "demo"))
    assert ran.returncode == 1
    assert "the worker is ill" in ran.stderr
    assert _files(elsewhere) == ["cwd", "tmp"]


# --- the checks, on stories that were tampered with ---


def _call(number: int) -> dict[str, Any]:
    return {"id": f"call-{number}", "name": "x", "arguments": {}}


def _result(number: int) -> dict[str, Any]:
    return {"role": "tool", "content": "done", "tool_call_id": f"call-{number}"}


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Order 7"},
    {"role": "assistant", "content": "", "tool_calls": [_call(1), _call(2), _call(3)]},
    *(_result(number) for number in (1, 2, 3)),
    {"role": "assistant", "content": "Done."},
]
CALLS = ["reserve_stock", "charge_card", "transfer_money"]
CRASHED = Reading(
    status="in-progress",
    calls=[(name, name == "reserve_stock") for name in CALLS],
    undecided=["order-7.turn-5.s0.c2"],
    messages=[],
    sessions=["order-1", "order-7"],
    effects={"reserve_stock": [1], "charge_card": [1], "transfer_money": []},
    charge_requests=[1],
)
WAITING = replace(CRASHED, status="awaiting-approval", charge_requests=[1, 2])
ENDED = replace(
    WAITING,
    status="idle",
    calls=[],
    undecided=[],
    messages=MESSAGES,
    effects={"reserve_stock": [1], "charge_card": [1], "transfer_money": [3]},
)
GOOD = Story(
    "SIGKILL",
    Report(1, CRASHED, CRASHED, model_requests=1),
    Report(2, CRASHED, WAITING),
    Report(3, WAITING, ENDED, model_requests=1),
    Report(
        4,
        ENDED,
        replace(ENDED, sessions=["order-7"]),
        would_prune=("order-1",),
        after_dry_run=("order-1", "order-7"),
        pruned=("order-1",),
    ),
)


def _found(**changes: Any) -> Callable[[Story], Story]:
    return lambda story: replace(story, pruned=replace(story.pruned, found=replace(story.pruned.found, **changes)))


def _pruned(**changes: Any) -> Callable[[Story], Story]:
    return lambda story: replace(story, pruned=replace(story.pruned, **changes))


def _effects(tool: str, *pids: int) -> Callable[[Story], Story]:
    return _found(effects=ENDED.effects | {tool: list(pids)})


def test_a_good_story_holds() -> None:
    assert [check.claim for check in checks(GOOD) if not check.holds] == []


@pytest.mark.parametrize(
    ("claim", "tampered"),
    [
        ("process 1 was killed", lambda story: replace(story, ended_by="exit code 0")),
        ("in the middle of its turn", lambda story: replace(story, resumed=Report(2, ENDED, WAITING))),
        ("in the middle of its turn", lambda story: replace(story, resumed=Report(2, WAITING, WAITING))),
        ("process 2 stopped at the approval", lambda story: replace(story, resumed=Report(2, CRASHED, ENDED))),
        ("no response was asked for again", lambda story: replace(story, resumed=Report(2, CRASHED, WAITING, 1))),
        ("stock reserved exactly once", _effects("reserve_stock", 1, 2)),
        ("stock reserved exactly once", _effects("reserve_stock")),
        ("card charged exactly once", _effects("charge_card", 1, 2)),
        ("money transferred exactly once", _effects("transfer_money", 3, 3)),
        ("money transferred exactly once", _effects("transfer_money")),
        ("the transcript has the turn once", _found(messages=[])),
        ("the transcript has the turn once", _found(messages=MESSAGES * 2)),
        (
            "the transcript has the turn once",
            _found(messages=[*MESSAGES[:3], MESSAGES[3] | {"is_error": True}, *MESSAGES[4:]]),
        ),
        ("the transcript has the turn once", _found(messages=[*MESSAGES[:4], MESSAGES[3], MESSAGES[5]])),
        ("the transcript has the turn once", _found(messages=[*MESSAGES[:4], *MESSAGES[5:]])),
        ("nothing is pending", _found(status="ready")),
        ("nothing is pending", _found(undecided=["order-7.turn-5.s0.c2"])),
        ("prune's dry run removed nothing", _pruned(after_dry_run=("order-7",))),
        ("prune's dry run removed nothing", _pruned(would_prune=())),
        ("prune removed what is old, and no more", _pruned(left=ENDED)),
        ("prune removed what is old, and no more", _pruned(left=replace(ENDED, sessions=[]))),
        ("prune removed what is old, and no more", _pruned(pruned=())),
    ],
)
def test_a_tampered_story_fails_the_check_that_it_breaks(claim: str, tampered: Callable[[Story], Story]) -> None:
    failed = [check.claim for check in checks(tampered(GOOD)) if not check.holds]
    assert failed == [claim]
