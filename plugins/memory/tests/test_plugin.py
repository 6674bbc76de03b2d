import pytest

import perdure
from perdure.backend import StoreURLError

pytestmark = pytest.mark.anyio


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
