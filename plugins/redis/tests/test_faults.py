"""What a network and a server may do to one call: what the caller is told, and that nobody else is touched."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from plugins.redis.tests.proxy import Proxy
from plugins.redis.tests.servers import Server, free_port
from plugins.redis.tests.targets import shared_cluster
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from perdure.backend import (
    Append,
    Delete,
    Head,
    Key,
    Operation,
    OutcomeUnknownError,
    Part,
    Replace,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreURL,
    VersionConflictError,
)
from perdure_redis.clients import Clients
from perdure_redis.journal import RedisJournal
from perdure_redis.keys import Keys

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]
ONCE = Retry(NoBackoff(), 0)
S = Key(Part.SESSIONS, "s")
AT = datetime(2026, 1, 2, tzinfo=UTC)


async def items_of(journal: RedisJournal, name: str = "s") -> list[bytes] | None:
    found = await journal.read(Key(Part.SESSIONS, name))
    return None if found is None else list(found.items)


@pytest.mark.parametrize(("action", "written"), [("cut-before", None), ("cut-after", [b"1"])])
async def test_a_write_whose_connection_is_cut_may_have_happened(
    proxy: Proxy, through: RedisJournal, journal: RedisJournal, append: Maker, action: str, written: object
) -> None:
    await through.write([append("warm")])
    proxy.commands.clear()
    proxy.fault("EVALSHA", action)
    with pytest.raises(OutcomeUnknownError, match="write of s"):
        await through.write([append("s", b"1", expected=0)])
    assert [name for name in proxy.commands if name.startswith("EVAL")] == ["EVALSHA"]  # nothing is sent twice
    assert await items_of(journal) == written
    # At the version expected it may be repeated: at most one of the two is there.
    if written is None:
        await through.write([append("s", b"1", expected=0, first=7)])
    else:
        with pytest.raises(VersionConflictError):
            await through.write([append("s", b"1", expected=0, first=7)])
    assert await items_of(through) == [b"1"]


@pytest.mark.parametrize("action", ["cut-before", "cut-after"])
@pytest.mark.parametrize(("call", "command"), [("read", "LRANGE"), ("tail", "EVALSHA"), ("scan", "EVALSHA")])
async def test_a_read_whose_connection_is_cut_is_asked_again(
    proxy: Proxy, through: RedisJournal, append: Maker, action: str, call: str, command: str
) -> None:
    await through.write([append("s", b"1")])
    expected = await do(through, call)
    fault = proxy.fault(command, action)
    assert await do(through, call) == expected
    assert fault.reached.is_set()
    proxy.fault(command, action)
    proxy.fault(command, action)
    with pytest.raises(StoreUnavailableError):
        await do(through, call)
    assert await do(through, call) == expected


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("-OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailableError),
        ("-ERR Error running script (call to f_0): @user_script:9: -OOM command not allowed", StoreUnavailableError),
        ("-READONLY You can't write against a read only replica.", StoreUnavailableError),
        ("-LOADING Redis is loading the dataset in memory", StoreUnavailableError),
        ("-MASTERDOWN Link with MASTER is down", StoreUnavailableError),
        ("-CLUSTERDOWN The cluster is down", StoreUnavailableError),
        ("-MISCONF Errors writing to the AOF file: No space left on device", StoreUnavailableError),
        ("-NOREPLICAS Not enough good replicas to write.", StoreUnavailableError),
        ("-BUSY Redis is busy running a script.", StoreUnavailableError),
        ("-NOPERM this user has no permissions to run the 'evalsha' command", StoreUnavailableError),
        ("-MOVED 1 127.0.0.1:1", StoreUnavailableError),
        ("-WRONGTYPE Operation against a key holding the wrong kind of value", StoreCorruptedError),
        ("-ERR something else", OutcomeUnknownError),
    ],
)
async def test_what_an_answer_says_of_a_write(
    proxy: Proxy, through: RedisJournal, append: Maker, answer: str, error: type
) -> None:
    await through.write([append("warm")])
    proxy.fault("EVALSHA", answer)
    with pytest.raises(error):
        await through.write([append("s", b"1", expected=0)])
    assert await items_of(through) is None
    assert await through.write([append("s", b"1", expected=0, first=7)]) == (7,)


async def test_a_server_that_lost_the_script_is_sent_it(
    proxy: Proxy, through: RedisJournal, client: Redis, append: Maker
) -> None:
    await through.write([append("s", b"1", first=1)])
    for number in range(3):
        await client.script_flush()
        assert await through.write([append("s", b"2")]) == (number + 2,)
        await client.script_flush()
        assert len((await do(through, "tail")).items) == 1
        await client.script_flush()
        assert len(await do(through, "scan")) == 1
    assert await through.write([append("s", b"2")]) == (5,)
    proxy.commands.clear()
    assert await through.write([append("s", b"2")]) == (6,)
    assert proxy.commands == ["EVALSHA"]
    # Its text is a write too: cut behind it, nobody knows.
    await client.script_flush()
    proxy.fault("EVAL", "cut-after")
    with pytest.raises(OutcomeUnknownError):
        await through.write([append("s", b"2")])
    assert len(await items_of(through) or ()) == 7


async def test_a_server_that_cannot_be_reached_has_written_nothing(append: Maker, server: Server) -> None:
    async with Redis(port=free_port(), retry=ONCE) as client:
        with pytest.raises(StoreUnavailableError):
            await RedisJournal(client).open()
    async with Proxy(server.port) as proxy, Redis(port=proxy.port, retry=ONCE) as client:
        journal = RedisJournal(client)
        await journal.open()
        await client.connection_pool.disconnect()
        for name in ("HELLO", "CLIENT"):
            for _ in range(3):
                proxy.fault(name, "cut-before")
            with pytest.raises(StoreUnavailableError):
                await journal.write([append("s", b"1")])
            proxy.faults.clear()
    with pytest.raises(StoreUnavailableError):
        await journal.write([append("s", b"1")])


async def test_idle_connections_that_the_server_closed_are_no_failure(
    journal: RedisJournal, client: Redis, server: Server, append: Maker
) -> None:
    await asyncio.gather(*(journal.write([append(f"s{number}", b"1", first=1)]) for number in range(5)))
    server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    while not all([await connection.can_read() for connection in client.connection_pool._available_connections]):  # noqa: ASYNC110  # reason: the news comes over the loop
        await asyncio.sleep(0)
    written = await asyncio.gather(*(journal.write([append(f"s{number}", b"2")]) for number in range(5)))
    assert written == [(2,)] * 5


@pytest.mark.parametrize("action", ["hold-before", "hold-after"])
@pytest.mark.parametrize("call", ["write", "read", "tail", "scan"])
@pytest.mark.parametrize("own", [False, True])
async def test_a_cancelled_call_leaves_its_reply_to_nobody(
    proxy: Proxy, namespace: str, append: Maker, action: str, call: str, own: bool
) -> None:
    async with Redis(port=proxy.port, max_connections=1) as client:
        used = Clients(client) if own else client
        journal = RedisJournal(used, namespace=namespace, max_connections=1)
        await journal.open()
        await journal.write([append("alice", b"hers", first=1)])
        await journal.write([append("bob", b"his", first=1)])
        for turn in range(3):
            fault = proxy.fault("LRANGE" if call == "read" else "EVALSHA", action)
            task = asyncio.create_task(do(journal, call, "alice"))
            await asyncio.wait_for(fault.reached.wait(), 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            reading = asyncio.create_task(items_of(journal, "bob"))
            await asyncio.sleep(0)
            fault.go.set()
            assert await reading == [b"his"]
            assert await journal.write([append("bob", expected=turn + 1)]) == (turn + 2,)
        await journal.close()


@pytest.mark.parametrize("kind", ["client", "url", "cluster"])
@pytest.mark.parametrize("call", ["open", "write", "several", "read", "tail", "scan"])
async def test_a_call_may_be_cancelled_at_every_await(
    server: Server, append: Maker, namespace: str, call: str, kind: str
) -> None:
    url = StoreURL.parse(server.url if kind == "url" else shared_cluster().url)
    async with Redis(port=server.port) as client:
        for turns in range(14 if kind == "client" else 24):
            name = f"{namespace[:60]}{turns}"
            if kind == "client":
                journal = RedisJournal(client, namespace=name)
            else:
                journal = RedisJournal.from_url(replace(url, namespace=name))
            if call != "open":
                await journal.open()
            task = asyncio.create_task(do(journal, call))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await journal.open()
            # The next call gets its own answer, and what was cancelled is whole or absent.
            found, run = await journal.read(S), await journal.read(Key(Part.RUNS, "s"))
            assert found is None or list(found.items) == [b"1", b"2"]
            assert call != "several" or run is None or found is not None
            assert await journal.write([append("other", b"1", first=turns + 1)]) == (turns + 1,)
            await journal.close()
        assert not client.connection_pool._in_use_connections


@pytest.mark.parametrize(("call", "error"), [("write", OutcomeUnknownError), ("read", StoreUnavailableError)])
async def test_a_call_that_gets_no_answer_ends(
    proxy: Proxy, namespace: str, append: Maker, call: str, error: type
) -> None:
    async with Redis(port=proxy.port) as client:
        journal = RedisJournal(client, namespace=namespace, timeout=0.2)
        await journal.open()
        await journal.write([append("bob", b"his", first=1)])
        fault = proxy.fault("LRANGE" if call == "read" else "EVALSHA", "hold-before")
        with pytest.raises(error):
            await do(journal, call)
        fault.go.set()
        assert await items_of(journal, "bob") == [b"his"]


async def test_a_wait_for_a_connection_counts_too(client: Redis, namespace: str, append: Maker) -> None:
    journal = RedisJournal(client, namespace=namespace, timeout=0.2, max_connections=1)
    await journal.open()
    async with journal._route._turns[""]:  # another call has it, for longer than this one may take
        for call in ("write", "read"):
            with pytest.raises(StoreUnavailableError, match="TimeoutError"):
                await do(journal, call)
    assert await journal.write([append("s", b"1", first=7)]) == (7,)


async def do(journal: RedisJournal, call: str, name: str = "s") -> Any:
    key = Key(Part.SESSIONS, name)
    session = Append(key, (b"1", b"2"), Head(), None, AT, 1)
    if call == "write":
        return await journal.write([session])
    if call == "several":
        return await journal.write([session, Append(Key(Part.RUNS, name), (), Head(), 0, AT, 1)])
    if call == "read":
        return await journal.read(key)
    if call == "tail":
        return await journal.read(key, last=1)
    if call == "scan":
        return await journal.scan(Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=5)
    return await getattr(journal, call)()


@pytest.mark.parametrize("kind", ["create", "append", "replace", "delete", "both"])
async def test_an_index_of_a_wrong_type_is_found_before_anything_is_written(
    journal: RedisJournal, client: Redis, namespace: str, append: Maker, kind: str
) -> None:
    if kind != "create":
        await journal.write([append("s", b"1")])
    index = Keys(namespace, cluster=False).index(Part.RUNS if kind == "both" else Part.SESSIONS, "")
    await client.set(index, "no index")
    later = datetime(2027, 1, 1, tzinfo=UTC)
    operations: dict[str, list[Operation]] = {
        "create": [append("s", b"2")],
        "append": [append("s", b"2", at=later)],
        "replace": [Replace(S, 0, (b"2",), Head(), None, later)],
        "delete": [Delete(S, None)],
        "both": [append("s", b"2", at=later), Append(Key(Part.RUNS, "s"), (b"2",), Head(), None, later, 1)],
    }
    with pytest.raises(StoreCorruptedError):
        await journal.write(operations[kind])
    assert await items_of(journal) == (None if kind == "create" else [b"1"])
