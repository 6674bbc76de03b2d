"""Planted stores whose listings are wrong: filters, orders, pages, heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from conformance.tests.faults.planting import MANY, Around, Fault, Scans, Scene

from perdure.backend import JournalInfo, JournalSnapshot, Key, Page, Part, Position, StoredTranscript
from perdure.contracts.checkpoints import CheckpointHead
from perdure.journal.stores import JournalSessions, write_position


class GroupByPrefix(Scans):
    def in_group(self, has: str | None, wanted: str | None) -> bool:
        return wanted is None or (has or "").startswith(wanted)


class EmptyGroupIsNone(Scans):
    def in_group(self, has: str | None, wanted: str | None) -> bool:
        return not wanted or wanted == has


class StatusIgnored(Scans):
    def fits(self, info: JournalInfo, **options: Any) -> bool:
        return super().fits(info, **(options | {"status": None}))


class BeforeIsInclusive(Scans):
    def fits(self, info: JournalInfo, **options: Any) -> bool:
        before = options["before"]
        return super().fits(info, **(options | {"before": before and before + timedelta(microseconds=1)}))


class RecentIsCreated(Around):
    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        order = "created" if options["order"] == "recent" else options["order"]
        return await super().scan(part, **(options | {"order": order}))


class ListingStopsAtTwenty(Around):
    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return list(await super().scan(part, **options))[:20]


class ListsStaleHeads(Around):
    """The listing shows each key as it was created."""

    first: ClassVar[dict[tuple[str, Key], JournalInfo]] = {}

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        return [self.first.setdefault((self.place.name, Key(part, info.id)), info) for info in found]

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        versions = await super().write(operations)
        for operation in operations:
            await self.scan(
                operation.key.part, group=None, status=None, before=None, order="id", after=None, limit=MANY
            )
        return versions


class PagesByOffset(JournalSessions):
    async def _list(self, **options: Any) -> Page[StoredTranscript]:
        start, limit = int(options.pop("cursor") or 0), options.pop("limit")
        found = (await super()._list(**options, cursor=None, limit=MANY)).items
        end = start + limit
        return Page(tuple(found[start:end]), str(end) if len(found) > end else None)


class AgentIgnored(Scans):
    """Turn journals of every agent are listed, whichever is asked for."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return await super().scan(part, **(options | {"group": None} if part == Part.RUNS else options))


class ListsTheNewestFirst(Around):
    """Approvals come newest first."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        if part != Part.APPROVALS or options["after"] is not None:
            return await super().scan(part, **options)
        found = await self.everything(part, options["order"], None)
        return found[::-1][: options["limit"]]


class ListsDecidedAsPending(Around):
    """Filtering by status goes by what an approval was when it was created."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        if part != Part.APPROVALS or options["status"] != "pending":
            return await super().scan(part, **options)
        return await super().scan(part, **(options | {"status": None}))


class IgnoresCase(Around):
    """Keys are sorted as a dictionary sorts words."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        if options["order"] != "id":
            return await super().scan(part, **options)
        found = await self.everything(part, "id", None)
        found.sort(key=lambda info: (info.id.lower(), info.id))
        after = options["after"]
        if after is not None:
            found = [info for info in found if (info.id.lower(), info.id) > (after.id.lower(), after.id)]
        return found[: options["limit"]]


class ListsBodies(JournalSessions):
    """A listing reads and moves every record."""

    async def _list(self, **options: Any) -> Page[StoredTranscript]:
        page = await super()._list(**options)
        read = [await self._load(one.session_id, after=0, limit=None, last=None) for one in page.items]
        return Page(tuple(one for one in read if one is not None), page.cursor)


class LoadsAllForTheNewest(JournalSessions):
    """The newest records are cut from all of them."""

    async def _load(self, session_id: str, *, after: int, limit: int | None, last: int | None) -> Any:
        found = await super()._load(session_id, after=after, limit=limit, last=None)
        if found is None or last is None:
            return found
        start = max(len(found.records) - last, 0)
        return replace(found, records=found.records[start:], start=start)


class AppendReadsAll(JournalSessions):
    """An append reads the whole transcript first."""

    async def _append(self, session_id: str, records: Any, **options: Any) -> int:
        await self._load(session_id, after=0, limit=None, last=None)
        return await super()._append(session_id, records, **options)


class PagesGoRound(Around):
    """Every page is the first one."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        return await super().scan(part, **(options | {"after": None}))


class CursorEndsLate(JournalSessions):
    """The last page has a cursor too, and an empty page comes behind it."""

    async def _list(self, **options: Any) -> Page[StoredTranscript]:
        page = await super()._list(**options)
        if page.cursor is not None or not page.items:
            return page
        ends = {"id": None, "created": page.items[-1].created_at, "recent": page.items[-1].updated_at}
        position = Position(ends[options["order"]], page.items[-1].session_id)
        return Page(page.items, write_position(position, options["order"]))


class ForgetsTheHeadOfMany(Around):
    """A listing of more than one key leaves the heads out."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        if part != Part.SESSIONS or len(found) < 2:
            return found
        return [replace(info, head=replace(info.head, data=b"")) for info in found]


# --- witnesses ---


async def mixed(scene: Scene) -> Any:
    """What every filter and order gives of a few keys."""
    for number, (name, scope) in enumerate((("b", "ann"), ("a", "anna"), ("C", ""), ("d", None))):
        scene.clock.advance(timedelta(seconds=1))
        await scene.append(number, to=name, scope=scope, state={"n": number})
        head = CheckpointHead(("ready", "in-progress", "idle", "finished")[number], agent=scope or "agent")
        await scene.turn(to=name, head=head)
        await scene.ask(number, created_at=scene.clock.now())
    cutoff = scene.clock.now()
    await scene.append(9, to="b", state={"n": 9})
    await scene.store.approvals.decide("s1.turn-1.s0.c0", approved=True)
    sessions: list[dict[str, Any]] = [
        {"scope": "ann"},
        {"scope": ""},
        {"order": "id"},
        {"order": "recent"},
        {"before": cutoff},
    ]
    checkpoints: list[dict[str, Any]] = [{"agent": "ann"}, {"status": "ready"}, {"agent": ""}]
    found = [await scene.ids("sessions", **filters) for filters in sessions]
    found += [await scene.ids("checkpoints", **filters) for filters in checkpoints]
    found += [await scene.ids("approvals", **filters) for filters in ({"status": None}, {"status": "pending"})]
    heads = [(one.session_id, one.state) for one in (await scene.store.sessions.list()).items]
    return found, heads, [one.status for one in (await scene.store.approvals.list()).items]


async def thirty(scene: Scene) -> Any:
    for number in range(30):
        await scene.append(number, to=f"s{number}")
    return await scene.ids()


async def pages(scene: Scene) -> Any:
    """Pages of two, with a key deleted and one written between them."""
    for name in "abcdef":
        await scene.append(1, to=name)
    found, cursor = [], None
    while True:
        page = await scene.store.sessions.list(cursor=cursor, limit=2)
        found.append([one.session_id for one in page.items])
        cursor = page.cursor
        if cursor is None:
            return found
        await scene.store.sessions.delete(page.items[0].session_id)


async def second_page(scene: Scene) -> Any:
    for name in "abc":
        await scene.append(1, to=name)
    first = await scene.store.sessions.list(limit=2)
    return await scene.ids(cursor=first.cursor, limit=2)


class Moved:
    """Counts the bytes that a store moves."""

    wanted = True

    def __init__(self) -> None:
        self.size = 0

    def called(self, *_: Any, size: int, **__: Any) -> None:
        self.size += size


async def moved(scene: Scene) -> Any:
    """How much is read from the journal, and moved, by a listing, a window and an append."""
    reads: list[int] = []
    await scene.append(*range(50))
    journal = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    inner = journal.inner.read

    async def read(key: Key, **window: Any) -> JournalSnapshot | None:
        found: JournalSnapshot | None = await inner(key, **window)
        reads.append(0 if found is None else len(found.items))
        return found

    journal.inner.read = read
    meter = Moved()
    scene.store.sessions.bind(sink=meter)
    await scene.store.sessions.list()
    await scene.records(last=1)
    await scene.append(51)
    return reads, meter.size < 500


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def of_sessions(sessions: type[JournalSessions], witness: Any, *laws: str) -> Fault:
    return Fault(sessions.__name__, laws, witness, sessions=sessions)


FAULTS = (
    of(GroupByPrefix, mixed, "sessions-scope-filters-exactly"),
    of(EmptyGroupIsNone, mixed, "checkpoints-status-and-agent-filter-exactly"),
    of(AgentIgnored, mixed, "checkpoints-status-and-agent-filter-exactly"),
    of(StatusIgnored, mixed, "checkpoints-status-and-agent-filter-exactly", "approvals-filters-are-exact"),
    of(BeforeIsInclusive, mixed, "sessions-before-is-strict"),
    of(RecentIsCreated, mixed, "sessions-order-by-last-write"),
    of(IgnoresCase, mixed, "sessions-order-by-id"),
    of(ListingStopsAtTwenty, thirty, "sessions-no-cap-on-a-listing"),
    of(ListsStaleHeads, mixed, "checkpoints-listing-shows-the-head", "approvals-reading-consumes-nothing"),
    of(ListsTheNewestFirst, mixed, "approvals-oldest-first"),
    of(ListsDecidedAsPending, mixed, "approvals-filters-are-exact"),
    of(ForgetsTheHeadOfMany, mixed, "sessions-listing-shows-the-head"),
    of(PagesGoRound, second_page, "sessions-pages-give-each-key-once", "sessions-pages-hold-under-writes"),
    of_sessions(PagesByOffset, pages, "sessions-pages-hold-under-writes"),
    of_sessions(CursorEndsLate, pages, "sessions-end-has-no-cursor"),
    of_sessions(ListsBodies, moved, "sessions-listing-moves-no-bodies", "sessions-page-costs-its-limit"),
    of_sessions(LoadsAllForTheNewest, moved, "sessions-windows-read-no-other-records"),
    of_sessions(AppendReadsAll, moved, "sessions-append-costs-what-it-appends"),
)
