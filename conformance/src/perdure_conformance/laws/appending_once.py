"""`append_once`: what a writer does who knows no version and may have to repeat; each record comes once."""

from __future__ import annotations

from typing import Any

from perdure.backend import append_once
from perdure.errors import InvalidArgumentError, OutcomeUnknownError, StoreUnavailableError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, holds, only, raises
from perdure_conformance.interception import Interception, at
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.parts import SESSIONS

ONCE: dict[str, Any] = {"parts": [SESSIONS], "methods": ("append_once",)}


def named(*names: str) -> list[dict[str, Any]]:
    """Return records that have ids of their own."""
    return [{"uuid": name, "text": f"text of {name}"} for name in names]


@law("append-once-stores-each-record-once", **ONCE)
async def stores_each_record_once(bench: Bench) -> None:
    """Records that are there already are left out, new ones go behind them in the order given."""
    sessions = bench.store.sessions
    first = await append_once(sessions, "s1", named("a", "b"))
    second = await append_once(sessions, "s1", named("b", "c", "a", "d"))
    third = await append_once(sessions, "s1", named("d", "a"))
    equal(await SESSIONS.values(bench.store, "s1"), named("a", "b", "c", "d"), "the records")
    equal((second, third), (first + 1, second), "the versions that the second and third call answer")


@law("append-once-refuses-another-record-of-one-id", **ONCE)
async def refuses_another_record(bench: Bench) -> None:
    """A record whose id belongs to a stored one of other content is refused, and so is one without an id."""
    await append_once(bench.store.sessions, "s1", named("a"))
    for bad in ({"uuid": "a", "text": "other"}, {"text": "none"}, {"uuid": 1}, {"uuid": None}):
        records = [*named("b"), bad]
        await raises(
            InvalidArgumentError, f"append_once of {bad}", append_once_now, bench.store.sessions, "s1", records
        )
    equal(await SESSIONS.values(bench.store, "s1"), named("a"), "the records after the refusals")


async def append_once_now(sessions: Any, session_id: str, records: list[dict[str, Any]]) -> int:
    """Append once; a refusal before the first await comes out of this call too."""
    return await append_once(sessions, session_id, records)


@law("append-once-works-at-once", **ONCE)
async def works_at_once(bench: Bench) -> None:
    """Of many callers at once with records in common each record is stored once, by tasks and by handles."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store] * 2
    calls = [
        append_once(stores[number % 2].sessions, "s1", named("all", f"own-{number}", "all-too")) for number in range(6)
    ]
    only(AssertionError, await all_of(list(calls)), "6 calls of append_once at once")
    found = sorted(record["uuid"] for record in await SESSIONS.values(bench.store, "s1"))
    equal(found, sorted(["all", "all-too", *(f"own-{number}" for number in range(6))]), "the ids of the records")


@law("append-once-is-safe-to-repeat", **ONCE)
async def safe_to_repeat(bench: Bench) -> None:
    """Whatever becomes of its write, repeating the call stores each record once and loses none."""
    for number, outcome in enumerate(("unavailable", "lost", "unknown")):
        for begun in (False, True):
            key = f"s{number}{begun}"
            if begun:
                await append_once(bench.store.sessions, key, named("a"))
            sessions = tapped(bench.store, at(1, outcome)).sessions
            for attempt in range(4):
                try:
                    await append_once(sessions, key, named("a", "b", "c"))
                except (StoreUnavailableError, OutcomeUnknownError):
                    holds(attempt < 3, f"a fourth call still fails, though the store failed once ({outcome})")
                else:
                    break
            found = await SESSIONS.values(bench.store, key)
            equal(found, named("a", "b", "c"), f"the records after a write that was {outcome}")


@law("append-once-writes-nothing-that-is-there", **ONCE)
async def writes_nothing_that_is_there(bench: Bench) -> None:
    """When all records are there already, nothing is written."""
    await append_once(bench.store.sessions, "s1", named("a", "b"))
    before = await SESSIONS.read(bench.store, "s1")
    interception = Interception()
    await append_once(tapped(bench.store, interception).sessions, "s1", named("b", "a"))
    equal([str(call) for call in interception.calls], [], "the writes of a call that has nothing new")
    equal(await SESSIONS.read(bench.store, "s1"), before, "the session")
