"""Real processes on one SQLite file: killed at any point, rivals for one turn, and owners that live or are dead."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from core.tests.processes import another, dead

from perdure import Agent, AgentStore, Message, ToolCall, open_store, tool
from perdure.models import ScriptedModel
from perdure_conformance.interception import Died, at

CHILD = Path(__file__).with_name("turn_process.py")
ROUNDS = 20
_rounds = itertools.count(1)  # a byte holds them: a dozen tests of 20
PAY: list[Any] = [[ToolCall(id="c1", name="pay", arguments={"to": "ann"})], "Paid."]
WIRE: list[Any] = [[ToolCall(id="c1", name="wire", arguments={"to": "ann"})], "Wired."]


class Child:
    """A process at the other end of two pipes."""

    def __init__(self, barrier: str = "") -> None:
        self.directory = Path()
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), barrier], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert "ready" in self.read()

    def read(self) -> dict[str, Any]:
        """Return the next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait()}"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def tell(self, **command: Any) -> None:
        """Tell it what to do, or to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command | {"directory": str(self.directory)}) + "\n")
        self.process.stdin.flush()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Tell it what to do, and return what it says next."""
        self.tell(**command)
        return self.read()

    def run_to(self, point: str, **command: Any) -> list[str]:
        """Let it go on up to a point; return the points that it passed, without that one if it never came there."""
        passed: list[str] = []
        said = self.ask(**command, watched=True)
        while "at" in said:
            passed.append(said["at"])
            if said["at"] == point:
                break
            said = self.ask()
        else:
            assert "answer" in said, said
        return passed

    def kill(self) -> None:
        """Kill it as `kill -9` does, and return when it is dead; until `end` it is a zombie."""
        self.process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        """Have it end, and take its exit code."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process.wait()


@contextlib.contextmanager
def child(directory: Path) -> Iterator[Child]:
    """A process that the block may kill."""
    started = Child()
    started.directory = directory
    try:
        yield started
    finally:
        if sys.exc_info()[0] is not None:
            started.kill()
        started.end()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, Child]]:
    """Two processes that live as long as the module, since a start takes longer than all else."""
    barrier = tmp_path_factory.mktemp("barrier") / "places"
    barrier.write_bytes(b"\0\0")
    pair = Child(str(barrier)), Child(str(barrier))
    yield pair
    for process in pair:
        process.end()


@pytest.fixture
def pair(processes: tuple[Child, Child], tmp_path: Path) -> tuple[Child, Child]:
    """Two processes at the test's own files."""
    for process in processes:
        process.directory = tmp_path
    return processes


@pytest.fixture
def finisher(pair: tuple[Child, Child]) -> Child:
    """A process at the test's own files, which is not to be killed."""
    return pair[0]


def at_once(pair: tuple[Child, Child], *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """Let both processes do something at the same instant; return what they say."""
    number = next(_rounds)
    for place, (process, command) in enumerate(zip(pair, commands, strict=True)):
        process.tell(**command, round=number, place=place)
    return [process.read() for process in pair]


def effects(directory: Path) -> list[str]:
    """Return what the tools of all processes have done."""
    file = directory / "effects"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def contents(directory: Path, session: str = "s1") -> tuple[list[Message], str]:
    """Return the messages of a transcript, and the status of the turn journal."""

    async def read() -> tuple[list[Message], str]:
        async with open_store(f"sqlite:{directory / 'agent.db'}") as store:
            transcript, turn = await store.sessions.load(session), await store.checkpoints.load(session)
        assert transcript is not None
        assert turn is not None
        return [Message.from_record(record["message"]) for record in transcript.records], turn.head.status

    return asyncio.run(read())


def check_whole(directory: Path, session: str = "s1", last: str = "Paid.") -> None:
    """Check that the turn is in the transcript once and whole, and that nothing is pending."""
    messages, status = contents(directory, session)
    assert [(message.role, message.text) for message in messages] == [
        ("user", "Go."),
        ("assistant", ""),
        ("tool", "paid ann"),
        ("assistant", last),
    ]
    assert (messages[1].tool_calls[0].id, messages[2].tool_call_id, messages[2].is_error) == ("c1", "c1", False)
    assert status == "idle"


# --- kill -9 ---

TURN = [
    *("before write 1", "after write 1"),  # the session is created
    *("before write 2", "after write 2"),  # input
    *("before write 3", "after write 3"),  # the response
    *("before write 4", "after write 4"),  # tool-started
    *("before the effect", "after the effect"),
    *("before write 5", "after write 5"),  # the result
    *("before write 6", "after write 6"),  # the last response
    *("before write 7", "after write 7"),  # the commit
]
STEPS = [*TURN, "before write 8", "after write 8", "before write 9", "after write 9"]  # finished, transcript, close
OFTEN = (
    *((False, point) for point in ("after write 4", "after the effect", "after write 5", "after write 7")),
    (True, "before write 9"),
)
POINTS = [
    pytest.param(steps, point, marks=() if (steps, point) in OFTEN else (pytest.mark.soak,))
    for steps, points in ((False, TURN), (True, STEPS))
    for point in points
]


@pytest.mark.parametrize(("steps", "point"), POINTS)
def test_a_turn_that_is_killed_is_finished_by_another_process(
    steps: bool, point: str, tmp_path: Path, finisher: Child
) -> None:
    with child(tmp_path) as killed:
        passed = killed.run_to(point, do="send", policy="rerun", steps=steps)
        assert passed[-1] == point
        killed.kill()
    done = effects(tmp_path)
    resumed = finisher.ask(do="resume", policy="rerun", steps=steps)
    sent = finisher.ask(do="send", policy="rerun", steps=steps)
    assert (resumed["answer"] is not None) == ("after write 2" in passed and passed != (STEPS if steps else TURN))
    assert sent["answer"]["text"] == "Paid."
    check_whole(tmp_path)
    keys = [line.split()[0] for line in effects(tmp_path)]
    assert len(set(keys)) == 1
    recorded = "after write 5" in passed
    assert len(keys) == len(done) + (not recorded), effects(tmp_path)
    attempts = [int(line.split()[1]) for line in effects(tmp_path)]
    started = "after write 4" in passed
    assert attempts == [*([1] if done else []), *([] if recorded else [2 if started else 1])]


def test_every_point_is_known(tmp_path: Path, finisher: Child) -> None:
    for steps, points in ((False, TURN), (True, STEPS)):
        finisher.directory = tmp_path / str(steps)
        finisher.directory.mkdir()
        assert finisher.run_to("", do="send", steps=steps) == points


def test_a_call_that_was_killed_after_its_effect_is_never_silently_repeated(tmp_path: Path, finisher: Child) -> None:
    killed_at = tmp_path / "killed"
    killed_at.mkdir()
    with child(killed_at) as killed:
        killed.run_to("after the effect", do="send")
        killed.kill()
    resumed: dict[str, dict[str, Any]] = {}
    for policy in ("fail", "ask", ""):
        finisher.directory = shutil.copytree(killed_at, tmp_path / f"policy {policy}")
        resumed[policy] = finisher.ask(do="resume", policy=policy or None)
        assert len(effects(finisher.directory)) == 1
    assert resumed[""]["error"] == "ToolOutcomeUnknownError"
    assert resumed["ask"]["answer"]["finish_reason"] == "awaiting-approval"
    assert resumed["ask"]["answer"]["approval_ids"][0].endswith(".s0.c0.d1")
    assert resumed["fail"]["answer"]["messages"][2]["is_error"]
    assert resumed["fail"]["answer"]["text"] == "Paid."


# --- who lives and who is dead ---


def test_a_live_owner_is_refused_and_a_killed_one_taken_over_at_once(tmp_path: Path, pair: tuple[Child, Child]) -> None:
    rival = pair[0]
    with child(tmp_path) as owner:
        owner.run_to("before the effect", do="send", policy="rerun")
        for call in ("resume", "send", "discard_pending", "clear"):
            assert rival.ask(do=call, policy="rerun")["error"] == "SessionBusyError", call
        pending = rival.ask(do="pending")["answer"]
        assert pending["status"] == "in-progress"
        assert f"/{owner.process.pid}/" in pending["owner"]
        owner.kill()
        owner.process.poll()
        assert rival.ask(do="resume", policy="rerun")["answer"]["text"] == "Paid."
    check_whole(tmp_path)
    assert [line.split()[1:] for line in effects(tmp_path)] == [["2", "ann"]]


def test_a_zombie_is_dead(tmp_path: Path, finisher: Child) -> None:
    with child(tmp_path) as owner:
        owner.run_to("after write 3", do="send")
        owner.kill()  # and nobody takes its exit code
        stat = Path(f"/proc/{owner.process.pid}/stat")
        while stat.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z":
            pass
        assert finisher.ask(do="resume")["answer"]["text"] == "Paid."
    check_whole(tmp_path)


# --- two processes at once ---


def pending_turns(directory: Path, *, asked: bool) -> list[str]:
    """Leave turns behind: killed before they start their tool, or waiting for a decision; return their approvals."""

    async def leave() -> list[str]:
        ids: list[str] = []
        async with open_store(f"sqlite:{directory / 'agent.db'}?synchronous=normal") as store:
            for number in range(ROUNDS):
                dying = another(store, None if asked else at(4, "die-before"), process=dead())
                with contextlib.suppress(Died):
                    result = await agent_of(dying, asked=asked).session(f"s{number}").send("Go.", input_id="i1")
                    ids.extend(result.approval_ids)
        return ids

    return asyncio.run(leave())


def agent_of(store: AgentStore, *, asked: bool) -> Agent:
    async def never(to: str) -> str:
        raise AssertionError(to)

    tools = [tool(name="pay")(never), tool(name="wire", needs_approval=True)(never)]
    return Agent(model=ScriptedModel(WIRE if asked else PAY), tools=tools, store=store)


def test_two_processes_that_resume_at_once_run_each_tool_once(tmp_path: Path, pair: tuple[Child, Child]) -> None:
    pending_turns(tmp_path, asked=False)
    told: Counter[str] = Counter()
    for number in range(ROUNDS):
        command = {"do": "resume", "session": f"s{number}"}
        answers = at_once(pair, command, command)
        texts = [
            said["answer"]["text"] if said.get("answer") else said.get("error", "nothing left") for said in answers
        ]
        assert "Paid." in texts
        assert set(texts) <= {"Paid.", "SessionBusyError", "nothing left"}, texts
        told.update(texts)
        check_whole(tmp_path, f"s{number}")
    done = [line.split() for line in effects(tmp_path)]
    assert len(done) == len({key for key, *_ in done}) == ROUNDS, told
    assert {attempt for _, attempt, _ in done} == {"1"}


def test_two_processes_that_decide_at_once_make_one_decision(tmp_path: Path, pair: tuple[Child, Child]) -> None:
    ids = pending_turns(tmp_path, asked=True)
    for number, approval_id in enumerate(ids):
        yes: dict[str, Any] = {"approved": True, "decided_by": "ann"}
        no: dict[str, Any] = {"approved": False, "decided_by": "bob"}
        rival = yes | {"decided_by": "bob"} if number % 2 else no
        command = {"do": "decide", "id": approval_id, "asked": True}
        answers = at_once(pair, command | {"decision": yes}, command | {"decision": rival})
        decided = [said["answer"] for said in answers if "answer" in said]
        refused = [said["error"] for said in answers if "error" in said]
        if rival is no:
            assert len(decided) == 1
            assert refused == ["ApprovalAlreadyResolvedError"]
        else:
            assert decided == ["approved", "approved"]
        again = yes if decided[0] == "approved" else no
        assert pair[0].ask(**command, decision=again)["answer"] == decided[0]
    assert effects(tmp_path) == []


def test_two_processes_that_resolve_at_once_run_the_tool_once(tmp_path: Path, pair: tuple[Child, Child]) -> None:
    ids = pending_turns(tmp_path, asked=True)
    approved = 0
    for number, approval_id in enumerate(ids):
        command = {"do": "resolve", "id": approval_id, "asked": True, "session": f"s{number}"}
        same = number % 2 == 0
        yes, other = {"decision": {"approved": True}}, {"decision": {"approved": same}}
        answers = at_once(pair, command | yes, command | other)
        reasons = [said["answer"]["finish_reason"] if "answer" in said else said["error"] for said in answers]
        assert "stop" in reasons
        assert set(reasons) <= {"stop", "awaiting-approval" if same else "ApprovalAlreadyResolvedError"}, reasons
        assert same or len(set(reasons)) == 2
        messages, status = contents(tmp_path, f"s{number}")
        assert status == "idle"
        assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
        approved += messages[2].text == "paid ann"
        assert len(effects(tmp_path)) == approved
    assert approved >= ROUNDS // 2
