"""One process stops before its n-th store call, for every n, while others go on: the traps that the protocol is made for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from core.tests.programs import WEEK, Program, resume, send

from perdure import AgentStore, Lease, TurnResult
from perdure.backend import Append, Journal
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import CheckpointHead
from perdure.errors import (
    OutcomeUnknownError,
    SessionBusyError,
    StoreUnavailableError,
    ToolOutcomeUnknownError,
    VersionConflictError,
)
from perdure_conformance.conversation_world import LAPSE, SESSION, TYPED, ConversationWorld
from perdure_conformance.interception import Call, Died, InterceptedJournal, Interception, at
from perdure_conformance.stepping import SteppedProcess
from perdure_memory.journal import MemoryJournal
from perdure_sqlite.journal import SqliteJournal

pytestmark = pytest.mark.anyio

Meanwhile = Callable[[ConversationWorld], Awaitable[Any]]
ALLOWED = (*TYPED, ToolOutcomeUnknownError)


class Place:
    """Makes fresh worlds over one kind of journal."""

    def __init__(self, kind: str, folder: Path, stack: AsyncExitStack) -> None:
        self.atomic = kind != "split"
        self._kind = kind
        self._folder = folder
        self._stack = stack
        self._made = 0

    async def world(self, **options: Any) -> ConversationWorld:
        self._made += 1
        options = {"same_host": False, "allowed": ALLOWED, **options}
        if self._kind != "sqlite":
            return ConversationWorld(MemoryJournal(), **options)
        journal = SqliteJournal(self._folder / f"{self._made}.db")
        await journal.open()
        self._stack.push_async_callback(journal.close)
        return ConversationWorld(journal, **options)

    def process(self, world: ConversationWorld, inner: Journal | None = None) -> SteppedProcess:
        return SteppedProcess("paused", inner or world.journal, atomic=self.atomic)


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(request.param, tmp_path, stack)


everywhere = pytest.mark.parametrize("place", ["atomic", "split", "sqlite"], indirect=True)
in_memory = pytest.mark.parametrize("place", ["atomic", "split"], indirect=True)


async def ended(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what a program returns, or the typed error that it raises."""
    try:
        return await work
    except ALLOWED as error:
        return error


async def at_every_call(
    place: Place,
    make: Callable[[], Awaitable[ConversationWorld]],
    program: Program,
    meanwhile: Meanwhile,
    check: Callable[[ConversationWorld, SteppedProcess, Mapping[str, Any]], Awaitable[None]] | None = None,
    inner: Callable[[Journal], Journal] = lambda journal: journal,
    since: Callable[[], bool] = lambda: True,
) -> int:
    """Stop a program before each of its calls in turn, let others go on, and check the promises after its end.

    `inner` wraps the journal of the one that is stopped, and `since` says whether it has come far enough to be stopped.
    """
    number = 0
    while True:
        world, number = await make(), number + 1
        process = place.process(world, inner(world.journal))
        await process.start(program(world, world.store("paused", process.journal)))
        if not await process.until(number):
            assert number > 3, "it has hardly begun"
            return number - 1
        if not since():
            await process.kill()
            continue
        try:
            before = [call for call in process.calls[: number - 1] if call.kind == "write"]
            other = await ended(meanwhile(world))  # type: ignore[arg-type]  # reason: every caller hands in a coroutine function
            outcomes = {"paused": await ended(process.finish()), "other": other}
            if check is not None:
                process.interception.calls[:] = before  # what it had written when it was stopped
                await check(world, process, outcomes)
            await world.check(outcomes)
        except Exception as error:
            error.add_note(f"it was stopped before its call {number}: {process.calls[-1]}")
            raise


def lapsed(given: str) -> Meanwhile:
    """Another host goes on when the lease of the one that sleeps is over."""

    async def meanwhile(world: ConversationWorld) -> TurnResult:
        world.clock.advance(LAPSE)
        return await world.session(world.fresh("other")).send(given)

    return meanwhile


async def decide_all(world: ConversationWorld) -> None:
    store = world.fresh("human")
    for approval in (await store.approvals.list(status="pending")).items:
        await store.decide(approval.id, approved=True)


# --- identity ---


async def test_a_writer_who_slept_through_a_deletion_is_refused_by_each_store() -> None:
    store = ConversationWorld(MemoryJournal()).fresh()
    head = CheckpointHead("idle", session_id=SESSION)
    approval = Approval("s.turn-1.s0.c0", "s.turn-1", "c", "ask", {}, store.clock.now(), session_id=SESSION)
    sessions, journals, approvals = set[int](), set[int](), set[int]()
    for _ in range(20):
        sessions.add(await store.sessions.append(SESSION, [], expected_version=0))
        journals.add(await store.checkpoints.append(SESSION, [], expected_version=0, head=head))
        approvals.add((await store.approvals.create(approval)).version)
        await store.sessions.delete(SESSION)
        await store.checkpoints.delete(SESSION)
        await store.approvals.delete(approval.id)
    assert len(sessions) == len(journals) == len(approvals) == 20
    await store.sessions.append(SESSION, [], expected_version=0)
    await store.checkpoints.append(SESSION, [], expected_version=0, head=head)
    await store.approvals.create(approval)
    for seen in sessions:
        with pytest.raises(VersionConflictError):
            await store.sessions.append(SESSION, [{"v": 1}], expected_version=seen)
    for seen in journals:
        with pytest.raises(VersionConflictError):
            await store.checkpoints.append(SESSION, [], expected_version=seen, head=head)
    for seen in approvals:
        with pytest.raises(VersionConflictError):
            await store.approvals.delete(approval.id, expected_version=seen)


@in_memory
async def test_a_conversation_that_is_deleted_and_begun_again_has_other_run_ids(place: Place) -> None:
    runs = set[str]()

    async def delete_and_send(world: ConversationWorld) -> TurnResult:
        other = world.fresh("other")
        await other.delete_session(SESSION, force=True)
        result = await world.session(other).send("pay b")
        assert result.run_id not in runs
        runs.add(result.run_id)
        return result

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        records = await world.transcript()
        assert outcomes["other"].run_id in {record["run_id"] for record in records}
        own = [record["run_id"] for record in records if record["message"]["content"] == "pay a"]
        assert own == ([outcomes["paused"].run_id] if isinstance(outcomes["paused"], TurnResult) else [])

    async def make() -> ConversationWorld:
        return await place.world(keeps=False)

    await at_every_call(place, make, send("pay a"), delete_and_send, check)


# --- starting and saving ---


@in_memory
async def test_a_turn_is_made_from_the_transcript_that_it_stands_behind(place: Place) -> None:
    async def make() -> ConversationWorld:
        world = await place.world()
        await world.turn("pay before")
        return world

    # The world checks the history of every request against the transcript.
    await at_every_call(place, make, send("pay a"), lambda world: world.turn("pay b"))
    await at_every_call(place, make, send("pay a"), lapsed("pay b"))


@in_memory
async def test_a_runner_that_sleeps_until_its_turn_is_dropped_saves_nothing(place: Place) -> None:
    async def drop(world: ConversationWorld) -> bool:
        world.clock.advance(LAPSE)
        return await world.session(world.fresh("other")).discard_pending()

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        texts = [record["message"]["content"] for record in await world.transcript()]
        if outcomes["other"] is True:
            assert texts == []
        assert ("pay a" in texts) == isinstance(outcomes["paused"], TurnResult)

    async def make() -> ConversationWorld:
        return await place.world(keeps=False)

    await at_every_call(place, make, send("pay a"), drop, check)


@in_memory
@pytest.mark.parametrize("outcome", ["lost", "unknown"])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
async def test_a_write_of_unknown_outcome_is_repeated_only_by_the_owner(
    place: Place, outcome: str, begun: bool
) -> None:
    async def make() -> ConversationWorld:
        world = await place.world(allowed=(*ALLOWED, OutcomeUnknownError))
        if begun:
            await world.turn("pay before")
        return world

    async def send_it(world: ConversationWorld, store: AgentStore) -> Any:
        try:
            return await world.session(store).send("pay a")
        except OutcomeUnknownError as error:
            return error

    async def fail(write: int) -> None:
        faults: list[Interception] = []

        def faulty(journal: Journal) -> Journal:
            faults.append(at(write, outcome))
            return InterceptedJournal(journal, faults[-1])

        await at_every_call(
            place, make, send_it, lapsed("pay b"), inner=faulty, since=lambda: len(faults[-1].calls) >= write
        )

    # In a conversation that is there only the opening is another write.
    for write in [1] if begun else range(1, 8 if place.atomic else 10):
        await fail(write)


@everywhere
async def test_a_title_that_is_set_meanwhile_stays_and_the_turn_is_saved(place: Place) -> None:
    async def entitle(world: ConversationWorld) -> None:
        await world.session(world.fresh("other")).update_state(lambda state: {**state, "title": "a title"})

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        assert isinstance(outcomes["paused"], TurnResult), outcomes["paused"]
        found = await world.fresh().sessions.load(SESSION)
        assert found is not None
        assert found.state == {"title": "a title"}

    await at_every_call(place, place.world, send("pay a"), entitle, check)


# --- approvals ---


@in_memory
async def test_the_approval_of_a_call_does_not_answer_whether_to_repeat_it(place: Place) -> None:
    doubts = 0
    for write in range(1, 12):
        world = await place.world(in_doubt="ask", keeps=False)
        await world.turn("ask a")
        await decide_all(world)
        dying = InterceptedJournal(world.journal, at(write, "die-after"), atomic=place.atomic)
        try:
            await world.session(world.store("dying", dying)).resume()
        except Died:
            pass
        else:
            break
        world.clock.advance(LAPSE)
        session = world.session(world.fresh("other"))
        started = any(entry["kind"] == "tool-started" for entry in (await world.turn_journal()).entries)  # type: ignore[union-attr]  # reason: it is there
        if started and not any(entry["kind"] == "tool" for entry in (await world.turn_journal()).entries):  # type: ignore[union-attr]  # reason: it is there
            waits = await session.resume()
            assert waits is not None
            (doubt,) = waits.approval_ids
            assert doubt.endswith(".s0.c0.d1")
            assert len(world.facts.effects) == 0
            doubts += 1
        await world.check({})
        assert len(world.facts.effects) == 2  # of this turn and of the one that shows that all goes on
    assert doubts == 1


@everywhere
async def test_a_decision_made_while_the_turn_goes_to_wait_is_seen_by_one_of_the_two(place: Place) -> None:
    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        (approval,) = await world.approvals()
        found = await world.turn_journal()
        assert found is not None
        if approval.decided:
            assert found.head.status in ("idle", "ready")
        else:
            assert found.head.status == "awaiting-approval"

    await at_every_call(place, place.world, send("ask a"), decide_all, check)


@in_memory
async def test_a_runner_that_sees_the_decision_goes_on_though_the_turn_is_marked_ready_meanwhile(place: Place) -> None:
    world, decided = await place.world(), 0

    async def decide_before_it_goes_on(call: Call) -> None:
        nonlocal decided
        if b'"resumed"' in b"".join(item for one in call.operations if isinstance(one, Append) for item in one.items):
            decided += 1
            for approval in await world.approvals():  # decided before, and marked ready only now
                await world.fresh("human").decide(approval.id, approved=True)

    async def decide_only(call: Call) -> None:
        if b'"awaiting-approval"' in b"".join(
            one.head.data or b"" for one in call.operations if isinstance(one, Append) and one.head is not None
        ):
            for approval in await world.approvals():
                await world.fresh("human").approvals.decide(approval.id, approved=True)

    interception = Interception(before=decide_before_it_goes_on, after=decide_only)
    journal = InterceptedJournal(world.journal, interception, atomic=place.atomic)
    result = await world.session(world.store("runner", journal)).send("ask a")
    assert (result.finish_reason, decided) == ("stop", 2)


@in_memory
async def test_deciders_and_runners_apply_a_decision_once(place: Place) -> None:
    async def make() -> ConversationWorld:
        world = await place.world()
        await world.turn("ask a")
        return world

    async def resolve(world: ConversationWorld, store: AgentStore) -> TurnResult:
        (approval,) = await world.approvals()
        return await world.agent(store).approvals.resolve(approval.id, approved=True)

    async def meanwhile(world: ConversationWorld) -> TurnResult:
        world.clock.advance(LAPSE)
        return await resolve(world, world.fresh("other"))

    await at_every_call(place, make, resolve, meanwhile)


# --- prune ---


@in_memory
@pytest.mark.parametrize("state", ["decided", "finished"])
async def test_prune_takes_no_turn_that_somebody_goes_on_with(place: Place, state: str) -> None:
    async def make() -> ConversationWorld:
        world = await place.world()
        if state == "decided":
            await world.turn("ask a")
            await decide_all(world)
        else:
            await world.cut("pay a", 6, atomic=False)
        world.clock.advance(2 * WEEK)
        return world

    async def prune(world: ConversationWorld) -> None:
        await world.fresh("pruner").prune(older_than=WEEK)

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        whole = [record["message"]["content"] for record in await world.transcript()]
        result = outcomes["paused"]
        if isinstance(result, TurnResult):
            assert whole[-1] == result.text == f"did {whole[0]}"
            assert len(world.facts.effects) == 1
        else:
            assert whole == []
            await world.check_nothing_left()

    await at_every_call(place, make, resume, prune, check)
    await at_every_call(
        place,
        make,
        lambda _, store: store.prune(older_than=WEEK),
        lambda world: world.session(world.fresh("other")).resume(),
    )


@in_memory
async def test_prune_removes_no_approval_of_a_turn_that_is_not_over(place: Place) -> None:
    for write in range(1, 12):
        world = await place.world()
        await world.turn("ask a")
        await decide_all(world)
        world.clock.advance(2 * WEEK)
        await world.fresh("other").sessions.append(SESSION, [], state={"title": "young"})
        dying = InterceptedJournal(world.journal, at(write, "die-after"), atomic=place.atomic)
        try:
            await world.session(world.store("dying", dying)).resume()
        except Died:
            world.clock.advance(LAPSE)
        else:
            break
        found = await world.turn_journal()
        report = await world.fresh("pruner").prune(older_than=WEEK)
        assert found is not None
        if found.head.status != "idle" and not report.runs:
            assert len(await world.approvals()) == 1 or report.approvals == ()
        await world.check({})
        assert len(world.facts.effects) <= 2


# --- claims ---


def claim(action: str) -> Program:
    def run(world: ConversationWorld, store: AgentStore) -> Coroutine[Any, Any, Any]:
        if action == "delete":
            return store.delete_session(SESSION)
        session = world.session(store)
        return session.clear() if action == "clear" else session.discard_pending()

    return run


@in_memory
@pytest.mark.parametrize(
    ("action", "pending"),
    [("clear", False), ("clear", True), ("discard", True), ("delete", False), ("delete", True)],
)
@pytest.mark.parametrize("later", ["pay later", "ask later"])
async def test_a_claim_that_sleeps_does_not_harm_the_turn_that_comes_after(
    place: Place, action: str, pending: bool, later: str
) -> None:
    async def make() -> ConversationWorld:
        world = await place.world(keeps=False)
        await world.turn("pay before")
        if pending:
            await world.cut("pay c", 2)
        return world

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        if not process.calls:
            return  # it had claimed nothing yet: what it does comes after the other's turn
        # It had claimed: whoever came later has finished or undone that, and the turn is none of its business.
        assert isinstance(outcomes["other"], TurnResult), outcomes["other"]
        if outcomes["other"].approval_ids:
            found = await world.turn_journal()
            assert found is not None
            assert found.head.status == "awaiting-approval"
            assert [approval.status for approval in await world.approvals()] == ["pending"]
        else:
            assert (await world.transcript())[-1]["message"]["content"] == "did pay later"

    await at_every_call(place, make, claim(action), lapsed(later), check)


@everywhere
@pytest.mark.parametrize("runner", ["waits", "resumes"])
async def test_delete_fences_a_runner_off_wherever_it_sleeps(place: Place, runner: str) -> None:
    async def make() -> ConversationWorld:
        world = await place.world(keeps=False)
        if runner == "resumes":
            await world.turn("ask a")
            await decide_all(world)
        return world

    async def delete(world: ConversationWorld) -> bool:
        return await world.fresh("other").delete_session(SESSION, force=True)

    async def check(world: ConversationWorld, process: SteppedProcess, outcomes: Mapping[str, Any]) -> None:
        opened = any("runs" in str(call) for call in process.calls)
        if runner == "resumes" or opened:
            await world.check_nothing_left()
            assert not isinstance(outcomes["paused"], SessionBusyError)

    await at_every_call(place, make, send("ask a") if runner == "waits" else resume, delete, check)


@in_memory
@pytest.mark.parametrize("action", ["clear", "discard", "delete"])
@pytest.mark.parametrize("outcome", ["unavailable", "lost", "unknown"])
async def test_a_claim_that_failed_does_not_block_its_own_process(place: Place, action: str, outcome: str) -> None:
    for write in range(1, 12):
        world = await place.world(keeps=False)
        await world.turn("pay before")
        await world.cut("pay c", 2)
        interception = at(write, outcome)
        store = world.store("self", InterceptedJournal(world.journal, interception, atomic=place.atomic))
        with suppress(StoreUnavailableError, OutcomeUnknownError):
            await claim(action)(world, store)
        if len(interception.calls) < write:
            return
        # The same process, the same instant: nobody waits for a lease here.
        result = await world.session(store).send("pay again")
        assert result.text == "did pay again"
        await world.check({"self": result})
    raise AssertionError("it never ends")


# --- heartbeats ---


@in_memory
async def test_a_heartbeat_at_any_moment_does_not_conflict_with_its_own_runner(place: Place) -> None:
    number = 0
    while True:
        world, number = await place.world(), number + 1
        process = place.process(world)
        store = world.store("paused", process.journal)
        await process.start(world.session(store).send("pay a"))
        if not await process.until(number):
            break
        world.clock.advance(Lease().heartbeat)
        runner = store.ownership.running.get(SESSION)
        beat = None if runner is None else asyncio.create_task(runner.journal.beat())
        await asyncio.sleep(0)
        result = await process.finish()
        assert result.text == "did pay a"
        if beat is not None:
            await beat
        found = await world.turn_journal()
        assert found is not None
        assert (found.head.status, found.head.lease) == ("idle", None)
        await world.check({"paused": result})
    assert number > 8
