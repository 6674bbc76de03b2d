"""Real worker processes on SQLite and on a Redis server: killed at random, stopped, poisoned, and cut off from the store."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from core.tests.worker_processes import HERE, Field, all_ended, chaos, field_of, heads, submitted, verify
from plugins.redis.tests.servers import Server

from perdure.cli.agent_target import AgentTargetError, load_agent


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, which may be killed right after a write that it has acknowledged."""
    started = Server(tmp_path / "server", options={"appendfsync": "always"}).start()
    yield started
    started.kill()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Field]:
    with field_of(f"sqlite:{tmp_path / 'agent.db'}", tmp_path) as made:
        yield made


@pytest.fixture
def redis(server: Server, tmp_path: Path) -> Iterator[Field]:
    with field_of(server.url, tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "redis"])
def any_field(request: pytest.FixtureRequest) -> Field:
    made: Field = request.getfixturevalue(request.param)
    return made


def names_of(number: int) -> list[str]:
    return [f"s{place:03}" for place in range(number)]


def test_workers_that_are_killed_finish_every_turn_once(any_field: Field) -> None:
    runs = submitted(any_field.url, names_of(40))
    chaos(any_field, workers=2, kills=3, lines=60, seed=7)
    all_ended(any_field, runs)
    verify(any_field, runs)
    assert not [line for line in any_field.drained() if "set aside" in line or "turn failed" in line]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_many_workers_that_are_killed_finish_every_turn_once(any_field: Field, seed: int) -> None:
    runs = submitted(any_field.url, names_of(500))
    chaos(any_field, workers=4, kills=25, lines=800, seed=seed)
    all_ended(any_field, runs)
    verify(any_field, runs)
    assert not [line for line in any_field.drained() if "set aside" in line or "turn failed" in line]


def test_a_signal_gives_the_leases_back(any_field: Field) -> None:
    names = names_of(3)
    submitted(any_field.url, names, "hang")
    worker = any_field.start()
    any_field.attempted(3)
    assert all(owner is not None for _, owner, _ in heads(any_field.url, names).values())
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert heads(any_field.url, names) == dict.fromkeys(names, ("in-progress", None, 1))
    any_field.until("worker stopped")
    for name in names:
        assert any(f"turn taken session_id={name} " in line for line in any_field.lines)


def test_a_second_signal_ends_it_at_once(sqlite: Field) -> None:
    submitted(sqlite.url, ["s"], "block")
    worker = sqlite.start()
    sqlite.attempted(1)
    worker.signal(signal.SIGTERM)
    sqlite.until("worker stopped")  # a thread of a tool keeps the process alive, and cannot be cancelled
    assert heads(sqlite.url, ["s"]) == {"s": ("in-progress", None, 1)}
    worker.signal(signal.SIGTERM)
    assert worker.end() == 128 + signal.SIGTERM


def test_a_turn_that_ends_its_process_is_set_aside_and_the_others_are_finished(sqlite: Field) -> None:
    poison = submitted(sqlite.url, ["poison"], "die")
    runs = submitted(sqlite.url, names_of(6))
    for _ in range(3):  # the first life asked the model, which is progress
        assert sqlite.start("--max-attempts", "2").end() == 1
    worker = sqlite.start("--max-attempts", "2")
    sqlite.until("turn set aside session_id=poison")
    assert "attempts=3" in sqlite.lines[-1]
    assert "reason=max-attempts" in sqlite.lines[-1]
    all_ended(sqlite, runs)
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0
    assert heads(sqlite.url, ["poison"])["poison"][2] == 3
    key = f"{poison['poison']}.s0.c0"
    assert sqlite.attempts().count(key) == 3
    (sqlite.effects / key).unlink()
    lines = [line for line in sqlite.attempts() if line != key]
    (sqlite.effects / "attempts").write_text("\n".join(lines) + "\n")
    verify(sqlite, runs)


def test_a_server_that_goes_away_delays_the_worker(redis: Field, server: Server) -> None:
    first = submitted(redis.url, names_of(10))
    redis.start()
    redis.until("turn finished", 3)
    server.kill()
    redis.until("turns cannot be listed")
    server.start()
    second = submitted(redis.url, [f"later{number}" for number in range(10)])
    all_ended(redis, first | second)
    verify(redis, first | second)
    assert not [line for line in redis.drained() if "set aside" in line]


def test_a_worker_waits_for_a_server_that_is_away_when_it_starts(redis: Field, server: Server) -> None:
    runs = submitted(redis.url, ["s"])
    server.kill()
    redis.start()
    redis.until("the store cannot be opened")
    server.start()
    redis.until("turn finished session_id=s")
    verify(redis, runs)


def test_a_signal_stops_a_worker_that_waits_for_its_store(redis: Field, server: Server) -> None:
    server.kill()
    worker = redis.start()
    redis.until("the store cannot be opened")
    worker.signal(signal.SIGTERM)
    assert worker.end() == 0


# --- the command line ---


@pytest.mark.parametrize("target", ["worker_agent:make", "worker_agent:with_store"])
def test_an_agent_may_be_made_by_a_function(sqlite: Field, target: str) -> None:
    runs = submitted(sqlite.url, ["s"])
    worker = sqlite.start(target=target, store=not target.endswith("with_store"))
    sqlite.until("turn finished session_id=s")
    worker.signal(signal.SIGINT)
    assert worker.end() == 0
    verify(sqlite, runs)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere:agent", "there is no module 'nowhere'"),
        ("worker_agent.deeper:agent", "there is no module 'worker_agent.deeper'"),
        ("imports_nothing:agent", "imports_nothing cannot be imported: ModuleNotFoundError: No module named 'nothing'"),
        ("is_broken:agent", "is_broken cannot be imported: SyntaxError"),
        ("worker_agent:nothing", "worker_agent has no attribute 'nothing'"),
        ("worker_agent:agent.nothing", "worker_agent has no attribute 'agent.nothing'"),
        ("worker_agent:STEPS", "it is a int, not an Agent"),
        ("worker_agent:pay", "it is a Tool, not an Agent"),
        ("worker_agent:_happen", "it is a function that needs arguments"),
        ("worker_agent", "it must read module:attribute"),
        ("worker_agent:", "it must read module:attribute"),
        (":agent", "it must read module:attribute"),
        ("worker_agent:broken", "it raised RuntimeError: it cannot be made"),
    ],
)
async def test_what_is_no_agent_is_said(
    target: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_nothing.py").write_text("import nothing")
    (tmp_path / "is_broken.py").write_text("is broken")
    (tmp_path / "worker_agent.py").write_text((HERE / "worker_agent.py").read_text("utf-8"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentTargetError) as refused:
        await load_agent(target)
    assert says in str(refused.value)
    assert (refused.value.target, refused.value.retryable) == (target, False)
    assert pickle.loads(pickle.dumps(refused.value)).problem == refused.value.problem
    sys.modules.pop("worker_agent", None)


@pytest.mark.parametrize(
    ("target", "option", "says"),
    [
        (
            "worker_agent:broken",
            [],
            "'worker_agent:broken' names no agent: it raised RuntimeError: it cannot be made. Name",
        ),
        ("worker_agent:agent", ["--poll", "nan"], "--poll must be a number of seconds"),
        ("worker_agent:agent", ["--store", "nosuch:x"], "nosuch"),
        ("worker_agent:agent", [], "store is missing"),
    ],
)
def test_a_mistake_on_the_command_line_is_said_in_one_line(
    sqlite: Field, target: str, option: list[str], says: str
) -> None:
    assert sqlite.start(*option, target=target, store=False).end() == 2
    line = sqlite.drained()[-1]
    assert line.startswith("perdure worker: ")
    assert says in line
