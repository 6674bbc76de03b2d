"""The opener itself: what every other law takes for granted."""

from __future__ import annotations

from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds
from perdure_conformance.laws.register import law_of_each
from perdure_conformance.parts import Part


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
