"""Promise 8: absent, empty and unreadable are three different answers, and reading creates nothing."""

from __future__ import annotations

from contextlib import suppress

from perdure.errors import StoreCorruptedError, StoreUnavailableError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError, broken, equal, holds
from perdure_conformance.laws.register import law_of_each
from perdure_conformance.parts import LISTS, Part, WritablePart


@law_of_each("absent-is-none", promise=8, methods=["read"])
async def absent_is_none(bench: Bench, part: Part) -> None:
    """Reading an absent key answers None, before and after other keys exist."""
    equal(await part.read(bench.store, part.key("s1")), None, "an absent key of an empty store")
    await part.make(bench.store, part.key("s10"))
    await part.make(bench.store, part.key("S1"))
    equal(await part.read(bench.store, part.key("s1")), None, "an absent key beside keys that resemble it")


@law_of_each("empty-is-not-absent", parts=LISTS, promise=8, methods=["read"])
async def empty_is_not_absent(bench: Bench, part: WritablePart) -> None:
    """A key that was created with nothing is there, with nothing in it."""
    version = await part.write(bench.store, "s1", [], expected_version=0)
    seen = await part.read(bench.store, "s1")
    holds(seen is not None, "an empty key was created, but reading answers None")
    assert seen is not None
    equal((seen.version, seen.values), (version, ()), "the version and the content of an empty key")
    if bench.capabilities(part.name).list:
        equal(await part.ids(bench.store), ["s1"], "the listing of one empty key")


@law_of_each("emptied-is-not-absent", parts=LISTS, needs=("replace",), promise=8, methods=["replace"])
async def emptied_is_not_absent(bench: Bench, part: WritablePart) -> None:
    """A key whose content was replaced by nothing is there, at its new version."""
    version = await part.make(bench.store, "s1")
    await part.replace(bench.store, "s1", [], expected_version=version)
    seen = await part.read(bench.store, "s1")
    holds(seen is not None, "a key was emptied, but reading answers None")
    assert seen is not None
    equal((seen.version, seen.values), (version + 1, ()), "the version and the content of an emptied key")


@law_of_each("reading-creates-nothing", needs=("list",), promise=8, methods=["read"])
async def reading_creates_nothing(bench: Bench, part: Part) -> None:
    """Reading and listing absent keys leaves no trace: neither in listings nor for a creation at version 0."""
    for number in range(50):
        await part.read(bench.store, part.key(f"missing-{number}"))
    equal(await part.ids(bench.store), [], "the listing after 50 reads of absent keys")
    await part.make(bench.store, part.key("missing-7"))
    equal(await part.ids(bench.store), [part.key("missing-7")], "the listing after one of them was created")


@law_of_each("refused-write-creates-nothing", needs=("list",), promise=8, methods=["make"])
async def refused_write_creates_nothing(bench: Bench, part: Part) -> None:
    """A write that is refused for its content leaves an absent key absent."""
    try:
        await part.make(bench.store, part.key("s1"), {"n": float("nan")})
    except ValueError:
        equal(await part.ids(bench.store), [], "the listing after a refused creation")
    else:
        raise broken("writing NaN: expected NotJsonError, but the call answered")


@law_of_each("deleted-is-absent", needs=("delete",), promise=8, methods=["delete"])
async def deleted_is_absent(bench: Bench, part: Part) -> None:
    """A deleted key reads as None and is listed no more; deleting it again answers False."""
    key, other = part.key("s1"), part.key("s2")
    await part.make(bench.store, key)
    await part.make(bench.store, other)
    equal(await part.delete(bench.store, key), True, "a delete of a key that is there")
    equal(await part.read(bench.store, key), None, "the deleted key")
    equal(await part.delete(bench.store, key), False, "a second delete")
    if bench.capabilities(part.name).list:
        equal(await part.ids(bench.store), [other], "the listing after the delete")


@law_of_each("damage-is-neither-absent-nor-empty", needs=("durable",), promise=8, methods=["read"])
async def damage_is_an_error(bench: Bench, part: Part) -> None:
    """What cannot be read any more is a typed error: never None, never empty, not left out of a listing, and never made anew."""
    if bench.target.damage is None:
        raise NotRunError("the target tells no way to damage what is stored")
    key, lists = part.key("s1"), bench.capabilities(part.name).list
    await part.make(bench.store, key)
    await bench.close()
    bench.target.damage(bench.place)
    for attempt in ("first", "second"):
        with suppress(StoreCorruptedError, StoreUnavailableError):
            store = await bench.open()
            with suppress(StoreCorruptedError, StoreUnavailableError):
                seen = await part.read(store, key)
                raise broken(f"{attempt} reading after damage: expected StoreCorruptedError, got {seen}")
            if lists:  # a head may be whole where what belongs to it is not
                listed = await part.ids(store)
                equal(listed, [key], f"{attempt} listing after damage, which raised no StoreCorruptedError")
