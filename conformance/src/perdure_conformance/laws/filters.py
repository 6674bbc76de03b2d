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
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, WritablePart, request
from perdure_conformance.values import LARGE

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
    bench.clock.advance(timedelta(seconds=-1))
    await part.make(bench.store, "late")
    listed = await part.ids(bench.store, order="recent", limit=1)
    equal(sorted(listed), sorted([*names, "late", "newest"]), "the keys when the clock went back, page by page, sorted")
    found, moved = list[str](), set[str]()
    async for page in part.pages(bench.store, order="recent", limit=2):
        found += [part.id_of(item) for item in page.items]
        twice = [key for key in found if key not in moved and found.count(key) > 1]
        equal(twice, [], "keys that came twice, though only the last one of each page was written meanwhile")
        bench.clock.advance(timedelta(seconds=5))
        moved.add(found[-1])
        await part.write(bench.store, found[-1], [])
    equal({*names, "late", "newest"} - {*found}, set(), "keys that did not come, beside writes to others")


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


@law(
    "checkpoints-filters-follow-every-write",
    parts=[CHECKPOINTS],
    needs=("list", "replace"),
    promise=12,
    methods=["checkpoints.list"],
)
async def filters_follow_every_write(bench: Bench) -> None:
    """A turn journal is listed under the status and agent of its last write, an append or a replace, and no others."""
    statuses, agents = ("in-progress", "awaiting-approval", "ready", "idle"), ("ann", "bob", "")
    await CHECKPOINTS.make(bench.store, "s1")
    for number in range(12):
        head, replaces = CheckpointHead(statuses[number % 4], agent=agents[number % 3]), number % 4 in (1, 2)
        await (CHECKPOINTS.replace if replaces else CHECKPOINTS.write)(bench.store, "s1", [], head=head)
        what = f"after write {number}, {'a replace' if replaces else 'an append'},"
        for status in statuses:
            listed = await CHECKPOINTS.ids(bench.store, status=status)
            equal(listed, ["s1"] * (status == head.status), f"list(status={status!r}) {what} with status {head.status}")
        for agent in agents:
            listed = await CHECKPOINTS.ids(bench.store, agent=agent)
            equal(listed, ["s1"] * (agent == head.agent), f"list(agent={agent!r}) {what} with agent {head.agent!r}")


@law("parts-of-one-id-are-listed-apart", parts=LISTS, needs=("list", "replace", "delete"), promise=10)
async def parts_of_one_id_are_listed_apart(bench: Bench) -> None:
    """A session and the turn journal of its id have filters, state and head of their own, whatever is written to one."""
    sessions, checkpoints = bench.store.sessions, bench.store.checkpoints
    large, other = ({"text": letter * LARGE} for letter in "xy")
    await sessions.append("s1", [large], scope="ann", state={"title": "t"})
    await CHECKPOINTS.write(bench.store, "s1", [other])
    session = await sessions.load("s1")
    equal(session and list(session.records), [large], "the session beside a turn journal whose entry is as long")
    for number, agent in enumerate(("bob", "cem", "dan")):
        write = CHECKPOINTS.replace if number == 2 else CHECKPOINTS.write
        await write(bench.store, "s1", [{"n": number}], head=CheckpointHead("ready", agent=agent))
        equal(await sessions.load("s1"), session, f"the session after its turn journal got the agent {agent!r}")
        equal(await SESSIONS.ids(bench.store, scope="ann"), ["s1"], "the sessions of scope 'ann' then")
    journal = await checkpoints.load("s1")
    for state in ({"title": "u"}, {}):
        await sessions.append("s1", [], state=state)
        await sessions.replace("s1", [], expected_version=None, state=state)
        equal(await checkpoints.load("s1"), journal, "the turn journal after writes to its session")
        equal(await CHECKPOINTS.ids(bench.store, agent="dan", status="ready"), ["s1"], "list(agent='dan') then")
    await sessions.delete("s1")
    await sessions.append("s1", [], scope="eve")
    equal(await checkpoints.load("s1"), journal, "the turn journal after its session was deleted and made anew")


INSTANTS = tuple(
    START.replace(microsecond=0) + step
    for step in (
        timedelta(),
        TICK,
        10 * TICK,
        timedelta(milliseconds=100),
        timedelta(seconds=1) - TICK,
        timedelta(seconds=1),
    )
)
"""Instants with and without a fraction of a second: written without its zeros, one goes by the wrong order of texts."""
SHUFFLED = ((3, "a"), (0, "f"), (5, "c"), (1, "b"), (4, "e"), (2, "d"))
"""Which of them is whose, in no order."""


@law_of_each("order-goes-by-microseconds", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def order_goes_by_microseconds(bench: Bench, part: WritablePart) -> None:
    """Instants compare as instants, on a whole second and a microsecond beside it: in orders, `before` and `updated_at`."""
    for which, name in SHUFFLED:
        await part.write(bench.store, name, [{"n": 1}], expected_version=0, at=INSTANTS[which])
    expected = [name for _, name in sorted(SHUFFLED)]
    equal(await part.ids(bench.store, order="created", limit=2), expected, "order created")
    equal(await part.ids(bench.store, order="recent", limit=2), expected[::-1], "order recent")
    for which, before in enumerate(INSTANTS):
        equal(await part.ids(bench.store, before=before, order="created"), expected[:which], f"list(before={before})")
    for which, name in SHUFFLED:
        for older in INSTANTS[:which]:
            await part.write(bench.store, name, [], at=older)
        found = await part.read(bench.store, name)
        equal(found and found.whole.updated_at, INSTANTS[which], "updated_at after writes at instants before it")


@law("approvals-order-goes-by-microseconds", parts=[APPROVALS], needs=("list",), promise=12, methods=["approvals.list"])
async def approvals_order_goes_by_microseconds(bench: Bench) -> None:
    """Approvals created on a whole second and a microsecond beside it come in the order of their creation."""
    for which, name in SHUFFLED:
        await bench.store.approvals.create(request(APPROVALS.key(name), created_at=INSTANTS[which]))
    expected = [APPROVALS.key(name) for _, name in sorted(SHUFFLED)]
    equal(await APPROVALS.ids(bench.store, limit=2), expected, "approvals in pages of 2")
    for which, before in enumerate(INSTANTS):
        equal(await APPROVALS.ids(bench.store, before=before), expected[:which], f"list(before={before})")
