"""The blocking API in processes that fork, are interrupted, or end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


SHARED = """
import os, signal, sys, threading, asyncio, warnings
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
from perdure import ToolCall, blocking, tool
from perdure.errors import WrongLoopError, PerdureError
from perdure.models import FunctionModel, ModelResponse, ScriptedModel

def say(*words):
    print(*words, flush=True)

async def echo(request):
    return ModelResponse(text=f"You said {request.messages[-1].text}.")

@tool(idempotent=True)
async def stuck() -> str:
    say("stuck")
    await asyncio.Event().wait()

@tool(idempotent=True, name="stuck")
def stuck_in_thread() -> str:
    say("stuck")
    threading.Event().wait()

@tool(idempotent=True, name="stuck")
def free() -> str:
    return "free"

def make(store, *tools):
    return blocking.Agent(model=ScriptedModel([[ToolCall("c1", "stuck", {})], "Done."]), tools=tools, store=store)
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    folder.joinpath("script.py").write_text(SHARED + script, encoding="utf-8")
    # The driver of SQLite minds a connection that is left open, which some scripts do.
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "script.py"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out.splitlines(), err


@needs_fork
def test_a_forked_child_is_told_and_opens_a_store_of_its_own(tmp_path: Path) -> None:
    script = """
store = blocking.open_store("sqlite:agent.db")
bare = blocking.Agent(model=FunctionModel(echo))
agent = blocking.Agent(model=FunctionModel(echo), store=store)
session = agent.session("s1")
session.send("one")
stream = session.stream("two")
if os.fork() == 0:
    for call in (lambda: session.send("two"), lambda: store.sessions.load("s1"), lambda: agent.session("s2"),
                 agent.pending, agent.approvals.list, store.close, stream.__enter__, lambda: session.messages,
                 lambda: bare.session("s1", store=store)):
        try:
            call()
        except WrongLoopError as error:
            assert "fork" in str(error)
        else:
            say("not refused")
    with blocking.open_store("sqlite:agent.db") as own:
        say("child", bare.session("s2", store=own).send("Hi").text)
    sys.exit(5)
pid, status = os.wait()
say("parent", os.waitstatus_to_exitcode(status), session.send("two").text)
store.close()
"""
    assert finish(start(script, tmp_path)) == (0, ["child You said Hi.", "parent 5 You said two."], "")


@needs_fork
def test_a_fork_in_the_midst_of_a_turn_and_of_a_block_does_not_hang(tmp_path: Path) -> None:
    script = """
release, inside = threading.Event(), threading.Event()

@tool(name="stuck")
def wait() -> str:
    inside.set()
    release.wait()
    return "waited"

with blocking.open_store("sqlite:agent.db") as store:
    session = make(store, wait).session("s1")
    thread = threading.Thread(target=lambda: say(session.send("Go").text))
    thread.start()
    inside.wait()
    if os.fork() == 0:
        try:
            session.send("Hi")
        except WrongLoopError as error:
            say("refused")
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.wait()[1]))
    release.set()
    thread.join()
"""
    assert finish(start(script, tmp_path)) == (0, ["refused", "child 0", "Done."], "")


INTERRUPTED = {
    "send": """
with blocking.open_store("sqlite:agent.db") as store:
    make(store, stuck).session("s1").send("Go")
""",
    "send in a thread": """
with blocking.open_store("sqlite:agent.db") as store:
    make(store, stuck_in_thread).session("s1").send("Go")
""",
    "stream": """
with blocking.open_store("sqlite:agent.db") as store:
    with make(store, stuck).session("s1").stream("Go") as run:
        for event in run:
            pass
""",
    "worker": """
with blocking.open_store("sqlite:agent.db") as store:
    agent = make(store, stuck)
    agent.session("s1").submit("Go")
    blocking.Worker(agent).run()
""",
}
RESUMED = """
with blocking.open_store("sqlite:agent.db") as store:
    session = make(store, free).session("s1")
    pending = session.pending()
    say(pending.status, pending.owner)
    say(session.resume().text)
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for one process")
@pytest.mark.parametrize("name", INTERRUPTED)
def test_ctrl_c_leaves_the_turn_pending_and_another_process_resumes_it(name: str, tmp_path: Path) -> None:
    process = start(INTERRUPTED[name], tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    code, said, told = finish(process)
    assert (code, said) == (-signal.SIGINT, [])
    assert told.splitlines()[-1] == "KeyboardInterrupt", told
    assert finish(start(RESUMED, tmp_path)) == (0, ["in-progress None", "Done."], "")


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for one process")
def test_an_interrupt_that_is_caught_leaves_everything_usable(tmp_path: Path) -> None:
    script = """
with blocking.open_store("sqlite:agent.db") as store:
    session = make(store, stuck).session("s1")
    try:
        session.send("Go")
    except KeyboardInterrupt:
        say(session.pending().owner)
    say(make(store, free).session("s1").resume().text)
"""
    process = start(script, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGINT)
    assert finish(process) == (0, ["None", "Done."], "")


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for one process")
def test_a_second_ctrl_c_does_not_wait_for_a_tool_that_will_not_be_cancelled(tmp_path: Path) -> None:
    script = """
@tool(name="stuck")
async def stubborn() -> str:
    while True:
        say("stuck")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

store = blocking.open_store("sqlite:agent.db")
make(store, stubborn).session("s1").send("Go")
"""
    process = start(script, tmp_path)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGINT)
    code, _, told = finish(process)
    assert (code, told.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals")
def test_what_a_signal_handler_raises_cancels_the_call_too(tmp_path: Path) -> None:
    """As the time limits of task queues do."""
    script = """
class TooLong(Exception):
    pass

def handle(*_):
    raise TooLong

signal.signal(signal.SIGUSR1, handle)
with blocking.open_store("sqlite:agent.db") as store:
    session = make(store, stuck).session("s1")
    try:
        session.send("Go")
    except TooLong:
        say(session.pending().owner)
"""
    process = start(script, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGUSR1)
    assert finish(process) == (0, ["None"], "")


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals")
def test_a_signal_handler_stops_a_worker(tmp_path: Path) -> None:
    script = """
with blocking.open_store("sqlite:agent.db") as store:
    agent = make(store, stuck)
    session = agent.session("s1")
    session.submit("Go")
    worker = blocking.Worker(agent)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
    say(session.pending().owner)
"""
    process = start(script, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process) == (0, ["None"], "")


LEFT = {
    "a store": "store.sessions.append('s', [])",
    "a detached turn": """
with make(store, stuck).session("s1").stream("Go") as run:
    next(run), next(run), next(run)
    run.detach()
""",
    "a stream": """
run = make(store, stuck).session("s1").stream("Go").__enter__()
next(run), next(run), next(run)
""",
    "a tool in a thread": """
run = make(store, stuck_in_thread).session("s1").stream("Go").__enter__()
next(run), next(run), next(run)
""",
    "a thread": """
agent = make(store, stuck)
threading.Thread(target=agent.session("s1").send, args=("Go",), daemon=True).start()
""",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_open_does_not_keep_the_process_alive(name: str, tmp_path: Path) -> None:
    code, said, told = finish(start('store = blocking.open_store("sqlite:agent.db")\n' + LEFT[name], tmp_path))
    assert code == 0, told
    assert set(said) <= {"stuck"}
    if name in ("a detached turn", "a stream", "a tool in a thread"):
        assert told == ""
        assert finish(start(RESUMED, tmp_path)) == (0, ["in-progress None", "Done."], "")


AT_SHUTDOWN = {
    "a stream in a generator": (
        """
session = make(store, stuck).session("s1")

def events():
    with session.stream("Go") as run:
        yield from run

shown = events()
next(shown)
""",
        [],
    ),
    "a store in a generator": (
        """
def opened():
    with blocking.open_store("sqlite:agent.db") as store:
        yield store

store = next(kept := opened())
""",
        [],
    ),
    "a call, a property and a plain method": (
        """
class Late:
    def __del__(self):
        for call in (session.load, lambda: session.messages, lambda: agent.session("s2"), store.close):
            try:
                call()
            except blocking.BlockingCallError as error:
                say(error)

agent = make(store, stuck)
session = agent.session("s1")
session.messages
store.close()
late = Late()
""",
        [
            f"{call} cannot wait here: the interpreter is shutting down"
            for call in ("Session.load", "Session.messages", "Agent.session", "AgentStore.close")
        ],
    ),
}


@pytest.mark.parametrize("name", AT_SHUTDOWN)
def test_what_comes_while_the_interpreter_shuts_down_does_not_hang(name: str, tmp_path: Path) -> None:
    script, said = AT_SHUTDOWN[name]
    ended = finish(start('store = blocking.open_store("sqlite:agent.db")\n' + script, tmp_path))
    assert ended == (0, said, "")


def test_the_first_call_of_all_while_the_interpreter_shuts_down_is_refused(tmp_path: Path) -> None:
    script = """
class Late:
    def __del__(self):
        try:
            blocking.open_store("sqlite:agent.db")
        except blocking.BlockingCallError as error:
            say(error)

late = Late()
"""
    said = ["The first blocking call cannot wait here: the interpreter is shutting down"]
    assert finish(start(script, tmp_path)) == (0, said, "")
