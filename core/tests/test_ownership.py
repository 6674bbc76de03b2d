"""Owners piece by piece: who is known to be dead, what a lease may be, and the one queue of an owner's appends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, dead, elsewhere

from perdure import AgentStore, Lease
from perdure.contracts.checkpoints import Checkpoint, CheckpointHead, CheckpointInfo
from perdure.errors import InvalidArgumentError, OutcomeUnknownError, StoreUnavailableError, VersionConflictError
from perdure.ownership import leases
from perdure.ownership.heartbeat import Heartbeat
from perdure.ownership.leases import Line, Ownership, OwnershipLostError, Process, this_process
from perdure.ownership.owned_journal import OwnedJournal
from perdure.ownership.uninterrupted import uninterrupted
from perdure_conformance.interception import Call, Interception, at
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


# --- processes ---


def test_no_two_owners_are_the_same() -> None:
    assert len({this_process().new_owner() for _ in range(1000)}) == 1000


def test_an_owner_of_this_process_is_alive_as_long_as_a_task_holds_it() -> None:
    here = Process("h", "b", "n", os.getpid(), "5")
    owner = here.new_owner()
    assert here.knows_dead(owner)
    here.held.add(owner)
    assert not here.knows_dead(owner)


def test_a_child_that_ended_is_known_to_be_dead_and_one_that_runs_is_not() -> None:
    here = this_process()
    say = "from perdure.ownership.leases import this_process; print(this_process().new_owner(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        assert not here.knows_dead(owner)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert here.knows_dead(owner)  # until it is waited for it is a zombie, which runs nothing any more
    assert here.knows_dead(owner)


def test_a_forked_child_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its parent would call what it owns dead, since no task of the parent holds it."""
    parent = replace(this_process(), pid=os.getppid(), held={"an owner of the parent"})
    monkeypatch.setattr(leases, "_this", parent)
    assert (this_process().pid, this_process().held) == (os.getpid(), set())


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"host": "other"}, False),
        ({"boot": "other"}, False),
        ({"namespace": "other"}, False),
        ({"started": "other"}, True),  # the pid was given to another process
        ({"pid": 6_000_000}, True),
        ({"pid": 10**30}, True),  # no pid, so no process has it
    ],
)
def test_what_is_known_of_another_process(change: dict[str, Any], known: bool) -> None:
    other = replace(this_process(), **change)
    assert this_process().knows_dead(other.new_owner()) is known


def test_nothing_is_known_of_an_owner_whose_pid_is_none() -> None:
    here = this_process()
    assert not here.knows_dead("/".join((here.host, here.boot, here.namespace, "²", here.started, "x")))


@pytest.mark.parametrize("owner", ["", "somebody", "a/b/c", "a/b/c/d/e/f/g", "h/b/n/no-pid/5/x"])
def test_an_owner_of_another_form_may_be_alive(owner: str) -> None:
    assert not Process("h", "b", "n", 1, "5").knows_dead(owner)


def test_where_the_start_time_cannot_be_read_nobody_is_called_dead() -> None:
    here = Process("h", "b", "n", 1, "")
    assert not here.knows_dead(here.new_owner())


# --- leases ---


@pytest.mark.parametrize("name", ["length", "heartbeat", "max_clock_skew"])
@pytest.mark.parametrize("value", [30, None, timedelta(seconds=-1), timedelta(0)])
def test_wrong_leases(name: str, value: Any) -> None:
    if name == "max_clock_skew" and value == timedelta(0):
        assert Lease(max_clock_skew=value).max_clock_skew == timedelta(0)
        return
    with pytest.raises(InvalidArgumentError, match=name):
        Lease(**{name: value})


def checkpoint(owner: str | None, clock: ManualClock, version: int = 1) -> Checkpoint:
    expires = None if owner is None else clock.now() + Lease().length
    head = CheckpointHead("in-progress", owner=owner, lease=Lease().length, lease_expires_at=expires)
    return Checkpoint("s", version, [], head, clock.now(), clock.now())


async def test_who_is_live(clock: ManualClock) -> None:
    ownership = Ownership(clock)
    assert not ownership.is_live(checkpoint(None, clock))
    assert not ownership.is_live(checkpoint(dead().new_owner(), clock))
    assert ownership.is_live(checkpoint(elsewhere().new_owner(), clock))


async def test_nothing_is_remembered_of_journals_that_nobody_owns(clock: ManualClock) -> None:
    ownership = Ownership(clock)
    ownership.is_live(checkpoint(elsewhere().new_owner(), clock))
    assert list(ownership._seen) == ["s"]
    ownership.is_live(checkpoint(None, clock, version=2))
    assert list(ownership._seen) == []


async def test_lines_are_shared_by_key_and_not_kept(clock: ManualClock) -> None:
    ownership = Ownership(clock)
    line = ownership.line("s")
    assert ownership.line("s") is line
    assert ownership.line("t") is not line
    del line
    assert len(ownership._lines) == 0


async def test_a_line_serves_one_after_another_and_skips_those_who_leave() -> None:
    line, served = Line(), list[int]()

    async def stand(number: int) -> None:
        async with line.served():
            served.append(number)
            await asyncio.sleep(0)
            assert served[-1] == number

    tasks = [asyncio.create_task(stand(number)) for number in range(6)]
    await asyncio.sleep(0)
    assert (served, len(line)) == ([0], 6)
    for number in (0, 1, 4):  # the one that is served, the next one, and one behind
        tasks[number].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert served == [0, 2, 3, 5]
    assert [outcome is None for outcome in outcomes] == [False, False, True, True, False, True]
    assert not line


def test_what_was_seen_of_others_does_not_grow_without_end(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_SEEN", 10)
    ownership, head = Ownership(clock, Process("h", "b", "n", 1, "")), CheckpointHead("in-progress", owner="elsewhere")
    infos = [CheckpointInfo(f"s{number}", 1, 0, head, clock.now(), clock.now()) for number in range(15)]
    for info in infos:
        assert ownership.is_live(info)
        assert ownership.is_live(infos[0])  # what is asked for again is remembered
    assert len(ownership._seen) == 10
    clock.advance(Lease().length)
    assert not ownership.is_live(infos[0])


# --- the queue ---


async def take(store: AgentStore, found: Checkpoint | None = None) -> OwnedJournal:
    head = CheckpointHead("in-progress", session_id="s")
    entries = [{"kind": "input"}]
    return await OwnedJournal.take(store.ownership, store.checkpoints, "s", found, lambda _: entries, lambda _: head)


async def load(store: AgentStore) -> Checkpoint:
    found = await store.checkpoints.load("s")
    assert found is not None
    return found


async def test_taking_writes_owner_and_lease(any_store: AgentStore, clock: ManualClock) -> None:
    journal = await take(any_store)
    found = await load(any_store)
    assert (found.version, found.head.owner, found.head.lease) == (journal.version, journal.owner, Lease().length)
    assert found.head.lease_expires_at == clock.now() + Lease().length
    assert journal.owner in this_process().held
    journal.forget()
    assert journal.owner not in this_process().held


async def test_of_several_takers_one_wins_and_losers_hold_nothing(any_store: AgentStore) -> None:
    held = set(this_process().held)
    outcomes = await asyncio.gather(*(take(any_store) for _ in range(8)), return_exceptions=True)
    winners = [outcome for outcome in outcomes if isinstance(outcome, OwnedJournal)]
    assert len(winners) == 1
    assert all(isinstance(outcome, (OwnedJournal, VersionConflictError)) for outcome in outcomes)
    assert this_process().held - held == {winners[0].owner}


async def test_appends_of_many_tasks_go_out_one_by_one(any_store: AgentStore) -> None:
    journal = await take(any_store)
    await asyncio.gather(*(journal.append([{"n": n}]) for n in range(20)), journal.append(), journal.append())
    found = await load(any_store)
    assert found.version == journal.version
    assert [entry.get("n") for entry in found.entries[1:]] == list(range(20))


async def test_giving_up_writes_no_owner_and_happens_once(store: AgentStore) -> None:
    journal = await take(store)
    await journal.give_up([{"kind": "last"}], status="awaiting-approval")
    found = await load(store)
    assert (found.head.owner, found.head.lease, found.head.status) == (None, None, "awaiting-approval")
    await journal.give_up()
    assert (await load(store)).version == found.version


async def test_a_lost_journal_is_never_written_to_again(store: AgentStore) -> None:
    journal = await take(store)
    rival = await take(another(store), await load(store))
    version = rival.version

    async def write(version: int) -> None:
        raise AssertionError("not ours")

    for _ in range(2):
        with pytest.raises(OwnershipLostError):
            await journal.append()
    with pytest.raises(OwnershipLostError):
        await journal.exclusively(write)
    with pytest.raises(OwnershipLostError):
        await journal.delete()
    assert (await load(store)).version == version


@pytest.mark.parametrize("outcome", ["lost", "unknown"])
@pytest.mark.parametrize("call", ["append", "replace"])
async def test_an_unknown_outcome_is_repeated_and_lands_once(store: AgentStore, call: str, outcome: str) -> None:
    journal = await take(another(store, at(2, outcome)))
    if call == "append":
        await journal.append([{"n": 1}])
        assert [entry.get("n") for entry in (await load(store)).entries] == [None, 1]
    else:
        await journal.replace([], CheckpointHead("idle", session_id="s"))
        assert (await load(store)).entries == ()


async def test_the_write_of_another_is_not_taken_for_one_of_unknown_outcome(store: AgentStore) -> None:
    async def before(call: Call) -> None:
        if call.number == 2:
            found = await load(store)
            await store.checkpoints.append("s", [], expected_version=found.version, head=replace(found.head, owner="x"))
            raise OutcomeUnknownError("write", "s")

    journal = await take(another(store, Interception(before=before)))
    with pytest.raises(OwnershipLostError):
        await journal.append([{"n": 1}])
    assert [entry.get("n") for entry in (await load(store)).entries] == [None]


@pytest.mark.parametrize("second", [OutcomeUnknownError, StoreUnavailableError])
async def test_an_outcome_stays_unknown_when_the_second_try_fails_too(
    store: AgentStore, second: type[Exception]
) -> None:
    """Also if that one is known to have written nothing: the first may have."""

    async def before(call: Call) -> None:
        if call.number > 1:
            raise (OutcomeUnknownError if call.number == 2 else second)("write", "s")

    journal = await take(another(store, Interception(before=before)))
    with pytest.raises(OutcomeUnknownError):
        await journal.append([{"n": 1}])


async def test_a_lease_runs_from_the_first_try_of_an_append_that_is_made_anew(
    store: AgentStore, clock: ManualClock
) -> None:
    """An append aside landed, and nobody knew; so the next one conflicts, and goes out again behind it, later."""
    waited = timedelta(seconds=5)

    async def before(call: Call) -> None:
        if call.number == 3:  # the second try of the first
            raise OutcomeUnknownError("write", "s")
        if call.number == 4:
            clock.advance(waited)

    async def after(call: Call) -> None:
        if call.number == 2:
            raise OutcomeUnknownError("write", "s")

    journal = await take(another(store, Interception(before=before, after=after)))
    with pytest.raises(OutcomeUnknownError):
        await journal.append_aside([{"n": 1}], unless=lambda: False)
    began = clock.now()
    await journal.append([{"n": 2}])
    found = await load(store)
    assert [entry.get("n") for entry in found.entries] == [None, 1, 2]
    assert found.head.lease_expires_at == began + Lease().length
    assert journal._held.idle_for(waited)


@pytest.mark.parametrize("later", [timedelta(0), timedelta(microseconds=1)])
async def test_an_append_is_not_taken_for_one_of_unknown_outcome_before_it(
    store: AgentStore, clock: ManualClock, later: timedelta
) -> None:
    """Both go out with a lease that is young: it is by the head that each is told from the other."""

    async def before(call: Call) -> None:
        if call.number in (3, 4):  # the second try of the first, and the first of the second
            raise OutcomeUnknownError("write", "s")

    async def after(call: Call) -> None:
        if call.number == 2:  # it landed
            raise OutcomeUnknownError("write", "s")

    journal = await take(another(store, Interception(before=before, after=after)))
    with pytest.raises(OutcomeUnknownError):
        await journal.append([{"n": 1}])
    clock.advance(later)
    await journal.append([{"n": 2}])
    assert [entry.get("n") for entry in (await load(store)).entries] == [None, 1, 2]


@pytest.mark.parametrize("landed", [True, False])
async def test_what_is_left_goes_out_once_and_changes_of_the_head_stay(store: AgentStore, landed: bool) -> None:
    """Whatever became of the append of unknown outcome that it was in at first."""

    async def before(call: Call) -> None:
        if call.number == 2 and not landed:
            raise OutcomeUnknownError("write", "s")
        if call.number == 3:
            raise StoreUnavailableError("write", "s")

    async def after(call: Call) -> None:
        if call.number == 2:
            raise OutcomeUnknownError("write", "s")

    journal = await take(another(store, Interception(before=before, after=after)))
    told: list[Any] = []
    journal.on_written = told.extend
    outcome = {"n": 1}
    with pytest.raises(OutcomeUnknownError):
        await journal.append([outcome], status="finished")
    journal.leave([outcome])
    await journal.append([{"n": 2}])
    found = await load(store)
    assert [entry.get("n") for entry in found.entries] == [None, 1, 2]
    assert (told, found.head.status) == ([{"n": 1}, {"n": 2}], "finished" if landed else "in-progress")
    assert await journal.give_up()
    assert (await load(store)).head.owner is None


async def test_many_unknown_outcomes_cost_one_look(store: AgentStore) -> None:
    async def before(call: Call) -> None:
        if call.number in (2, 3, 4, 5, 7):
            raise OutcomeUnknownError("write", "s")

    async def after(call: Call) -> None:
        if call.number == 6:  # of the last one
            raise OutcomeUnknownError("write", "s")

    used = another(store, Interception(before=before, after=after))
    journal, looks = await take(used), 0
    for n in range(3):
        with pytest.raises(OutcomeUnknownError):
            await journal.append_aside([{"n": n}], unless=lambda: False)
    load_of_store = used.checkpoints.load

    async def look(key: str) -> Checkpoint | None:
        nonlocal looks
        looks += 1
        return await load_of_store(key)

    used.checkpoints.load = look  # type: ignore[method-assign, misc]  # reason: only its calls are counted
    await journal.append([{"n": 9}])
    assert (looks, [entry.get("n") for entry in (await load(store)).entries]) == (1, [None, 2, 9])


async def test_a_heartbeat_of_unknown_outcome_takes_no_entries_along(store: AgentStore, clock: ManualClock) -> None:
    """What could not be written goes out with the next append, behind a heartbeat that landed and nobody knew."""

    async def before(call: Call) -> None:
        if call.number == 3:  # the second try of the heartbeat
            raise StoreUnavailableError("write", "s")

    async def after(call: Call) -> None:
        if call.number == 2:
            raise OutcomeUnknownError("write", "s")

    journal = await take(another(store, Interception(before=before, after=after)))
    journal.leave([{"n": 1}])
    clock.advance(Lease().heartbeat)
    with pytest.raises(OutcomeUnknownError):
        await journal.beat()
    await journal.append([{"n": 2}])
    assert [entry.get("n") for entry in (await load(store)).entries] == [None, 1, 2]


async def test_a_store_that_is_away_costs_nothing_but_the_append(store: AgentStore) -> None:
    journal = await take(another(store, at(2, "unavailable")))
    with pytest.raises(StoreUnavailableError):
        await journal.append([{"n": 1}])
    await journal.append([{"n": 2}])
    assert [entry.get("n") for entry in (await load(store)).entries] == [None, 2]


async def test_heartbeats_renew_and_are_skipped_when_not_due(store: AgentStore, clock: ManualClock) -> None:
    journal = await take(store)
    await journal.beat()
    assert (await load(store)).version == journal.version
    clock.advance(Lease().heartbeat)
    before = journal.version
    await journal.beat()
    found = await load(store)
    assert (found.version, found.head.lease_expires_at) == (before + 1, clock.now() + Lease().length)


async def test_appends_renew_a_lease_that_is_not_young_any_more(store: AgentStore, clock: ManualClock) -> None:
    journal, taken, young = await take(store), clock.now(), Lease().heartbeat / 10
    for waited, began in ((young / 2, taken), (young / 2, taken + young), (young / 2, taken + young)):
        clock.advance(waited)
        await journal.append([{"kind": "step"}])
        assert (await load(store)).head.lease_expires_at == began + Lease().length
    clock.advance(Lease().length - young / 2)
    before = journal.version
    await journal.renew_if_lapsed()  # it goes by the lease that was written last, not by the last append
    found = await load(store)
    assert (found.version, found.head.lease_expires_at) == (before + 1, clock.now() + Lease().length)
    await journal.append(last_error="it failed")
    assert (await load(store)).head.last_error == "it failed"
    journal.note(last_error=None)
    await journal.append()
    assert (await load(store)).head.last_error is None


@pytest.mark.parametrize("waited", [timedelta(0), Lease().heartbeat])
async def test_what_is_noted_while_an_append_is_on_its_way_goes_out_with_the_next(
    store: AgentStore, clock: ManualClock, waited: timedelta
) -> None:
    going, noted = asyncio.Event(), asyncio.Event()

    async def before(call: Call) -> None:
        if call.number == 2:
            going.set()
            await noted.wait()

    journal, taken = await take(another(store, Interception(before=before))), clock.now()
    clock.advance(waited)
    aside = asyncio.create_task(journal.append_aside([{"kind": "input-queued"}], unless=lambda: False))
    await going.wait()
    journal.note(base_version=7)
    noted.set()
    assert await aside
    await journal.append()
    head = (await load(store)).head
    assert (head.base_version, head.lease_expires_at) == (7, taken + waited + Lease().length)


async def test_a_cancellation_while_heartbeats_end_is_not_swallowed() -> None:
    """The end of the task that renews the lease is not taken for that of the task that held it."""
    begun = asyncio.Event()

    async def renew() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def hold() -> None:
        async with Heartbeat(timedelta(microseconds=1), renew, lambda: None):
            await begun.wait()

    task = asyncio.create_task(hold())
    await begun.wait()
    await asyncio.sleep(0)  # now it waits for the heartbeats to end
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- to the end ---


async def test_uninterrupted_work_ends_before_the_cancellation_comes_through() -> None:
    reached, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def work() -> None:
        reached.set()
        await may_end.wait()
        ended.append(True)

    task = asyncio.create_task(uninterrupted(work()))
    await reached.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


async def test_uninterrupted_work_answers_and_fails_as_itself() -> None:
    async def answer() -> int:
        return 1

    async def fail() -> None:
        raise LookupError

    assert await uninterrupted(answer()) == 1
    with pytest.raises(LookupError):
        await uninterrupted(fail())


@pytest.mark.parametrize("name", ["length", "heartbeat", "max_clock_skew"])
def test_a_lease_that_no_clock_can_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        Lease(**{name: timedelta.max})
