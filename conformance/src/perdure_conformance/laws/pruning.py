"""Pruning: what is old goes whole, what somebody needs stays, and the report says what happened."""

from __future__ import annotations

import contextlib
from datetime import timedelta, timezone
from typing import Any

from perdure import PruneReport
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import InvalidArgumentError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import equal, holds, raises
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.laws.conversations import (
    NOTHING,
    WEEK,
    WHOLE,
    Left,
    head_of,
    left,
    lived,
    owned,
    status_of,
    unchanged,
    waiting,
    whole,
)
from perdure_conformance.laws.register import law
from perdure_conformance.laws.tapped import ELSEWHERE, tapped
from perdure_conformance.manual_clock import START, TICK
from perdure_conformance.parts import SESSIONS, request

PRUNE: dict[str, Any] = WHOLE | {"methods": ("bundle.prune",)}


async def prune(bench: Bench, older_than: timedelta = WEEK, **options: Any) -> PruneReport:
    """Prune the store under test."""
    return await bench.store.prune(older_than=older_than, **options)


def removed(report: PruneReport) -> Left:
    """Return the ids that a report names."""
    return Left(list(report.sessions), list(report.runs), sorted(report.approvals))


# --- age ---


@law("prune-removes-old-conversations-whole", **PRUNE)
async def removes_old_conversations_whole(bench: Bench) -> None:
    """Every part of an old conversation goes, under every filter of the listings, and the young one stays whole."""
    store = bench.store
    for name in ("s1", "s2"):
        await lived(store, name)
    bench.clock.advance(WEEK)
    young = await lived(store, "s10")
    bench.clock.advance(TICK)
    await prune(bench)
    equal(await left(store), Left(["s10"], ["s10"], [young]), "what is left")
    for name in ("s1", "s2"):
        equal(await store.sessions.load(name), None, f"the session {name}")
        equal(await store.checkpoints.load(name), None, f"the turn journal of {name}")
        equal(await store.approvals.get(f"{name}.turn-1.s0.c0"), None, f"the approval of {name}")
        equal(list((await store.approvals.list(session_id=name)).items), [], f"the listed approvals of {name}")
    equal(await SESSIONS.ids(store, scope="ann"), ["s10"], "the sessions of the scope")
    equal([one.key for one in (await store.checkpoints.list(agent="agent")).items], ["s10"], "the agent's journals")
    equal([one.id for one in (await store.approvals.list(status="approved")).items], [young], "approved approvals")


@law("prune-keeps-what-is-as-old-as-the-limit", **PRUNE)
async def keeps_what_is_as_old_as_the_limit(bench: Bench) -> None:
    """A conversation written exactly so long ago stays; a tick later it goes."""
    approval = await lived(bench.store)
    for before in (TICK, timedelta(0)):
        bench.clock.set(START + WEEK - before)
        equal(removed(await prune(bench)), NOTHING, f"what is reported {before} before the limit")
        equal(await left(bench.store), Left(["s1"], ["s1"], [approval]), f"what is left {before} before the limit")
    bench.clock.advance(TICK)
    equal(removed(await prune(bench)), Left(["s1"], ["s1"], [approval]), "what is reported a tick later")
    equal(await left(bench.store), NOTHING, "what is left a tick later")


@law("prune-of-zero-removes-all-but-the-newest", **PRUNE)
async def of_zero_removes_all_but_the_newest(bench: Bench) -> None:
    """An age of zero removes all that was written before this instant, and nothing that was written at it."""
    await lived(bench.store, "s1")
    bench.clock.advance(TICK)
    young = await lived(bench.store, "s2")
    await prune(bench, timedelta(0))
    equal(await left(bench.store), Left(["s2"], ["s2"], [young]), "what is left")


@law("prune-newest-part-decides", **PRUNE)
async def newest_part_decides(bench: Bench) -> None:
    """A conversation is as old as its newest part: a young session, journal or approval keeps the old rest."""
    store = bench.store
    for name in ("s1", "s2", "s3"):
        await lived(store, name)
    bench.clock.advance(WEEK + TICK)
    await store.sessions.append("s1", [], state={"title": "new"})
    await store.checkpoints.append("s2", [], expected_version=None, head=head_of("s2"))
    await store.approvals.create(request("s3.turn-9.s0.c0", created_at=bench.clock.now()))
    report = await prune(bench)
    equal((list(report.sessions), list(report.runs)), ([], []), "the sessions and journals that are reported")
    found = await left(store)
    equal((found.sessions, found.runs), (["s1", "s2", "s3"],) * 2, "the sessions and journals that are left")


@law("prune-goes-by-instants", **PRUNE)
async def goes_by_instants(bench: Bench) -> None:
    """Ages are told by instants in any zone and to the microsecond, for ages of milliseconds and of centuries."""
    zone, age = timezone(timedelta(hours=14)), timedelta(milliseconds=1500)
    await lived(bench.store, "old", at=(START - age - TICK).astimezone(zone))
    kept = await lived(bench.store, "young", at=(START - age).astimezone(timezone(timedelta(hours=-12))))
    for large in (timedelta(days=100 * 365), timedelta.max):
        equal(removed(await prune(bench, large)), NOTHING, f"what a prune of {large} reports")
    equal(removed(await prune(bench, age)).sessions, ["old"], "the sessions that a prune of 1.5 seconds reports")
    equal(await left(bench.store), Left(["young"], ["young"], [kept]), "what is left")


@law("prune-under-a-clock-that-went-back-removes-nothing", **PRUNE)
async def clock_went_back(bench: Bench) -> None:
    """What was written later than the clock says now is not old."""
    await lived(bench.store, "s1")
    bench.clock.advance(timedelta(days=-3650))
    await lived(bench.store, "s2")
    before = await whole(bench)
    for age in (WEEK, timedelta(0)):
        equal(removed(await prune(bench, age)), NOTHING, f"what a prune of {age} reports after the clock went back")
    await unchanged(bench, before, "a prune under a clock that went back")


@law("prune-refuses-bad-ages", **PRUNE)
async def refuses_bad_ages(bench: Bench) -> None:
    """An age that is negative, or no timedelta, is refused and removes nothing."""
    await lived(bench.store)
    bench.clock.advance(2 * WEEK)
    before = await whole(bench)
    ages: tuple[Any, ...] = (-TICK, timedelta(days=-7), 0, 7, 7.0, "7d", None, START)
    for age in ages:
        await raises(InvalidArgumentError, f"prune(older_than={age!r})", bench.store.prune, older_than=age)
    await unchanged(bench, before, "refused prunes")


@law("prune-has-no-cap", **PRUNE)
async def has_no_cap(bench: Bench) -> None:
    """One prune removes all that is old, however much more than a page that is."""
    for number in range(102):
        await bench.store.sessions.append(f"s{number:03}", [{"n": number}], expected_version=0)
    bench.clock.advance(WEEK + TICK)
    equal(len((await prune(bench)).sessions), 102, "how many sessions are reported")
    equal(await left(bench.store), NOTHING, "what is left")


# --- the report ---


@law("prune-dry-run-removes-nothing", **PRUNE)
async def dry_run_removes_nothing(bench: Bench) -> None:
    """A dry run changes nothing at all, and reports what the prune then removes."""
    await lived(bench.store, "s1")
    await waiting(bench.store, "s2")
    await bench.store.approvals.create(request("gone.turn-1.s0.c0", created_at=bench.clock.now()))
    bench.clock.advance(WEEK + TICK)
    await lived(bench.store, "s3")
    before = await whole(bench)
    foretold = await prune(bench, dry_run=True)
    await unchanged(bench, before, "a dry run")
    report = await prune(bench)
    equal((foretold.dry_run, report.dry_run), (True, False), "whether the reports say that it was a dry run")
    equal(removed(foretold), removed(report), "what the dry run foretold")
    equal(foretold.kept, report.kept, "what the dry run says is kept")


@law("prune-reports-exactly-what-is-gone", **PRUNE)
async def reports_exactly_what_is_gone(bench: Bench) -> None:
    """The report names every id that was there before and is not after, by part, and no other."""
    for name in ("a", "s1", "s10"):
        await lived(bench.store, name)
    await waiting(bench.store, "s2")
    orphan = await bench.store.approvals.create(request("gone.turn-1.s0.c0", created_at=bench.clock.now()))
    bench.clock.advance(WEEK + TICK)
    await lived(bench.store, "z")
    before = await left(bench.store)
    report = removed(await prune(bench))
    after = await left(bench.store)
    for part in ("sessions", "runs", "approvals"):
        gone = [key for key in getattr(before, part) if key not in getattr(after, part)]
        equal(sorted(getattr(report, part)), sorted(gone), f"the {part} that are reported")
    holds(orphan.id in report.approvals, f"expected {orphan.id} among the approvals removed, got {report.approvals}")


@law("prune-a-second-time-does-nothing", **PRUNE)
async def second_time_does_nothing(bench: Bench) -> None:
    """A second prune at the same instant finds nothing and changes nothing."""
    await lived(bench.store, "s1")
    await waiting(bench.store, "s2")
    bench.clock.advance(WEEK + TICK)
    kept = (await prune(bench)).kept
    before = await whole(bench)
    again = await prune(bench)
    equal((removed(again), again.kept), (NOTHING, kept), "what the second prune reports")
    await unchanged(bench, before, "a second prune")


# --- what is kept ---


@law("prune-keeps-an-undecided-approval", **PRUNE)
async def keeps_an_undecided_approval(bench: Bench) -> None:
    """An undecided approval of an unfinished turn keeps its conversation however old, and the report says so."""
    await waiting(bench.store, "s1")
    until = bench.clock.now() + WEEK
    await waiting(bench.store, "s2", expires_at=until, on_expiry="keep")
    await waiting(bench.store, "s3", expires_at=until, on_expiry="deny")
    bench.clock.advance(timedelta(days=3650))
    report = await prune(bench)
    equal(sorted(report.kept), ["s1", "s2"], "the conversations that the report says are kept")
    equal(await SESSIONS.ids(bench.store), ["s1", "s2"], "the sessions that are left")
    for name in ("s1", "s2"):
        equal(await status_of(bench.store, name), "awaiting-approval", f"the status of the turn of {name}")
        found = await bench.store.approvals.get(f"{name}.turn-1.s0.c0")
        equal(found and found.status, "pending", f"the approval of {name}")


@law("prune-keeps-a-decision-that-is-not-applied", **PRUNE)
async def keeps_a_decision(bench: Bench) -> None:
    """In a living conversation the decided approvals of an unfinished turn stay, applied or not, saved or not."""
    for name, status in (("s1", "ready"), ("s2", "in-progress"), ("s3", "finished"), ("s4", "awaiting-approval")):
        (asked,) = await waiting(bench.store, name, status=status)
        await bench.store.approvals.decide(asked.id, approved=True)
    bench.clock.advance(WEEK + TICK)
    for name in ("s1", "s2", "s3", "s4"):
        await bench.store.sessions.append(name, [], state={"title": "young"})
    equal(removed(await prune(bench)), NOTHING, "what is reported")
    for name in ("s1", "s2", "s3", "s4"):
        found = await bench.store.approvals.get(f"{name}.turn-1.s0.c0")
        equal(found and found.status, "approved", f"the approval of {name}")


@law("prune-separates-no-session-from-its-run", **PRUNE)
async def separates_nothing(bench: Bench) -> None:
    """A session with an unfinished turn goes with it or stays with it: never one of them alone."""
    for name in ("s1", "s2"):
        await waiting(bench.store, name, calls=0, status="in-progress")
    await waiting(bench.store, "s3", calls=0, status="finished")
    bench.clock.advance(WEEK + TICK)
    await bench.store.checkpoints.append("s1", [], expected_version=None, head=head_of("s1", "in-progress"))
    await bench.store.sessions.append("s2", [])
    await prune(bench)
    found = await left(bench.store)
    equal(
        (found.sessions, found.runs), (["s1", "s2"], ["s1", "s2"]), "the sessions and the turn journals that are left"
    )


@law("prune-keeps-a-live-owner", **PRUNE)
async def keeps_a_live_owner(bench: Bench) -> None:
    """A turn whose owner may be alive keeps its conversation, and the report says so."""
    await owned(bench.store, lease=timedelta(days=1))
    bench.clock.advance(TICK)
    before = await whole(bench)
    report = await prune(bench, timedelta(0))
    equal((removed(report), list(report.kept)), (NOTHING, ["s1"]), "what is reported as removed, and as kept")
    await unchanged(bench, before, "a prune of a conversation that somebody runs")


@law("prune-removes-what-nothing-refers-to", **PRUNE)
async def removes_orphans(bench: Bench) -> None:
    """Old approvals whose run is over or gone go, decided or not; those of ended turns in living conversations too."""
    store = bench.store
    orphans = [await store.approvals.create(request(f"gone.turn-{n}.s0.c0", created_at=START)) for n in range(2)]
    await store.approvals.decide(orphans[1].id, approved=False)
    await store.checkpoints.append(
        "job.run", [], expected_version=0, head=CheckpointHead("finished", run_id="job.run-1")
    )
    await store.approvals.create(request("job.run-1.s0.c0", session_id=None, created_at=START))
    ended = await lived(store, "s1")
    bench.clock.advance(WEEK + TICK)
    await store.sessions.append("s1", [])
    gone = [*(one.id for one in orphans), "job.run-1.s0.c0", ended]
    equal(removed(await prune(bench)), Left([], ["job.run"], sorted(gone)), "what is reported")
    equal(await left(store), Left(["s1"], ["s1"], []), "what is left")


@law("prune-stays-in-its-namespace", **PRUNE)
async def stays_in_its_namespace(bench: Bench) -> None:
    """A prune removes nothing of another namespace, also when one name is a prefix of another."""
    others = [await bench.open(namespace=name) for name in ("default2", "def", "other")]
    for store in (bench.store, *others):
        await lived(store)
    bench.clock.advance(WEEK + TICK)
    await prune(bench)
    equal(await left(bench.store), NOTHING, "what is left in the namespace that was pruned")
    for store in others:
        equal(await left(store), Left(["s1"], ["s1"], ["s1.turn-1.s0.c0"]), "what is left in another namespace")


# --- races and crashes ---


@law("prune-drops-no-write-that-comes-in-between", **PRUNE)
async def drops_no_write(bench: Bench) -> None:
    """A record that is written while a prune works is kept, or its write is refused: none is acknowledged and lost."""
    for number in range(1, 20):
        name = f"s{number}"
        await lived(bench.store, name)
        bench.clock.advance(WEEK + TICK)
        late = Late(bench, name, number, await version_of(bench, name))
        report = await tapped(bench.store, Interception(before=late.write)).prune(older_than=WEEK)
        if not late.reached:
            return
        found = await bench.store.sessions.load(name)
        kept = found is not None and {"late": 1} in found.records
        holds(kept or not late.landed, f"a record that was acknowledged while prune worked is lost: {removed(report)}")
        equal(name in report.sessions, found is None, f"whether {name} is reported, written to before write {number}")
        await bench.store.delete_session(name, force=True)
    raise AssertionError("one old conversation took a prune more than 19 writes")


class Late:
    """A write of somebody who read the session before, which comes right before a given write of a prune."""

    def __init__(self, bench: Bench, name: str, number: int, version: int) -> None:
        self.reached = self.landed = False
        self._bench, self._name, self._number, self._version = bench, name, number, version

    async def write(self, call: Call) -> None:
        """Write when the call is the one."""
        if call.number != self._number:
            return
        self.reached = True
        with contextlib.suppress(VersionConflictError):
            await self._bench.store.sessions.append(self._name, [{"late": 1}], expected_version=self._version)
            self.landed = True


async def version_of(bench: Bench, name: str) -> int:
    """Return the version of a session that must be there."""
    found = await bench.store.sessions.load(name)
    assert found is not None, f"{name} was written, but load answers None"
    return found.version


@law("prune-cut-anywhere-leaves-no-half", **PRUNE)
async def cut_anywhere(bench: Bench) -> None:
    """A prune that dies at any of its writes leaves no turn without its session, and the next prune takes the rest."""
    for number in range(1, 40):
        approval = await lived(bench.store)
        bench.clock.advance(WEEK + TICK)
        interception = at((number + 1) // 2, "die-before" if number % 2 else "die-after")
        died = False
        try:
            await tapped(bench.store, interception, process=ELSEWHERE).prune(older_than=WEEK)
        except Died:
            died = True
        bench.clock.advance(2 * WEEK)
        await prune(bench)
        equal(
            await left(bench.store),
            NOTHING,
            f"what is left of {approval} by the prune after one that {interception_of(number)}",
        )
        if not died:
            return
    raise AssertionError("one old conversation took a prune more than 19 writes")


def interception_of(number: int) -> str:
    """Say where a prune died."""
    return f"died {'before' if number % 2 else 'after'} its write {(number + 1) // 2}"
