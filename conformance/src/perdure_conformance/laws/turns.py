"""Turns of an agent over the store: nothing recorded happens again, nothing accepted is lost, wherever a process ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from perdure import TurnResult
from perdure.errors import (
    OutcomeUnknownError,
    SessionAwaitingApprovalError,
    SessionConflictError,
    StoreUnavailableError,
)
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal, holds
from perdure_conformance.conversation_world import LAPSE
from perdure_conformance.interception import Call, Died, Interception, at
from perdure_conformance.laws.desk import SESSION, Desk, gate
from perdure_conformance.laws.register import law
from perdure_conformance.laws.world import (
    ALLOWED,
    LONGER,
    NEEDS,
    StoreWorld,
    at_every_call,
    lapsed,
    new_world,
    resume,
    send,
)


async def new_desk(bench: Bench) -> Desk:
    """Return a desk at a fresh place."""
    return Desk(await bench.open(bench.another_place()), bench.clock)


async def cut_at_every_write(bench: Bench, *outcomes: str) -> None:
    """Let the n-th write of a turn go wrong, for every n, and another process finish it."""
    undisturbed = Interception()
    desk = await new_desk(bench)
    await desk.lives(undisturbed)
    await desk.check("undisturbed")
    await desk.stores.close()
    for outcome in outcomes:
        for number in bench.effort.sweep(range(1, len(undisturbed.calls) + 1)):
            desk = await new_desk(bench)
            await desk.lives(at(number, outcome))
            await desk.check(f"after write {number} was {outcome}")
            await desk.stores.close()


@law("turn-comes-out-whole-wherever-it-is-cut", **LONGER)
async def whole_wherever_it_is_cut(bench: Bench) -> None:
    """A process dies before or after any write of a turn; a fresh one finishes it: whole, once, nothing recorded again."""
    await cut_at_every_write(bench, "die-before", "die-after")


@law("turn-comes-out-whole-whatever-fails", **LONGER)
async def whole_whatever_fails(bench: Bench) -> None:
    """Any write of a turn fails once, written or not: the same input again brings the turn out whole and once."""
    await cut_at_every_write(bench, "unavailable", "lost", "unknown")


@law("turn-decisions-are-applied-as-made", **NEEDS)
async def decisions_are_applied_as_made(bench: Bench) -> None:
    """Of the gated calls of one response each is decided for itself: edits run, a rejection is told with its note."""
    desk = Desk(bench.store, bench.clock)
    result = await desk.session(desk.process()).send("go")
    equal((result.finish_reason, len(result.approval_ids)), ("awaiting-approval", 2), "what the turn waits for")
    equal(sorted(call for call, _ in desk.effects), ["look", "note"], "the calls that ran before any decision")
    asked = [await bench.store.approvals.get(approval_id) for approval_id in result.approval_ids]
    for one in reversed(asked):
        assert one is not None
        waits = await desk.session(desk.process()).pending()
        equal(waits and waits.status, "awaiting-approval", "the status before the last decision")
        await desk.decide(desk.process(), one)
    waits = await desk.session(desk.process()).pending()
    equal(waits and waits.status, "ready", "the status after the last decision")
    await desk.session(desk.process()).resume()
    await desk.check("after its decisions")


@law("turn-waits-through-a-restart", **NEEDS)
async def waits_through_a_restart(bench: Bench) -> None:
    """A turn that waits is found, decided and gone on with by processes that share nothing but the store."""
    desk = Desk(bench.store, bench.clock)
    waits = await desk.session(desk.process()).send("go")
    for approval_id in waits.approval_ids:
        if bench.target.reopens and bench.capabilities("sessions").durable:
            desk.stores = await bench.reopen()
        found = await bench.store.approvals.get(approval_id)
        assert found is not None, f"{approval_id} is asked for, and not stored"
        await desk.decide(desk.process(), found)
    result = await desk.agent(desk.process()).resume(SESSION)
    equal(isinstance(result, TurnResult) and result.text, "did go", "the text of the turn")
    await desk.check("after a restart")


@law("turn-decided-elsewhere-goes-on-here", **NEEDS)
async def decided_elsewhere_goes_on_here(bench: Bench) -> None:
    """The process that asked finishes its turn by `resume` once another process has decided."""
    desk = Desk(bench.store, bench.clock)
    asking = desk.process()
    session = desk.session(asking)
    waits = await session.send("go")
    for approval_id in waits.approval_ids:
        found = await asking.approvals.get(approval_id)
        assert found is not None, f"{approval_id} is asked for, and not stored"
        await desk.decide(desk.process(), found)
    try:
        result = await session.resume()
    except SessionAwaitingApprovalError as error:
        raise broken(f"all is decided by another process, but the one that asked waits: {error}") from error
    equal(result and result.text, "did go", "the text of the turn")
    await desk.check("after decisions by another process")


@law("turn-has-one-runner", **NEEDS)
async def has_one_runner(bench: Bench) -> None:
    """Of two processes that resume a turn at once one runs it: its calls have their effects once."""

    async def make() -> StoreWorld:
        world = await new_world(bench)
        await world.cut("pay a", 3)
        return world

    async def other(world: StoreWorld) -> Any:
        return await world.session(world.fresh("other")).resume()

    await at_every_call(bench, make, resume, other)


@law("turn-of-a-stale-owner-writes-nothing", **NEEDS)
async def stale_owner_writes_nothing(bench: Bench) -> None:
    """An owner that sleeps until another has finished its turn is refused at its next write, and saves nothing twice."""

    async def check(world: StoreWorld, _: Any, __: Any) -> None:
        texts = [record["message"]["content"] for record in await world.transcript()]
        holds(texts.count("pay a") <= 1, f"the turn is in the transcript {texts.count('pay a')} times")

    await at_every_call(bench, lambda: new_world(bench), send("pay a"), lapsed("later"), check)


@law("turn-of-a-paused-owner-comes-out-whole", **LONGER)
async def paused_owner_comes_out_whole(bench: Bench) -> None:
    """An owner that is paused before a write until another has finished its turn disturbs nothing of it when it wakes."""
    undisturbed = Interception()
    desk = await new_desk(bench)
    await desk.lives(undisturbed)
    await desk.stores.close()
    for number in bench.effort.sweep(range(1, len(undisturbed.calls) + 1)):
        desk = await new_desk(bench)
        told = await _sleep_through(desk, number)
        where = f"an owner was paused before its write {number}, and another finished its turn"
        holds(isinstance(told, (TurnResult, *ALLOWED)), f"{where}: the one that woke up ended with {told!r:.200}")
        await desk.check(where)
        await desk.stores.close()


async def _sleep_through(desk: Desk, number: int) -> Any:
    """Pause a process before a write while another finishes the turn; return what the paused one came to."""
    reached, opened, hold = await gate()

    async def pause(call: Call) -> None:
        if call.number == number:
            await hold()

    paused = asyncio.create_task(desk.life(desk.process(Interception(before=pause))))
    standing = asyncio.create_task(reached.wait())
    await asyncio.wait({paused, standing}, return_when=asyncio.FIRST_COMPLETED)
    standing.cancel()
    await desk.note_death()  # to everybody else it is as if it had died
    await desk.life(desk.process())
    desk.wake()
    opened.set()
    (outcome,) = await asyncio.gather(paused, return_exceptions=True)
    return outcome


@law("turn-input-is-taken-once", **NEEDS)
async def input_is_taken_once(bench: Bench) -> None:
    """The same input id again, while its turn runs, waits or is over, gives that turn and not another."""
    desk = Desk(bench.store, bench.clock)
    results = [await desk.life(desk.process()) for _ in range(3)]
    equal(len({result.run_id for result in results}), 1, "how many runs one input had")
    await desk.check("after one input was sent three times")


@law("turn-queued-input-is-not-lost", **LONGER)
async def queued_input_is_not_lost(bench: Bench) -> None:
    """An input that was accepted while a turn ran is in the transcript, once, wherever the process dies then."""
    undisturbed = Interception()
    desk = await new_desk(bench)
    await _queue_and_die(desk, undisturbed)
    await desk.stores.close()
    for outcome in ("die-before", "die-after"):
        for number in bench.effort.sweep(range(1, len(undisturbed.calls) + 1)):
            desk = await new_desk(bench)
            accepted, died = await _queue_and_die(desk, at(number, outcome))
            where = f"cut at write {number} ({outcome})"
            if died:
                desk.clock.advance(LAPSE)
                with suppress(SessionConflictError):
                    while await desk.session(desk.process()).resume() is not None:
                        pass
            texts = [message.text for message in await desk.messages() if message.role == "user"]
            holds(
                texts.count("later") <= 1,
                f"{where}: the queued input is in the transcript {texts.count('later')} times",
            )
            holds("later" in texts or not accepted, f"{where}: the queued input was accepted, and is lost: {texts}")
            await desk.stores.close()


async def _queue_and_die(desk: Desk, cut: Interception) -> tuple[bool, bool]:
    """Send an input while a turn runs; return whether it was accepted, and whether the process died."""
    accepted = False
    reached, opened, desk.hold = await gate()

    async def noted(call: Call) -> None:
        nonlocal accepted
        if inner is not None:
            await inner(call)
        accepted = accepted or b"input-queued" in b"".join(
            item for operation in call.operations for item in getattr(operation, "items", ())
        )

    inner, cut.after = cut.after, noted
    session = desk.session(desk.process(cut), turn_policy="queue")
    first = asyncio.create_task(session.send("work"))
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({first, waiting}, return_when=asyncio.FIRST_COMPLETED)
    second = asyncio.create_task(session.send("later"))
    for _ in range(200):
        await asyncio.sleep(0)
    opened.set()
    waiting.cancel()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    desk.hold = None
    for one in outcomes:
        if isinstance(one, BaseException) and not isinstance(one, (Died, StoreUnavailableError, OutcomeUnknownError)):
            raise one
    return accepted, any(isinstance(one, BaseException) for one in outcomes)


@law("turn-that-is-aborted-leaves-nothing-open", **NEEDS)
async def aborted_leaves_nothing_open(bench: Bench) -> None:
    """A turn that is aborted while a tool runs is dropped whole: an idle journal, nothing pending, the next turn runs."""
    desk = Desk(bench.store, bench.clock)
    reached, opened, desk.hold = await gate()
    session = desk.session(desk.process())
    running = asyncio.create_task(session.send("go"))
    await reached.wait()
    equal(await session.abort(), True, "what abort answers")
    opened.set()
    equal((await running).finish_reason, "aborted", "how the aborted turn ended")
    desk.hold = None
    found = await bench.store.checkpoints.load(SESSION)
    equal(found and (found.head.status, len(found.entries)), ("idle", 0), "status and entries of the turn journal")
    pending = [one.id for one in (await bench.store.approvals.list(status="pending")).items]
    equal(pending, [], "the approvals that are still asked for")
    result = await desk.session(desk.process()).send("hello")
    equal(result.text, "did hello", "the next turn")
