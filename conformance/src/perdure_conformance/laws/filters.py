"""Promise 12, the conditions of a listing together: filters, `before` and order, from page to page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds
from perdure_conformance.laws.atomicity import watched
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import CHECKPOINTS, LISTS, WritablePart

ORDERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "id": (lambda one: one[0], False),
    "created": (lambda one: (one[1], one[0]), False),
    "recent": (lambda one: (one[2], one[0]), True),
}
"""For each order, by what it sorts key, creation and last write, and whether it goes backwards."""


@law_of_each("conditions-go-together", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def conditions_go_together(bench: Bench, part: WritablePart) -> None:
    """A filter and `before` hold together, in every order and on every page; what they leave out ends no listing."""
    groups, keys = ("ann", "bob"), await written(bench, part)
    cuts = sorted({one[2] for one in keys.values()})
    for order, (place, backwards) in ORDERS.items():
        for group in (None, *groups):
            for before in (None, cuts[3], cuts[-2]):
                wanted = [
                    (key, created, updated)
                    for key, (of, created, updated) in keys.items()
                    if group in (None, of) and (before is None or updated < before)
                ]
                expected = [one[0] for one in sorted(wanted, key=place, reverse=backwards)]
                given: dict[str, Any] = {"order": order, "before": before, grouped_by(part): group}
                for limit in (2, 100):
                    listed = await part.ids(bench.store, limit=limit, **given)
                    equal(listed, expected, f"list({said(given)}) in pages of {limit}")


async def written(bench: Bench, part: WritablePart) -> dict[str, tuple[str, datetime, datetime]]:
    """Make ten keys of two groups in no order of ids, write some of them again, and return what each is."""
    keys: dict[str, tuple[str, datetime, datetime]] = {}
    for number, name in enumerate(("d", "h", "a", "j", "c", "f", "b", "i", "e", "g")):
        now, group = bench.clock.advance(timedelta(seconds=1)), ("ann", "bob")[number % 2]
        await part.write(bench.store, name, [{"n": 1}], expected_version=0, **of_group(part, group))
        keys[name] = (group, now, now)
    for name in ("j", "d", "f"):
        group, created, _ = keys[name]
        now = bench.clock.advance(timedelta(seconds=1))
        more = of_group(part, group) if part is CHECKPOINTS else {}
        await part.write(bench.store, name, [], **more)
        keys[name] = (group, created, now)
    return keys


def said(given: dict[str, Any]) -> str:
    """Return the conditions of a listing as one reads them."""
    return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def grouped_by(part: WritablePart) -> str:
    """Return the filter that goes by the group of a key."""
    return "agent" if part is CHECKPOINTS else "scope"


def of_group(part: WritablePart, group: str) -> dict[str, Any]:
    """Return the arguments of a write that puts a key into a group."""
    return {"head": CheckpointHead("in-progress", agent=group)} if part is CHECKPOINTS else {"scope": group}


@law_of_each("recent-pages-give-each-key-once", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def recent_pages_give_each_key_once(bench: Bench, part: WritablePart) -> None:
    """In the order `recent` too, each key that nobody writes meanwhile comes once, also among keys of one instant."""
    names = ("b", "e", "a", "d", "f", "c")
    for name in names:
        await part.make(bench.store, name)
    bench.clock.advance(timedelta(seconds=1))
    await part.make(bench.store, "newest")
    for limit in (1, 2, 3, 4, 100):
        listed = await part.ids(bench.store, order="recent", limit=limit)
        equal(listed[:1], ["newest"], f"what comes first in order recent, in pages of {limit}")
        equal(sorted(listed[1:]), sorted(names), f"the keys of one instant, in pages of {limit}, sorted")


@law("checkpoints-page-shows-one-instant", parts=[CHECKPOINTS], promise=12, methods=["checkpoints.list"])
async def page_shows_one_instant(bench: Bench) -> None:
    """A page shows one instant: what is listed by a status has that status, whatever is written meanwhile."""
    keys, statuses = [f"s{number}" for number in range(6)], ("ready", "in-progress")
    for key in keys:
        await CHECKPOINTS.write(bench.store, key, [], head=CheckpointHead("ready"))

    async def look() -> None:
        for status in statuses:
            page = await CHECKPOINTS.page(bench.store, status=status)
            others = [item.head.status for item in page.items if item.head.status != status]
            holds(not others, f"list(status={status!r}) while heads change: it shows heads of status {others}")

    async def write() -> None:
        for number in range(30):
            head = CheckpointHead(statuses[(number // 6 + 1) % 2])
            await CHECKPOINTS.write(bench.store, keys[number % 6], [], head=head)
            await asyncio.sleep(0)

    await watched(look, write())
