"""What calls cost, in records and bytes: windows what they return, listings no bodies, appends what is appended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.laws.tapped import Cost, counted
from perdure_conformance.parts import APPROVALS, LISTS, SESSIONS, WritablePart, request

SIZE = 1000
SLACK = 2000
"""How many bytes of heads and states a call may move beside records."""


class Meter:
    """Is told of each call of a store, and adds up the bytes that it moved."""

    wanted = True

    def __init__(self) -> None:
        """Start at nothing."""
        self.bytes = 0

    def called(self, operation: str, *, seconds: float, outcome: str, size: int, at: datetime) -> None:
        """Take note of a call."""
        self.bytes += size

    def since(self) -> int:
        """Return the bytes since the last look."""
        moved, self.bytes = self.bytes, 0
        return moved


async def filled(bench: Bench, part: WritablePart, keys: int = 1) -> Meter:
    """Fill keys with forty records each, and return a meter of the calls from now on."""
    for key in range(keys):
        await part.write(bench.store, f"s{key}", [{"n": number, "text": "x" * SIZE} for number in range(40)])
    meter = Meter()
    part.store(bench.store).bind(sink=meter)
    return meter


@law("sessions-windows-cost-what-they-return", parts=[SESSIONS], promise=12, methods=["sessions.load"])
async def windows_cost_what_they_return(bench: Bench) -> None:
    """A window moves the bytes of the records in it and no others, wherever it lies in the transcript."""
    meter = await filled(bench, SESSIONS)
    windows: tuple[tuple[dict[str, int], int], ...] = (
        *(({"last": 0}, 0), ({"limit": 0}, 0), ({"last": 2}, 2), ({"after": 39}, 1), ({"after": 10, "limit": 3}, 3)),
        *(({"after": 40}, 0), ({"last": 40}, 40)),
    )
    for window, count in windows:
        found = await bench.store.sessions.load("s0", **window)
        equal(found and len(found.records), count, f"how many records load({window}) gives")
        moved = meter.since()
        limit = count * (SIZE + 50) + SLACK
        holds(moved <= limit, f"load({window}) of 40 records: expected at most {limit} bytes to move, got {moved}")


@law("sessions-windows-read-no-other-records", parts=[SESSIONS], promise=12, methods=["sessions.load"])
async def windows_read_no_other_records(bench: Bench) -> None:
    """A window reads the records in it from the backend and no others."""
    await filled(bench, SESSIONS)
    cost = Cost()
    sessions = counted(bench.store, cost).sessions
    for window, count in (({"last": 0}, 0), ({"last": 2}, 2), ({"after": 38}, 2), ({"limit": 1}, 1)):
        cost.forget()
        await sessions.load("s0", **window)
        equal(cost.read, count, f"how many records load({window}) of 40 reads from the journal")


@law_of_each("listing-moves-no-bodies", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def listing_moves_no_bodies(bench: Bench, part: WritablePart) -> None:
    """A listing moves heads alone, however much the keys hold."""
    meter = await filled(bench, part, keys=5)
    page = await part.page(bench.store)
    equal(len(page.items), 5, "how many keys are listed")
    moved = meter.since()
    holds(moved <= 5 * SLACK, f"a listing of 5 keys of 40 records: expected at most {5 * SLACK} bytes, got {moved}")


@law_of_each("page-costs-its-limit", parts=LISTS, needs=("list",), promise=12, methods=["list"])
async def page_costs_its_limit(bench: Bench, part: WritablePart) -> None:
    """A small page of a long listing asks the backend for about as many keys as it shows, and reads no key."""
    for number in range(30):
        await part.write(bench.store, f"s{number}", [{"n": number}])
    cost = Cost()
    page = await part.page(counted(bench.store, cost), limit=2)
    equal(len(page.items), 2, "how many keys a page of 2 shows")
    equal((cost.calls, cost.written), ([], 0), "the reads and writes of keys that a page makes")


@law_of_each("append-costs-what-it-appends", parts=LISTS, methods=["write"])
async def append_costs_what_it_appends(bench: Bench, part: WritablePart) -> None:
    """An append to a long list hands over what is appended, in one write, and reads no record back."""
    await filled(bench, part)
    cost = Cost()
    store = counted(bench.store, cost)
    for number in (1, 3, 0):
        cost.forget()
        await part.write(store, "s0", [{"more": number}] * number)
        equal((cost.written, cost.read), (number, 0), f"the records written and read by an append of {number} to 40")
        equal(cost.calls, ["write"], f"the calls of an append of {number} to 40")


@law("sessions-replace-costs-what-it-adds", parts=[SESSIONS], needs=("replace",), methods=["sessions.replace"])
async def replace_costs_what_it_adds(bench: Bench) -> None:
    """A replace hands over what it adds, and reads none of what it keeps."""
    await filled(bench, SESSIONS)
    cost = Cost()
    sessions: Any = counted(bench.store, cost).sessions
    for keep, more in ((39, 0), (30, 2), (0, 1)):
        cost.forget()
        await sessions.replace("s0", [{"more": more}] * more, keep=keep, expected_version=None)
        equal((cost.written, cost.read), (more, 0), f"the records written and read by replace(keep={keep})")


@law(
    "approvals-listing-costs-what-it-shows", parts=[APPROVALS], needs=("list",), promise=12, methods=["approvals.list"]
)
async def approvals_listing_costs_what_it_shows(bench: Bench) -> None:
    """The approvals of one session move no bytes of those of another."""
    for number in range(20):
        await bench.store.approvals.create(request(f"s{number}.turn-1.s0.c0", {"text": "x" * SIZE}))
    meter = Meter()
    bench.store.approvals.bind(sink=meter)
    page = await bench.store.approvals.list(session_id="s7")
    equal([one.id for one in page.items], ["s7.turn-1.s0.c0"], "the approvals of one session")
    moved = meter.since()
    holds(moved <= SIZE + SLACK, f"one approval of 20: expected at most {SIZE + SLACK} bytes to move, got {moved}")
