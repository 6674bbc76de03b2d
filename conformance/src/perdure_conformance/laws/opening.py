"""The opener itself: what every other law takes for granted."""

from __future__ import annotations

from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal, holds
from perdure_conformance.laws.register import law_of_each
from perdure_conformance.parts import PARTS, Part


@law_of_each("fresh-place-is-empty", methods=["read"])
async def fresh_place_is_empty(bench: Bench, part: Part) -> None:
    """A place that nobody wrote to holds nothing."""
    equal(await part.read(bench.store, part.key("s1")), None, "reading a key of a fresh place")
    if bench.capabilities(part.name).list:
        equal(await part.ids(bench.store), [], "the listing of a fresh place")


@law_of_each("places-are-apart")
async def places_are_apart(bench: Bench, part: Part) -> None:
    """What is written at one place is not found at another."""
    other = await bench.open(bench.another_place())
    await part.make(bench.store, part.key("s1"), {"at": "here"})
    equal(await part.read(other, part.key("s1")), None, "a key that was written at another place")
    await part.make(other, part.key("s1"), {"at": "there"})
    seen = await part.read(bench.store, part.key("s1"))
    holds(seen is not None and seen.values == ({"at": "here"},), f"a write at another place changed this one: {seen}")


@law_of_each("second-handle-finds-the-data")
async def second_handle_finds_the_data(bench: Bench, part: Part) -> None:
    """A place that is opened again shows what was written there."""
    await part.make(bench.store, part.key("s1"), {"n": 1})
    second = await bench.open()
    equal(await part.read(second, part.key("s1")), await part.read(bench.store, part.key("s1")), "a second handle")


async def namespaces_make_places(bench: Bench, url: str) -> None:
    """Look whether a URL without `{place}` will do: then a fresh namespace is a place that can be opened again.

    Raises:
        LawBrokenError: It will not; the message says why, and what to write.
    """
    part = next((one for one in PARTS if one.name in bench.store), None)
    if part is None:
        return
    key = part.key("s1")
    version = await part.make(bench.store, key)
    again, elsewhere = await bench.open(), await bench.open(bench.another_place())
    found = [await part.read(store, key) for store in (again, elsewhere)]
    said = [None if seen is None else seen.version for seen in found]
    if said != [version, None]:
        fails = "an opening does not find what another one wrote" if said[0] != version else "namespaces are not apart"
        raise broken(
            f"{url!r} cannot be checked as it is: {fails}. Put {{place}} where a fresh name, or {{dir}} where a fresh "
            f"directory belongs, such as '{url.partition(':')[0]}:{{place}}'"
        )
