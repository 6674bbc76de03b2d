"""Promise 11: isolation. No method of one namespace reads, lists, changes or removes another's keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.errors import InvalidIdError, StoreURLError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal, raises
from perdure_conformance.laws.filters import grouped_by, of_group, said
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import CHECKPOINTS, LISTS, Part, Stores, WritablePart
from perdure_conformance.values import LARGE

NAMESPACES = ("default", "default2", "defaulu", "a", "ab", "a_", "a-", "A", "a-b", "b", "aa", "n" * 48, "n" * 47 + "m")
"""Tenants whose names resemble one another, or are the beginning of one another."""


async def tenants(bench: Bench) -> dict[str, Stores]:
    """Open a store for each namespace, all at one place."""
    await bench.close()
    return {name: await bench.open(bench.place, namespace=name) for name in NAMESPACES}


@law_of_each("namespaces-share-no-key", promise=11, methods=["make"])
async def namespaces_share_no_key(bench: Bench, part: Part) -> None:
    """The same key is another one in each namespace, absent in all where it was not written."""
    stores = await tenants(bench)
    key = part.key("s1")
    for name, store in stores.items():
        equal(await part.read(store, key), None, f"the key in namespace {name}, which did not write it yet")
        await part.make(store, key, {"of": name})
    for name, store in stores.items():
        seen = await part.read(store, key)
        equal(seen and seen.values, ({"of": name},), f"the key in namespace {name}")


@law_of_each("namespaces-list-their-own", needs=("list",), promise=11, methods=["list"])
async def namespaces_list_their_own(bench: Bench, part: Part) -> None:
    """A namespace lists its own keys and no other's, whatever the listing goes by."""
    stores = await tenants(bench)
    shared = part.key("s1")
    for name, store in stores.items():
        for key in (shared, part.key(f"of-{name}")):
            if isinstance(part, WritablePart):
                await part.write(store, key, [{"of": name}], expected_version=0, **of_group(part, "ann"))
            else:
                await part.make(store, key)
    for name, store in stores.items():
        for given in conditions(bench, part):
            expected = [shared] if "session_id" in given or "run_id" in given else [part.key(f"of-{name}"), shared]
            listed = sorted(await part.ids(store, **given))
            equal(listed, sorted(expected), f"list({said(given)}) in namespace {name}")


def conditions(bench: Bench, part: Part) -> list[dict[str, Any]]:
    """Return ways to list a part, each of which fits all of its keys, or that of `s1`."""
    shared: list[dict[str, Any]] = [{"limit": 1}, {"before": bench.clock.now() + timedelta(days=36500)}]
    if not isinstance(part, WritablePart):
        return [*shared, {"status": "pending"}, {"session_id": "s1"}, {"run_id": "s1.turn-1"}]
    orders = [{"order": "created"}, {"order": "recent"}, {grouped_by(part): "ann"}]
    return [*shared, *orders, *([{"status": "in-progress"}] if part is CHECKPOINTS else [])]


@law_of_each("namespaces-delete-their-own", needs=("delete",), promise=11, methods=["delete"])
async def namespaces_delete_their_own(bench: Bench, part: Part) -> None:
    """A delete in one namespace leaves the same key of every other."""
    stores = await tenants(bench)
    key = part.key("s1")
    for name, store in stores.items():
        await part.make(store, key, {"of": name})
    left = dict(stores)
    for gone, store in stores.items():
        equal(await part.delete(store, key), True, f"the delete in namespace {gone}")
        del left[gone]
        for name, other in left.items():
            seen = await part.read(other, key)
            equal(seen and seen.values, ({"of": name},), f"the key in namespace {name} after a delete in {gone}")


@law_of_each("namespaces-write-their-own", parts=LISTS, promise=11, methods=["write"])
async def namespaces_write_their_own(bench: Bench, part: WritablePart) -> None:
    """A version of one namespace is worth nothing in another, and a write in one changes no other."""
    stores = await tenants(bench)
    versions = {name: await part.make(store, "s1", {"of": name}) for name, store in stores.items()}
    await raises(
        VersionConflictError,
        "an append to namespace ab at the version of namespace a",
        part.write,
        *(stores["ab"], "s1", [{"n": 1}]),
        expected_version=versions["a"],
    )
    await part.write(stores["a"], "s1", [{"more": 1}], expected_version=versions["a"])
    for name, store in stores.items():
        expected = [{"of": name}, {"more": 1}] if name == "a" else [{"of": name}]
        equal(await part.values(store, "s1"), expected, f"the key in namespace {name} after a write in a")
    for name in ("a", "ab"):
        await part.write(stores[name], "s2", [{"text": name[-1] * LARGE}])
    for name in ("a", "ab"):
        found = await part.values(stores[name], "s2")
        equal(found, [{"text": name[-1] * LARGE}], f"a long text in namespace {name}, where another has one, too")


@law("bad-namespaces-are-refused", promise=11)
async def bad_namespaces_are_refused(bench: Bench) -> None:
    """A namespace that breaks its rule is refused when the store is opened."""
    for bad in ("a/b", "..", "a b", "n" * 65, "a:b", "%00"):
        try:
            await bench.open(bench.another_place(), namespace=bad)
        except (InvalidIdError, StoreURLError):
            continue
        raise broken(f"opening the namespace {bad!r}: expected InvalidIdError or StoreURLError, but it was opened")
