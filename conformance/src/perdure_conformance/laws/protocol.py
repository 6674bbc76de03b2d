"""The protocol of a conversation, each of its traps as a fixed interleaving: one process sleeps, others go on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from perdure import Lease, TurnResult
from perdure.errors import OutcomeUnknownError, SessionBusyError, StoreUnavailableError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, broken, equal, holds
from perdure_conformance.conversation_world import LAPSE, SESSION
from perdure_conformance.explorer import Bounds, Explorer
from perdure_conformance.interception import Died, InterceptedJournal, Interception, at
from perdure_conformance.laws.conversations import WEEK
from perdure_conformance.laws.register import law
from perdure_conformance.laws.stopping import Apart
from perdure_conformance.laws.world import (
    ALLOWED,
    LONG,
    LONGER,
    NEEDS,
    StoreWorld,
    at_every_call,
    claim,
    cut_world,
    decide_all,
    decided_world,
    is_atomic,
    lapsed,
    new_world,
    resume,
    send,
)
from perdure_conformance.parts import Stores
from perdure_conformance.stepping import SteppedProcess

if TYPE_CHECKING:
    from perdure.backend import Journal

Outcomes = Mapping[str, Any]


# --- identity ---


@law("protocol-run-ids-never-repeat", **NEEDS)
async def run_ids_never_repeat(bench: Bench) -> None:
    """A conversation that is deleted and begun again has other run ids, and who slept through it saves nothing."""
    runs = set[str]()

    async def delete_and_send(world: StoreWorld) -> TurnResult:
        other = world.fresh("other")
        await other.delete_session(SESSION, force=True)
        result = await world.session(other).send("pay b")
        holds(result.run_id not in runs, f"the run id {result.run_id} came before")
        runs.add(result.run_id)
        return result

    async def check(world: StoreWorld, _: SteppedProcess, outcomes: Outcomes) -> None:
        records = await world.transcript()
        holds(outcomes["other"].run_id in {one["run_id"] for one in records}, "the turn begun anew is not saved")
        own = [one["run_id"] for one in records if one["message"]["content"] == "pay a"]
        result = outcomes["paused"]
        equal(own, [result.run_id] if isinstance(result, TurnResult) else [], "the runs of who slept in the transcript")

    await at_every_call(bench, lambda: new_world(bench, keeps=False), send("pay a"), delete_and_send, check)


# --- starting and saving ---


@law("protocol-turn-stands-behind-its-transcript", **NEEDS)
async def stands_behind_its_transcript(bench: Bench) -> None:
    """A turn is made from the transcript that it stands behind: the journal is opened before the transcript is read."""

    async def make() -> StoreWorld:
        world = await new_world(bench)
        await world.turn("pay before")
        return world

    async def another(world: StoreWorld) -> TurnResult:
        return await world.turn("pay b")

    # The world checks the history of every request against the transcript.
    await at_every_call(bench, make, send("pay a"), another)
    await at_every_call(bench, make, send("pay a"), lapsed("pay b"))


@law("protocol-dropped-turn-saves-nothing", **NEEDS)
async def dropped_turn_saves_nothing(bench: Bench) -> None:
    """A runner that sleeps until its turn is dropped proves first that it is its own, and saves nothing."""

    async def drop(world: StoreWorld) -> bool:
        world.clock.advance(LAPSE)
        return await world.session(world.fresh("other")).discard_pending()

    async def check(world: StoreWorld, _: SteppedProcess, outcomes: Outcomes) -> None:
        texts = [record["message"]["content"] for record in await world.transcript()]
        if outcomes["other"] is True:
            equal(texts, [], "the transcript after the turn was dropped")
        equal("pay a" in texts, isinstance(outcomes["paused"], TurnResult), "whether the turn is saved")

    await at_every_call(bench, lambda: new_world(bench, keeps=False), send("pay a"), drop, check)


@law("protocol-title-survives-a-commit", **NEEDS)
async def title_survives_a_commit(bench: Bench) -> None:
    """A title that is set while a turn runs stays, and the turn is saved."""

    async def entitle(world: StoreWorld) -> None:
        await world.session(world.fresh("other")).update_state(lambda state: {**state, "title": "a title"})

    async def check(world: StoreWorld, _: SteppedProcess, outcomes: Outcomes) -> None:
        holds(isinstance(outcomes["paused"], TurnResult), f"the turn ended with {outcomes['paused']!r}")
        found = await world.fresh().sessions.load(SESSION)
        equal(found and found.state, {"title": "a title"}, "the state after the turn was saved")

    await at_every_call(bench, lambda: new_world(bench), send("pay a"), entitle, check)


@law("protocol-unknown-opening-runs-once", **NEEDS)
async def unknown_opening_runs_once(bench: Bench) -> None:
    """An opening whose outcome is unknown is repeated only by its owner: the turn runs once, or was never accepted."""

    async def send_it(world: StoreWorld, store: Stores) -> Any:
        try:
            return await world.session(store).send("pay a")
        except OutcomeUnknownError as error:
            return error

    async def make(begun: bool) -> StoreWorld:
        world = await new_world(bench, allowed=(*ALLOWED, OutcomeUnknownError))
        if begun:
            await world.turn("pay before")
        return world

    for outcome in ("lost", "unknown"):
        for begun in (False, True):
            for write in (1,) if begun else (1, 2):
                faults: list[Interception] = []

                def faulty(journal: Journal, write: int = write, outcome: str = outcome, made: Any = faults) -> Journal:
                    made.append(at(write, outcome))
                    return InterceptedJournal(journal, made[-1])

                await at_every_call(
                    bench,
                    partial(make, begun),
                    send_it,
                    lapsed("pay b"),
                    inner=faulty,
                    since=partial(_has_written, faults, write),
                )


def _has_written(made: list[Interception], count: int) -> bool:
    return len(made[-1].calls) >= count


# --- approvals ---


@law("protocol-approval-answers-its-own-question", **NEEDS)
async def approval_answers_its_own_question(bench: Bench) -> None:
    """The approval of a call does not answer whether it may be repeated: that is asked anew, under an id of its own."""
    doubts = 0
    for write in range(1, 12):
        world = await decided_world(bench, in_doubt="ask", keeps=False)
        dying = InterceptedJournal(world.journal, at(write, "die-after"), atomic=is_atomic(bench))
        try:
            await world.session(world.store("dying", dying)).resume()
        except Died:
            doubts += await _doubted(world)
        else:
            break
        await world.stores.close()
    equal(doubts, 1, "how often it was asked whether a started call may be repeated")


async def _doubted(world: StoreWorld) -> int:
    world.clock.advance(LAPSE)
    session = world.session(world.fresh("other"))
    found = await world.turn_journal()
    kinds = {entry.get("kind") for entry in (found.entries if found else ())}
    doubt = "tool-started" in kinds and "tool" not in kinds
    if doubt:
        waits = await session.resume()
        ids = () if waits is None else waits.approval_ids
        equal([one.rpartition(".")[2] for one in ids], ["d1"], f"the attempts that are asked about: {ids}")
        equal(len(world.facts.effects), 0, "how often the call had its effect before that was answered")
    await world.check({})
    return int(doubt)


@law("protocol-decision-is-seen-by-one-of-the-two", **NEEDS)
async def decision_is_seen(bench: Bench) -> None:
    """A decision that comes while its turn goes to wait is seen by the runner or marks the turn: it waits for nothing."""

    async def check(world: StoreWorld, _: SteppedProcess, __: Outcomes) -> None:
        (approval,) = await world.approvals()
        found = await world.turn_journal()
        status = None if found is None else found.head.status
        allowed = ("idle", "ready") if approval.decided else ("awaiting-approval",)
        holds(status in allowed, f"the approval is {approval.status}, but the turn is {status}, not one of {allowed}")

    await at_every_call(bench, lambda: new_world(bench), send("ask a"), decide_all, check)
    world = await decided_world(bench)  # later than the runner's last look
    found = await world.turn_journal()
    equal(found and found.head.status, "ready", "the status of a turn that waited when it was decided")


@law("protocol-decision-is-applied-once", **NEEDS)
async def decision_is_applied_once(bench: Bench) -> None:
    """Whoever resolves the same approval at once, from two processes, the call runs once."""

    async def make() -> StoreWorld:
        world = await new_world(bench)
        await world.turn("ask a")
        return world

    def resolve(world: StoreWorld, store: Stores) -> Coroutine[Any, Any, Any]:
        return _resolve(world, store)

    async def meanwhile(world: StoreWorld) -> TurnResult:
        world.clock.advance(LAPSE)
        return await _resolve(world, world.fresh("other"))

    await at_every_call(bench, make, resolve, meanwhile)


async def _resolve(world: StoreWorld, store: Stores) -> TurnResult:
    (approval,) = await world.approvals()
    return await world.agent(store).approvals.resolve(approval.id, approved=True)


# --- prune ---


@law("protocol-prune-takes-no-turn-that-goes-on", **NEEDS)
async def prune_takes_no_turn_that_goes_on(bench: Bench) -> None:
    """A decided turn, and a finished one that is not saved, are pruned whole or gone on with whole, whoever sleeps."""

    async def make(state: str) -> StoreWorld:
        world = await (decided_world(bench) if state == "decided" else new_world(bench))
        if state == "finished":
            await world.cut("pay a", 6, atomic=False)
        world.clock.advance(LONG)
        return world

    async def prune(world: StoreWorld) -> None:
        await world.fresh("pruner").prune(older_than=WEEK)

    async def check(world: StoreWorld, _: SteppedProcess, outcomes: Outcomes) -> None:
        texts, result = [record["message"]["content"] for record in await world.transcript()], outcomes["paused"]
        if isinstance(result, TurnResult):
            equal((texts[-1:], result.text), ([f"did {texts[0]}"], f"did {texts[0]}"), "the end of the turn")
            equal(len(world.facts.effects), 1, "how often the call had its effect")
        else:
            equal(texts, [], "the transcript of a pruned conversation")
            await world.check_nothing_left()

    async def go_on(world: StoreWorld) -> Any:
        return await world.session(world.fresh("other")).resume()

    for state in ("decided", "finished"):
        await at_every_call(bench, partial(make, state), resume, prune, check)
        await at_every_call(bench, partial(make, state), lambda _, store: store.prune(older_than=WEEK), go_on)


@law("protocol-prune-keeps-the-approvals-of-a-turn", **NEEDS)
async def prune_keeps_the_approvals_of_a_turn(bench: Bench) -> None:
    """Wherever a decided turn was cut, prune takes none of its approvals from a living conversation."""

    async def decided(interception: Interception) -> StoreWorld:
        world = await decided_world(bench)
        world.clock.advance(LONG)
        await world.fresh("other").sessions.append(SESSION, [], state={"title": "young"})
        dying = InterceptedJournal(world.journal, interception, atomic=is_atomic(bench))
        with suppress(Died):
            await world.session(world.store("dying", dying)).resume()
        return world

    undisturbed = Interception()
    await (await decided(undisturbed)).stores.close()
    for write in bench.effort.sweep(range(1, len(undisturbed.calls) + 1)):
        world = await decided(at(write, "die-after"))
        world.clock.advance(LAPSE)
        found = await world.turn_journal()
        report = await world.fresh("pruner").prune(older_than=WEEK)
        if found is not None and found.head.status != "idle":
            equal(list(report.approvals), [], f"the approvals that were pruned, after the turn's write {write}")
        await world.check({})
        holds(len(world.facts.effects) <= 2, f"two turns had {len(world.facts.effects)} effects")
        await world.stores.close()


# --- claims ---


@law("protocol-sleeping-claim-harms-no-later-turn", **LONGER)
async def sleeping_claim_harms_nothing(bench: Bench) -> None:
    """A clear, discard or delete that sleeps after its claim does nothing to the turn that comes after it."""

    async def check(world: StoreWorld, process: SteppedProcess, outcomes: Outcomes) -> None:
        if not process.calls:
            return  # it had claimed nothing yet: what it does comes after the other's turn
        result = outcomes["other"]
        holds(isinstance(result, TurnResult), f"the turn after the claim: expected a result, got {result!r}")
        found = await world.turn_journal()
        equal(found and found.head.status, "awaiting-approval", "the status of the turn that came after")
        equal([one.status for one in await world.approvals()], ["pending"], "the approvals of the turn that came after")

    for action in ("clear", "discard", "delete"):
        await at_every_call(bench, lambda: cut_world(bench), claim(action), lapsed("ask later"), check)


@law("protocol-delete-fences-the-runner", **NEEDS)
async def delete_fences_the_runner(bench: Bench) -> None:
    """A forced deletion leaves nothing, wherever the turn's runner sleeps, and the runner revives nothing."""

    async def delete(world: StoreWorld) -> bool:
        return await world.fresh("other").delete_session(SESSION, force=True)

    async def check(world: StoreWorld, process: SteppedProcess, outcomes: Outcomes) -> None:
        if any("runs" in str(call) for call in process.calls):
            await world.check_nothing_left()
            holds(not isinstance(outcomes["paused"], SessionBusyError), "the deleted runner is told to wait")

    await at_every_call(bench, lambda: new_world(bench, keeps=False), send("ask a"), delete, check)
    await at_every_call(bench, lambda: decided_world(bench, keeps=False), resume, delete, check)


@law("protocol-failed-claim-blocks-nobody", **NEEDS)
async def failed_claim_blocks_nobody(bench: Bench) -> None:
    """A claim whose write fails, at any place, does not block its own process: it goes on at the same instant."""

    async def claimed(action: str, interception: Interception) -> tuple[StoreWorld, Stores]:
        world = await cut_world(bench)
        store = world.store("self", InterceptedJournal(world.journal, interception))
        with suppress(StoreUnavailableError, OutcomeUnknownError):
            await claim(action)(world, store)
        return world, store

    for action in ("clear", "discard", "delete"):
        undisturbed = Interception()
        world, _ = await claimed(action, undisturbed)
        await world.stores.close()
        writes = range(1, len(undisturbed.calls) + 1)
        for write, outcome in bench.effort.sweep(list(product(writes, ("unavailable", "lost", "unknown")))):
            world, store = await claimed(action, at(write, outcome))
            result = await world.session(store).send("pay again")
            equal(result.text, "did pay again", f"the next turn after a {action} whose write {write} was {outcome}")
            await world.check({"self": result})
            await world.stores.close()


# --- heartbeats, and all orders ---


@law("protocol-heartbeat-conflicts-with-nobody", **NEEDS)
async def heartbeat_conflicts_with_nobody(bench: Bench) -> None:
    """A heartbeat at any moment of a turn does not conflict with its own runner."""

    async def begin() -> tuple[StoreWorld, Stores, SteppedProcess]:
        world = await new_world(bench)
        process = SteppedProcess("paused", world.journal)
        store = world.store("paused", process.journal)
        await process.start(world.session(store).send("pay a"))
        return world, store, process

    world, _, process = await begin()
    await process.finish()
    await world.stores.close()
    for number in bench.effort.sweep(range(1, len(process.calls) + 1)):
        world, store, process = await begin()
        standing = await process.until(number)
        world.clock.advance(Lease().heartbeat)
        runner = store.ownership.running.get(SESSION)
        beat = None if runner is None or not standing else asyncio.create_task(runner.journal.beat())
        await asyncio.sleep(0)
        result = await process.finish()
        equal(result.text, "did pay a", f"the turn with a heartbeat before its call {number}")
        if beat is not None:
            await beat
        found = await world.turn_journal()
        equal(found and (found.head.status, found.head.lease), ("idle", None), "status and lease after the turn")
        await world.check({"paused": result})
        await world.stores.close()


@law("protocol-two-turns-in-any-order", **NEEDS)
async def two_turns_in_any_order(bench: Bench) -> None:
    """Two processes that send at once, in every order of their calls with one switch, keep all promises."""

    async def make() -> StoreWorld:
        programs: Any = {"A": send("pay a"), "B": send("pay b")}
        world = await new_world(bench, programs=programs, slow_switches=True)
        if isinstance(world.journal, Apart):
            raise NotClaimedError("orders of calls are told apart at one journal, of which not all parts are made")
        return world

    try:
        await Explorer("two turns", ("A", "B"), make, Bounds(switches=1), choose=bench.effort.sweep).explore()
    except AssertionError as error:
        raise broken(str(error).partition("\n")[0]) from error
