"""Users who may not do all, and commands that are not there."""

from collections.abc import Callable
from pathlib import Path

import pytest
from plugins.redis.tests.servers import Server
from plugins.redis.tests.targets import shared_cluster
from redis.asyncio import Redis

import perdure
from perdure.backend import (
    Append,
    Head,
    OutcomeUnknownError,
    Replace,
    StoreUnavailableError,
    StoreURL,
)
from perdure_redis.journal import RedisJournal

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]
Servers = Callable[..., Server]

PAGE = Path(__file__).parents[3] / "docs/how-to/run-on-redis.md"


def rights() -> list[str]:
    """What the user has whom the page on Redis makes."""
    begin = "user perdure on >SECRET "
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(begin)]
    return line.removeprefix(begin).split()


@pytest.mark.parametrize("options", ["?ttl=1000", "?waitaof=true&wait=0", "?protocol=2"])
async def test_the_user_of_the_page_may_do_all_on_one_server(servers: Servers, options: str) -> None:
    server = servers().start()
    server.ask("ACL", "SETUSER", "perdure", "on", ">SECRET", *rights(), "+wait", "+waitaof")
    await use(f"redis://perdure:SECRET@127.0.0.1:{server.port}{options}")


async def test_the_user_of_the_page_may_do_all_on_a_cluster(namespace: str) -> None:
    cluster = shared_cluster()
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "perdure", "on", ">SECRET", *rights(), "+cluster|slots")
    await use(cluster.url.replace("//", "//perdure:SECRET@") + f"?namespace={namespace}")
    assert "`+cluster|slots`" in PAGE.read_text()


async def use(url: str) -> None:
    """Do what a store can."""
    async with perdure.open_store(url) as store:
        for number in range(2):
            await store.sessions.append("s", [{"n": number}], scope="a")
        found = await store.sessions.load("s", after=1)
        assert found is not None
        await store.sessions.replace("s", [{"n": 3}], expected_version=found.version)
        assert [info.session_id for info in (await store.sessions.list(scope="a")).items] == ["s"]
        assert await store.sessions.delete("s")


@pytest.mark.parametrize("command", ["DEL", "LSET", "RPUSH", "ZREM"])
async def test_a_command_that_has_another_name_stops_a_write_before_it_begins(
    servers: Servers, append: Maker, command: str
) -> None:
    server = servers(options={"rename-command": f'{command} ""'}).start()
    async with Redis(port=server.port) as client:
        journal = RedisJournal(client)
        await journal.open()
        with pytest.raises(StoreUnavailableError, match=command):
            await journal.write([append("s", b"1")])
        assert await client.dbsize() == 0


async def test_a_server_that_keeps_its_settings_secret_is_used_all_the_same(servers: Servers, append: Maker) -> None:
    server = servers().start()
    server.ask("ACL", "SETUSER", "app", "on", ">secret", "~perdure:*", "+@all", "-@admin", "-@dangerous")
    journal = RedisJournal.from_url(StoreURL.parse(f"redis://app:secret@127.0.0.1:{server.port}"))
    await journal.open()
    assert "secret" not in journal.title
    assert await journal.write([append("s", b"1", first=3)]) == (3,)
    await journal.close()


@pytest.mark.parametrize("command", ["del", "lset", "ltrim", "persist", "pexpire", "rpush", "time", "zadd", "zrem"])
async def test_a_user_who_may_not_run_all_that_a_write_needs_writes_nothing(
    server: Server, client: Redis, append: Maker, namespace: str, command: str
) -> None:
    name = f"without-{command}"
    server.ask("ACL", "SETUSER", name, "on", ">secret", "~perdure:*", "+@all", f"-{command}")
    await (complete := RedisJournal(client, namespace=namespace)).open()
    await complete.write([append("s", b"1", b"2", first=1)])
    async with Redis(port=server.port, username=name, password="secret") as limited:
        journal = RedisJournal(limited, namespace=namespace, ttl=1000)
        await journal.open()
        for operation in (append("s", b"3"), Replace(append("s").key, 1, (b"3",), Head(), None, append("s").at)):
            with pytest.raises(StoreUnavailableError, match=command.upper()) as caught:
                await journal.write([operation])
            assert not caught.value.retryable
        found = await journal.read(append("s").key)
    assert found is not None
    assert (found.version, list(found.items)) == (1, [b"1", b"2"])
    server.ask("ACL", "DELUSER", name)


async def test_a_wait_that_is_refused_leaves_the_outcome_open(server: Server, append: Maker, namespace: str) -> None:
    server.ask("ACL", "SETUSER", "impatient", "on", ">secret", "~perdure:*", "+@all", "-wait")
    async with Redis(port=server.port, username="impatient", password="secret") as client:
        journal = RedisJournal(client, namespace=namespace, wait=1)
        await journal.open()
        with pytest.raises(OutcomeUnknownError, match="wait"):
            await journal.write([append("s", b"1", first=4)])
        found = await journal.read(append("s").key)
    assert found is not None
    assert found.version == 4
    server.ask("ACL", "DELUSER", "impatient")
