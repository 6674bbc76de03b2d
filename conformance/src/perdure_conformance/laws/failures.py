"""What a store says when its backend fails: the error tells whether it was written, and keeps the cause."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from perdure.errors import OutcomeUnknownError, SchemaVersionError, StoreUnavailableError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError, broken, equal, holds, raises
from perdure_conformance.interception import OUTCOMES, Call, Interception, at
from perdure_conformance.laws.conversations import WHOLE, lived, whole
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.laws.tapped import tapped
from perdure_conformance.parts import LISTS, PARTS, SESSIONS, Part, WritablePart


class DriverError(Exception):
    """Stands for whatever a driver raises."""


def failing(*kinds: str, after: bool = False) -> Interception:
    """Return an interception that raises a driver's error at calls of these kinds.

    Args:
        *kinds: `read`, `write`, `scan`.
        after: Whether the call takes effect first.
    """

    async def fail(call: Call) -> None:
        raise DriverError("the connection is gone")

    return Interception(counted=kinds, after=fail) if after else Interception(counted=kinds, before=fail)


@law_of_each("failed-read-is-unavailable", promise=9, methods=["read"])
async def failed_read_is_unavailable(bench: Bench, part: Part) -> None:
    """A read during which the driver fails raises `StoreUnavailableError` with its error as the cause: never None."""
    key = part.key("s1")
    await part.make(bench.store, key)
    store = tapped(bench.store, failing("read", "scan"))
    for name in (key, part.key("absent")):
        error = await raises(StoreUnavailableError, f"reading {name} while the driver fails", part.read, store, name)
        equal(type(error.__cause__), DriverError, "the cause that the error keeps")
    if bench.capabilities(part.name).list:
        error = await raises(StoreUnavailableError, "a listing while the driver fails", part.page, store)
        equal(type(error.__cause__), DriverError, "the cause that the error keeps")


@law_of_each("failed-write-is-of-unknown-outcome", parts=LISTS, promise=9, methods=["write"])
async def failed_write_is_of_unknown_outcome(bench: Bench, part: WritablePart) -> None:
    """A write during which the driver fails raises `OutcomeUnknownError` with its cause, whether it took effect or not."""
    version = await part.make(bench.store, "s1")
    for after in (False, True):
        store = tapped(bench.store, failing("write", after=after))
        calls: dict[str, Any] = {
            "an append": lambda store=store: part.write(store, "s1", [{"n": 1}]),
            "a creation": lambda store=store: part.make(store, "s2"),
        }
        if bench.capabilities(part.name).replace:
            calls["a replace"] = lambda store=store: part.replace(store, "s1", [{"n": 2}])
        if bench.capabilities(part.name).delete:
            calls["a delete"] = lambda store=store: part.delete(store, "s1")
        for name, call in calls.items():
            error = await raises(OutcomeUnknownError, f"{name} while the driver fails", call)
            equal(type(error.__cause__), DriverError, f"the cause of {name}")
        if not after:
            seen = await part.read(bench.store, "s1")
            equal(seen and seen.version, version, "the version after writes that did not take effect")
            equal(await part.read(bench.store, "s2"), None, "the key that was not created")


@law_of_each("typed-failure-passes-unchanged", parts=LISTS, promise=9, methods=["write"])
async def typed_failure_passes_unchanged(bench: Bench, part: WritablePart) -> None:
    """`StoreUnavailableError` and `OutcomeUnknownError` of a backend reach the caller as they are, and tell the truth."""
    version = await part.make(bench.store, "s1")
    expected = {
        "unavailable": (StoreUnavailableError, 0),
        "lost": (OutcomeUnknownError, 0),
        "unknown": (OutcomeUnknownError, 1),
    }
    for outcome, (kind, moved) in expected.items():
        store = tapped(bench.store, at(1, outcome))
        await raises(kind, f"an append whose write is {outcome}", part.write, store, "s1", [{"n": 1}])
        version += moved
        seen = await part.read(bench.store, "s1")
        equal(seen and seen.version, version, f"the version after a write that was {outcome}")
        version = await part.write(store, "s1", [{"again": 1}], expected_version=version)


@law_of_each("works-again-after-an-outage", promise=9, methods=["read"])
async def works_again_after_an_outage(bench: Bench, part: Part) -> None:
    """While the backend is away every call says so, and afterwards all is as it was and works."""
    key, down = part.key("s1"), True
    await part.make(bench.store, key)
    before = await part.read(bench.store, key)

    async def fail(_: Call) -> None:
        if down:
            raise DriverError("away")

    store = tapped(bench.store, Interception(counted=("read", "write", "scan"), before=fail))
    for _ in range(5):
        await raises(StoreUnavailableError, "a read while the backend is away", part.read, store, key)
        try:
            await part.make(store, part.key("s2"))
        except (StoreUnavailableError, OutcomeUnknownError):
            continue
        raise broken("a write while the backend is away: expected a typed error, but the call answered")
    down = False
    equal(await part.read(store, key), before, "the key after the outage")
    equal(await part.read(store, part.key("s2")), None, "what could not be written during the outage")
    await part.make(store, part.key("s2"))


@law_of_each("hanging-call-can-be-cancelled", parts=LISTS, promise=14, methods=["write"])
async def hanging_call_can_be_cancelled(bench: Bench, part: WritablePart) -> None:
    """A call whose backend never answers can be cancelled; calls beside it and after it are served."""
    await part.make(bench.store, "s1")
    hangs = asyncio.Event()

    async def hang(call: Call) -> None:
        if call.number == 1:
            hangs.set()
            await asyncio.Event().wait()

    store = tapped(bench.store, Interception(before=hang))
    call = asyncio.create_task(part.write(store, "s1", [{"hangs": 1}]))
    await hangs.wait()
    await part.write(store, "s2", [{"n": 1}])
    call.cancel()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    holds(
        isinstance(outcome, asyncio.CancelledError), f"a cancelled call: expected CancelledError, got {outcome!r:.200}"
    )
    await part.write(store, "s1", [{"n": 2}])
    found = await part.values(bench.store, "s1")
    equal(found, [{"made": "s1"}, {"n": 2}], "the key after a write that hung and was cancelled")


@law_of_each("errors-tell-the-truth", parts=LISTS, promise=9, methods=["write"])
async def errors_tell_the_truth(bench: Bench, part: WritablePart) -> None:
    """Of many writes at once, some cancelled: an answer means written once, a refusal not at all, the rest at most once."""
    stores = await bench.handles(2) if bench.target.reopens else [bench.store] * 2
    tasks = [
        asyncio.create_task(part.write(stores[number % 2], f"s{number % 3}", [{"id": number}, {"id": -number - 1}]))
        for number in range(40)
    ]
    for number, task in enumerate(tasks):
        await asyncio.sleep(0)
        if number % 5 == 4:
            task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    found = [await part.values(bench.store, key) for key in ("s0", "s1", "s2")]
    there = Counter(value["id"] for values in found for value in values)
    for number, outcome in enumerate(outcomes):
        times = (there[number], there[-number - 1])
        allowed = _allowed(outcome)
        told = f"answered {outcome}" if isinstance(outcome, int) else f"raised {type(outcome).__name__}"
        holds(times in allowed, f"a write {told}: expected its two records {allowed} times, got {times}")


def _allowed(outcome: object) -> tuple[tuple[int, int], ...]:
    """Return how often the records of a write may be there, by what it told."""
    if isinstance(outcome, int):
        return ((1, 1),)
    if isinstance(outcome, (StoreUnavailableError, VersionConflictError)):
        return ((0, 0),)
    return ((0, 0), (1, 1))


@law("bundle-failing-anywhere-tells-and-goes-on", promise=9, **WHOLE)
async def failing_anywhere(bench: Bench) -> None:
    """Wherever the backend fails once, a deletion either succeeds or raises a typed error, and can be repeated."""
    for outcome in OUTCOMES[2:]:
        for number in range(1, 20):
            await lived(bench.store)
            interception = at(number, outcome)
            store = tapped(bench.store, interception)
            try:
                await store.delete_session("s1")
            except (StoreUnavailableError, OutcomeUnknownError):
                await store.delete_session("s1")
            after = await whole(bench)
            equal(
                {name: len(seen) for name, seen in after.items()}, dict.fromkeys(after, 0), f"what is left, {outcome}"
            )
            if len(interception.calls) < number:
                break


@law("newer-schema-is-refused", parts=[SESSIONS], needs=("durable",), promise=8, methods=["sessions.load"])
async def newer_schema_is_refused(bench: Bench) -> None:
    """Data that a newer release wrote is refused by `SchemaVersionError`, both versions named, and not touched."""
    make_newer: Any = getattr(bench.target, "newer_schema", None)
    if make_newer is None:
        raise NotRunError("the target tells no way to mark what is stored as a newer release's")
    before = await _kept(bench)
    await bench.close()
    undo = make_newer(bench.place)
    error = await raises(SchemaVersionError, "opening or reading data of a newer release", _open_and_read, bench)
    holds(error.found != error.supported, f"the error names no two versions: {error}")
    await bench.close()
    if undo is not None:
        undo()
        await bench.start()
        equal(await _found(bench), before, "what is stored after an opening by an older release")


async def _open_and_read(bench: Bench) -> object:
    store = await bench.open()
    return await store.sessions.load("s1")


async def _kept(bench: Bench) -> dict[str, Any]:
    """Write to each part that the store has, and return what is read then."""
    for part in PARTS:
        if part.name in bench.store:
            await part.make(bench.store, part.key("s1"))
    return await _found(bench)


async def _found(bench: Bench) -> dict[str, Any]:
    there = [part for part in PARTS if part.name in bench.store]
    return {part.name: await part.read(bench.store, part.key("s1")) for part in there}
