"""Promise 5: order. Records come back in the order in which they were appended, all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.errors import InvalidArgumentError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, raises
from perdure_conformance.laws.register import law, law_of_each
from perdure_conformance.parts import LISTS, SESSIONS, WritablePart


@law_of_each("order-across-batches", parts=LISTS, promise=5, methods=["read"])
async def order_across_batches(bench: Bench, part: WritablePart) -> None:
    """Batches come back in the order of their appends, past 9, 99 and 100, under a clock that stands or goes back."""
    expected: list[dict[str, Any]] = []
    for size in (1, 2, 7, 1, 30, 1, 1, 60, 3, 14):
        batch = [{"n": len(expected) + place} for place in range(size)]
        expected += batch
        await part.write(bench.store, "s1", batch)
        bench.clock.advance(timedelta(seconds=0 if size == 1 else -3600))
    equal(await part.values(bench.store, "s1"), expected, "120 records of ten batches")


@law_of_each("order-inside-a-batch", parts=LISTS, promise=5, methods=["read"])
async def order_inside_a_batch(bench: Bench, part: WritablePart) -> None:
    """Records of one batch keep their order, whatever ids and times they carry."""
    batch = [{"id": text, "at": at, "n": at} for at, text in enumerate(("b", "a", "10", "9", "B", "", "z", "aa", "1"))]
    await part.write(bench.store, "s1", list(reversed(batch)))
    await part.write(bench.store, "s1", batch)
    equal(await part.values(bench.store, "s1"), [*reversed(batch), *batch], "a batch backwards, then forwards")


@law_of_each("equal-records-are-all-kept", parts=LISTS, promise=5, methods=["write"])
async def equal_records_are_all_kept(bench: Bench, part: WritablePart) -> None:
    """Equal records are several records: within a batch, across batches, with the same id and time."""
    same = {"id": "m1", "text": "again"}
    await part.write(bench.store, "s1", [same, same, same])
    await part.write(bench.store, "s1", [same])
    await part.write(bench.store, "s1", [same, {"id": "m2"}, same])
    equal(await part.values(bench.store, "s1"), [same] * 5 + [{"id": "m2"}, same], "six equal records and another")
    pair, version = [{"n": 1}, {"n": 2}], await part.write(bench.store, "s2", [])
    for number in range(1, 5):
        answered = await part.write(bench.store, "s2", pair, expected_version=version if number % 2 else None)
        equal(answered, version + 1, f"the version after an append of the same two records, time {number}")
        version = answered
    equal(await part.values(bench.store, "s2"), pair * 4, "a batch that was appended four times")


@law_of_each("no-cap-on-a-read", parts=LISTS, promise=5, methods=["read"])
async def no_cap_on_a_read(bench: Bench, part: WritablePart) -> None:
    """A read without a limit gives everything, and a batch of any length is written whole."""
    batch = [{"n": number} for number in range(2105)]
    await part.write(bench.store, "s1", batch)
    await part.write(bench.store, "s1", [{"n": 2105}])
    equal(await part.values(bench.store, "s1"), [*batch, {"n": 2105}], "2106 records, read without a limit")


@law("sessions-no-cap-on-a-transcript", parts=[SESSIONS], promise=5, methods=["sessions.append"])
async def no_cap_on_a_transcript(bench: Bench) -> None:
    """A transcript goes on behind its 65,536th record, and neither takes the place of others nor of its neighbours'."""
    sessions, batch, edge = bench.store.sessions, 11_000, 2**16
    for name in ("s1", "s2"):
        await sessions.append(name, [{"first": name}])
    for start in range(1, edge, batch):
        await sessions.append("s1", [{"n": number} for number in range(start, start + batch)])
    await sessions.append("s2", [{"second": "s2"}])
    for after, expected in ((0, [{"first": "s1"}, {"n": 1}]), (edge - 1, [{"n": edge - 1}, {"n": edge}])):
        found = await sessions.load("s1", after=after, limit=2)
        assert found is not None
        equal((found.count, found.records), (1 + 6 * batch, expected), f"count and records of load(after={after})")
    other = await sessions.load("s2")
    equal(other and other.records, [{"first": "s2"}, {"second": "s2"}], "the session beside it")


async def transcript_of(bench: Bench, length: int) -> list[dict[str, Any]]:
    """Make a session of so many records, in uneven batches, and return them."""
    records = [{"n": number} for number in range(length)]
    for start in range(0, length, 5):
        await bench.store.sessions.append("s1", records[start : start + 5])
    return records


@law("sessions-windows-are-slices", parts=[SESSIONS], promise=5, methods=["sessions.load"])
async def windows_are_slices(bench: Bench) -> None:
    """`after` and `limit` cut a window out of the transcript, and `start` tells where it begins."""
    records = await transcript_of(bench, 12)
    for after in (None, 0, 1, 4, 5, 6, 11, 12, 13, 100):
        for limit in (None, 0, 1, 2, 5, 11, 12, 13, 100):
            found = await bench.store.sessions.load("s1", after=after, limit=limit)
            assert found is not None
            start = after or 0
            expected = records[start:] if limit is None else records[start : start + limit]
            equal(found.records, expected, f"load(after={after}, limit={limit}) of 12 records")
            equal(found.count, 12, f"the count that load(after={after}, limit={limit}) tells")
            if expected:
                equal(found.start, start, f"the start that load(after={after}, limit={limit}) tells")


@law("sessions-windows-of-a-long-transcript-are-slices", parts=[SESSIONS], promise=5, methods=["sessions.load"])
async def windows_of_a_long_transcript(bench: Bench) -> None:
    """A window may begin and end anywhere in a transcript of some hundred kilobytes, in or between its writes."""
    records = [{"n": number, "text": f"{number}," * 1500} for number in range(60)]
    for start in range(0, 60, 3):
        await bench.store.sessions.append("s1", records[start : start + 3])
    for after in range(60):
        found = await bench.store.sessions.load("s1", after=after, limit=2)
        assert found is not None
        equal(found.records, records[after : after + 2], f"load(after={after}, limit=2) of 60 records of 5 kB")
        equal(found.start, after, f"the start that load(after={after}, limit=2) tells")


@law("sessions-last-gives-the-newest", parts=[SESSIONS], promise=5, methods=["sessions.load"])
async def last_gives_the_newest(bench: Bench) -> None:
    """`last=n` gives the newest n records in their order; 0 gives none, just the head."""
    records = await transcript_of(bench, 12)
    for last in (0, 1, 2, 5, 11, 12, 13, 100):
        found = await bench.store.sessions.load("s1", last=last)
        assert found is not None
        expected = records[max(12 - last, 0) :]
        equal(found.records, expected, f"load(last={last}) of 12 records")
        equal(found.count, 12, f"the count that load(last={last}) tells")
        if expected:
            equal(found.start, 12 - len(expected), f"the start that load(last={last}) tells")


@law("sessions-bad-windows-are-refused", parts=[SESSIONS], promise=5, methods=["sessions.load"])
async def bad_windows_are_refused(bench: Bench) -> None:
    """Negative and non-integer windows are refused, and so is `last` beside `after` or `limit`."""
    await transcript_of(bench, 3)
    windows: list[dict[str, Any]] = [
        *({name: bad} for name in ("after", "limit", "last") for bad in (-1, 1.0, True, "1")),
        *({"last": 1, "after": 0}, {"last": 1, "limit": 1}, {"last": 0, "after": 1, "limit": 1}),
    ]
    for window in windows:
        await raises(InvalidArgumentError, f"load with {window}", bench.store.sessions.load, "s1", **window)


@law("sessions-windows-tell-the-whole-head", parts=[SESSIONS], promise=5, methods=["sessions.load"])
async def windows_tell_the_whole_head(bench: Bench) -> None:
    """A window shows the same version, state, scope and times as the whole transcript."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": 0}], state={"title": "t"}, scope="ann")
    bench.clock.advance(timedelta(seconds=5))
    await sessions.append("s1", [{"n": 1}, {"n": 2}])
    whole = await sessions.load("s1")
    for window in ({"after": 1}, {"limit": 1}, {"limit": 0}, {"last": 1}, {"last": 0}, {"after": 9}):
        part = await sessions.load("s1", **window)
        assert whole is not None
        assert part is not None
        for name in ("session_id", "version", "count", "rewritten", "state", "scope", "created_at", "updated_at"):
            equal(getattr(part, name), getattr(whole, name), f"{name} of load({window})")
