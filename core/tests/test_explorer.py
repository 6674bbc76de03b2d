"""Two processes on one conversation, in every order of their store calls: nothing is lost, doubled or left behind."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from core.tests.programs import (
    WEEK,
    Program,
    Setting,
    clear,
    delete,
    discard,
    entitle,
    prune,
    resume,
    send,
    the_title_is_kept,
)

from perdure import AgentStore, TurnResult
from perdure.backend import Operation, Part
from perdure.errors import (
    ApprovalAlreadyResolvedError,
    ApprovalNotFoundError,
    ApprovalOrphanedError,
    ToolOutcomeUnknownError,
)
from perdure_conformance.conversation_world import TYPED, ConversationWorld
from perdure_conformance.explorer import Bounds, Explorer, ScheduleFailed
from perdure_conformance.stepping import has_died
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio


def resolve(*, approved: bool) -> Program:
    async def run(world: ConversationWorld, store: AgentStore) -> TurnResult:
        (approval,) = await world.approvals()
        return await world.agent(store).approvals.resolve(approval.id, approved=approved)

    return run


def decide(*, approved: bool = True) -> Program:
    async def run(_: ConversationWorld, store: AgentStore) -> None:
        for approval in (await store.approvals.list(status="pending")).items:
            await store.decide(approval.id, approved=approved)

    return run


# --- where the two start ---


async def nothing(world: ConversationWorld, atomic: bool) -> None:
    pass


async def old(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("pay long ago")
    world.clock.advance(2 * WEEK)


async def begun(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("pay before")
    await world.cut("pay c", 1)


async def called(world: ConversationWorld, atomic: bool) -> None:
    await world.cut("pay c", 3)


async def called_later(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("pay before")
    await world.cut("pay c", 2)


async def doubtful(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("pay before")
    await world.cut("pay c", 3)


async def finished(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("pay before")
    await world.cut("pay c", 6, atomic=False)


async def old_finished(world: ConversationWorld, atomic: bool) -> None:
    await finished(world, atomic)
    world.clock.advance(2 * WEEK)


async def waiting(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("ask c")


async def decided(world: ConversationWorld, atomic: bool) -> None:
    await world.turn("ask c")
    await decide()(world, world.fresh("earlier"))


async def old_decided(world: ConversationWorld, atomic: bool) -> None:
    await decided(world, atomic)
    world.clock.advance(2 * WEEK)


# --- what some pairs promise beyond what all do ---


async def nothing_is_left(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    if outcomes["B"] is True and not has_died(outcomes["A"]):
        await world.check_nothing_left()


async def a_decision_is_seen(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    if any(map(has_died, outcomes.values())):
        return
    found, approvals = await world.turn_journal(), await world.approvals()
    if found is not None and found.head.status == "awaiting-approval":
        assert any(not approval.decided for approval in approvals), "all is decided, and nobody was told"


async def it_is_one_turn(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    results = [outcome for outcome in outcomes.values() if isinstance(outcome, TurnResult)]
    assert len({(result.run_id, result.text) for result in results}) <= 1, results


async def one_decision_holds(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    (approval,) = await world.approvals()
    assert len(world.facts.effects) <= (approval.status == "approved")


@dataclass(frozen=True)
class Pair:
    """Two programs, where they start, and what they may raise."""

    start: Callable[[ConversationWorld, bool], Awaitable[None]]
    first: Program
    second: Program
    keeps: bool = True
    raises: tuple[type[BaseException], ...] = ()
    after: Callable[[ConversationWorld, Mapping[str, Any]], Awaitable[None]] | None = field(default=None)


DOUBT = (ToolOutcomeUnknownError,)
RESOLVING = (ApprovalAlreadyResolvedError, ApprovalOrphanedError, *DOUBT)
PAIRS = {
    "send, send": Pair(nothing, send("pay a"), send("pay b"), raises=DOUBT),
    "send, send the same": Pair(nothing, send("pay a", "i"), send("pay a", "i"), raises=DOUBT, after=it_is_one_turn),
    "send, resume": Pair(called_later, send("pay a"), resume, raises=DOUBT),
    "send to wait, resume": Pair(begun, send("ask a"), resume, raises=DOUBT),
    "resume, resume from the call": Pair(called, resume, resume, raises=DOUBT),
    "resume, resume from the doubt": Pair(doubtful, resume, resume, raises=DOUBT),
    "resume, resume from the end": Pair(finished, resume, resume),
    "resume, resume from the decision": Pair(decided, resume, resume, raises=DOUBT),
    "resume, discard": Pair(called, resume, discard(), keeps=False, raises=DOUBT),
    "resume, discard by force": Pair(called, resume, discard(force=True), keeps=False, raises=DOUBT),
    "resume, discard from the end": Pair(finished, resume, discard(), keeps=True),
    "send, discard by force": Pair(nothing, send("ask a"), discard(force=True), keeps=False, raises=DOUBT),
    "resolve, resolve": Pair(waiting, resolve(approved=True), resolve(approved=True), raises=DOUBT),
    "resolve yes, resolve no": Pair(
        waiting, resolve(approved=True), resolve(approved=False), raises=RESOLVING, after=one_decision_holds
    ),
    "resolve, discard": Pair(
        waiting, resolve(approved=True), discard(), keeps=False, raises=RESOLVING, after=one_decision_holds
    ),
    "resume, delete": Pair(called, resume, delete(), keeps=False, raises=DOUBT, after=nothing_is_left),
    "resume, delete by force": Pair(
        called, resume, delete(force=True), keeps=False, raises=DOUBT, after=nothing_is_left
    ),
    "send to wait, delete by force": Pair(nothing, send("ask a"), delete(force=True), keeps=False, raises=DOUBT),
    "resolve, delete": Pair(
        waiting, resolve(approved=True), delete(), keeps=False,
        raises=(*RESOLVING, ApprovalNotFoundError), after=nothing_is_left,
    ),
    "delete, delete": Pair(decided, delete(), delete(), keeps=False),
    "clear, resume": Pair(called_later, clear, resume, keeps=False, raises=DOUBT),
    "clear, resume from the end": Pair(finished, clear, resume, keeps=False),
    "clear, send": Pair(old, clear, send("pay a"), keeps=False, raises=DOUBT),
    "prune, send": Pair(old, prune, send("pay a"), raises=DOUBT),
    "prune, send after a decision": Pair(old_decided, prune, send("pay a"), raises=DOUBT),
    "prune, resume from the decision": Pair(old_decided, prune, resume, raises=DOUBT),
    "prune, resume from the end": Pair(old_finished, prune, resume),
    "send to wait, decide": Pair(
        nothing, send("ask a"), decide(), raises=(ApprovalNotFoundError, *DOUBT), after=a_decision_is_seen
    ),
    "send, entitle": Pair(nothing, send("pay a"), entitle, raises=DOUBT, after=the_title_is_kept),
}  # fmt: skip


SETTINGS = {
    "alive": Setting(),
    "elsewhere": Setting(same_host=False, slow_switches=True),
    "first dies": Setting(killed="A"),
    "second dies": Setting(killed="B"),
}


def explorer(pair: str, setting: str, bounds: Bounds) -> Explorer:
    made, where = PAIRS[pair], SETTINGS[setting]

    async def make() -> ConversationWorld:
        world = ConversationWorld(
            MemoryJournal(),
            {"A": made.first, "B": made.second},
            allowed=(*TYPED, *made.raises),
            keeps=made.keeps,
            same_host=where.same_host,
            slow_switches=where.slow_switches,
            after=made.after,
        )
        await made.start(world, bool(bounds.atomic))
        return world

    kind = "atomic" if bounds.atomic else "not atomic"
    return Explorer(f"A and B of {pair!r} ({setting}, {kind})", ("A", "B"), make, bounds)


# The pairs of `make test`; each in one setting, and in one of the two ways to save a turn. `make soak` takes all, both ways, and goes deeper.
CHOSEN = (
    "send, send",
    "send, send the same",
    "send, resume",
    "resume, discard by force",
    "resolve yes, resolve no",
    "resume, delete by force",
    "send to wait, delete by force",
    "clear, resume",
)
SOAK_RUNS = 1500


def chosen() -> list[Any]:
    settings = ("elsewhere", "alive", "first dies")
    cases = [(pair, settings[place % 3]) for place, pair in enumerate(CHOSEN)]
    return [
        pytest.param(pair, setting, place % 2 == 0, id=f"{pair}, {setting}, {'split' if place % 2 else 'atomic'}")
        for place, (pair, setting) in enumerate(cases)
    ]


@pytest.mark.parametrize(("pair", "setting", "atomic"), chosen())
async def test_all_orders_with_two_switches(pair: str, setting: str, atomic: bool) -> None:
    covered = await explorer(pair, setting, Bounds(2, SETTINGS[setting].killed, atomic=atomic)).explore()
    print(f"{pair} ({setting}), at most 2 switches: {covered}")
    assert covered.ends >= 2
    assert not covered.capped


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "split"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("pair", PAIRS)
async def test_all_orders(pair: str, setting: str, atomic: bool) -> None:
    # Where a switch takes time, every number of switches is another world: there the depth is bounded too.
    switches = 4 if SETTINGS[setting].slow_switches else None
    bounds = Bounds(switches, SETTINGS[setting].killed, runs=SOAK_RUNS, atomic=atomic)
    covered = await explorer(pair, setting, bounds).explore()
    print(f"{pair} ({setting}), {'any number of' if switches is None else switches} switches: {covered}")
    assert covered.ends >= 2


# --- the explorer itself ---


async def test_it_covers_the_same_each_time() -> None:
    bounds = Bounds(2, "A", atomic=False)
    first, second = [await explorer("resume, resume from the doubt", "first dies", bounds).explore() for _ in range(2)]
    assert str(first) == str(second)


class Careless(MemoryJournal):
    """Writes to turn journals whatever their version is."""

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        careless = [
            replace(operation, expected_version=None) if operation.key.part == Part.RUNS else operation
            for operation in operations
        ]
        return await super().write(careless)


async def test_it_finds_a_broken_journal_and_names_the_schedule_that_shows_it() -> None:
    async def make() -> ConversationWorld:
        programs = {"A": send("pay a"), "B": send("pay b")}
        return ConversationWorld(Careless(), programs, allowed=(*TYPED, *DOUBT))

    explorer = Explorer("send, send over a careless journal", ("A", "B"), make, Bounds(2))
    with pytest.raises(ScheduleFailed, match="send, send over a careless journal, schedule 'A") as failure:
        await explorer.explore()
    with pytest.raises(ScheduleFailed) as again:
        await explorer.replay(failure.value.schedule)
    assert again.value.schedule == failure.value.schedule


async def test_all_orders_without_a_bound_are_more_than_those_with_one() -> None:
    few = await explorer("send, send", "alive", Bounds(1, atomic=True)).explore()
    some = await explorer("send, send", "alive", Bounds(2, atomic=True)).explore()
    every = await explorer("send, send", "alive", Bounds(None, atomic=True)).explore()
    capped = await explorer("send, send", "alive", Bounds(None, runs=10, atomic=True)).explore()
    assert few.interleavings < some.interleavings < every.interleavings
    assert not every.capped
    assert capped.capped
    assert capped.runs == 10
