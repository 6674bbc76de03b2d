"""A real cluster: slots that move, masters that die, listings that are merged."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from plugins.redis.tests.cluster import Cluster
from plugins.redis.tests.servers import Server
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import NodesManager

from perdure.backend import (
    Append,
    Delete,
    Head,
    JournalInfo,
    Key,
    OutcomeUnknownError,
    Part,
    Position,
    SchemaVersionError,
    StoreCorruptedError,
    StoreUnavailableError,
    StoreURL,
)
from perdure.journal.walking import walk
from perdure_redis.journal import RedisJournal
from perdure_redis.keys import TAGS, tag_of
from perdure_redis.routes import ClusterRoute

pytestmark = pytest.mark.anyio

Maker = Callable[..., Append]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RedisCluster]:
    async with RedisCluster(host="127.0.0.1", port=cluster.port) as client:
        yield client


@pytest.fixture
async def journal(client: RedisCluster, namespace: str) -> RedisJournal:
    journal = RedisJournal(client, namespace=namespace)
    await journal.open()
    return journal


def test_the_tags_are_spread_evenly(cluster: Cluster) -> None:
    slots = sorted(int(str(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", f"{{{tag}}}"))) for tag in TAGS)
    assert [slot // 256 for slot in slots] == list(range(64))
    many = [tag_of(f"chat-{number}") for number in range(6400)]
    assert all(70 <= many.count(tag) <= 150 for tag in TAGS)


async def test_a_listing_is_merged_from_all_indexes(journal: RedisJournal, append: Maker) -> None:
    at = append("s").at
    names = sorted(f"s{number}" for number in range(150))
    for number, name in enumerate(names):
        await journal.write([append(name, b"1", at=at + timedelta(seconds=number * 7 % 150))])
    assert await all_of(journal, "id", 20) == names
    by_time = sorted(names, key=lambda name: names.index(name) * 7 % 150)
    assert await all_of(journal, "created", 7) == by_time
    assert await all_of(journal, "recent", 150) == by_time[::-1]


async def all_of(journal: RedisJournal, order: str, limit: int) -> list[str]:
    found: list[JournalInfo] = []
    after: Position | None = None
    while True:
        page = await journal.scan(
            Part.SESSIONS, group=None, status=None, before=None, order=order, after=after, limit=limit
        )
        found += page
        if not page:
            return [info.id for info in found]
        after = Position({"id": None, "created": page[-1].created_at}.get(order, page[-1].updated_at), page[-1].id)


async def test_a_slot_that_moved_is_followed(cluster: Cluster, journal: RedisJournal, append: Maker) -> None:
    slot, giver, taker = await slot_of(cluster, journal, "s")
    await journal.write([append("other", b"1")])
    with handed_over(slot, cluster, giver, taker):
        assert await journal.write([append("s", b"1", first=1)]) == (1,)
        assert await all_of(journal, "id", 5) == ["other", "s"]
        found = await journal.read(Key(Part.SESSIONS, "s"))
        assert found is not None
        assert list(found.items) == [b"1"]
    # On its way, what has moved is asked of the other, and what would be spread over both is refused.
    await journal.write([append("s", b"1", first=5)])
    names = journal._keys.of(Key(Part.SESSIONS, "s"))
    taker.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.node_id(giver))
    giver.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.node_id(taker))
    giver.ask("MIGRATE", "127.0.0.1", taker.port, "", 0, 5000, "KEYS", *names)
    taker.ask("SCRIPT", "FLUSH")
    assert await journal.write([append("s", b"2", expected=5)]) == (6,)
    found = await journal.read(Key(Part.SESSIONS, "s"), last=1)
    assert found is not None
    assert list(found.items) == [b"2"]
    assert await all_of(journal, "id", 5) == ["other", "s"]
    new = next(name for name in (f"x{number}" for number in range(10_000)) if tag_of(name) == tag_of("s"))
    assert await journal.read(Key(Part.SESSIONS, new)) is None
    with pytest.raises(StoreUnavailableError, match="TryAgain"):
        await journal.write([append(new, b"1")])
    for node in (taker, giver, *cluster.nodes):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.node_id(taker))
    assert await journal.write([append(new, b"1", first=3)]) == (3,)


@pytest.mark.parametrize("ttl", [None, 1000])
async def test_no_write_is_lost_or_torn_while_its_slot_moves(
    cluster: Cluster, client: RedisCluster, namespace: str, append: Maker, ttl: int | None
) -> None:
    journal = RedisJournal(client, namespace=namespace, ttl=ttl)
    await journal.open()
    slot, giver, taker = await slot_of(cluster, journal, "moving")
    run = Append(Key(Part.RUNS, "moving"), (), Head(status="idle"), None, append("s").at, 1)
    (version, _) = await journal.write([append("moving", first=1), run])
    moved, done, refused = False, version, 0

    async def writer() -> None:
        nonlocal version, refused
        while not moved or done < 3 or version < done + 3:
            try:
                version, beside = await journal.write([append("moving", b"%d" % version, expected=version), run])
                assert beside == version
            except StoreUnavailableError:  # nothing was written, so the same version is right the next time
                refused += 1
                assert refused < 20_000

    writing = asyncio.create_task(writer())
    while version < 20 and not writing.done():  # noqa: ASYNC110  # reason: progress, not time
        await asyncio.sleep(0)
    for node, state, other in ((taker, "IMPORTING", giver), (giver, "MIGRATING", taker)):
        await asyncio.to_thread(node.ask, "CLUSTER", "SETSLOT", slot, state, cluster.node_id(other))
    goal = version + 3
    while ttl is None and version < goal and not writing.done():  # noqa: ASYNC110  # reason: progress, not time
        await asyncio.sleep(0)  # all keys are there still, and a script that empties one may not make it anew
    while True:
        names: Any = await asyncio.to_thread(giver.ask, "CLUSTER", "GETKEYSINSLOT", slot, 1)
        if not names:
            break
        await asyncio.to_thread(giver.ask, "MIGRATE", "127.0.0.1", taker.port, "", 0, 5000, "KEYS", *names)
    for node in (taker, giver, *cluster.nodes):
        await asyncio.to_thread(node.ask, "CLUSTER", "SETSLOT", slot, "NODE", cluster.node_id(taker))
    done, moved = version, True
    await writing
    found, beside = await journal.read(Key(Part.SESSIONS, "moving")), await journal.read(run.key)
    assert found is not None
    assert beside is not None
    assert found.version == beside.version == version
    assert list(found.items) == [b"%d" % number for number in range(1, version)]
    assert await all_of(journal, "id", 5) == ["moving"]


async def test_what_a_slot_that_is_on_its_way_still_has_is_written_and_deleted(
    cluster: Cluster, journal: RedisJournal, append: Maker
) -> None:
    slot, giver, taker = await slot_of(cluster, journal, "s")
    first, second = (Append(Key(Part.APPROVALS, f"s.t.{n}"), (b"1",), Head("s"), None, append("s").at, 1) for n in "01")
    await journal.write([append("s", b"1", first=1), first, second])
    giver.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.node_id(taker))
    later = append("s").at + timedelta(seconds=1)
    assert await journal.write([append("s", b"2", at=later)]) == (2,)
    assert await journal.write([Delete(first.key, 1), append("s", b"3", at=later + timedelta(seconds=1))]) == (1, 3)
    assert await journal.write([Delete(second.key, 1), append("s", b"4", at=later)]) == (1, 4)
    giver.ask("CLUSTER", "SETSLOT", slot, "STABLE")
    assert await all_of(journal, "recent", 5) == ["s"]
    found = await journal.read(Key(Part.SESSIONS, "s"))
    assert found is not None
    assert list(found.items) == [b"1", b"2", b"3", b"4"]
    for order in ("id", "recent"):
        assert not await journal.scan(
            Part.APPROVALS, group=None, status=None, before=None, order=order, after=None, limit=5
        )


async def slot_of(cluster: Cluster, journal: RedisJournal, name: str) -> tuple[int, Server, Server]:
    """The slot of a conversation, its master and another one."""
    slot = int(str(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", journal._keys.journal("sessions", name).decode())))
    owner = next(number for number, node in enumerate(cluster.nodes) if slot in slots_of(node))
    return slot, cluster.nodes[owner], cluster.nodes[(owner + 1) % 3]


def slots_of(node: Server) -> set[int]:
    """The slots that a master has."""
    myself = next(line for line in str(node.ask("CLUSTER", "NODES")).splitlines() if "myself" in line)
    ranges = [text.partition("-") for text in myself.split()[8:] if not text.startswith("[")]
    return {slot for first, _, last in ranges for slot in range(int(first), int(last or first) + 1)}


class handed_over:  # noqa: N801  # reason: reads as what it is
    """A slot that another master has meanwhile; what is in it is dropped."""

    def __init__(self, slot: int, cluster: Cluster, giver: Server, taker: Server) -> None:
        self.slot, self.cluster, self.giver, self.taker = slot, cluster, giver, taker

    def __enter__(self) -> None:
        self.give(self.giver, self.taker)

    def __exit__(self, *_: object) -> None:
        self.give(self.taker, self.giver)

    def give(self, giver: Server, taker: Server) -> None:
        with giver.client() as client:
            keys: Any = client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
            if keys:
                client.delete(*keys)
        for node in (taker, giver, *self.cluster.nodes):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.cluster.node_id(taker))


async def test_a_dead_master_takes_only_its_own(tmp_path: Path, append: Maker) -> None:
    with Cluster(tmp_path) as cluster:
        url = StoreURL.parse(cluster.url + "?namespace=dead")
        journal = RedisJournal.from_url(url)
        await journal.open()
        names = [f"s{number}" for number in range(12)]
        for name in names:
            await journal.write([append(name, b"1", first=1)])
        dead = [name for name in names if (await slot_of(cluster, journal, name))[1] is cluster.nodes[1]]
        alive = [name for name in names if name not in dead]
        assert dead
        assert alive
        cluster.nodes[1].kill()
        for name in dead:
            with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                await journal.write([append(name, b"2")])
            with pytest.raises(StoreUnavailableError):
                await journal.read(Key(Part.SESSIONS, name))
        with pytest.raises(StoreUnavailableError):  # never a listing that lacks some
            await all_of(journal, "id", 50)
        for name in alive:
            assert await journal.write([append(name, b"2")]) == (2,)
        cluster.nodes[1].start()
        await asyncio.to_thread(cluster.ready)
        for name in dead:
            found = await journal.read(Key(Part.SESSIONS, name))
            assert found is not None
            assert found.version in {1, 2}
        assert await all_of(journal, "id", 50) == sorted(names)
        await journal.close()


async def test_a_master_that_hangs_takes_only_its_own(
    tmp_path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path) as cluster:
        journal = RedisJournal.from_url(StoreURL.parse(cluster.url + "?namespace=hangs"))
        await journal.open()
        slot, hangs, taker = await slot_of(cluster, journal, "s")
        alive, *_ = [name for name in "abcdefghi" if (await slot_of(cluster, journal, name))[1] is taker]
        for name in ("s", alive):
            await journal.write([append(name, b"1", first=1)])
        hangs.pause()
        # Whoever asks for the map asks it first.
        monkeypatch.setattr(random, "shuffle", lambda nodes: nodes.sort(key=lambda node: node.port != hangs.port))
        await give_up(journal, journal.read(Key(Part.SESSIONS, "s")))
        assert await journal.write([append(alive, b"2")]) == (2,)
        for node in cluster.nodes:
            if node is not hangs:
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", cluster.node_id(taker))
        await give_up(journal, journal.read(Key(Part.SESSIONS, "s")))
        assert await journal.write([append("s", b"1", first=7)]) == (7,)
        await journal.close()


async def test_a_cancelled_call_at_one_master_fails_no_other_while_a_third_hangs(
    tmp_path: Path, append: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cluster(tmp_path) as cluster:
        async with RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=None) as client:
            journal = RedisJournal(client, timeout=1)
            await journal.open()
            owners = {name: (await slot_of(cluster, journal, name))[1] for name in "abcdefghi"}
            one, other = (next(name for name in owners if owners[name] is cluster.nodes[number]) for number in (0, 2))
            hangs = cluster.nodes[1]
            hangs.pause()
            monkeypatch.setattr(random, "shuffle", lambda nodes: nodes.sort(key=lambda node: node.port != hangs.port))
            await give_up(journal, journal.read(Key(Part.SESSIONS, one)))
            for name in (one, other):
                assert await journal.write([append(name, b"1", first=7)]) == (7,)


async def test_calls_that_wait_for_a_master_that_hangs_take_no_turn_of_others(tmp_path: Path, append: Maker) -> None:
    with Cluster(tmp_path) as cluster:
        async with RedisCluster(host="127.0.0.1", port=cluster.port, max_connections=2) as client:
            journal = RedisJournal(client)
            await journal.open()
            owners = {name: (await slot_of(cluster, journal, name))[1] for name in "abcdefghi"}
            hanging, alive = (next(name for name in owners if owners[name] is node) for node in cluster.nodes[1:])
            cluster.nodes[1].pause()
            waiting = [asyncio.create_task(journal.read(Key(Part.SESSIONS, hanging))) for _ in range(5)]
            while len(journal._route._deadlines.running) < 5:  # noqa: ASYNC110  # reason: progress, not time
                await asyncio.sleep(0)
            assert await journal.write([append(alive, first=7)]) == (7,)
            assert not any(task.done() for task in waiting)
            cluster.nodes[1].resume()
            assert await asyncio.gather(*waiting) == [None] * 5


async def test_what_failed_while_the_map_was_read_is_not_forgotten(
    client: RedisCluster, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    route, read_map = journal._route, NodesManager.initialize
    assert isinstance(route, ClusterRoute)
    first, second, third = (node.name for node in client.get_primaries())

    async def initialize(nodes: NodesManager, last_failed_node_name: str) -> None:
        await read_map(nodes, last_failed_node_name=last_failed_node_name)
        route._lost = second

    monkeypatch.setattr(NodesManager, "initialize", initialize)
    route._lost = first
    assert await journal.read(Key(Part.SESSIONS, "s")) is None
    assert route._lost == second
    # A call that is cancelled tells less than one that failed.
    monkeypatch.undo()
    reading = asyncio.create_task(journal.read(Key(Part.SESSIONS, "s")))
    while not route._deadlines.running:  # noqa: ASYNC110  # reason: progress, not time
        await asyncio.sleep(0)
    route._lost = third
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert route._lost == third


async def give_up(journal: RedisJournal, call: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call when it waits for its answer."""
    task = asyncio.create_task(call)
    while not journal._route._deadlines.running:  # noqa: ASYNC110  # reason: progress, not time
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_each_node_may_lose_its_scripts(cluster: Cluster, journal: RedisJournal, append: Maker) -> None:
    for number in range(8):
        for node in cluster.nodes:
            node.ask("SCRIPT", "FLUSH")
        await journal.write(
            [append(f"s{number}", b"1"), Append(Key(Part.RUNS, f"s{number}"), (), Head(), None, append("s").at, 1)]
        )
        for node in cluster.nodes:
            node.ask("SCRIPT", "FLUSH")
        assert len(await all_of(journal, "id", 3)) == number + 1


async def test_many_calls_share_few_connections(cluster: Cluster, namespace: str, append: Maker) -> None:
    async with RedisCluster(host="127.0.0.1", port=cluster.port, max_connections=2) as narrow:
        journal = RedisJournal(narrow, namespace=namespace)
        await journal.open()
        written = await asyncio.gather(*(journal.write([append(f"s{number}", first=3)]) for number in range(40)))
        assert written == [(3,)] * 40
        assert len(await all_of(journal, "id", 50)) == 40


async def test_damage_is_named(client: RedisCluster, journal: RedisJournal, append: Maker) -> None:
    await journal.write([append("s", b"1")])
    await client.lset(journal._keys.journal("sessions", "s").decode(), 0, "x")
    with pytest.raises(StoreCorruptedError, match="sessions s"):
        await all_of(journal, "id", 3)


@pytest.mark.parametrize("head", ["garbage", "2 of a newer release"])
@pytest.mark.parametrize("order", ["id", "created", "recent"])
async def test_a_head_that_cannot_be_read_hides_none_before_it(
    client: RedisCluster, journal: RedisJournal, append: Maker, order: str, head: str
) -> None:
    names = [f"s{number:02}" for number in range(20)] + ["zzz"]
    for number, name in enumerate(names[::-1] if order == "recent" else names):
        await journal.write([append(name, b"1", at=append("s").at + timedelta(seconds=number))])
    await client.lset(journal._keys.journal("sessions", "zzz").decode(), 0, head)

    def page(limit: int) -> Awaitable[Sequence[JournalInfo]]:
        return journal.scan(Part.SESSIONS, group=None, status=None, before=None, order=order, after=None, limit=limit)

    assert [info.id for info in await page(20)] == names[:20]
    with pytest.raises((StoreCorruptedError, SchemaVersionError), match="sessions zzz"):
        await page(21)
    if order == "id" and head == "garbage":
        damaged: list[StoreCorruptedError] = []
        assert [name async for name in walk(journal, Part.SESSIONS, damaged)] == names[:20]
        assert [error.id for error in damaged] == ["zzz"]
