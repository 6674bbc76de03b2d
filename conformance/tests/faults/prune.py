"""Planted bundles of the chapter on pruning, and of deletions and decisions of whole conversations."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from conformance.tests.faults.planting import Fault, Scene, outcome

from perdure import AgentStore, PruneReport
from perdure_conformance.laws.conversations import WEEK, left, lived, owned, waiting
from perdure_conformance.manual_clock import TICK
from perdure_conformance.parts import request


class Prunes(AgentStore):
    """Prunes in a way of its own: what `ages` says is old goes, part by part, without a claim."""

    removes: tuple[str, ...] = ("approvals", "sessions", "checkpoints")
    page = 10**6

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        cutoff = self.clock.now() - older_than
        gone: dict[str, list[str]] = {"sessions": [], "checkpoints": [], "approvals": []}
        for info in (await self.sessions.list(limit=self.page)).items:
            if await self.old(info, cutoff):
                await self.remove(info.session_id, gone, dry_run=dry_run)
        return PruneReport(dry_run, tuple(gone["sessions"]), tuple(gone["checkpoints"]), tuple(gone["approvals"]))

    async def old(self, info: Any, cutoff: datetime) -> bool:
        turn = await self.checkpoints.load(info.session_id)
        if turn is not None and (turn.updated_at >= cutoff or turn.head.status != "idle"):
            return False
        approvals = (await self.approvals.list(session_id=info.session_id, limit=1000)).items
        ages = [one.decision.decided_at if one.decision else one.created_at for one in approvals]
        return bool(info.updated_at < cutoff and all(age < cutoff for age in ages))

    async def remove(self, session_id: str, gone: dict[str, list[str]], *, dry_run: bool) -> None:
        approvals = (await self.approvals.list(session_id=session_id, limit=1000)).items
        keys = {
            "approvals": [one.id for one in approvals],
            "sessions": [session_id],
            "checkpoints": [session_id] if await self.checkpoints.load(session_id) else [],
        }
        for part in self.removes:
            for key in keys[part]:
                if not dry_run:
                    await getattr(self, part).delete(key)
                gone[part].append(key)


class PrunesWithoutAClaim(Prunes):
    """What is written between look and delete is lost."""


class PruneLeavesApprovals(Prunes):
    """The approvals of a pruned conversation stay."""

    removes = ("sessions", "checkpoints")


class PruneLeavesTurnJournals(Prunes):
    """The turn journal of a pruned conversation stays."""

    removes = ("approvals", "sessions")


class PruneStopsAtAPage(Prunes):
    """One prune looks at a hundred sessions."""

    page = 100


class PrunesBySessionAge(Prunes):
    """The age of the session alone counts."""

    async def old(self, info: Any, cutoff: datetime) -> bool:
        return bool(info.updated_at < cutoff)


class PrunesTheNewest(Prunes):
    """Removes what was written since."""

    async def old(self, info: Any, cutoff: datetime) -> bool:
        return bool(info.updated_at >= cutoff)


class PruneTakesTheFuture(Prunes):
    """An age is a distance: what was written under a later clock is old too."""

    async def old(self, info: Any, cutoff: datetime) -> bool:
        now = self.clock.now()
        return bool(abs(now - info.updated_at) > now - cutoff)


class Shifted(AgentStore):
    """Prunes by another age."""

    def age(self, older_than: timedelta) -> timedelta:
        return older_than

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        given: Any = older_than
        if not isinstance(given, timedelta) or given < timedelta(0):
            return await super().prune(older_than=older_than, dry_run=dry_run)
        return await super().prune(older_than=max(self.age(older_than), timedelta(0)), dry_run=dry_run)


class PrunesATickEarly(Shifted):
    """What is exactly as old as the limit goes."""

    def age(self, older_than: timedelta) -> timedelta:
        return older_than - TICK


class PrunesATickLate(Shifted):
    """What is a tick older than the limit stays."""

    def age(self, older_than: timedelta) -> timedelta:
        return min(older_than, timedelta(days=10**6)) + TICK


class PrunesInLocalTime(Shifted):
    """Now is told by a clock five hours ahead."""

    def age(self, older_than: timedelta) -> timedelta:
        return older_than - timedelta(hours=5)


class PrunesInMilliseconds(Shifted):
    """Seconds are read as milliseconds."""

    def age(self, older_than: timedelta) -> timedelta:
        return older_than / 1000


class PruneDropsFractions(Shifted):
    """An age is a number of whole seconds."""

    def age(self, older_than: timedelta) -> timedelta:
        return timedelta(seconds=int(older_than.total_seconds()))


class DryRunDeletes(AgentStore):
    """A dry run is a run."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than)
        return replace(report, dry_run=dry_run)


class ReportsWhatIsKept(AgentStore):
    """The report names what was kept among what is gone."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than, dry_run=dry_run)
        return replace(report, sessions=(*report.sessions, *report.kept))


class ReportsNoApprovals(AgentStore):
    """The report forgets the approvals."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        return replace(await super().prune(older_than=older_than, dry_run=dry_run), approvals=())


class PruneTakesUndecided(AgentStore):
    """Old requests go, decided or not, whatever waits for them."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than, dry_run=dry_run)
        cutoff = self.clock.now() - min(older_than, timedelta(days=10**5))
        for one in (await self.approvals.list(status="pending")).items:
            if one.created_at < cutoff and not dry_run:
                await self.approvals.delete(one.id)
        return report


class PruneTakesDecisions(AgentStore):
    """Old decisions go, applied or not."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than, dry_run=dry_run)
        old = [one for one in (await self.approvals.list(before=self.clock.now() - older_than)).items if one.decided]
        for one in old:
            await self.approvals.delete(one.id)
        return replace(report, approvals=(*report.approvals, *(one.id for one in old)))


class PruneKeepsOrphans(AgentStore):
    """Approvals whose run is gone stay for ever."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        parts = AgentStore(sessions=self.sessions, checkpoints=self.checkpoints, clock=self.clock)
        return await parts.prune(older_than=older_than, dry_run=dry_run)


class PruneFencesOwnersOff(AgentStore):
    """A live owner keeps nothing."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than, dry_run=dry_run)
        for key, why in report.kept.items():
            if "owner" in why and not dry_run:
                await self.delete_session(key, force=True)
        return report


class PruneTouchesWhatItKeeps(AgentStore):
    """What a prune keeps looks younger afterwards."""

    async def prune(self, *, older_than: timedelta, dry_run: bool = False) -> PruneReport:
        report = await super().prune(older_than=older_than, dry_run=dry_run)
        for key in report.kept:
            if not dry_run:
                await self.sessions.append(key, [])
        return report


class PruneTakesNegativeAges(AgentStore):
    """An age below zero is zero, and a number is one of days."""

    async def prune(self, *, older_than: Any, dry_run: bool = False) -> PruneReport:
        age = older_than if isinstance(older_than, timedelta) else timedelta(0)
        return await super().prune(older_than=max(age, timedelta(0)), dry_run=dry_run)


async def pruned(scene: Scene) -> Any:
    """What prunes of several ages report and leave, of conversations of several ages and states."""
    store, clock = scene.store, scene.clock
    await lived(store, "exact")
    clock.advance(-TICK)
    await lived(store, "old")
    clock.advance(timedelta(hours=-1))
    await waiting(store, "waits")
    (decided,) = await waiting(store, "ready", status="in-progress")
    await store.approvals.decide(decided.id, approved=True)
    await store.approvals.create(request("gone.turn-1.s0.c0", created_at=clock.now()))
    await lived(store, "mixed")
    clock.advance(timedelta(hours=1) + TICK + timedelta(hours=4))
    await lived(store, "young")
    clock.advance(WEEK - timedelta(hours=4))
    await store.approvals.create(request("mixed.turn-2.s0.c0", created_at=clock.now()))
    await store.sessions.append("ready", [])
    seen: list[Any] = []
    for dry_run in (True, False, False):
        report = await outcome(store.prune(older_than=WEEK, dry_run=dry_run))
        seen += [report, await left(store)]
        clock.advance(TICK)
    found = await store.sessions.load("waits")
    return seen, found and found.updated_at


async def pruned_with_an_owner(scene: Scene) -> Any:
    await owned(scene.store, lease=timedelta(days=1))
    scene.clock.advance(TICK)
    await scene.store.prune(older_than=timedelta(0))
    return await left(scene.store)


async def pruned_in_bulk(scene: Scene) -> Any:
    for number in range(101):
        await scene.append(number, to=f"s{number}")
    scene.clock.advance(2 * WEEK)
    await scene.store.prune(older_than=WEEK)
    return await left(scene.store)


async def pruned_after_the_clock_went_back(scene: Scene) -> Any:
    await lived(scene.store)
    scene.clock.advance(timedelta(days=-3650))
    await scene.store.prune(older_than=WEEK)
    return await left(scene.store)


async def pruned_by_fractions(scene: Scene) -> Any:
    await lived(scene.store)
    scene.clock.advance(timedelta(milliseconds=1200))
    await scene.store.prune(older_than=timedelta(milliseconds=1500))
    return await left(scene.store)


async def pruned_by_bad_ages(scene: Scene) -> Any:
    ages: tuple[Any, ...] = (timedelta(days=-1), 7)
    return [await outcome(scene.store.prune(older_than=age)) for age in ages]


async def claims_of_a_prune(scene: Scene) -> Any:
    """Whether a prune, and a deletion, write to the turn journal before they delete anything."""
    kinds: list[str] = []
    journal: Any = scene.store.sessions.journal  # type: ignore[attr-defined]  # reason: planted stores have one
    inner = journal.inner.write

    async def write(operations: Any) -> Any:
        kinds.extend(f"{type(one).__name__} {one.key.part}" for one in operations)
        return await inner(operations)

    await lived(scene.store)
    await lived(scene.store, "s2")
    scene.clock.advance(2 * WEEK)
    journal.inner.write = write
    await scene.store.delete_session("s2")
    deleting, kinds[:] = list(kinds), []
    await scene.store.prune(older_than=WEEK)
    return deleting, kinds


def of(bundle: type[AgentStore], witness: Any, *laws: str) -> Fault:
    return Fault(bundle.__name__, laws, witness, bundle=bundle)


FAULTS = (
    of(PrunesTheNewest, pruned, "prune-removes-old-conversations-whole"),
    of(PrunesATickEarly, pruned, "prune-keeps-what-is-as-old-as-the-limit"),
    of(PrunesATickLate, pruned, "prune-keeps-what-is-as-old-as-the-limit"),
    of(PrunesInLocalTime, pruned, "prune-keeps-what-is-as-old-as-the-limit", "prune-goes-by-instants"),
    of(PrunesInMilliseconds, pruned, "prune-goes-by-instants"),
    of(PruneDropsFractions, pruned_by_fractions, "prune-goes-by-instants"),
    of(PruneTakesTheFuture, pruned_after_the_clock_went_back, "prune-under-a-clock-that-went-back-removes-nothing"),
    of(PruneTakesNegativeAges, pruned_by_bad_ages, "prune-refuses-bad-ages"),
    of(PrunesBySessionAge, pruned, "prune-newest-part-decides", "prune-separates-no-session-from-its-run"),
    of(PrunesWithoutAClaim, claims_of_a_prune, "prune-drops-no-write-that-comes-in-between"),
    of(PruneLeavesApprovals, pruned, "prune-removes-old-conversations-whole"),
    of(PruneLeavesTurnJournals, pruned, "prune-removes-old-conversations-whole"),
    of(PruneStopsAtAPage, pruned_in_bulk, "prune-has-no-cap"),
    of(DryRunDeletes, pruned, "prune-dry-run-removes-nothing"),
    of(ReportsWhatIsKept, pruned, "prune-reports-exactly-what-is-gone"),
    of(ReportsNoApprovals, pruned, "prune-reports-exactly-what-is-gone"),
    of(PruneTakesUndecided, pruned, "prune-keeps-an-undecided-approval"),
    of(PruneTakesDecisions, pruned, "prune-keeps-a-decision-that-is-not-applied"),
    of(PruneKeepsOrphans, pruned, "prune-removes-what-nothing-refers-to"),
    of(PruneFencesOwnersOff, pruned_with_an_owner, "prune-keeps-a-live-owner"),
    of(PruneTouchesWhatItKeeps, pruned, "prune-a-second-time-does-nothing"),
)
