import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

import perdure
from perdure.backend import Position, StoreURLError
from perdure_memory.kept import Entry, Kept

pytestmark = pytest.mark.anyio

AT = datetime(2026, 1, 2, tzinfo=UTC)

FORK_IN_C = """
import asyncio, ctypes, os, perdure
from perdure.backend import WrongLoopError

async def use(name):
    async with perdure.open_store(name) as store:
        await store.sessions.append("a", [{}])

asyncio.run(use("memory:shared"))
if ctypes.PyDLL(None).fork() == 0:
    try:
        asyncio.run(use("memory:own"))
        asyncio.run(use("memory:shared"))
    except WrongLoopError as error:
        os._exit(42 if "memory:shared" in str(error) else 1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_child_of_a_server_that_forks_in_c_is_refused() -> None:
    """As of uWSGI, which does not call what Python calls in a child."""
    ran = subprocess.run([sys.executable, "-c", FORK_IN_C], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("42\n", "")


async def test_a_url_without_a_name_is_private_to_its_opening() -> None:
    async with perdure.open_store("memory:") as one, perdure.open_store("memory:") as two:
        await one.sessions.append("s", [])
        assert await two.sessions.load("s") is None
        assert await one.sessions.load("s") is not None


async def test_handles_of_one_name_share_their_data_also_after_closing() -> None:
    async with perdure.open_store("memory:shared") as one, perdure.open_store("memory:shared") as two:
        version = await one.sessions.append("s", [{"text": "kept"}])
        found = await two.sessions.load("s")
        assert found is not None
        assert found.version == version
    async with perdure.open_store("memory:shared") as three, perdure.open_store("memory:other") as other:
        assert await three.sessions.load("s") == found
        assert await other.sessions.load("s") is None


async def test_namespaces_of_one_name_are_apart() -> None:
    async with (
        perdure.open_store("memory:tenants?namespace=a") as a,
        perdure.open_store("memory:tenants?namespace=ab") as ab,
        perdure.open_store("memory:tenants") as default,
    ):
        await a.sessions.append("s", [])
        assert await ab.sessions.load("s") is None
        assert await default.sessions.load("s") is None


async def test_the_three_parts_of_a_private_url_are_one_journal() -> None:
    async with perdure.open_store("memory:") as store:
        assert store.atomic
        assert store.sessions.title == "memory: sessions"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("memory://name", "Write memory:name or memory:///abs/name."),
        ("memory:?size=1", "unknown option size (known: max_record, namespace)"),
    ],
)
async def test_a_wrong_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(StoreURLError) as caught:
        await perdure.open_store(url)
    assert problem in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_the_orders_are_those_of_a_sort_whatever_came_and_went(seed: int) -> None:
    draw, kept = random.Random(seed), Kept()
    for _ in range(300):
        name, at = f"k{draw.randrange(40):02}", AT + timedelta(seconds=draw.randrange(50))
        entry = kept.entries.get(name)
        if entry is not None and draw.random() < 0.2:
            assert kept.remove(name) == entry.version
        elif entry is not None:
            entry.updated_at = max(entry.updated_at, at)
            kept.put(name, entry)
        else:
            kept.put(name, Entry(1, at, at))
        if draw.random() < 0.3:  # a listing may sort, and later writes must hold with it
            agree(kept, Position(AT + timedelta(seconds=draw.randrange(50)), f"k{draw.randrange(40):02}"))
    assert kept.remove("none") == 0


def agree(kept: Kept, behind: Position) -> None:
    created = sorted((entry.created_at, name) for name, entry in kept.entries.items())
    recent = sorted(((entry.updated_at, name) for name, entry in kept.entries.items()), reverse=True)
    place = (behind.at, behind.id)
    assert list(kept.ids("id", None)) == sorted(kept.entries)
    assert list(kept.ids("id", Position(None, behind.id))) == sorted(name for name in kept.entries if name > behind.id)
    for order, places in (("created", created), ("recent", recent)):
        assert list(kept.ids(order, None)) == [name for _, name in places]
        wanted = [one for one in places if (one < place if order == "recent" else one > place)]
        assert list(kept.ids(order, behind)) == [name for _, name in wanted]
