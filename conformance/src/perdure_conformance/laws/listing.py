"""Promise 12: bounded reads. Listings come in pages, each key once, whatever happens between the pages."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import InvalidArgumentError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, LISTS, SESSIONS, Part, WritablePart, request

NAMES = ("b", "a10", "Z", "a", "_x", "a9", "-y", "0", "B", "a1")


async def fill(bench: Bench, part: Part, names: tuple[str, ...] = NAMES) -> list[str]:
    """Create keys a second apart, and return them in the order of their creation."""
    keys = [part.key(name) for name in names]
    for number, key in enumerate(keys):
        bench.clock.advance(timedelta(seconds=1))
        if part is APPROVALS:
            created_at = START + timedelta(seconds=number)
            await bench.store.approvals.create(request(key, created_at=created_at))
        else:
            await part.make(bench.store, key)
    return keys


@law_of_each("pages-give-each-key-once", needs=("list",), promise=12, methods=["list"])
async def pages_give_each_key_once(bench: Bench, part: Part) -> None:
    """Pages of any size give every key once, in the same order as one large page, and then end."""
    keys = await fill(bench, part)
    whole = await part.ids(bench.store, limit=1000)
    equal(sorted(whole), sorted(keys), "the keys on one large page, sorted")
    for limit in (1, 2, 3, 9, 10, 11):
        page = await part.page(bench.store, limit=limit)
        holds(len(page.items) <= limit, f"a page of at most {limit}: got {len(page.items)} items")
        equal(await part.ids(bench.store, limit=limit), whole, f"all keys in pages of {limit}")


@law_of_each("no-cap-on-a-listing", needs=("list",), promise=12, methods=["list"])
async def no_cap_on_a_listing(bench: Bench, part: Part) -> None:
    """A listing does not end before its end: 105 keys come whatever the default size of a page is."""
    keys = await fill(bench, part, tuple(f"s{number}" for number in range(105)))
    page = await part.page(bench.store)
    holds(len(page.items) <= 100, f"a page without a limit: expected at most 100 items, got {len(page.items)}")
    holds(page.cursor is not None, "a page without a limit tells no cursor though keys are left")
    equal(sorted(await part.ids(bench.store)), sorted(keys), "all keys of a listing without a limit")


@law("sessions-no-cap-on-a-page", parts=[SESSIONS], needs=("list",), promise=12, methods=["sessions.list"])
async def no_cap_on_a_page(bench: Bench) -> None:
    """A page of a thousand is the last one only if no key is left, also where a store gives no more at once."""
    keys = [f"s{number:04}" for number in range(1002)]
    for start in range(0, len(keys), 167):
        await asyncio.gather(*(bench.store.sessions.append(key, []) for key in keys[start : start + 167]))
    for limit in (1000, 1001, 2000):
        equal(await SESSIONS.ids(bench.store, limit=limit), keys, f"1002 keys in pages of {limit}")


@law_of_each("limit-zero-gives-nothing", needs=("list",), promise=12, methods=["list"])
async def limit_zero_gives_nothing(bench: Bench, part: Part) -> None:
    """`limit=0` gives no items, not all of them."""
    await part.make(bench.store, part.key("s1"))
    equal((await part.page(bench.store, limit=0)).items, (), "the items of a page with limit=0")


@law_of_each("end-has-no-cursor", needs=("list",), promise=12, methods=["list"])
async def end_has_no_cursor(bench: Bench, part: Part) -> None:
    """An empty listing and the last page tell no cursor."""
    page = await part.page(bench.store, limit=5)
    equal((page.items, page.cursor), ((), None), "a page of an empty listing")
    await part.make(bench.store, part.key("s1"))
    page = await part.page(bench.store, limit=5)
    equal((len(page.items), page.cursor), (1, None), "a page with room for more")
    page = await part.page(bench.store, limit=2**70)  # "all of them", said with a number
    equal((len(page.items), page.cursor), (1, None), "a page with room for more than there can be")


@law_of_each("bad-listings-are-refused", needs=("list",), promise=12, methods=["list"])
async def bad_listings_are_refused(bench: Bench, part: Part) -> None:
    """Negative limits, naive times and what is no cursor are refused."""
    await fill(bench, part)
    naive = START.replace(tzinfo=None)
    bad: list[dict[str, Any]] = [
        *({"limit": limit} for limit in (-1, 1.0, None, "5", True)),
        *({"before": before} for before in (naive, "2031-01-01", 0, START.date())),
        *({"cursor": cursor} for cursor in ("x", "!", "é", "AAAA", "x" * 5000, 5, b"x", "bnVsbA==", "W10=")),
    ]
    for options in bad:
        await raises(InvalidArgumentError, f"list with {options!s:.60}", part.page, bench.store, **options)
    if isinstance(part, WritablePart):
        for order in ("", "ID", "updated", None, 1):
            await raises(InvalidArgumentError, f"list in order {order!r}", part.page, bench.store, order=order)
        cursor = (await part.page(bench.store, limit=2)).cursor
        await raises(
            InvalidArgumentError,
            "list in order created with a cursor of order id",
            part.page,
            bench.store,
            order="created",
            cursor=cursor,
        )


@law_of_each("order-by-id", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def order_by_id(bench: Bench, part: WritablePart) -> None:
    """Order `id`, which is the default, goes by code points, on every backend alike."""
    keys = await fill(bench, part)
    for limit in (3, 100):
        equal(await part.ids(bench.store, limit=limit), sorted(keys), f"the default order in pages of {limit}")
        equal(await part.ids(bench.store, limit=limit, order="id"), sorted(keys), f"order id in pages of {limit}")


@law_of_each("order-by-creation", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def order_by_creation(bench: Bench, part: WritablePart) -> None:
    """Order `created` gives the oldest first, keys of one instant by id, whatever was written since."""
    keys = await fill(bench, part)
    twins = [part.key(name) for name in ("t2", "t10", "t1")]
    for key in twins:
        await part.make(bench.store, key)
    bench.clock.advance(timedelta(days=1))
    await part.write(bench.store, keys[0], [{"n": 2}])
    expected = [*keys[:-1], *sorted([keys[-1], *twins])]
    for limit in (1, 4, 100):
        listed = await part.ids(bench.store, order="created", limit=limit)
        equal(listed, expected, f"order created in pages of {limit}")


@law_of_each("order-by-last-write", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def order_by_last_write(bench: Bench, part: WritablePart) -> None:
    """Order `recent` gives what was written last first."""
    keys = await fill(bench, part)
    for key in (keys[4], keys[1]):
        bench.clock.advance(timedelta(seconds=1))
        await part.write(bench.store, key, [])
    rest = [key for key in reversed(keys) if key not in (keys[4], keys[1])]
    for limit in (1, 4, 100):
        listed = await part.ids(bench.store, order="recent", limit=limit)
        equal(listed, [keys[1], keys[4], *rest], f"order recent in pages of {limit}")


@law("approvals-oldest-first", parts=[APPROVALS], needs=("list",), promise=12, methods=["approvals.list"])
async def approvals_oldest_first(bench: Bench) -> None:
    """Approvals come by creation and then by id, whatever was decided since, and decided copies among them."""
    keys = await fill(bench, APPROVALS)
    approvals = bench.store.approvals
    for name in ("t2", "t1"):
        created_at = START + timedelta(seconds=len(keys) - 1)
        await approvals.create(request(APPROVALS.key(name), created_at=created_at))
    await approvals.decide(keys[0], approved=True, at=START + timedelta(days=2))
    decided = await approvals.get(keys[0])
    assert decided is not None
    copy = request(APPROVALS.key("copy"), created_at=START + 3 * TICK, status="approved", decision=decided.decision)
    await approvals.create(copy)
    last = sorted([keys[-1], APPROVALS.key("t1"), APPROVALS.key("t2")])
    expected = [keys[0], copy.id, *keys[1:-1], *last]
    for limit in (1, 4, 100):
        equal(await APPROVALS.ids(bench.store, limit=limit), expected, f"approvals in pages of {limit}")


@law_of_each("pages-hold-under-writes", needs=("list",), promise=12, methods=["list"])
async def pages_hold_under_writes(bench: Bench, part: Part) -> None:
    """Keys that exist throughout come exactly once, whatever is inserted, changed and deleted between the pages."""
    orders = ("id", "created") if isinstance(part, WritablePart) else (None,)
    for turn, order in enumerate(orders):
        names = tuple(f"{turn}m{number}" for number in range(10, 25))
        keys = await fill(bench, part, names)
        options: dict[str, Any] = {"limit": 4} if order is None else {"limit": 4, "order": order}
        before = {key for key in await part.ids(bench.store) if key not in keys}
        found, gone = list[str](), set[str]()
        async for page in part.pages(bench.store, **options):
            found += [part.id_of(item) for item in page.items]
            equal(
                [key for key in keys if found.count(key) > 1],
                [],
                f"keys that came twice, in order {order or 'created'}",
            )
            if page.cursor is not None:
                gone |= await disturb(bench, part, keys, found, turn)
        stayed = [key for key in keys if key not in gone]
        equal([key for key in found if key in stayed], stayed, f"keys that stayed, in order {order or 'created'}")
        equal(sorted(key for key in found if key in before), sorted(before), "older keys that stayed")


async def disturb(bench: Bench, part: Part, keys: list[str], found: list[str], turn: int) -> set[str]:
    """Insert before and behind the page, change what was seen and what comes, and delete the page's last key."""
    count = len(found)
    for name in (f"{turn}a{count}", f"{turn}z{count}", f"{turn}m10-{count}"):
        await part.make(bench.store, part.key(name))
    gone: set[str] = set()
    if bench.capabilities(part.name).delete:
        for key in (found[-1], keys[0]):
            if await part.delete(bench.store, key):
                gone.add(key)
    last = keys[-1]
    if isinstance(part, WritablePart):
        await part.write(bench.store, last, [{"n": count}])
    else:
        await bench.store.approvals.decide(last, approved=True)
    return gone


@law_of_each("cursor-outlives-its-handle", needs=("list",), promise=12, methods=["list"])
async def cursor_outlives_its_handle(bench: Bench, part: Part) -> None:
    """A cursor is text that continues the listing, on another handle of the place too."""
    await fill(bench, part)
    whole = await part.ids(bench.store)
    page = await part.page(bench.store, limit=4)
    holds(type(page.cursor) is str, f"a cursor: expected a str, got {page.cursor!r}")
    second = await bench.open()
    rest = await part.ids(second, cursor=page.cursor)
    equal([part.id_of(item) for item in page.items] + rest, whole, "a page and what another handle gives behind it")


@law_of_each("listing-holds-no-lock", needs=("list",), promise=12, methods=["list"])
async def listing_holds_no_lock(bench: Bench, part: Part) -> None:
    """Between two pages nothing is locked: every handle writes, and the listing goes on."""
    await fill(bench, part)
    second = await bench.open() if bench.target.reopens else bench.store
    page = await part.page(bench.store, limit=2)
    for number, store in enumerate((second, bench.store)):
        await part.make(store, part.key(f"new-{number}"))
    rest = await part.page(bench.store, limit=100, cursor=page.cursor)
    holds(
        len(rest.items) >= 8, f"the listing after writes between its pages: expected 8 or more, got {len(rest.items)}"
    )


@law_of_each("listing-shows-the-head", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def listing_shows_the_head(bench: Bench, part: WritablePart) -> None:
    """A listed item tells the head as load does, after every kind of write."""
    await fill(bench, part, ("s1", "s2"))
    bench.clock.advance(timedelta(seconds=9))
    more: dict[str, Any] = {"head": CheckpointHead("ready", attempts=3)} if part is CHECKPOINTS else {"state": {"t": 1}}
    await part.write(bench.store, "s1", [{"n": 1}, {"n": 2}], **more)
    if bench.capabilities(part.name).replace:
        await part.replace(bench.store, "s2", [], **more)
    for item in (await part.page(bench.store)).items:
        seen = await part.read(bench.store, part.id_of(item))
        assert seen is not None
        equal(item.count, len(seen.values), f"the count of {part.id_of(item)}")
        for name in ("version", "created_at", "updated_at", "head" if part is CHECKPOINTS else "state"):
            equal(getattr(item, name), getattr(seen.whole, name), f"{name} of {part.id_of(item)} in the listing")
        holds(not hasattr(item, "records") and not hasattr(item, "entries"), "a listed item carries bodies")


@law_of_each("before-is-strict", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def before_is_strict(bench: Bench, part: WritablePart) -> None:
    """`before=t` lists what was last written earlier than t: not at t itself, and one microsecond later it does."""
    await part.make(bench.store, "s1")
    created = bench.clock.now()
    bench.clock.advance(timedelta(hours=1))
    await part.write(bench.store, "s1", [])
    written = bench.clock.now()
    for before, expected in (
        (created + TICK, []),
        (written - TICK, []),
        (written, []),
        (written + TICK, ["s1"]),
        (written + timedelta(days=40_000), ["s1"]),
    ):
        equal(
            await part.ids(bench.store, before=before), expected, f"list(before={before}) of one written at {written}"
        )


@law("approvals-before-is-strict", parts=[APPROVALS], needs=("list",), promise=12, methods=["approvals.list"])
async def approvals_before_is_strict(bench: Bench) -> None:
    """`before=t` lists what was decided, or else created, earlier than t, a decided copy too."""
    asked = await bench.store.approvals.create(request(created_at=START))
    for before, expected in ((START, []), (START + TICK, [asked.id])):
        equal(
            await APPROVALS.ids(bench.store, before=before),
            expected,
            f"list(before={before}) of one created at {START}",
        )
    at = START + timedelta(hours=1)
    decided = await bench.store.approvals.decide(asked.id, approved=False, at=at)
    copy = request(APPROVALS.key("s2"), created_at=START, status="rejected", decision=decided.decision)
    await bench.store.approvals.create(copy)
    for before, ids in ((START + TICK, []), (at, []), (at + TICK, [asked.id, copy.id])):
        equal(await APPROVALS.ids(bench.store, before=before), ids, f"list(before={before}) of two decided at {at}")


@law("sessions-scope-filters-exactly", parts=[SESSIONS], needs=("list",), promise=12, methods=["sessions.list"])
async def scope_filters_exactly(bench: Bench) -> None:
    """`scope` lists the sessions of exactly that scope; an empty scope is one like any other, and None means all."""
    scopes = (
        None,
        "",
        " ",
        "ann",
        "Ann",
        "ann ",
        "ann2",
        "an",
        "a%",
        "a_n",
        "*",
        "é",
        "e\u0301",
        "\0",
        "x\0y",
        "x",
        "😀",
    )
    texts = (*scopes, "u" * 512, "u" * 511, "None", "null", "a/b:c", "'; --")
    for number, scope in enumerate(texts):
        for twin in "ab":
            await bench.store.sessions.append(f"s{number:02}{twin}", [], scope=scope)
    for number, scope in enumerate(texts[1:], 1):
        expected = [f"s{number:02}{twin}" for twin in "ab"]
        named = repr(scope) if len(scope) < 40 else f"with {len(scope)} characters"
        equal(await SESSIONS.ids(bench.store, scope=scope, limit=1), expected, f"the sessions of scope {named}")
    equal(await SESSIONS.ids(bench.store, scope="nobody"), [], "the sessions of a scope that nobody has")
    equal(len(await SESSIONS.ids(bench.store, scope=None)), 2 * len(texts), "how many sessions of all scopes")


@law(
    "checkpoints-status-and-agent-filter-exactly",
    parts=[CHECKPOINTS],
    needs=("list",),
    promise=12,
    methods=["checkpoints.list"],
)
async def status_and_agent_filter_exactly(bench: Bench) -> None:
    """`status` and `agent` list the heads of exactly these, alone and together, as the heads are now."""
    statuses = ("idle", "in-progress", "awaiting-approval", "ready", "finished", "deleting")
    agents = ("", "a", "A", "ab", "a ", "%", "agent", "é")
    heads = {f"s{i}-{j}": (status, agent) for i, status in enumerate(statuses) for j, agent in enumerate(agents)}
    for key, (_, agent) in heads.items():
        await CHECKPOINTS.write(bench.store, key, [], head=CheckpointHead("copying", agent=f"{agent}-old"))
    for key, head in heads.items():
        await CHECKPOINTS.write(bench.store, key, [], head=CheckpointHead(head[0], agent=head[1]))
    for status in (None, *statuses, "copying", "no-such", "", "in"):
        for name in (None, *agents, "agent-old", "nobody"):
            wanted = [key for key, has in heads.items() if status in (None, has[0]) and name in (None, has[1])]
            listed = await CHECKPOINTS.ids(bench.store, status=status, agent=name, limit=7)
            equal(listed, sorted(wanted), f"list(status={status!r}, agent={name!r})")


@law("approvals-filters-are-exact", parts=[APPROVALS], needs=("list",), promise=12, methods=["approvals.list"])
async def approvals_filters_are_exact(bench: Bench) -> None:
    """`session_id`, `run_id` and `status` list exactly those, alone and together, as they are now, in pages too."""
    approvals = bench.store.approvals
    found: dict[str, tuple[str | None, str, str]] = {}
    for session in ("s1", "s10", "S1"):
        for turn in ("turn-1", "turn-10"):
            for call, status in enumerate(("pending", "approved", "rejected", "cancelled")):
                run = f"{session}.{turn}"
                asked = await approvals.create(request(f"{run}.s0.c{call}"))
                if status == "cancelled":
                    await approvals.cancel(asked.id, reason="no")
                elif status != "pending":
                    await approvals.decide(asked.id, approved=status == "approved")
                found[asked.id] = (session, run, status)
    await approvals.create(request("s1.run-5.s0.c0", session_id=None, run_id="s1.run-5"))
    found["s1.run-5.s0.c0"] = (None, "s1.run-5", "pending")
    for session_id in (None, "s1", "s10", "S1", "s", "nobody"):
        for run_id in (None, "s1.turn-1", "s1.turn-10", "s10.turn-1", "s1.run-5", "s1", "s1.turn"):
            for wanted in (None, "pending", "approved", "rejected", "cancelled"):
                given = (session_id, run_id, wanted)
                expected = [
                    one for one, has in found.items() if all(g in (None, h) for g, h in zip(given, has, strict=True))
                ]
                listed = await APPROVALS.ids(bench.store, session_id=session_id, run_id=run_id, status=wanted, limit=2)
                equal(listed, sorted(expected), f"list(session_id={session_id}, run_id={run_id}, status={wanted})")
    for bad in ("", "Pending", "done", "open"):
        await raises(InvalidArgumentError, f"list(status={bad!r})", approvals.list, status=bad)
