"""What is particular to sessions: state, scope, times, replace, and a model beside the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from perdure.contracts.sessions import Transcript
from perdure.errors import InvalidArgumentError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, raises
from perdure_conformance.laws.register import law
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import SESSIONS
from perdure_conformance.values import LARGE


async def loaded(bench: Bench, session_id: str = "s1") -> Transcript:
    """Return a session that must be there."""
    found = await bench.store.sessions.load(session_id)
    assert found is not None, f"{session_id} was written, but load answers None"
    return found


# --- append ---


@law("sessions-append-of-nothing-creates", parts=[SESSIONS], methods=["sessions.append"])
async def append_of_nothing_creates(bench: Bench) -> None:
    """An append of nothing creates an empty session with an empty state and no scope."""
    version = await bench.store.sessions.append("s1", [])
    found = await loaded(bench)
    equal((found.version, found.count, list(found.records)), (version, 0, []), "version, count and records")
    equal((found.state, found.scope, found.rewritten), ({}, None, 0), "state, scope and rewritten")


@law("sessions-append-of-nothing-keeps-all", parts=[SESSIONS], methods=["sessions.append"])
async def append_of_nothing_keeps_all(bench: Bench) -> None:
    """An append of nothing raises the version and keeps records, state and scope."""
    version = await bench.store.sessions.append("s1", [{"n": 1}], state={"title": "t"}, scope="ann")
    equal(await bench.store.sessions.append("s1", []), version + 1, "the version after an append of nothing")
    found = await loaded(bench)
    equal((found.count, list(found.records)), (1, [{"n": 1}]), "count and records")
    equal((found.state, found.scope), ({"title": "t"}, "ann"), "state and scope")


@law("sessions-count-follows-records", parts=[SESSIONS], methods=["sessions.append"])
async def count_follows_records(bench: Bench) -> None:
    """`count` is the number of records after every append, whatever the version is."""
    total = 0
    for size in (0, 1, 5, 0, 3, 11):
        await bench.store.sessions.append("s1", [{"n": total + place} for place in range(size)])
        total += size
        found = await loaded(bench)
        equal((found.count, len(found.records)), (total, total), f"count and records after {total} records")


@law("sessions-do-not-share", parts=[SESSIONS], methods=["sessions.append"])
async def sessions_do_not_share(bench: Bench) -> None:
    """Records, state and scope of one session are not those of another."""
    names = ("s1", "s2", "s10")
    for name in names:
        await bench.store.sessions.append(name, [{"of": name}], state={"of": name}, scope=f"scope of {name}")
    await bench.store.sessions.append("s1", [{"more": 1}], state={"more": 1})
    for name in names[1:]:
        found = await loaded(bench, name)
        equal((list(found.records), found.state), ([{"of": name}], {"of": name}), f"records and state of {name}")
        equal((found.scope, found.session_id), (f"scope of {name}", name), f"scope and id of {name}")


# --- state and scope ---


@law("sessions-state-is-replaced-whole", parts=[SESSIONS], methods=["sessions.append"])
async def state_is_replaced_whole(bench: Bench) -> None:
    """A state is replaced whole when it is given, by an empty one too, and kept when it is not."""
    append, large = bench.store.sessions.append, {"text": "x" * LARGE}
    steps: tuple[tuple[dict[str, Any] | None, dict[str, Any]], ...] = (
        *((None, {}), ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 2}}), (None, {"a": 1, "b": {"c": 2}})),
        *(({"b": {"d": 3}}, {"b": {"d": 3}}), ({}, {}), (None, {}), ({"x": None}, {"x": None})),
        *((large, large), ({"text": "y"}, {"text": "y"})),
    )
    for number, (given, expected) in enumerate(steps):
        await append("s1", [{"n": number}] if number % 2 else [], state=given)
        equal((await loaded(bench)).state, expected, f"the state after state={given!s:.80} was given")
    equal((await loaded(bench)).count, 4, "the count after these writes")


@law("sessions-scope-is-set-once", parts=[SESSIONS], methods=["sessions.append"])
async def scope_is_set_once(bench: Bench) -> None:
    """A scope is set when the session is created; a write that names another one is refused and changes nothing."""
    append = bench.store.sessions.append
    for name, scope in (("s1", "ann"), ("s2", ""), ("s3", None)):
        await append(name, [{"n": 1}], scope=scope)
        await append(name, [{"n": 2}])
        before = await loaded(bench, name)
        equal(before.scope, scope, "the scope after a write without one")
        for other in ("bob", "Ann", "ann ", "" if scope else "x"):
            for expected in (None, before.version):
                what = f"an append with scope {other!r} to a session of scope {scope!r}"
                await raises(
                    InvalidArgumentError, what, append, name, [{"n": 3}], scope=other, expected_version=expected
                )
        equal(await loaded(bench, name), before, "the session after the refusals")
        if scope is not None:
            await append(name, [{"n": 3}], scope=scope)
            await append(name, [{"n": 4}], scope=scope, expected_version=before.version + 1)
            equal((await loaded(bench, name)).scope, scope, "the scope after writes that name it again")


@law("sessions-scope-of-512-bytes-works", parts=[SESSIONS], methods=["sessions.append"])
async def scope_of_512_bytes(bench: Bench) -> None:
    """A scope is any text up to 512 bytes and comes back exactly."""
    for number, scope in enumerate(
        ("", "u" * 512, "é" * 256, "😀" * 128, "\0", "a\nb", " ann ", "/%_*'\"\\", "\u2028")
    ):
        await bench.store.sessions.append(f"s{number}", [], scope=scope)
        equal((await loaded(bench, f"s{number}")).scope, scope, "the scope that came back")


# --- times ---


@law("sessions-times-come-from-the-clock", parts=[SESSIONS], methods=["sessions.append"])
async def times_come_from_the_clock(bench: Bench) -> None:
    """Without `at`, the clock that was passed in tells created and updated, to the microsecond, in UTC."""
    created = bench.clock.now()
    await bench.store.sessions.append("s1", [])
    for step in (TICK, timedelta(seconds=1), timedelta(days=4000)):
        updated = bench.clock.advance(step)
        await bench.store.sessions.append("s1", [])
        found = await loaded(bench)
        equal((found.created_at, found.updated_at), (created, updated), "created_at and updated_at")
        equal(
            (found.created_at.utcoffset(), found.updated_at.utcoffset()), (timedelta(0),) * 2, "their distance from UTC"
        )


@law("sessions-at-is-kept-as-an-instant", parts=[SESSIONS], methods=["sessions.append"])
async def at_is_kept_as_an_instant(bench: Bench) -> None:
    """`at` in any zone is kept as the same instant in UTC, from the first year to the last."""
    zone = timezone(timedelta(hours=5, minutes=30))
    instants = (
        *(datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        *(
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(2031, 3, 9, 2, 30, tzinfo=zone),
            datetime(2038, 1, 19, 3, 14, 8, tzinfo=UTC),
        ),
        *(datetime(2262, 4, 12, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    )
    for number, at in enumerate(instants):
        await bench.store.sessions.append(f"s{number}", [], at=at)
        found = await loaded(bench, f"s{number}")
        equal(found.created_at, at.astimezone(UTC), f"created_at of a session made at {at}")
        equal(found.created_at.utcoffset(), timedelta(0), "its distance from UTC")
    if bench.capabilities("sessions").list:
        listed = await SESSIONS.ids(bench.store, order="created", limit=2)
        equal(listed, [f"s{number}" for number in range(len(instants))], "these sessions, oldest first")


@law("sessions-updated-never-goes-back", parts=[SESSIONS], methods=["sessions.append"])
async def updated_never_goes_back(bench: Bench) -> None:
    """`updated_at` keeps the later time when a write is older, by `at` or by a clock that went back."""
    sessions = bench.store.sessions
    await sessions.append("s1", [], at=START)
    for at, expected in ((START - timedelta(days=365), START), (START + TICK, START + TICK), (START, START + TICK)):
        await sessions.append("s1", [{"n": 1}], at=at)
        found = await loaded(bench)
        equal((found.created_at, found.updated_at), (START, expected), f"created_at and updated_at after at={at}")
    bench.clock.set(START - timedelta(days=4000))
    await sessions.append("s1", [])
    equal((await loaded(bench)).updated_at, START + TICK, "updated_at after a write under a clock that went back")


# --- replace and delete ---


@law("sessions-replace-keeps-the-first", parts=[SESSIONS], needs=("replace",), methods=["sessions.replace"])
async def replace_keeps_the_first(bench: Bench) -> None:
    """A replace keeps the first `keep` records, drops the rest and puts others behind: shorter, longer, none."""
    sessions = bench.store.sessions
    records: list[dict[str, Any]] = [{"n": number} for number in range(6)]
    await sessions.append("s1", records)
    for keep, more in ((6, 0), (5, 0), (3, 4), (7, 1), (1, 1), (0, 3), (3, 2), (4, 0), (0, 0), (0, 2)):
        added = [{"keep": keep, "place": place // 2} for place in range(more)]
        await sessions.replace("s1", added, keep=keep, expected_version=None)
        records = records[:keep] + added
        found = await loaded(bench)
        equal(
            (list(found.records), found.count), (records, len(records)), f"after replace(keep={keep}) with {more} more"
        )
        last = await sessions.load("s1", last=1)
        equal(last and list(last.records), records[-1:], "the newest record then")
    # However a store divides a long list, the cut may be in the middle of what it has together.
    records = [{"n": number} for number in range(1100)]
    await sessions.append("s2", records)
    await sessions.replace("s2", [], expected_version=None)
    await sessions.append("s2", records)
    for keep in (1001, 777, 501, 300, 255, 129, 100, 65, 33, 17, 11, 5):
        await sessions.replace("s2", [{"keep": keep}], keep=keep, expected_version=None)
        tail = await sessions.load("s2", after=keep - 1)
        told = tail and (tail.count, list(tail.records))
        expected = (keep + 1, [records[keep - 1], {"keep": keep}])
        equal(told, expected, f"count and last two records after replace(keep={keep}) of a longer list")


@law("sessions-append-goes-behind-a-replace", parts=[SESSIONS], needs=("replace",), methods=["sessions.replace"])
async def append_goes_behind_a_replace(bench: Bench) -> None:
    """What is appended after a replace stands behind what the replace left."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": number} for number in range(10)])
    await sessions.replace("s1", [{"summary": 1}], expected_version=None)
    await sessions.append("s1", [{"n": 10}])
    await sessions.replace("s1", [], keep=1, expected_version=None)
    await sessions.append("s1", [{"n": 11}, {"n": 12}])
    equal(list((await loaded(bench)).records), [{"summary": 1}, {"n": 11}, {"n": 12}], "the records in order")


@law("sessions-replace-keeps-the-rest", parts=[SESSIONS], needs=("replace",), methods=["sessions.replace"])
async def replace_keeps_the_rest(bench: Bench) -> None:
    """A replace keeps the state unless one is given, the scope and `created_at`, and moves `updated_at`."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": 1}], state={"title": "t"}, scope="ann")
    later = bench.clock.advance(timedelta(hours=1))
    await sessions.replace("s1", [], expected_version=None)
    found = await loaded(bench)
    equal((found.state, found.scope), ({"title": "t"}, "ann"), "state and scope after a replace")
    equal((found.created_at, found.updated_at), (START, later), "created_at and updated_at after a replace")
    await sessions.replace("s1", [{"n": 2}], expected_version=None, state={"other": 1}, at=START)
    found = await loaded(bench)
    equal(
        (found.state, found.updated_at),
        ({"other": 1}, later),
        "state and updated_at after a replace with an older `at`",
    )


@law("sessions-delete-leaves-nothing", parts=[SESSIONS], needs=("delete",), methods=["sessions.delete"])
async def delete_leaves_nothing(bench: Bench) -> None:
    """A session that is created again after a delete has nothing of its former life."""
    sessions = bench.store.sessions
    await sessions.append("s1", [{"n": number} for number in range(30)], state={"title": "old"}, scope="ann")
    if sessions.capabilities.replace:
        await sessions.replace("s1", [{"n": 1}] * 20, expected_version=None)
    await sessions.delete("s1")
    again = bench.clock.advance(timedelta(hours=1))
    await sessions.append("s1", [{"n": "new"}])
    found = await loaded(bench)
    equal((list(found.records), found.count, found.rewritten), ([{"n": "new"}], 1, 0), "records, count and rewritten")
    equal((found.state, found.scope), ({}, None), "state and scope")
    equal((found.created_at, found.updated_at), (again, again), "created_at and updated_at")
    await sessions.append("s2", [], scope="bob")
    if sessions.capabilities.list:
        equal(await SESSIONS.ids(bench.store, scope="ann"), [], "the sessions of the former scope")
    await sessions.append("s3", [{"n": number} for number in range(1100)])
    await sessions.delete("s3")
    await sessions.append("s3", [{"n": "new"}])
    found = await loaded(bench, "s3")
    equal((list(found.records), found.count), ([{"n": "new"}], 1), "records and count where 1100 were deleted")
