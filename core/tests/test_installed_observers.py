"""Installed observers, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """
from perdure.backend import hookimpl

@hookimpl
def perdure_event(event):
    print(__name__, event.operation, flush=True)
"""

USE = """
import asyncio, os, sys, threading
from perdure import observers, open_store

async def use(*operations):
    async with open_store(f"memory:{os.getpid()}") as store:
        for name in operations:
            await (store.sessions.append("s", []) if name == "append" else store.sessions.load("s"))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Install modules as observers, each by a distribution of its own, and run code."""

    def run(code: str, **modules: str) -> subprocess.CompletedProcess[str]:
        for name, source in modules.items():
            info = tmp_path / f"{name}_dist-1.0.dist-info"
            info.mkdir()
            info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
            info.joinpath("entry_points.txt").write_text(f"[perdure.observers]\n{name} = {name}\n")
            tmp_path.joinpath(f"{name}.py").write_text(source)
        text = f"import sys\nsys.path.append({str(tmp_path)!r})\n{USE}{textwrap.dedent(code)}"
        command = [sys.executable, "-W", "error", "-c", text]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_an_installed_observer_is_imported_at_the_first_event_and_hears_it(run: Run) -> None:
    done = run(
        """
        asyncio.run(use())
        print("good" in sys.modules, threading.active_count())
        asyncio.run(use("append", "load"))
        print("good" in sys.modules)
        """,
        good=GOOD,
    )
    assert (done.stdout.split("\n"), done.stderr) == (
        ["False 1", "good append", "good load", "True", ""],
        "",
    )


def test_a_process_without_observers_has_no_thread_and_sends_nothing(run: Run) -> None:
    done = run(
        """
        asyncio.run(use("append"))
        thread = next((one for one in threading.enumerate() if one.name == "perdure-observers"), None)
        if thread is not None:
            thread.join(30)
        observers.Observers.put = None  # nobody calls it
        asyncio.run(use("append"))
        print(observers._observers.wanted, threading.active_count())
        """
    )
    assert (done.stdout, done.stderr) == ("False 1\n", "")


def test_an_observer_that_is_switched_off_is_not_imported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_OBSERVERS_OFF", "otel, other")
    done = run('asyncio.run(use("append"))\nprint("other" in sys.modules)', good=GOOD, other=GOOD)
    assert (sorted(done.stdout.split("\n")), done.stderr) == (["", "False", "good append"], "")


def test_observers_that_do_not_load_are_reported_once_and_hinder_nobody(run: Run) -> None:
    done = run(
        'import logging\nlogging.basicConfig()\nasyncio.run(use("append", "load"))',
        absent="import no_such_module",
        leaving="raise SystemExit(3)",
        odd="def perdure_event(event: pass",
        unmarked="def perdure_event(event): pass",
        zgood=GOOD,
    )
    assert done.stdout.split("\n") == ["zgood append", "zgood load", ""]
    for name in ("absent", "leaving", "odd", "unmarked"):
        assert done.stderr.count(f"observer '{name}' of {name}-dist 1.0 does not load") == 1
    assert done.returncode == 0


def test_a_broken_distribution_and_one_that_is_there_twice(run: Run, tmp_path: Path) -> None:
    nameless = tmp_path / "nameless-1.0.dist-info"
    nameless.mkdir()
    nameless.joinpath("entry_points.txt").write_text("[perdure.observers]\nnameless = nameless\n")
    again = tmp_path / "later" / "good_dist-2.0.dist-info"
    again.mkdir(parents=True)
    again.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: Good.Dist\nVersion: 2.0\n")
    again.joinpath("entry_points.txt").write_text("[perdure.observers]\ngood = stale\n")
    code = f"sys.path.append({str(again.parent)!r})\nasyncio.run(use('append'))"
    done = run(code, good=GOOD)
    assert (done.stdout, done.stderr) == ("good append\n", "")


LEAVING = """
async def leave():
    store = await open_store("memory:left")
    await store.sessions.append("s", [])

asyncio.run(leave())
"""


def test_a_store_that_was_never_closed_ends_with_its_process_and_observers_hear_of_it(run: Run) -> None:
    done = run(LEAVING, good=GOOD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good append\n", "")


def test_an_observer_that_hangs_does_not_keep_the_process(run: Run) -> None:
    hanging = "import threading\n" + GOOD + "    threading.Event().wait()\n"
    done = run(LEAVING, hanging=hanging)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hanging append\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_has_a_thread_of_its_own(run: Run) -> None:
    good = GOOD.replace("print(", "import os; print('child' if os.getpid() != parent else 'parent', ")
    good = good.replace("@hookimpl", "import os\nparent = os.getpid()\n\n@hookimpl")
    done = run(
        """
        import warnings
        warnings.simplefilter("ignore")  # from Python 3.12 on, a fork beside threads
        asyncio.run(use("append"))
        if os.fork() == 0:
            asyncio.run(use("load", "append"))
            os._exit(0)
        print(os.wait()[1], flush=True)
        asyncio.run(use("load"))
        """,
        good=good,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n") == [
        "parent good append",
        "child good load",
        "child good append",
        "0",
        "parent good load",
        "",
    ]
