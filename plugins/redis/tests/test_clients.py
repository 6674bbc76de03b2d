"""URLs, clients of one's own, loops and processes."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.proxy import Proxy
from plugins.redis.tests.servers import Server, free_port
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool

import perdure
from perdure.backend import (
    Append,
    Head,
    InvalidIdError,
    Key,
    Part,
    StoreClosedError,
    StoreUnavailableError,
    StoreURL,
    StoreURLError,
    VersionConflictError,
    WrongLoopError,
)
from perdure.plugins import load
from perdure_redis.clients import Clients, clients_of
from perdure_redis.journal import RedisJournal
from perdure_redis.plugin import Options
from perdure_redis.routes import OwnRoute

Maker = Callable[..., Append]
CERTIFICATE = Path(__file__).parent / "tls.pem"
anyio = pytest.mark.anyio


def parsed(text: str) -> StoreURL:
    url = StoreURL.parse(text)
    return replace(url, options=Options.model_validate_strings(dict(url.query)))


def connection_of(text: str) -> dict[str, Any]:
    client = clients_of(parsed(text)).client
    assert isinstance(client, Redis)
    return dict(client.connection_pool.connection_kwargs) | {"class": client.connection_pool.connection_class.__name__}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("redis://localhost", {"host": "localhost", "port": 6379, "db": 0, "username": None, "class": "Connection"}),
        ("redis://u:p%40@h:1/3", {"host": "h", "port": 1, "db": 3, "username": "u", "password": "p@"}),
        ("redis://[::1]:7/?db=2&protocol=2", {"host": "::1", "port": 7, "db": 2, "protocol": 2}),
        (
            f"rediss://h?ca={CERTIFICATE}&cert={CERTIFICATE.parent}/../tests/tls.pem&cert_key={CERTIFICATE.parent}/./tls.pem",
            {
                "class": "SSLConnection",
                "ssl_ca_certs": f"{CERTIFICATE}",
                "ssl_certfile": f"{CERTIFICATE.parent}/../tests/tls.pem",
                "ssl_keyfile": f"{CERTIFICATE.parent}/./tls.pem",
            },
        ),
        ("redis+unix:/run/r.sock?db=4", {"path": "/run/r.sock", "db": 4, "class": "UnixDomainSocketConnection"}),
        ("redis+unix:///run/r.sock", {"path": "/run/r.sock", "db": 0}),
    ],
)
def test_a_url_names_a_server(text: str, facts: dict[str, Any]) -> None:
    found = connection_of(text)
    assert {name: found.get(name) for name in facts} == facts
    assert found["retry"].get_retries() == 0


@anyio
async def test_a_url_names_sentinels_and_clusters() -> None:
    text = "redis+sentinel://u:p@a,b:2/mymaster/1?sentinel_password=s&tls=true"
    clients = clients_of(parsed(text))
    assert isinstance(clients.client, Redis)
    pool = clients.client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert (pool.service_name, pool.connection_kwargs["db"], pool.connection_kwargs["password"]) == ("mymaster", 1, "p")
    sentinels = [client.connection_pool.connection_kwargs for client in clients.others]
    assert [(one["host"], one["port"], one["password"]) for one in sentinels] == [("a", 26379, "s"), ("b", 2, "s")]
    cluster = clients_of(parsed("redis+cluster://127.0.0.1:1,127.0.0.2")).client
    assert isinstance(cluster, RedisCluster)
    assert [(node.host, node.port) for node in cluster.startup_nodes] == [("127.0.0.1", 1), ("127.0.0.2", 6379)]


@pytest.mark.parametrize(
    "text",
    [
        "redis:localhost",
        "redis://",
        "redis://a,b",
        "redis://h/x",
        "redis://h/1?db=2",
        "redis+unix://h/run",
        "redis+unix:",
        "redis+sentinel://h",
        "redis+cluster://h/1",
        "redis+cluster:",
        "redis://h?ca=/ca.pem",
        "redis+cluster://h?cert=/c.pem",
        "rediss://h?ca=/nowhere/ca.pem",
        "rediss://h?cert=/nowhere/c.pem",
        f"rediss://h?cert={CERTIFICATE}&cert_key={CERTIFICATE.parent}",
        f"rediss://h?cert_key={CERTIFICATE}",
        "redis+unix:/run/r.sock?tls=true",
        "redis://h?sentinel_password=s",
    ],
)
def test_a_url_that_lacks_something_is_refused(text: str) -> None:
    with pytest.raises(StoreURLError):
        clients_of(parsed(text))


@anyio
async def test_a_socket_of_this_machine_is_used(servers: Callable[..., Server]) -> None:
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        servers(options={"unixsocket": f"{directory}/s"}).start()
        async with perdure.open_store(f"redis+unix:{directory}/s") as store:
            assert await store.sessions.append("s", [{"n": 1}], expected_version=0, version=3) == 3
            assert await store.sessions.append("s", [{"n": 2}]) == 4


@pytest.mark.parametrize("scheme", ["rediss", "redis"])
@anyio
async def test_tls_is_spoken_to_whom_it_is_trusted(server: Server, scheme: str, namespace: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    url, tls = f"{scheme}://{{}}:{{}}?namespace={namespace}", "" if scheme == "rediss" else "&tls=true"
    async with Proxy(server.port, context) as proxy:
        async with perdure.open_store(url.format("127.0.0.1", proxy.port) + f"{tls}&ca={CERTIFICATE}") as store:
            assert await store.sessions.append("s", [{"n": 1}], expected_version=0, version=3) == 3
        assert "EVALSHA" in proxy.commands
        proxy.commands.clear()
        for text in (
            url.format("127.0.0.1", proxy.port) + tls,  # a certificate that nobody vouches for
            url.format("localhost", proxy.port) + f"{tls}&ca={CERTIFICATE}",  # one of another name
        ):
            with pytest.raises(StoreUnavailableError):
                await perdure.open_store(text)
        assert proxy.commands == []
    with pytest.raises(StoreUnavailableError):  # a server that does not speak it
        await perdure.open_store(url.format("127.0.0.1", server.port) + f"{tls}&ca={CERTIFICATE}&timeout=0.3")


@pytest.mark.parametrize("option", ["ttl=0", "ttl=-1", "wait=-1", "timeout=0", "strict=2", "protocol=4", "retries=3"])
@anyio
async def test_an_option_that_means_nothing_is_refused(option: str) -> None:
    with pytest.raises(StoreURLError, match=option.partition("=")[0]):
        await perdure.open_store(f"redis://127.0.0.1:1?{option}")


@anyio
async def test_no_message_shows_a_password(server: Server) -> None:
    for url in ("redis://u:geheim@127.0.0.1:1", f"redis://u:geheim@127.0.0.1:{server.port}"):
        with pytest.raises(StoreUnavailableError) as caught:
            await perdure.open_store(url)
        assert "geheim" not in str(caught.value) + repr(caught.value.args)
        assert caught.value.retryable == url.endswith(":1") == ("Try again" in caught.value.hint)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
@anyio
async def test_a_client_may_decode_and_speak_what_it_likes(
    server: Server, namespace: str, append: Maker, protocol: int, decode: bool
) -> None:
    async with Redis(port=server.port, protocol=protocol, decode_responses=decode, encoding="latin-1") as client:
        journal = RedisJournal(client, namespace=namespace, wait=0, ttl=1000)
        await journal.open()
        assert journal.capabilities.durable
        item = bytes(range(256))
        session = Append(Key(Part.SESSIONS, "s"), (item,), Head("\x80ä", "\udc80", item), None, append("s").at, 2**62)
        await client.script_flush()
        assert await journal.write([session]) == (2**62,)
        assert await journal.write([session]) == (2**62 + 1,)
        with pytest.raises(VersionConflictError) as caught:
            await journal.write([replace(session, expected_version=5)])
        assert caught.value.actual == 2**62 + 1
        for found in (
            await journal.read(session.key),
            await journal.read(session.key, last=2),
            await journal.read(session.key, after=0, limit=9),
        ):
            assert found is not None
            assert (list(found.items), found.head) == ([item, item], session.head)
        (listed,) = await journal.scan(
            Part.SESSIONS, group="\x80ä", status="\udc80", before=None, order="recent", after=None, limit=2
        )
        assert (listed.version, listed.head) == (2**62 + 1, session.head)
        await journal.close()
        assert await client.ping()  # it is not ours to close


@pytest.fixture
async def narrow(server: Server) -> AsyncIterator[Redis]:
    async with Redis(port=server.port, max_connections=2) as client:
        yield client


@anyio
async def test_many_calls_share_few_connections(narrow: Redis, namespace: str, append: Maker) -> None:
    journal = RedisJournal(narrow, namespace=namespace)
    await journal.open()
    written = await asyncio.gather(*(journal.write([append(f"s{number}", b"1", first=3)]) for number in range(50)))
    assert written == [(3,)] * 50
    assert len(narrow.connection_pool._available_connections) <= 2


@anyio
async def test_journals_of_one_client_share_its_connections(narrow: Redis, namespace: str, append: Maker) -> None:
    journals = [RedisJournal(narrow, namespace=f"{namespace[:60]}{number}") for number in range(3)]
    for journal in journals:
        await journal.open()
    calls = [journal.write([append(f"s{number}", first=3)]) for number in range(20) for journal in journals]
    assert await asyncio.gather(*calls) == [(3,)] * 60


def test_a_client_may_go_on_in_another_loop(server: Server, namespace: str, append: Maker) -> None:
    client = Redis(port=server.port, max_connections=1)

    async def use(name: str) -> None:
        journal = RedisJournal(client, namespace=namespace)
        await journal.open()
        await asyncio.gather(*(journal.write([append(f"{name}{number}", first=3)]) for number in range(5)))
        await client.aclose()

    for name in "ab":
        asyncio.run(use(name))


@anyio
async def test_a_namespace_is_one(client: Redis) -> None:
    for wrong in ("", "a:b", "a{b}", "a b", "a\n", "ä", "x" * 65):
        with pytest.raises(InvalidIdError):
            RedisJournal(client, namespace=wrong)


@anyio
async def test_one_namespace_may_begin_another(client: Redis, append: Maker, namespace: str) -> None:
    short, long = RedisJournal(client, namespace=namespace[:20]), RedisJournal(client, namespace=namespace[:20] + "-1")
    for number, journal in enumerate((short, long)):
        await journal.open()
        await journal.write([append("s", b"%d" % number, first=number + 1)])
    for number, journal in enumerate((short, long)):
        found = await journal.scan(Part.SESSIONS, group=None, status=None, before=None, order="id", after=None, limit=9)
        assert [info.version for info in found] == [number + 1]


@anyio
async def test_texts_that_mean_something_elsewhere_are_texts(server: Server, namespace: str) -> None:
    texts = [
        "{a}",
        "{}",
        "a:b",
        "a",
        "*",
        "a*",
        "?",
        "[x]",
        "[",
        "(",
        "a\\",
        "a b",
        "a|b",
        "é",
        "e\u0301",
        "日本",
        "\x00",
    ]
    async with perdure.open_store(f"{server.url}?namespace={namespace}") as store:
        for text in texts:
            if text != "a":  # a valid id is its own
                with pytest.raises(InvalidIdError):
                    await store.sessions.append(text, [{"plain": text}])
            await store.sessions.append(perdure.safe_id(text), [{"text": text}], scope=text, state={"text": text})
        for text in texts:
            page = await store.sessions.list(scope=text)
            assert [(info.session_id, info.scope) for info in page.items] == [(perdure.safe_id(text), text)]
        assert len((await store.sessions.list()).items) == len(texts)
        for text in texts:
            found = await store.sessions.load(perdure.safe_id(text), last=1)
            assert found is not None
            assert (found.records[0], found.state) == ({"text": text}, {"text": text})
            assert await store.sessions.delete(perdure.safe_id(text))
            assert not (await store.sessions.list(scope=text)).items


@anyio
async def test_a_journal_is_open_between_open_and_close(client: Redis, append: Maker) -> None:
    journal = RedisJournal(client)
    for state in ("not yet", "no more"):
        for call in (journal.read(Key(Part.SESSIONS, "s")), journal.write([append("s")])):
            with pytest.raises(StoreClosedError):
                await call
        if state == "not yet":
            await journal.open()
            await journal.open()
            await journal.close()
            await journal.close()
    with pytest.raises(StoreClosedError):
        await journal.open()


def test_an_opening_that_failed_in_one_loop_has_its_time_in_the_next() -> None:
    port = free_port()
    url = load("redis").check(StoreURL.parse(f"redis://127.0.0.1:{port}?timeout=0.5"))
    journal = RedisJournal.from_url(url)
    with pytest.raises(StoreUnavailableError, match="connecting"):
        asyncio.run(journal.open())
    with (
        socket.create_server(("127.0.0.1", port)),  # it says nothing
        pytest.raises(StoreUnavailableError, match="Timeout"),
    ):
        asyncio.run(asyncio.wait_for(journal.open(), 60))


def test_another_loop_is_told(server: Server, append: Maker) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        journal = RedisJournal.from_url(StoreURL.parse(server.url))
        first.run(journal.open())
        with pytest.raises(WrongLoopError):
            second.run(journal.write([append("s")]))
        first.run(journal.close())


def test_many_loops_leave_nothing_open(server: Server, append: Maker, namespace: str) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def use(number: int) -> None:
        async with perdure.open_store(f"{server.url}?namespace={namespace}") as store:
            await store.sessions.append(f"s{number}", [{"n": number}])

    asyncio.run(use(0))
    before = descriptors()
    for number in range(1, 40):
        asyncio.run(use(number))
    assert descriptors() <= before


@anyio
async def test_calls_under_way_end_when_the_store_is_closed(server: Server, append: Maker, namespace: str) -> None:
    journal = RedisJournal.from_url(StoreURL.parse(f"{server.url}?namespace={namespace}"))
    await journal.open()
    await journal.write([append("s")])  # the server knows the script: each call is one exchange, and has begun it
    writing = [asyncio.create_task(journal.write([append(f"s{number}", b"1", first=2)])) for number in range(20)]
    await asyncio.sleep(0)
    await journal.close()
    assert await asyncio.gather(*writing) == [(2,)] * 20
    with pytest.raises(StoreClosedError):
        await journal.write([append("s")])


@pytest.mark.parametrize("own", [True, False])
@anyio
async def test_calls_that_wait_when_the_store_is_closed_are_refused(
    server: Server, client: Redis, append: Maker, namespace: str, own: bool
) -> None:
    async with Proxy(server.port) as proxy, Redis(port=proxy.port, max_connections=1) as narrow:
        journal = RedisJournal(Clients(narrow) if own else narrow, namespace=namespace)
        await journal.open()
        await journal.write([append("s", first=1)])
        fault = proxy.fault("EVALSHA", "hold-before")
        begun = asyncio.create_task(journal.write([append("s")]))
        await fault.reached.wait()
        waiting = [asyncio.create_task(journal.write([append("s")])) for _ in range(5)]
        while len(journal._route._deadlines.running) < 6:  # noqa: ASYNC110  # reason: progress, not time
            await asyncio.sleep(0)
        closing = asyncio.create_task(journal.close())
        await asyncio.sleep(0)
        proxy.commands.clear()
        fault.go.set()
        await closing
        for call in waiting:
            with pytest.raises(StoreClosedError):
                await call
        assert await begun == (2,)
        assert proxy.commands == []


@anyio
async def test_closing_waits_for_nobody_and_leaves_nothing_open(
    server: Server, append: Maker, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RedisJournal.from_url(StoreURL.parse(f"{server.url}?namespace={namespace}"))
    await journal.open()
    await asyncio.gather(*(journal.write([append(f"s{number}")]) for number in range(5)))
    assert isinstance(journal._route, OwnRoute)
    connections = list(journal._route._idle)

    async def hang(_: asyncio.StreamWriter) -> None:  # as TLS does when the other end is gone
        raise TimeoutError

    monkeypatch.setattr(asyncio.StreamWriter, "wait_closed", hang)
    await journal.close()
    assert len(connections) == 5
    assert not any(connection.is_connected for connection in connections)


@anyio
async def test_one_client_that_does_not_close_keeps_no_other_open() -> None:
    closed: list[str] = []

    class Client:
        def __init__(self, name: str) -> None:
            self.name = name

        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name != "b":
                raise asyncio.CancelledError

    clients: Any = [Client(name) for name in "abc"]
    with pytest.raises(asyncio.CancelledError):
        await Clients(clients[0], tuple(clients[1:])).close()
    assert sorted(closed) == ["a", "b", "c"]


SCRIPT = """
import asyncio, os, sys
from perdure.backend import *
from perdure_redis.journal import RedisJournal
async def main():
    journal = RedisJournal.from_url(StoreURL.parse(sys.argv[1]))
    await journal.open()
    if sys.argv[2] == "leave":
        print("open", flush=True)
        return
    child = os.fork()
    if child == 0:
        try:
            await journal.read(Key(Part.SESSIONS, "s"))
        except WrongLoopError as error:
            print("child:", error.reason, flush=True)
        await journal.close()
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(3):
        assert await journal.read(Key(Part.SESSIONS, "nobody")) is None
    await journal.close()
    print("parent: fine", flush=True)
asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("what", "printed"),
    [
        ("fork", ["child: was opened in another process, of which this one is a fork", "parent: fine"]),
        ("leave", ["open"]),
    ],
)
def test_a_process_that_forks_or_ends(server: Server, what: str, printed: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, server.url, what], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.splitlines(), done.returncode) == (printed, 0), done.stderr
