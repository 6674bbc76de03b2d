"""The service as it is deployed: two web processes and a worker, which share a store and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from problems import STATUSES, problem_of, status_of

from perdure import errors

HERE = Path(__file__).parent


class Web:
    """A web process."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                "uvicorn",
                "service:app",
                "--port",
                "0",
            ],
            cwd=HERE,
            env=os.environ | {"PERDURE_STORE": f"sqlite:{folder / 'service.db'}"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self.said = ""
        addresses: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, args=(addresses,))
        self._reader.start()
        address = addresses.get(timeout=60)
        assert address, self.said
        self.client = httpx.Client(base_url=address, timeout=60)

    def _read(self, addresses: Queue[str]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"running on (http://\S+)", line):
                addresses.put(found[1])
        addresses.put("")

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(60)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.client.close()
        return ended


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def webs(folder: Path) -> Iterator[list[Web]]:
    webs = [Web(folder)]
    webs.append(Web(folder))
    yield webs
    for web in webs:
        if web.process.poll() is None:
            web.end()


@pytest.fixture(scope="module", autouse=True)
def worker(folder: Path) -> Iterator[None]:
    command = [
        str(Path(sys.executable).with_name("perdure")),
        "worker",
        "support:agent",
        "--poll",
        "0.2",
        "--slow-poll",
        "1",
    ]
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=os.environ | {"PERDURE_STORE": f"sqlite:{folder / 'service.db'}", "PACE": "0"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, (folder / "worker.log").read_text()


@pytest.fixture
def one(webs: list[Web]) -> httpx.Client:
    return webs[0].client


@pytest.fixture
def other(webs: list[Web]) -> httpx.Client:
    return webs[1].client


def submitted(client: httpx.Client, session: str, text: str, input_id: str = "i1") -> str:
    answer = client.post(f"/sessions/{session}/inputs", json={"text": text, "input_id": input_id})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def waited(client: httpx.Client, session: str, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/sessions/{session}/runs/{run_id}", params={"wait": 30}).json()
    return found


def texts(client: httpx.Client, session: str) -> list[str]:
    return [message["text"] for message in client.get(f"/sessions/{session}/messages").json()]


ENDLESS = "count 100000"
"""What goes on until it is stopped, however slow the machine is."""

Event = tuple[str, dict[str, Any]]


def events(lines: Iterator[str]) -> Iterator[Event]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def begun(client: httpx.Client, session: str, text: str, on_leave: str = "hand-over") -> Any:
    return client.stream(
        "POST", f"/sessions/{session}/stream", params={"on_leave": on_leave}, json={"text": text, "input_id": "i1"}
    )


def left_in_the_middle(client: httpx.Client, session: str, on_leave: str, text: str = "count 60") -> str:
    """Begin a turn, leave after a few words, and return its run id."""
    with begun(client, session, text, on_leave) as answer:
        for name, facts in events(answer.iter_lines()):
            if name == "text.delta" and facts["text"].strip() == "3":
                return str(facts["run_id"])
    raise AssertionError("it ended before")


def test_an_input_that_is_submitted_twice_is_taken_once_and_a_worker_answers_it(
    one: httpx.Client, other: httpx.Client
) -> None:
    run_id = submitted(one, "ann", "hello")
    assert submitted(other, "ann", "hello") == run_id
    assert waited(other, "ann", run_id) == {"status": "done", "finish_reason": "stop", "text": "You said: hello"}
    assert submitted(one, "ann", "hello") == run_id
    assert texts(one, "ann") == ["hello", "You said: hello"]
    assert one.get("/health").json() == {"status": "ok"}


def test_a_stream_tells_what_happens_and_another_process_is_told_to_wait(
    one: httpx.Client, other: httpx.Client
) -> None:
    with begun(one, "bob", "count 5") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = list(events(answer.iter_lines()))
    assert [name for name, _ in told][:2] == ["run.started", "text.delta"]
    assert "".join(facts["text"] for name, facts in told if name == "text.delta") == "1 2 3 4 5"
    assert [facts["finish_reason"] for name, facts in told if name == "run.done"] == ["stop"]
    with begun(other, "bob", "count 5") as again:  # the same input: its result, and no second turn
        assert [name for name, _ in events(again.iter_lines())] == ["run.done"]

    with begun(one, "busy", ENDLESS, "abort") as answer:
        coming = events(answer.iter_lines())
        assert next(coming)[0] == "run.started"
        refused = other.post("/sessions/busy/stream", json={"text": "me too", "input_id": "i2"})
        assert (refused.status_code, refused.headers["retry-after"]) == (409, "1")
        assert refused.headers["content-type"] == "application/problem+json"
        assert (refused.json()["title"], refused.json()["retryable"]) == ("SessionBusyError", True)


def test_a_decision_may_come_by_any_process(one: httpx.Client, other: httpx.Client) -> None:
    run_id = submitted(one, "cleo", "refund 7 80")
    standing = waited(one, "cleo", run_id)
    assert standing["status"] == "awaiting-approval"
    (asked,) = other.get("/approvals", params={"session_id": "cleo"}).json()["approvals"]
    assert (asked["id"], asked["arguments"]) == (standing["approval_ids"][0], {"order": 7, "euros": 80})
    refused = one.post("/sessions/cleo/stream", json={"text": "well?", "input_id": "i2"})
    assert (refused.status_code, refused.json()["approval_ids"]) == (409, [asked["id"]])

    yes = {"approved": True, "arguments": {"order": 7, "euros": 60}, "decided_by": "eve"}
    wrong = other.post(f"/approvals/{asked['id']}", json=yes | {"arguments": {"order": "seven"}})
    assert (wrong.status_code, wrong.json()["title"]) == (422, "InvalidArgumentError")
    decided = other.post(f"/approvals/{asked['id']}", json=yes)
    assert (decided.status_code, decided.json()["status"]) == (200, "approved")
    assert one.post(f"/approvals/{asked['id']}", json=yes).json() == decided.json()
    late = one.post(f"/approvals/{asked['id']}", json={"approved": False, "decided_by": "mallory"})
    assert (late.status_code, late.json()["title"]) == (409, "ApprovalAlreadyResolvedError")
    assert waited(one, "cleo", run_id)["text"] == "order 7: 60 euros were refunded"
    assert other.get("/approvals", params={"session_id": "cleo"}).json()["approvals"] == []


def test_a_client_that_leaves_says_what_becomes_of_its_turn(one: httpx.Client, other: httpx.Client) -> None:
    whole, longer = (" ".join(map(str, range(1, last + 1))) for last in (60, 400))
    handed_over = left_in_the_middle(one, "hand-over", "hand-over", "count 400")
    finished = left_in_the_middle(one, "finish", "finish")
    dropped = left_in_the_middle(one, "abort", "abort", ENDLESS)
    assert waited(other, "hand-over", handed_over)["text"] == longer
    assert waited(other, "finish", finished)["text"] == whole
    # Dropped by the process that ran it, at its own pace: until then it is in progress.
    while (answer := other.get(f"/sessions/abort/runs/{dropped}")).status_code != 404:
        assert answer.json()["status"] != "done"
    assert texts(other, "abort") == []


def test_what_is_wrong_has_a_status_and_a_hint(one: httpx.Client) -> None:
    bad = one.post("/sessions/no%20such%20id/inputs", json={"text": "hi", "input_id": "i1"})
    assert (bad.status_code, bad.json()["title"], bad.json()["hint"] != "") == (422, "InvalidIdError", True)
    assert one.post("/sessions/dan/inputs", json={"text": "hi"}).status_code == 422
    assert one.get("/sessions/dan/runs/dan.turn-1").status_code == 404
    assert one.post("/approvals/dan.turn-1.s0.c0", json={"approved": True, "decided_by": "eve"}).status_code == 404
    assert submitted(one, "dan", "hi").startswith("dan.turn-")


def test_a_turn_that_fails_is_an_event_and_can_be_dropped(one: httpx.Client, other: httpx.Client) -> None:
    with begun(one, "fay", "refund seven 80") as answer:  # the model cannot read that number
        *_, (name, problem) = events(answer.iter_lines())
    assert (name, problem["status"], problem["detail"]) == ("error", 500, "something went wrong")
    while (dropped := other.delete("/sessions/fay/pending")).status_code == 409:  # a worker tries it right now
        assert dropped.json()["retryable"]
    assert (dropped.status_code, texts(one, "fay")) == (204, [])
    assert one.delete("/sessions/fay").status_code == 204
    assert one.get("/sessions/fay/messages").json() == []


def test_every_error_has_the_status_of_its_kind() -> None:
    assert status_of(errors.SessionBusyError("s")) == 409
    assert status_of(errors.StoreUnavailableError("append", "s", "away")) == 503
    assert status_of(errors.PropagatingToolError("the bank is closed")) == 502
    assert status_of(errors.StoreCorruptedError("s", "secret: hunter2")) == 500
    assert "hunter2" not in json.dumps(problem_of(errors.StoreCorruptedError("s", "secret: hunter2")))
    assert all(issubclass(kind, errors.PerdureError) for kind in STATUSES)


def test_a_process_that_is_stopped_hands_its_turns_to_a_worker(webs: list[Web]) -> None:
    leaving, staying = webs
    told: list[Event] = []
    with begun(leaving.client, "gus", "count 400", "abort") as answer:
        for event in events(answer.iter_lines()):
            told.append(event)
            if event[1].get("text") == " 3":
                leaving.process.send_signal(signal.SIGTERM)
    assert told[-1][0] == "handed-over"
    run_id = told[0][1]["run_id"]
    leaving.end()
    assert "Finished server process" in leaving.said
    assert waited(staying.client, "gus", run_id)["text"] == " ".join(map(str, range(1, 401)))
    assert "Traceback" not in staying.said + leaving.said
