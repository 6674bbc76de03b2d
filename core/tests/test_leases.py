"""Leases: when an owner may be taken over, and what one does that was."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from core.tests.processes import another, elsewhere

from perdure import Agent, AgentStore, Lease, ToolCall, codec, open_store, tool
from perdure.backend import Append
from perdure.errors import (
    OutcomeUnknownError,
    PerdureError,
    SessionBusyError,
    SessionConflictError,
    SessionDeletedError,
    StoreUnavailableError,
)
from perdure.models import ScriptedModel
from perdure.ownership.heartbeat import Heartbeat
from perdure.ownership.leases import Process
from perdure.ownership.uninterrupted import uninterrupted
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.manual_clock import TICK, ManualClock

pytestmark = pytest.mark.anyio

KEY = "s1"
_numbers = itertools.count(1)
LEASE = Lease()
CALLS = [ToolCall(id="c1", name="work", arguments={}), ToolCall(id="c2", name="wait", arguments={})]

ASKING = [ToolCall(id=name, name="pay", arguments={}) for name in ("c1", "c2")]


class Host:
    """A process on a machine of its own, with a clock of its own, whose tools stop until they are told to go on."""

    def __init__(
        self,
        store: AgentStore,
        *,
        clock: ManualClock | None = None,
        lease: Lease | None = None,
        script: list[Any] | None = None,
        interception: Interception | None = None,
        atomic: bool | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.interception = interception or Interception()
        number = next(_numbers)
        self.identity = Process(f"host-{number}", "boot", "1", number, "1")
        self.store = another(
            store, self.interception, process=self.identity, atomic=atomic, lease=lease, clock=self.clock
        )
        self.gates = {"work": asyncio.Event(), "wait": asyncio.Event()}
        self.entered = asyncio.Event()
        self.runs: list[str] = []
        self.cancelled: list[str] = []

        @tool(in_doubt="rerun")
        async def work() -> str:
            return await self._tool("work")

        @tool(in_doubt="rerun")
        async def wait() -> str:
            return await self._tool("wait")

        @tool(needs_approval=True)
        async def pay() -> str:
            return await self._tool("pay")

        model = ScriptedModel([CALLS, "Done.", "More."] if script is None else script)
        self.agent = Agent(model=model, tools=[work, wait, pay], store=self.store)
        self.session = self.agent.session(KEY)

    async def _tool(self, name: str) -> str:
        self.runs.append(name)
        if len(self.runs) == 2:
            self.entered.set()
        try:
            await self.gates[name].wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        return name

    def open(self) -> None:
        """Let its tools go on."""
        for gate in self.gates.values():
            gate.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[Any]]:
        """Run a turn up to its tools, which stop; end it when the block ends."""
        task = asyncio.create_task(self.session.send("Go."))
        waiting = asyncio.create_task(self.entered.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task
        try:
            yield task
        finally:
            self.open()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()

    async def beat(self) -> None:
        """Let the turn that runs here renew its lease, if it is time."""
        await self.store.ownership.running[KEY].journal.beat()

    async def is_refused(self) -> bool:
        """Whether resuming the turn here is refused because somebody owns it; taken over, it is finished here."""
        self.open()
        try:
            result = await self.session.resume()
        except SessionBusyError as error:
            return str(error.owner).startswith("host-")
        assert result is not None
        assert result.text == "Done."
        return False


# --- when an owner may be taken over ---


@pytest.mark.parametrize("late", [timedelta(0), TICK])
async def test_a_lease_is_over_when_it_ran_out_longer_ago_than_clocks_may_differ(
    store: AgentStore, late: timedelta
) -> None:
    owner, taker = Host(store), Host(store)
    async with owner.running():
        taker.clock.advance(LEASE.length + LEASE.max_clock_skew + late)
        assert await taker.is_refused() == (late == timedelta(0))


async def test_pending_names_an_owner_as_long_as_its_lease_runs(store: AgentStore) -> None:
    first, second = Host(store), Host(store)
    async with first.running():
        assert await owners_named(second) == [True, True]
        second.clock.advance(LEASE.length + LEASE.max_clock_skew + TICK)
        assert await owners_named(second) == [False, False]


async def owners_named(host: Host) -> list[bool]:
    """Whether the session, and the agent, name an owner of the turn that is pending."""
    own = await host.session.pending()
    return [turn is not None and turn.owner is not None for turn in (own, *await host.agent.pending())]


async def test_a_clock_that_went_back_makes_no_lease_run_out(store: AgentStore) -> None:
    owner, taker = Host(store), Host(store)
    async with owner.running():
        taker.clock.advance(-timedelta(days=400))
        assert await taker.is_refused()


@pytest.mark.parametrize("length", [timedelta(seconds=7), timedelta(minutes=5)])
async def test_a_lease_is_over_when_its_version_was_seen_unchanged_for_the_stored_length(
    store: AgentStore, length: timedelta
) -> None:
    """The length that the owner wrote counts, not the taker's own; the taker's wall clock is a year behind."""
    owner, taker = Host(store, lease=Lease(length=length)), Host(store)
    async with owner.running():
        taker.clock.advance(-timedelta(days=365))
        assert await taker.is_refused(), "one look says nothing"
        taker.clock.advance(length - TICK)
        assert await taker.is_refused()
        taker.clock.advance(TICK)
        assert not await taker.is_refused()


async def test_time_that_passes_before_the_first_look_does_not_count(store: AgentStore) -> None:
    owner, taker = Host(store), Host(store)
    async with owner.running():
        taker.clock.advance(timedelta(days=1))
        taker.clock.advance(-timedelta(days=2))
        assert await taker.is_refused()
        taker.clock.advance(LEASE.length)
        assert not await taker.is_refused()


async def test_a_heartbeat_in_between_starts_the_watch_anew(store: AgentStore) -> None:
    owner, taker = Host(store), Host(store)
    async with owner.running():
        taker.clock.advance(-timedelta(days=365))
        assert await taker.is_refused()
        for _ in range(3):
            taker.clock.advance(LEASE.length - TICK)
            owner.clock.advance(LEASE.heartbeat)
            await owner.beat()
            assert await taker.is_refused()
        taker.clock.advance(LEASE.length - TICK)
        assert await taker.is_refused()
        taker.clock.advance(TICK)
        assert not await taker.is_refused()


async def test_a_tool_that_takes_longer_than_the_lease_is_not_started_elsewhere(store: AgentStore) -> None:
    owner, taker = Host(store), Host(store)
    async with owner.running() as turn:
        for _ in range(100):
            for host in (owner, taker):
                host.clock.advance(LEASE.heartbeat)
            await owner.beat()
            assert await taker.is_refused()
        owner.open()
        assert (await turn).text == "Done."
    assert owner.runs == ["work", "wait"]
    assert taker.runs == []


async def test_a_heartbeat_is_skipped_when_another_append_went_out(store: AgentStore) -> None:
    owner = Host(store)
    async with owner.running():
        writes = len(owner.interception.calls)
        owner.clock.advance(LEASE.heartbeat - timedelta(milliseconds=1))
        await owner.beat()
        assert len(owner.interception.calls) == writes
        owner.clock.advance(timedelta(milliseconds=1))
        await owner.beat()
        await owner.beat()
        assert len(owner.interception.calls) == writes + 1


@pytest.mark.parametrize("second", [StoreUnavailableError, OutcomeUnknownError])
async def test_a_heartbeat_whose_answer_was_lost_is_not_taken_for_another_owner(
    store: AgentStore, second: type[StoreUnavailableError | OutcomeUnknownError]
) -> None:
    """The store took a heartbeat and was then away for a while: the turn goes on behind it."""
    owner = Host(store)
    async with owner.running() as turn:
        beat = len(owner.interception.calls) + 1

        async def before(call: Call) -> None:
            if call.number == beat + 1:
                raise second("write", KEY, "the store is away")

        async def after(call: Call) -> None:
            if call.number == beat:
                raise OutcomeUnknownError("write", KEY, "the answer was lost")

        owner.interception.before, owner.interception.after = before, after
        owner.clock.advance(LEASE.heartbeat)
        with pytest.raises(OutcomeUnknownError):
            await owner.beat()
        owner.open()
        assert (await turn).text == "Done."
    assert (owner.runs, owner.cancelled) == (["work", "wait"], [])


async def test_a_running_turn_renews_its_lease_by_itself(store: AgentStore) -> None:
    beaten = asyncio.Event()

    async def after(_: Call) -> None:
        if owner.entered.is_set():
            beaten.set()

    often = Lease(heartbeat=timedelta(milliseconds=1))
    owner = Host(store, lease=often, interception=Interception(after=after))
    async with owner.running():
        before = await store.checkpoints.load(KEY)
        owner.clock.advance(timedelta(seconds=1))
        await beaten.wait()
        renewed = await store.checkpoints.load(KEY)
    assert before is not None
    assert renewed is not None
    assert renewed.head.lease_expires_at == owner.clock.now() + LEASE.length
    assert list(renewed.entries) == list(before.entries)
    assert renewed.head.owner == before.head.owner


async def test_heartbeats_go_on_after_the_store_was_away(store: AgentStore) -> None:
    away: list[Call] = []
    beaten = asyncio.Event()

    async def before(call: Call) -> None:
        if owner.entered.is_set() and not away:
            away.append(call)
            raise StoreUnavailableError("write", KEY, "away")

    async def after(_: Call) -> None:
        if away:
            beaten.set()

    often = Lease(heartbeat=timedelta(milliseconds=1))
    owner = Host(store, lease=often, interception=Interception(before=before, after=after))
    async with owner.running():
        owner.clock.advance(timedelta(seconds=1))
        await beaten.wait()
        found = await store.checkpoints.load(KEY)
    assert found is not None
    assert found.head.lease_expires_at == owner.clock.now() + LEASE.length


@pytest.mark.parametrize("slow", ["read", "write"])
async def test_a_lease_that_ran_out_meanwhile_is_renewed_right_before_a_tool(store: AgentStore, slow: str) -> None:
    """A read takes a minute, or the very write that starts the tool: by the owner's own clock its lease is over."""
    left: list[timedelta] = []
    clock = ManualClock()

    async def take_a_minute(call: Call) -> None:
        if call.kind == slow and (slow == "read" or b"tool-started" in b"".join(call.operations[0].items)):  # type: ignore[union-attr]  # reason: the runner only appends here
            clock.advance(timedelta(minutes=1))

    @tool(idempotent=slow == "read")
    async def look() -> str:
        found = await store.checkpoints.load(KEY)
        assert found is not None
        assert found.head.lease_expires_at is not None
        left.append(found.head.lease_expires_at - clock.now())
        return "seen"

    script: list[Any] = [[ToolCall(id="c1", name="look", arguments={})], "Done."]
    with contextlib.suppress(Died):  # so that the turn is resumed, which reads the transcript before it calls the tool
        dying = another(store, at(3, "die-after"), process=elsewhere())
        await Agent(model=ScriptedModel(script), tools=[look], store=dying).session(KEY).send("Go.")
    clock.advance(timedelta(days=1))
    interception = Interception(counted=("read", "write"), after=take_a_minute)
    slow_store = another(store, interception, process=elsewhere(), clock=clock)
    result = await Agent(model=ScriptedModel(script), tools=[look], store=slow_store).session(KEY).resume()
    assert result is not None
    assert left == [LEASE.length]


# --- what an owner does that was taken over ---


def taker_of(store: AgentStore) -> Host:
    """Another machine, whose clock says that every lease is over."""
    taker = Host(store)
    taker.open()
    taker.clock.advance(timedelta(days=1))
    return taker


async def finishes(taker: Host) -> None:
    result = await taker.session.resume()
    assert result is not None


async def finishes_and_goes_on(taker: Host) -> None:
    await finishes(taker)
    await taker.session.send("More?")


async def discards(taker: Host) -> None:
    await taker.session.discard_pending()


async def clears(taker: Host) -> None:
    await taker.session.clear()


async def deletes(taker: Host) -> None:
    await taker.store.delete_session(KEY)


async def finishes_and_clears(taker: Host) -> None:
    await finishes(taker)
    await taker.session.clear()


async def finishes_and_deletes(taker: Host) -> None:
    await finishes(taker)
    await taker.store.delete_session(KEY)


async def deletes_and_starts_anew(taker: Host) -> None:
    await taker.store.delete_session(KEY)
    await taker.session.send("Anew.")


FENCED: list[tuple[Callable[[Host], Awaitable[None]], tuple[type[PerdureError], ...]]] = [
    (finishes, ()),
    (finishes_and_goes_on, ()),
    (discards, (SessionConflictError,)),
    (clears, (SessionConflictError,)),
    (deletes, (SessionDeletedError,)),
    (finishes_and_clears, (SessionConflictError,)),
    (finishes_and_deletes, (SessionDeletedError,)),
    (deletes_and_starts_anew, (SessionConflictError, SessionDeletedError)),
]


async def contents(store: AgentStore) -> list[object]:
    """Everything that is stored."""
    transcript = await store.sessions.load(KEY)
    approvals = (await store.approvals.list()).items
    return [transcript, await store.checkpoints.load(KEY), list(approvals)]


async def outcome_of(turn: asyncio.Task[Any]) -> object:
    """Return what a turn came to: its result, or the error that it raised."""
    try:
        return await turn
    except PerdureError as error:
        return error


@pytest.mark.parametrize(("meanwhile", "errors"), FENCED)
async def test_a_fenced_owner_stops_at_its_next_append(
    store: AgentStore,
    meanwhile: Callable[[Host], Awaitable[None]],
    errors: tuple[type[PerdureError], ...],
) -> None:
    owner = Host(store)
    async with owner.running() as turn:
        taker = taker_of(store)
        await meanwhile(taker)
        stored = await contents(store)
        owner.open()
        outcome = await outcome_of(turn)
    assert await contents(store) == stored, "a fenced owner has written"
    _check_outcome(outcome, errors)


def _check_outcome(outcome: Any, errors: tuple[type[PerdureError], ...], where: str = "") -> None:
    if errors:
        assert isinstance(outcome, errors), where or outcome
    else:
        assert not isinstance(outcome, BaseException), where or outcome
        assert (outcome.text, outcome.finish_reason) == ("Done.", "stop")
        assert [message.role for message in outcome.messages] == ["user", "assistant", "tool", "tool", "assistant"]


async def test_a_fenced_owner_is_told_who_runs_its_turn(store: AgentStore) -> None:
    owner, taker = Host(store), Host(store)
    taker.clock.advance(timedelta(days=1))
    async with owner.running() as turn:
        resuming = asyncio.create_task(taker.session.resume())
        await taker.entered.wait()
        stored = await contents(store)
        owner.open()
        outcome = await outcome_of(turn)
        assert await contents(store) == stored
        taker.open()
        result = await resuming
    assert isinstance(outcome, SessionBusyError)
    assert outcome.owner is not None
    assert f"/{taker.identity.pid}/" in outcome.owner
    assert result is not None
    assert result.text == "Done."


async def test_the_other_tools_of_a_fenced_owner_are_cancelled(store: AgentStore) -> None:
    owner = Host(store)
    async with owner.running() as turn:
        await finishes(taker_of(store))
        owner.gates["work"].set()  # it comes back and learns that the turn is lost; the other one must not go on
        outcome = await outcome_of(turn)
    assert owner.cancelled == ["wait"]
    _check_outcome(outcome, ())


async def test_the_heartbeat_of_a_fenced_owner_cancels_its_tools(store: AgentStore) -> None:
    owner = Host(store, lease=Lease(heartbeat=timedelta(milliseconds=1)))
    async with owner.running() as turn:
        await finishes(taker_of(store))
        stored = await contents(store)
        owner.clock.advance(timedelta(seconds=1))
        outcome = await outcome_of(turn)  # nothing but a heartbeat can end it: its tools wait for ever
        assert await contents(store) == stored
    assert owner.cancelled == ["work", "wait"]
    _check_outcome(outcome, ())


class Pause:
    """Stops a process before one of its writes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reached = asyncio.Event()
        self.over = asyncio.Event()

    async def before(self, call: Call) -> None:
        """Stop before the write of this number."""
        if call.number == self.number:
            self.reached.set()
            await self.over.wait()

    async def reached_by(self, task: asyncio.Task[Any]) -> bool:
        """Wait until the process stands there; False if it ended sooner."""
        reaching = asyncio.create_task(self.reached.wait())
        await asyncio.wait([task, reaching], return_when=asyncio.FIRST_COMPLETED)
        reaching.cancel()
        return self.reached.is_set()


@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "steps"])
@pytest.mark.parametrize(("meanwhile", "errors"), FENCED)
async def test_an_owner_that_sleeps_before_any_of_its_writes_writes_nothing_after(
    meanwhile: Callable[[Host], Awaitable[None]], errors: tuple[type[PerdureError], ...], atomic: bool
) -> None:
    number = 0
    for number in itertools.count(3):  # the first two create the session and open the turn
        async with open_store(f"memory:{uuid.uuid4().hex}") as store:
            pause = Pause(number)
            owner = Host(store, interception=Interception(before=pause.before), atomic=atomic)
            owner.open()
            turn = asyncio.create_task(owner.session.send("Go."))
            if not await pause.reached_by(turn):
                break
            taker, ran = taker_of(store), list(owner.runs)
            await meanwhile(taker)
            stored = await contents(store)
            pause.over.set()
            outcome = await outcome_of(turn)
            where = f"asleep before write {number}: {outcome!r}"
            assert await contents(store) == stored, where
            assert owner.runs == ran, where
            saved = await owner.session.result(turn_of(owner))
            assert (saved is not None) or errors, where
            _check_outcome(outcome, () if saved is not None else errors, where)
    assert number > 8


async def test_a_heartbeat_that_is_left_waits_for_the_beat_that_is_being_written() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), list[str]()

    async def write() -> None:
        begun.set()
        await may_end.wait()
        ended.append("beat")

    async def hold() -> None:
        async with Heartbeat(TICK, lambda: uninterrupted(write()), lambda: None):
            await begun.wait()
        ended.append("block")

    holding = asyncio.create_task(hold())
    await begun.wait()
    for _ in range(9):
        await asyncio.sleep(0)
    may_end.set()
    await holding
    assert ended == ["beat", "block"]


async def test_a_call_that_raised_is_not_repeated_when_its_turn_is_anothers(
    store: AgentStore, clock: ManualClock
) -> None:
    ran: list[str] = []

    def agent(name: str) -> Agent:
        @tool(idempotent=True, retries=3)
        async def look() -> str:
            ran.append(name)
            if name == "sleeper":
                clock.advance(timedelta(hours=1))
                assert await agent("taker").resume(KEY) is not None
                raise ValueError("too slow")
            return "seen"

        model = ScriptedModel([[ToolCall("c1", "look")], "Done."])
        return Agent(model=model, tools=[look], store=another(store, process=elsewhere()))

    result = await agent("sleeper").session(KEY).send("Go.")
    assert result.text == "Done."
    assert ran == ["sleeper", "taker"]


def turn_of(owner: Host) -> str:
    """Return the run id that an owner opened, as its own first entry names it."""
    opening = owner.interception.calls[1].operations[0]
    assert isinstance(opening, Append)
    return str(codec.decode(opening.head.data or b"")["run_id"])


@pytest.mark.parametrize(("meanwhile", "left"), [(discards, {"cancelled"}), (deletes, set())])
async def test_an_owner_that_asks_after_its_turn_was_dropped_leaves_no_question(
    meanwhile: Callable[[Host], Awaitable[None]], left: set[str]
) -> None:
    number = 0
    for number in itertools.count(3):
        async with open_store(f"memory:{uuid.uuid4().hex}") as store:
            pause = Pause(number)
            owner = Host(store, interception=Interception(before=pause.before), script=[ASKING, "Done."])
            turn = asyncio.create_task(owner.session.send("Go."))
            if not await pause.reached_by(turn):
                break
            await meanwhile(taker_of(store))
            pause.over.set()
            outcome = await outcome_of(turn)
            where = f"asleep before write {number}: {outcome!r}"
            assert isinstance(outcome, SessionConflictError if left else SessionDeletedError), where
            assert {approval.status for approval in (await store.approvals.list()).items} <= left, where
            assert owner.runs == []
    assert number > 6
