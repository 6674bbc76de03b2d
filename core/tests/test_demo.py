"""The demo, run as a user runs it, and made to fail."""

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import perdure
from perdure.cli.demo.checks import Check, Story, checks
from perdure.cli.demo.command import demo
from perdure.cli.demo.reading import Reading, Report
from perdure.cli.demo.showing import show_checks

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
    monkeypatch.setattr(tempfile, "tempdir", None)  # what was read of TMPDIR before
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _demo(*arguments: str, command: tuple[str, ...] = COMMAND) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL, check=False
    )


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_it_runs_on_a_store_of_ones_own_and_touches_nothing_there(elsewhere: Path) -> None:
    url = f"sqlite:{elsewhere}/mine.db"
    assert asyncio.run(_sessions_of(url, write=True)) == ["order-1"]
    ran = _demo("--store", url, "--json")
    assert (ran.returncode, ran.stderr, "\x1b" in ran.stdout) == (0, "", False)
    assert asyncio.run(_sessions_of(url)) == ["order-1"]
    assert _files(elsewhere / "tmp") == []

    told = json.loads(ran.stdout)
    assert all(check["holds"] for check in told["checks"])
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


async def _sessions_of(url: str, *, write: bool = False) -> list[str]:
    """Return the sessions of a store, after making one that prune would find old."""
    async with perdure.open_store(url) as store:
        if write:
            await store.sessions.append("order-1", [{"role": "user"}], at=datetime(2020, 1, 1, tzinfo=UTC))
        return [info.session_id for info in (await store.sessions.list()).items]


def test_a_narrow_terminal_gets_colour_and_keep_leaves_the_conversation(elsewhere: Path) -> None:
    main, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "44"}
    with subprocess.Popen(
        [*COMMAND, "--keep"], stdin=subprocess.DEVNULL, stdout=terminal, stderr=subprocess.PIPE, env=environment
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
    (folder,) = (elsewhere / "tmp").iterdir()
    assert {"agent.db", "bank.db", "stock.jsonl"} <= {path.name for path in folder.iterdir()}
    assert str(folder) in text
    (namespace,) = set(re.findall(r"namespace=demo-[0-9a-f]+", text))
    assert asyncio.run(_sessions_of(f"sqlite:{folder}/agent.db?{namespace}")) == ["order-7"]


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
def test_a_store_that_cannot_carry_it_is_refused(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], store: str, reason: str
) -> None:
    with pytest.raises(typer.Exit) as exit_:
        demo(store)
    assert exit_.value.exit_code == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert "secret-word" not in said.out + said.err
    assert _files(elsewhere) == ["cwd", "tmp"]


SABOTEUR = """
import datetime, os
from perdure.cli.demo import worker
from perdure.cli.demo.tools import Shop

charge, transfer, resume = Shop.charge, Shop.transfer, worker.resume

def charge_without_looking_at_the_key(shop, key, *rest):
    charge(shop, key + str(os.getpid()), *rest)

def transfer_twice(shop, *rest):
    transfer(shop, *rest)
    transfer(shop, *rest)

async def reserve_again_and_resume(job, shop):
    shop.reserve("lamp", 2)
    await resume(job, shop)

Shop.charge = charge_without_looking_at_the_key
Shop.transfer = transfer_twice
worker.STEPS["resume"] = reserve_again_and_resume
worker.WEEK = datetime.timedelta(0)
worker.main()
"""


def _with_worker(*arguments: str) -> tuple[str, ...]:
    """Return the demo with other processes than its own."""
    patched = f"""
import sys
from perdure.cli import main
from perdure.cli.demo import processes
processes.WORKER = (sys.executable, *{arguments!r})
main()
"""
    return (sys.executable, "-P", "-c", patched, "demo")


def test_what_really_goes_wrong_in_the_processes_is_seen(elsewhere: Path) -> None:
    saboteur = elsewhere / "saboteur.py"
    saboteur.write_text(SABOTEUR, encoding="utf-8")
    ran = _demo("--json", command=_with_worker(str(saboteur)))
    assert ran.returncode == 1, ran.stderr
    failed = [check["claim"] for check in json.loads(ran.stdout)["checks"] if not check["holds"]]
    assert failed == [
        "stock reserved exactly once",
        "card charged exactly once",
        "money transferred exactly once",
        "prune's dry run removed nothing",
        "prune removed what is old, and no more",
    ]
    assert _files(elsewhere) == ["cwd", "saboteur.py", "tmp"]


def test_a_failed_check_is_shown_in_red(capsys: pytest.CaptureFixture[str]) -> None:
    show_checks(
        [Check("a claim", "a reading", holds=False)],
        Console(force_terminal=True, color_system="standard", highlight=False),
    )
    shown = capsys.readouterr().out
    assert "FAILED" in shown
    assert "\x1b[1;31m1 of 1 checks failed." in shown


def test_a_process_that_fails_shows_its_error(elsewhere: Path) -> None:
    ran = _demo(command=_with_worker("-c", "raise SystemExit('the worker is ill')"))
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


def test_a_good_story_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert [check.claim for check in checks(GOOD) if not check.holds] == []
    show_checks(checks(GOOD), Console(width=100, highlight=False))
    lines = capsys.readouterr().out.splitlines()
    for effect in EFFECTS:
        (row,) = (line for line in lines if line.strip().startswith(f"{effect} exactly once"))
        assert row.split(effect + " exactly once")[1].split()[0] == "1"
    assert "FAILED" not in str(lines)


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
