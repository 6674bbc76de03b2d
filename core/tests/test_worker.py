"""Workers: which turns they take, what they leave alone, and what they do when things go wrong."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from core.tests.plain_sessions import PlainSessions
from core.tests.processes import another, dead, die_at, elsewhere
from core.tests.worker_world import World, abandon, change, journal, resumed, settled, submit, texts

from perdure import Agent, AgentStore, Worker, tool
from perdure.backend import Append, Head, Key, Part
from perdure.errors import (
    AgentChangedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreCorruptedError,
    StoreUnavailableError,
    UnsupportedOperationError,
)
from perdure.journal.stores import JournalCheckpoints
from perdure.models import ScriptedModel
from perdure.runtime.turn.state import entry
from perdure.runtime.workers.sweeps import SweepReport, fruitless_lives
from perdure_conformance.interception import Call, Interception
from perdure_conformance.manual_clock import ManualClock

pytestmark = pytest.mark.anyio
LONG = timedelta(days=1)


def ended(report: SweepReport) -> list[str]:
    """The sessions whose turn a sweep brought to its end."""
    return sorted(turn.session_id for turn in report.resumed if turn.finish_reason == "stop")


def aside(report: SweepReport) -> dict[str, str]:
    """The sessions whose turn is set aside, and why."""
    return {turn.session_id: turn.reason for turn in report.set_aside}


# --- what is taken ---


async def test_turns_that_nobody_runs_are_taken(any_store: AgentStore) -> None:
    world = World()
    await submit(any_store, "submitted")
    await abandon(world, any_store, "opened")
    await abandon(world, any_store, "answered", write=3)
    asking = await world.agent(any_store).session("ready").send("wire ann")
    await any_store.decide(asking.approval_ids[0], approved=True)
    assert (await journal(any_store, "ready")).head.status == "ready"
    await abandon(world, any_store, "finished", write=4)
    assert (await journal(any_store, "finished")).head.status == "finished"

    report = await Worker(world.agent(any_store)).sweep(slow=True)
    assert ended(report) == ["answered", "finished", "opened", "ready", "submitted"]
    assert (report.set_aside, report.waiting, report.busy, report.failed) == ([], [], [], [])
    for name in ("answered", "finished", "opened", "submitted"):
        assert await texts(any_store, name) == ["go", "did go"]
    assert (await texts(any_store, "ready"))[2:] == ["wired ann", "did wire ann"]
    assert world.ran == {"wire ann": 1}
    assert await Worker(world.agent(any_store)).sweep(slow=True) == SweepReport()


async def test_a_worker_takes_one_turn_of_a_conversation_after_another(store: AgentStore) -> None:
    world = World()
    worker = Worker(world.agent(store))
    for text in ("one", "two", "three"):
        run_id = await world.agent(store).session("s").submit(text)
        assert [turn.run_id for turn in (await worker.sweep()).resumed] == [run_id]
    assert await texts(store, "s") == ["one", "did one", "two", "did two", "three", "did three"]


async def test_the_result_of_a_turn_says_how_it_ended(store: AgentStore) -> None:
    run_id = await submit(store, "s", "wire ann")
    (turn,) = (await Worker(World().agent(store)).sweep()).resumed
    assert (turn.session_id, turn.run_id, turn.finish_reason) == ("s", run_id, "awaiting-approval")


async def test_a_turn_that_waits_is_looked_at_in_slow_sweeps(any_store: AgentStore) -> None:
    world = World()
    agent = world.agent(any_store)
    asking = await agent.session("s").send("wire ann")
    worker = Worker(agent)
    assert (await worker.sweep(slow=True)).waiting == ["s"]
    await any_store.approvals.decide(asking.approval_ids[0], approved=True)  # nobody marks the turn as ready
    assert await worker.sweep() == SweepReport()
    assert world.ran == {}
    assert ended(await worker.sweep(slow=True)) == ["s"]
    assert world.ran == {"wire ann": 1}


async def test_a_turn_whose_approval_expires_goes_on(any_store: AgentStore, clock: ManualClock) -> None:
    world = World()

    @tool(needs_approval=True, approval_timeout=timedelta(hours=1))
    async def wire(to: str) -> str:
        raise AssertionError(to)

    agent = world.agent(any_store, tools=[wire])
    await agent.session("s").send("wire ann")
    worker = Worker(agent)
    assert (await worker.sweep(slow=True)).waiting == ["s"]
    clock.advance(timedelta(hours=1))
    assert ended(await worker.sweep(slow=True)) == ["s"]
    assert "expired" in (await texts(any_store, "s"))[2]


@pytest.mark.parametrize("claim", ["discarding", "clearing", "compacting", "deleting", "copying"])
@pytest.mark.parametrize("agent", ["agent", "another"])
async def test_a_claim_whose_owner_is_gone_is_finished_or_undone(store: AgentStore, claim: str, agent: str) -> None:
    world = World()
    await submit(store, "s", agent=agent)
    note = {"v": 1, "kind": "claim", "action": claim, "was": "in-progress", "session_version": 1}
    await change(store, "s", note, status=claim, owner=dead().new_owner())
    worker = Worker(world.agent(store))
    assert await worker.sweep() == SweepReport()
    assert (await worker.sweep(slow=True)).settled == ["s"]
    found = await store.checkpoints.load("s")
    assert found is None if claim == "deleting" else found is not None and found.head.status in ("idle", "in-progress")
    assert all(not report.settled for report in [await worker.sweep(slow=True)])


async def test_all_pages_are_gone_through_and_no_more_run_at_once_than_may(store: AgentStore) -> None:
    world = World()
    names = [f"s{number}" for number in range(230)]
    for name in names:
        await submit(store, name, f"wait {name}")
    worker = Worker(world.agent(store), concurrency=7)
    sweeping = asyncio.create_task(worker.sweep())
    await world.run(1)
    world.may_go_on.set()
    report = await sweeping
    assert ended(report) == sorted(names)
    assert world.most <= 7
    assert set(world.asked.values()) == {1}


async def test_no_session_is_read_to_find_turns(store: AgentStore) -> None:
    world = World()
    for number in range(5):
        await world.agent(store).session(f"s{number}").send("go")
    await world.agent(store).session("waits").send("wire ann")
    interception = Interception(counted=("read", "scan", "write"))
    watched = another(store, interception)
    await Worker(world.agent(watched)).sweep()
    assert {call.kind for call in interception.calls} == {"scan"}


# --- what is left alone ---


async def test_what_others_run_is_left_alone(any_store: AgentStore, clock: ManualClock) -> None:
    world = World()
    await submit(any_store, "foreign", agent="another")
    await submit(any_store, "elsewhere")
    owner, lease = elsewhere().new_owner(), any_store.ownership.lease.length
    await change(any_store, "elsewhere", owner=owner, lease=lease, lease_expires_at=clock.now() + lease)
    worker = Worker(world.agent(any_store))
    assert (await worker.sweep(slow=True)).busy == ["elsewhere"]
    clock.advance(lease)  # seen unchanged for the length of its lease: its owner does not renew it
    assert ended(await worker.sweep()) == ["elsewhere"]
    assert world.asked == {"go": 1}
    assert ended(await Worker(world.agent(any_store, name="another")).sweep()) == ["foreign"]


async def test_what_this_process_runs_is_left_alone_whatever_its_lease_says(
    store: AgentStore, clock: ManualClock
) -> None:
    """B104, B097: recovery never adopts a turn that runs right here, however long a step takes."""
    world = World()
    other_bundle = another(store)
    running = [
        asyncio.create_task(world.agent(used).session(name).send(f"wait {name}"))
        for name, used in (("same", store), ("other", other_bundle))
    ]
    await world.run(2)
    clock.advance(LONG)  # the leases ran out long ago: the event loop was blocked, say
    report = await Worker(world.agent(store)).sweep(slow=True)
    assert sorted(report.busy) == ["other", "same"]
    world.may_go_on.set()
    assert [(await task).finish_reason for task in running] == ["stop", "stop"]
    assert set(world.asked.values()) == {1}


async def test_what_this_worker_runs_is_not_taken_by_its_next_sweep(store: AgentStore, clock: ManualClock) -> None:
    world = World()
    await submit(store, "s", "wait")
    worker = Worker(world.agent(store))
    first = asyncio.create_task(worker.sweep())
    await world.run(1)
    clock.advance(LONG)
    assert (await worker.sweep()).busy == ["s"]
    world.may_go_on.set()
    assert ended(await first) == ["s"]
    assert world.asked == {"wait": 1}


async def test_sweeps_of_one_worker_at_once_share_its_slots(store: AgentStore) -> None:
    world = World()
    names = [f"s{number}" for number in range(20)]
    for name in names:
        await submit(store, name, f"wait {name}")
    worker = Worker(world.agent(store), concurrency=3)
    sweeping = asyncio.gather(*(worker.sweep() for _ in range(3)))
    await world.run(3)
    world.may_go_on.set()
    assert sorted(name for report in await sweeping for name in ended(report)) == sorted(names)
    assert (world.most, worker._running) == (3, {})
    assert set(world.asked.values()) == {1}


async def test_a_conversation_in_which_a_call_is_served_takes_no_slot(store: AgentStore) -> None:
    world = World()
    await submit(store, "s")
    worker = Worker(world.agent(store))
    async with store.ownership.line("s").served():
        assert (await worker.sweep()).busy == ["s"]
    assert ended(await worker.sweep()) == ["s"]


async def test_of_workers_that_race_for_a_turn_one_takes_it(any_store: AgentStore) -> None:
    for round_ in range(8):
        world = World()
        names = [f"r{round_}-{number}" for number in range(6)]
        for name in names:
            await submit(any_store, name, f"pay {name}")
        workers = [Worker(world.agent(another(any_store)), concurrency=3) for _ in range(3)]
        reports = await asyncio.gather(*(worker.sweep() for worker in workers))
        assert sorted(name for report in reports for name in ended(report)) == sorted(names)
        assert all(report.failed == [] and report.set_aside == [] for report in reports)
        assert world.ran == {f"pay {name}": 1 for name in names}
        assert world.asked == {f"pay {name}": 2 for name in names}


async def test_a_run_without_a_session_is_a_turn_like_others(any_store: AgentStore) -> None:
    world = World()
    agent = world.agent(any_store)
    await agent.run("go", run_id="kept")
    await die_at(any_store, 1, lambda used: world.agent(used).run("pay ann", run_id="cut"))
    asking = await agent.run("wire ann", run_id="asks")
    worker = Worker(agent)
    report = await worker.sweep(slow=True)
    assert (ended(report), report.waiting) == (["cut.run"], ["asks.run"])
    await any_store.decide(asking.approval_ids[0], approved=True)
    assert ended(await worker.sweep()) == ["asks.run"]
    assert await worker.sweep(slow=True) == SweepReport()
    assert world.ran == {"pay ann": 1, "wire ann": 1}
    assert (await agent.run("again", run_id="cut")).text == "did pay ann"


# --- the store is away ---


async def test_a_store_that_is_away_delays_and_drops_nothing(any_store: AgentStore) -> None:
    """B104: every turn is seen again at the next sweep, wherever the store failed, and what failed is named."""
    world = World()
    names = [f"s{number:02}" for number in range(60)]
    for name in names:
        await submit(any_store, name, f"pay {name}")

    async def before(call: Call) -> None:
        if 40 < call.number < 120 or 200 < call.number < 203:
            raise StoreUnavailableError("call", "s", "it is away")

    interception = Interception(counted=("read", "scan", "write"), before=before)
    worker = Worker(world.agent(another(any_store, interception)), poll=timedelta(microseconds=1))
    done: list[str] = []
    failed: set[str | None] = set()
    for _ in range(100):
        report = await worker.sweep()
        done += ended(report)
        failed |= {failure.session_id for failure in report.failed}
        assert all(isinstance(failure.error, StoreUnavailableError) for failure in report.failed)
        assert report.set_aside == []
        if interception.calls and len(done) == len(names):
            break
        any_store.clock.advance(timedelta(seconds=1))  # type: ignore[attr-defined]  # reason: a manual clock
    assert sorted(done) == names
    assert failed - {None}
    assert world.ran == {f"pay {name}": 1 for name in names}


async def test_lives_that_a_store_cut_short_do_not_count(store: AgentStore) -> None:
    """The store goes away when the model is asked, so that not even the turn's giving up reaches it."""
    world = World()
    world.errors["go"] = StoreUnavailableError("write", "s", "it is away")
    await submit(store, "s")

    async def before(call: Call) -> None:
        if world.asked:
            raise StoreUnavailableError("call", "s", "it is away")

    worker = Worker(world.agent(another(store, Interception(counted=("read", "write"), before=before))), max_attempts=2)
    for _ in range(6):
        (failure,) = (await worker.sweep()).failed
        assert isinstance(failure.error, StoreUnavailableError)
        world.asked.clear()
    found = await journal(store, "s")
    assert (found.head.attempts, fruitless_lives(found)) == (
        6,
        1,
    )  # what the last life came to is noted when it is back
    world.errors.clear()
    world.asked.clear()
    assert ended(await Worker(world.agent(store), max_attempts=2).sweep()) == ["s"]


async def test_listings_that_fail_are_reported_and_a_closed_store_ends_the_worker(store: AgentStore) -> None:
    async def before(call: Call) -> None:
        raise StoreUnavailableError("list", "turn journals", "it is away")

    away = another(store, Interception(counted=("scan",), before=before))
    report = await Worker(World().agent(away)).sweep(slow=True)
    assert {failure.session_id for failure in report.failed} == {None}
    worker = Worker(World().agent(store))
    await store.close()
    with pytest.raises(StoreClosedError):
        await worker.sweep()
    with pytest.raises(StoreClosedError):
        await worker.run()


# --- turns that bring no progress ---


async def sweeps(worker: Worker, clock: ManualClock, times: int) -> list[SweepReport]:
    reports: list[SweepReport] = []
    for _ in range(times):
        reports.append(await worker.sweep())
        clock.advance(timedelta(minutes=1))
    return reports


async def test_a_turn_that_goes_on_failing_is_set_aside_and_starves_no_other(
    any_store: AgentStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "perdure.worker")
    world = World()
    world.errors["bad"] = RuntimeError("the secret of ann")
    run_id = await submit(any_store, "bad", "bad")
    await submit(any_store, "zz-good")
    worker = Worker(world.agent(any_store), max_attempts=3)
    reports = await sweeps(worker, clock, 6)
    assert ended(reports[0]) == ["zz-good"]
    assert [len(report.failed) for report in reports] == [1, 1, 1, 0, 0, 0]
    assert [aside(report) for report in reports] == [{}, {}, *[{"bad": "max-attempts"}] * 4]
    (turn,) = reports[-1].set_aside
    assert (turn.run_id, turn.attempts, turn.last_error) == (run_id, 3, "RuntimeError: the secret of ann")
    assert world.asked["bad"] == 3
    (warning,) = [record for record in caplog.records if "set aside" in record.getMessage()]
    facts: dict[str, Any] = warning.__dict__
    assert (facts["session_id"], facts["run_id"], facts["attempts"]) == ("bad", run_id, 3)
    assert facts["last_error"] == "RuntimeError: the secret of ann"
    (pending,) = await world.agent(any_store).pending()
    assert (pending.session_id, pending.attempts, pending.owner) == ("bad", 3, None)

    assert aside(await Worker(world.agent(any_store), max_attempts=3).sweep()) == {"bad": "max-attempts"}
    assert world.asked["bad"] == 3  # another worker reads it from the journal
    world.errors.clear()
    result = await world.agent(any_store).resume("bad")  # its user may still go on with it
    assert result is not None
    assert result.text == "did bad"


async def test_a_failed_turn_is_not_tried_again_at_once_by_any_worker(store: AgentStore, clock: ManualClock) -> None:
    world = World()
    world.errors["bad"] = ConnectionError("the provider is away")
    await submit(store, "bad", "bad")
    workers = [Worker(world.agent(used)) for used in (store, another(store))]
    for attempt, rest in enumerate((1, 4, 16, 60)):
        assert len((await workers[attempt % 2].sweep()).failed) == 1
        clock.advance(timedelta(seconds=rest) - timedelta(microseconds=1))
        assert [(await worker.sweep()).waiting for worker in workers] == [["bad"]] * 2
        clock.advance()
    assert aside(await workers[0].sweep()) == {"bad": "max-attempts"}
    assert world.asked == {"bad": 5}


async def test_a_store_that_fails_one_turn_alone_is_no_excuse(store: AgentStore, clock: ManualClock) -> None:
    world = World()
    world.errors["bad"] = StoreUnavailableError("write", "bad", "it is too much")
    await submit(store, "bad", "bad")
    reports = await sweeps(Worker(world.agent(store), max_attempts=3), clock, 4)
    assert [aside(report) for report in reports] == [{}, {}, *[{"bad": "max-attempts"}] * 2]


async def test_progress_begins_the_count_anew() -> None:
    at = "2031-03-14T15:09:26+00:00"

    def lives(attempts: int, *kinds: str) -> int:
        found: Any = type("Found", (), {})()
        found.head = type("Head", (), {"attempts": attempts})()
        found.entries = [entry(kind, at) for kind in kinds]
        return fruitless_lives(found)

    assert lives(0, "input") == 0
    assert lives(1, "input") == 1
    assert lives(3, "input", "resumed", "resumed") == 3
    assert lives(2, "input", "resumed", "resumed") == 2  # it was submitted
    assert lives(3, "input", "resumed", "model", "resumed") == 1
    assert lives(3, "input", "resumed", "model", "tool-started", "resumed", "tool-started") == 1
    assert lives(3, "input", "model", "resumed", "tool", "resumed", "approval-requested") == 0
    assert lives(2, "input", "handed-over", "resumed", "handed-over") == 0
    assert lives(2, "input", "model", "handed-over", "resumed") == 1
    assert lives(3, "input", "resumed", "handed-over", "resumed") == 2
    assert lives(3, "input", "resumed", "approval-applied", "handed-over", "resumed") == 1
    assert lives(2, "input", "handed-over", "handed-over", "resumed") == 1


async def test_of_turns_under_which_processes_died_one_runs_at_a_time(store: AgentStore) -> None:
    """One that ends its process takes down what runs beside it, which must not use up its attempts so."""
    world = World()
    for number in range(3):
        name = f"s{number}"
        await submit(store, name, f"wait {name}")
        await change(store, name, resumed(store), resumed(store), attempts=2, owner=dead().new_owner())
    await submit(store, "fresh", "wait fresh")
    worker = Worker(world.agent(store))
    sweeping = asyncio.create_task(worker.sweep())
    await world.run(2)
    assert "wait fresh" in world.now
    world.may_go_on.set()
    report = await sweeping
    assert (len(report.waiting), world.most) == (2, 2)
    for _ in range(2):
        assert len(ended(await worker.sweep())) == 1
    assert await worker.sweep() == SweepReport()


# --- turns that another attempt does not mend ---


async def test_a_failure_that_a_retry_does_not_mend_sets_the_turn_aside_at_once(store: AgentStore) -> None:
    world = World()
    world.errors["bad"] = InvalidArgumentError("settings", "cannot be")
    await submit(store, "bad", "bad")
    worker = Worker(world.agent(store))
    assert aside(await worker.sweep()) == {"bad": "failed"}
    for one in (worker, Worker(world.agent(store))):
        report = await one.sweep()
        assert (aside(report), report.failed) == ({"bad": "failed"}, [])
    assert world.asked["bad"] == 1


async def test_a_call_in_doubt_is_set_aside_until_the_worker_restarts(store: AgentStore) -> None:
    world = World()
    await abandon(world, store, "s", "pay ann", write=4)  # the start of the call is stored, and its process is gone
    workers = [Worker(world.agent(another(store))) for _ in range(2)]
    reports = [await worker.sweep() for worker in workers * 3]
    assert [aside(report) for report in reports] == [{"s": "failed"}] * 6
    assert (await journal(store, "s")).head.attempts == 3  # each worker has tried once

    @tool(name="pay", idempotent=True)
    async def pay(to: str) -> str:
        world.ran[f"pay {to}"] += 1
        return f"paid {to}"

    assert ended(await Worker(world.agent(store, tools=[pay])).sweep()) == ["s"]
    assert world.ran == {"pay ann": 1}


async def test_an_agent_that_lacks_the_tool_leaves_the_turn_to_its_next_release(store: AgentStore) -> None:
    world = World()
    await abandon(world, store, "s", "pay ann", write=3)
    worker = Worker(world.agent(store, tools=[]))
    report = await worker.sweep()
    assert [type(failure.error) for failure in report.failed] == [AgentChangedError]
    assert aside(report) == aside(await worker.sweep()) == {"s": "failed"}
    assert ended(await Worker(world.agent(store)).sweep()) == ["s"]


async def test_a_damaged_turn_is_set_aside_until_it_is_mended(store: AgentStore) -> None:
    world = World()
    await submit(store, "bad")
    await change(store, "bad", {"v": 1, "kind": "tool", "step": 7})
    await submit(store, "good")
    worker = Worker(world.agent(store))
    report = await worker.sweep()
    assert (ended(report), aside(report), len(report.failed)) == (["good"], {"bad": "failed"}, 1)
    again = await worker.sweep()
    assert (aside(again), again.failed) == ({"bad": "failed"}, [])
    found = await journal(store, "bad")
    await store.checkpoints.replace("bad", found.entries[:1], expected_version=found.version, head=found.head)
    assert ended(await worker.sweep()) == ["bad"]


async def test_a_damaged_head_hides_no_turn_that_is_submitted_later(any_store: AgentStore, clock: ManualClock) -> None:
    world = World()
    await submit(any_store, "a")
    clock.advance()
    assert isinstance(any_store.checkpoints, JournalCheckpoints)
    key = Key(Part.RUNS, "m")
    damaged = Head("agent", "in-progress", b"damaged")
    await any_store.checkpoints.journal.write([Append(key, (), damaged, None, clock.now(), 1)])
    for name in ("b", "z"):
        clock.advance()
        await submit(any_store, name)
    report = await Worker(world.agent(any_store)).sweep()
    assert ended(report) == ["a", "b", "z"]
    assert [type(failure.error) for failure in report.failed] == [StoreCorruptedError]


async def test_a_finished_turn_that_cannot_be_saved_is_set_aside(store: AgentStore) -> None:
    world = World()
    await abandon(world, store, "s", write=4)
    await store.sessions.append("s", [{"note": "mine"}])
    worker = Worker(world.agent(store))
    assert aside(await worker.sweep(slow=True)) == aside(await worker.sweep(slow=True)) == {"s": "failed"}
    assert await world.agent(store).session("s").resume(rebase=True) is not None
    assert await worker.sweep() == SweepReport()


async def test_approvals_of_one_turn_that_cannot_be_read_keep_no_other_waiting(store: AgentStore) -> None:
    world = World()
    agent = world.agent(store)
    asking = [await agent.session(name).send(f"wire {name}") for name in ("a", "b")]
    await store.approvals.decide(asking[1].approval_ids[0], approved=True)
    await change(store, "a", approval_ids=["not an id"])
    report = await Worker(agent).sweep(slow=True)
    assert ended(report) == ["b"]
    assert [failure.session_id for failure in report.failed] == ["a"]


async def test_a_turn_that_is_dropped_meanwhile_is_no_failure(store: AgentStore) -> None:
    world = World()
    await submit(store, "s", "wait")
    sweeping = asyncio.create_task(Worker(world.agent(store)).sweep())
    await world.run(1)
    assert await world.agent(another(store)).session("s").discard_pending(force=True)
    world.may_go_on.set()
    report = await sweeping
    assert (report.busy, report.failed, report.set_aside) == (["s"], [], [])


# --- running and stopping ---


async def test_a_stopped_worker_gives_its_leases_back_and_that_does_not_count(store: AgentStore) -> None:
    world = World()
    for number in range(5):
        await submit(store, f"s{number}", f"wait s{number}")
    for _ in range(7):
        worker = Worker(world.agent(store), concurrency=5, max_attempts=3)
        running = asyncio.create_task(worker.run())
        await world.run(5)
        worker.stop()
        await running
        for number in range(5):
            found = await journal(store, f"s{number}")
            assert (found.head.owner, found.head.lease, found.head.status) == (None, None, "in-progress")
            assert fruitless_lives(found) == 0
    world.may_go_on.set()
    assert len(ended(await Worker(world.agent(store), max_attempts=3).sweep())) == 5


async def test_a_turn_that_is_taken_while_it_is_handed_over_stays_with_whoever_took_it(store: AgentStore) -> None:
    world, owner = World(), elsewhere().new_owner()

    async def before(call: Call) -> None:
        if any(b"handed-over" in item for operation in call.operations for item in getattr(operation, "items", ())):
            await change(store, "s", resumed(store), owner=owner, attempts=2)

    worker = Worker(world.agent(another(store, Interception(before=before))))
    await submit(store, "s", "wait s")
    working = asyncio.create_task(worker.sweep())
    await world.run(1)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    found = await journal(store, "s")
    assert (found.head.owner, found.head.attempts, found.entries[-1]["kind"]) == (owner, 2, "resumed")


async def test_a_cancelled_worker_gives_its_leases_back(store: AgentStore) -> None:
    world = World()
    worker = Worker(world.agent(store))
    for action in (worker.run, worker.sweep):
        name = f"s-{action.__name__}"
        await submit(store, name, f"wait {name}")
        working: asyncio.Task[Any] = asyncio.create_task(action())
        await world.run(1)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert (await journal(store, name)).head.owner is None
        await store.delete_session(name)


async def test_a_running_worker_goes_on_until_it_is_stopped(store: AgentStore) -> None:
    world = World()
    away = True
    failed = asyncio.Event()

    async def before(call: Call) -> None:
        if away:
            failed.set()
            raise StoreUnavailableError("list", "turn journals", "it is away")

    used = another(store, Interception(counted=("scan",), before=before))
    agent = world.agent(used)
    worker = Worker(agent, poll=timedelta(milliseconds=1), slow_poll=timedelta(milliseconds=5))
    running = asyncio.create_task(worker.run())
    await failed.wait()
    away = False
    asking = await world.agent(store).session("asks").send("wire ann")
    await store.approvals.decide(asking.approval_ids[0], approved=True)
    await submit(store, "s")
    await settled(store, "s")
    await settled(store, "asks")
    worker.stop()
    await running
    await submit(store, "late")
    worker.stop()
    await worker.run()  # stopped before it began
    assert (await journal(store, "late")).head.attempts == 0
    assert ended(await worker.sweep()) == ["late"]


async def test_a_worker_forgets_turns_that_are_over(store: AgentStore) -> None:
    world = World()
    worker = Worker(world.agent(store))
    for number in range(20):
        await submit(store, f"s{number}")
    await worker.sweep(slow=True)
    assert len(worker._taker.known) == 20
    await worker.sweep()
    assert len(worker._taker.known) == 20  # it has not seen those that wait
    await worker.sweep(slow=True)
    assert len(worker._taker.known) == 0


# --- arguments ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"max_attempts": 0},
        {"max_attempts": 2.5},
        {"poll": timedelta(0)},
        {"poll": 1},
        {"slow_poll": timedelta(seconds=-1)},
    ],
)
async def test_wrong_arguments_are_refused(store: AgentStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        Worker(World().agent(store), **wrong)
    assert refused.value.argument in wrong


async def test_a_worker_needs_a_store_that_keeps_turns(store: AgentStore) -> None:
    agent = Agent(model=ScriptedModel([]))
    with pytest.raises(InvalidArgumentError):
        Worker(agent)
    with pytest.raises(UnsupportedOperationError):
        Worker(agent, store=AgentStore(sessions=PlainSessions()))
    assert Worker(agent, store=store).store is store


async def test_an_outcome_that_is_unknown_is_tried_again(store: AgentStore) -> None:
    world = World()
    world.errors["go"] = OutcomeUnknownError("append", "s", "the connection broke")
    await submit(store, "s")
    worker = Worker(world.agent(store), poll=timedelta(microseconds=1))
    report = await worker.sweep()
    assert (len(report.failed), report.set_aside) == (1, [])
    world.errors.clear()
    store.clock.advance(timedelta(seconds=1))  # type: ignore[attr-defined]  # reason: a manual clock
    assert ended(await worker.sweep()) == ["s"]
    assert Counter(world.asked.values()) == {2: 1}
