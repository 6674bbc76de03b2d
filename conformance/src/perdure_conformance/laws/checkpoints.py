"""What is particular to turn journals: the head, and the lock that it is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from perdure.contracts.checkpoints import STATUSES, Checkpoint, CheckpointHead
from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import all_of, equal, only, raises
from perdure_conformance.laws.register import law
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import CHECKPOINTS
from perdure_conformance.values import LARGE

FULL = CheckpointHead(
    status="in-progress",
    run_id="s1.turn-7",
    session_id="s1",
    agent="Bücher 📚",
    base_version=2**40 + 3,
    base_count=0,
    owner="host:1234:\u2028",
    lease=timedelta(seconds=30, microseconds=1),
    lease_expires_at=START + TICK,
    fingerprint="",
    attempts=3,
    last_error="TimeoutError: 'x'",
    failed=True,
    approval_ids=["s1.turn-7.s0.c1", "s1.turn-7.s0.c0"],
    extra={"later": {"nested": [1, 1.0, True, None]}, "zero": 0, "empty": {}},
)
"""A head with every field set."""


async def loaded(bench: Bench, key: str = "s1") -> Checkpoint:
    """Return a turn journal that must be there."""
    found = await bench.store.checkpoints.load(key)
    assert found is not None, f"{key} was written, but load answers None"
    return found


@law("checkpoints-every-head-field-comes-back", parts=[CHECKPOINTS], promise=6, methods=["checkpoints.append"])
async def every_head_field_comes_back(bench: Bench) -> None:
    """Every field of a head comes back, by load and by list: durations, instants, zero and empty, unknown fields."""
    heads = (FULL, CheckpointHead("idle"), CheckpointHead("ready", attempts=0, base_version=0, base_count=0, agent=""))
    for head in (*heads, replace(FULL, lease=timedelta(0), lease_expires_at=None, last_error="")):
        await bench.store.checkpoints.append("s1", [], expected_version=None, head=head)
        equal((await loaded(bench)).head, head, "the head that load gives")
        equal((await bench.store.checkpoints.list()).items[0].head, head, "the head that list gives")


@law("checkpoints-lease-comes-back-in-utc", parts=[CHECKPOINTS], promise=6, methods=["checkpoints.append"])
async def lease_comes_back_in_utc(bench: Bench) -> None:
    """The end of a lease, given in any zone, comes back as the same instant in UTC."""
    at = datetime(2031, 3, 9, 2, 30, tzinfo=timezone(timedelta(hours=-7)))
    await bench.store.checkpoints.append("s1", [], expected_version=0, head=CheckpointHead("idle", lease_expires_at=at))
    until = (await loaded(bench)).head.lease_expires_at
    equal(until, at.astimezone(UTC), "the end of the lease")
    equal(until and until.utcoffset(), timedelta(0), "its distance from UTC")


@law("checkpoints-head-is-replaced-whole", parts=[CHECKPOINTS], methods=["checkpoints.append"])
async def head_is_replaced_whole(bench: Bench) -> None:
    """Each write replaces the head whole: a field that the new head leaves out is gone."""
    bare = CheckpointHead("ready")
    await bench.store.checkpoints.append("s1", [{"n": 1}], expected_version=None, head=FULL)
    await bench.store.checkpoints.append("s1", [], expected_version=None, head=bare)
    equal((await loaded(bench)).head, bare, "the head after an append of a bare one")
    await bench.store.checkpoints.append("s1", [], expected_version=None, head=FULL)
    await bench.store.checkpoints.replace("s1", [], expected_version=None, head=bare)
    equal((await loaded(bench)).head, bare, "the head after a replace with a bare one")
    await bench.store.checkpoints.replace("s1", [], expected_version=None, head=FULL)
    equal((await loaded(bench)).head, FULL, "the head after a replace with a full one")
    large = replace(FULL, last_error="x" * LARGE)
    for head in (large, bare):
        await bench.store.checkpoints.append("s1", [], expected_version=None, head=head)
        equal((await loaded(bench)).head, head, "the head after an append of a large one, and then of a bare one")


@law("checkpoints-heartbeat-keeps-entries", parts=[CHECKPOINTS], methods=["checkpoints.append"])
async def heartbeat_keeps_entries(bench: Bench) -> None:
    """An append of no entries replaces the head, raises the version and keeps every entry."""
    version = await CHECKPOINTS.write(bench.store, "s1", [{"n": 1}, {"n": 2}])
    for beat in range(1, 4):
        head = replace(FULL, lease_expires_at=START + beat * timedelta(seconds=10))
        answered = await bench.store.checkpoints.append("s1", [], expected_version=version, head=head)
        equal(answered, version + 1, "the version after a heartbeat")
        version = answered
        found = await loaded(bench)
        equal((found.head, list(found.entries)), (head, [{"n": 1}, {"n": 2}]), "head and entries after a heartbeat")


@law("checkpoints-every-status-is-taken", parts=[CHECKPOINTS], methods=["checkpoints.append"])
async def every_status_is_taken(bench: Bench) -> None:
    """Every status of the contract is stored and found by it."""
    for number, status in enumerate(STATUSES):
        await CHECKPOINTS.write(bench.store, f"s{number}", [], head=CheckpointHead(status))
    for number, status in enumerate(STATUSES):
        equal((await loaded(bench, f"s{number}")).head.status, status, "the status that came back")
        equal(await CHECKPOINTS.ids(bench.store, status=status), [f"s{number}"], f"the listing of status {status}")


@law("checkpoints-replace-drops-every-entry", parts=[CHECKPOINTS], methods=["checkpoints.replace"])
async def replace_drops_every_entry(bench: Bench) -> None:
    """A replace leaves its own entries and none of those before; what is appended then stands behind them."""
    await CHECKPOINTS.write(bench.store, "s1", [{"n": number} for number in range(9)])
    await CHECKPOINTS.replace(bench.store, "s1", [])
    equal(list((await loaded(bench)).entries), [], "the entries after the turn was closed")
    await CHECKPOINTS.write(bench.store, "s1", [{"turn": 2}])
    equal(list((await loaded(bench)).entries), [{"turn": 2}], "the entries of the next turn")
    await CHECKPOINTS.replace(bench.store, "s1", [{"a": 1}, {"b": 2}])
    await CHECKPOINTS.write(bench.store, "s1", [{"c": 3}])
    equal(list((await loaded(bench)).entries), [{"a": 1}, {"b": 2}, {"c": 3}], "entries of a replace and an append")


@law("checkpoints-deleted-journal-keeps-nothing", parts=[CHECKPOINTS], methods=["checkpoints.delete"])
async def deleted_journal_keeps_nothing(bench: Bench) -> None:
    """A turn journal that is created again has no entry, no head and no time of its former life."""
    await bench.store.checkpoints.append("s1", [{"n": 1}] * 20, expected_version=0, head=FULL)
    await bench.store.checkpoints.delete("s1")
    again = bench.clock.advance(timedelta(hours=1))
    bare = CheckpointHead("in-progress")
    await bench.store.checkpoints.append("s1", [{"n": "new"}], expected_version=0, head=bare)
    found = await loaded(bench)
    equal((list(found.entries), found.head), ([{"n": "new"}], bare), "entries and head")
    equal((found.created_at, found.updated_at), (again, again), "created_at and updated_at")
    equal(await CHECKPOINTS.ids(bench.store, agent=FULL.agent), [], "the listing of the former agent")


@law("checkpoints-late-append-revives-nothing", parts=[CHECKPOINTS], methods=["checkpoints.delete"])
async def late_append_revives_nothing(bench: Bench) -> None:
    """A heartbeat of an owner that slept through the deletion is refused, and the turn journal stays absent."""
    version = await CHECKPOINTS.make(bench.store, "s1")
    await bench.store.checkpoints.delete("s1")
    for entries in ([], [{"late": 1}]):
        call = bench.store.checkpoints.append
        await raises(VersionConflictError, "a late write", call, "s1", entries, expected_version=version, head=FULL)
        equal(await bench.store.checkpoints.load("s1"), None, "the turn journal after a late write")
    equal(await CHECKPOINTS.ids(bench.store), [], "the listing after a late write")


@law("checkpoints-one-claim-wins", parts=[CHECKPOINTS], promise=2, methods=["checkpoints.append"])
async def one_claim_wins(bench: Bench) -> None:
    """Of owners that claim a conversation at once one succeeds, and the head names it."""
    version = await CHECKPOINTS.make(bench.store, "s1")
    for turn in range(8):
        heads = [CheckpointHead("in-progress", owner=f"owner-{number}", attempts=turn) for number in range(8)]
        calls = [bench.store.checkpoints.append("s1", [], expected_version=version, head=head) for head in heads]
        outcomes = await all_of(list(calls))
        won = only(VersionConflictError, outcomes, "8 claims at one version")
        equal(won, [version + 1], "the versions that the winners got")
        version += 1
        equal((await loaded(bench)).head, heads[outcomes.index(version)], "the head after the claims")


@law("checkpoints-times-follow-the-writes", parts=[CHECKPOINTS], methods=["checkpoints.append"])
async def times_follow_the_writes(bench: Bench) -> None:
    """`created_at` is the first write's; `updated_at` the last one's and never goes back; `at` goes before the clock."""
    at = datetime(2031, 3, 9, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    await CHECKPOINTS.write(bench.store, "s1", [], at=at)
    found = await loaded(bench)
    equal((found.created_at, found.updated_at), (at.astimezone(UTC),) * 2, "times after a first write at `at`")
    now = bench.clock.now()
    await CHECKPOINTS.write(bench.store, "s1", [])
    await CHECKPOINTS.replace(bench.store, "s1", [], at=at)
    found = await loaded(bench)
    equal(
        (found.created_at, found.updated_at), (at.astimezone(UTC), now), "times after a write now and an older replace"
    )
