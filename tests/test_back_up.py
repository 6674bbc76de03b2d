"""The ways to back up that docs/how-to/back-up.md names, carried out while a store is written to, and restored from."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from core.tests.command_line import Perdure
from core.tests.moving_world import CALLS, RAN, agent, differences, everything, fill
from plugins.redis.tests.servers import Server

from perdure import AgentStore, open_store
from perdure.errors import SessionAwaitingApprovalError

pytestmark = pytest.mark.anyio
SCRIPT = ["Hello.", *CALLS["decided"]]


@asynccontextmanager
async def writing(store: AgentStore) -> AsyncIterator[None]:
    """Append to the session `busy` for as long as the block runs: two records at a time, and their number as its state."""

    async def write() -> None:
        for number in itertools.count(1):
            records = [{"n": 2 * number - 1}, {"n": 2 * number}]
            await store.sessions.append("busy", records, state={"count": 2 * number})
            begun.set()

    begun = asyncio.Event()
    writer = asyncio.create_task(write())
    await begun.wait()
    yield
    writer.cancel()
    await asyncio.wait([writer])


async def hold_whole(url: str, expected: dict[str, Any]) -> None:
    """A restored store holds all that nobody wrote to, of the busy session whole writes, and can be worked with."""
    async with open_store(url) as store:
        busy = await store.sessions.load("busy")
        assert busy is not None
        assert [record["n"] for record in busy.records] == list(range(1, busy.state["count"] + 1))
        held = await everything(store)
        assert differences({name: held[name] for name in expected}, expected) == []
        assert (await agent(store).session("talk").send("still there?")).text == "heard still there?"
    Perdure(Path("/")).json("doctor", url, code=0)


# --- SQLite ---


def by_the_backup_api(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def by_vacuum_into(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source:
        source.execute("VACUUM INTO ?", (str(copy),))


def by_the_shell(database: Path, copy: Path) -> None:
    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("this machine has no sqlite3")
    subprocess.run([shell, str(database), f".backup {copy}"], check=True, timeout=60)


@pytest.mark.parametrize("back_up", [by_the_backup_api, by_vacuum_into, by_the_shell])
async def test_a_database_is_backed_up_while_it_is_written_to(
    back_up: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    database, copy = tmp_path / "agent.db", tmp_path / "copy.db"
    async with open_store(f"sqlite:{database}") as store:
        await fill(store)
        expected = await everything(store)
        async with writing(store):
            await asyncio.to_thread(back_up, database, copy)
        await store.sessions.append("later", [{"n": 1}])
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for end in ("", "-wal", "-shm"):
            shutil.copy(f"{database}{end}", crashed)
    (crashed / "agent.db-wal").unlink()
    (crashed / "agent.db-shm").unlink()
    shutil.copy(copy, crashed / "agent.db")
    await hold_whole(f"sqlite:{crashed / 'agent.db'}", expected)


async def test_a_plain_copy_of_an_open_database_lacks_what_came_last(tmp_path: Path) -> None:
    async with open_store(f"sqlite:{tmp_path / 'agent.db'}") as store:
        await store.sessions.append("last", [{"n": 1}])
        shutil.copy(tmp_path / "agent.db", tmp_path / "copy.db")
    async with open_store(f"sqlite:{tmp_path / 'copy.db'}") as copied:
        assert await copied.sessions.load("last") is None


# --- file ---


def by_cp(directory: Path, copy: Path) -> None:
    subprocess.run(["cp", "-a", directory, copy], check=True, timeout=60)


async def test_a_directory_is_copied_while_it_is_written_to(tmp_path: Path) -> None:
    conversations, copy = tmp_path / "conversations", tmp_path / "backup"
    async with open_store(f"file:{conversations}") as store:
        await fill(store)
        expected = await everything(store)
        async with writing(store):
            await asyncio.to_thread(by_cp, conversations, copy)
    await hold_whole(f"file:{copy}", expected)


async def test_files_of_different_moments_make_a_store_that_works(tmp_path: Path) -> None:
    """Whenever each kind of file was copied in the life of a turn: the conversation goes on, and the tool runs once at the most."""
    moments = await _moments(tmp_path)
    for number, parts in enumerate(itertools.product(moments, repeat=3)):
        mixed = tmp_path / f"mixed-{number}"
        for moment, part in zip(parts, ("approvals", "runs", "sessions"), strict=True):
            if (moment / "default" / part).exists():
                shutil.copytree(moment / "default" / part, mixed / "default" / part)
        async with open_store(f"file:{mixed}") as store:
            await _goes_on(store)


async def _moments(folder: Path) -> list[Path]:
    """Return copies of a directory before a turn that asks, while it waits, and when it is over."""
    moments: list[Path] = []

    def copy() -> None:
        moments.append(Path(shutil.copytree(folder / "live", folder / f"moment-{len(moments)}")))

    async with open_store(f"file:{folder / 'live'}") as store:
        await agent(store, SCRIPT).session("s").send("hello")
        copy()
        asked = await agent(store, SCRIPT).session("s").send("Pay Bob.")
        copy()
        await store.decide(asked.approval_ids[0], approved=True)
        await agent(store, SCRIPT).session("s").resume()
        copy()
    return moments


async def _goes_on(store: AgentStore) -> None:
    RAN.clear()
    session = agent(store, SCRIPT).session("s")
    for _ in range(2):  # a question that the copy lacks is asked again
        for approval in (await store.approvals.list(status="pending")).items:
            await store.decide(approval.id, approved=True)
        try:
            await session.resume()
        except SessionAwaitingApprovalError:
            continue
    assert RAN in ([], ["pay bob"])
    assert (await agent(store).session("s").send("still there?")).text == "heard still there?"


# --- Redis ---


async def test_a_server_is_restored_from_its_rdb_file(tmp_path: Path) -> None:
    server = Server(tmp_path / "server").start()
    try:
        async with open_store(server.url) as store:
            await fill(store)
            expected = await everything(store)
            async with writing(store):
                await asyncio.to_thread(_save, server)
            shutil.copy(server.directory / "dump.rdb", tmp_path / "backup.rdb")
            await store.delete_session("talk")
        server.kill()
        shutil.copy(tmp_path / "backup.rdb", server.directory / "dump.rdb")
        server.options["appendonly"] = "no"
        server.start()
        server.ask("CONFIG", "SET", "appendonly", "yes")
        _wait_for(server, "aof_rewrite_in_progress")
        del server.options["appendonly"]
        server.restart()
        await hold_whole(server.url, expected)
    finally:
        server.kill()


def _save(server: Server) -> None:
    server.ask("BGSAVE")
    _wait_for(server, "rdb_bgsave_in_progress")


def _wait_for(server: Server, work: str) -> None:
    while server.info("persistence")[work]:
        time.sleep(0.01)
