"""A conversation over the store under test, and one process of it that is stopped before each of its calls in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.errors import ToolOutcomeUnknownError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import LawBrokenError, holds
from perdure_conformance.conversation_world import LAPSE, SESSION, TYPED, ConversationWorld
from perdure_conformance.laws.stopping import Apart, interceptions_of
from perdure_conformance.laws.tapped import all_journals, over
from perdure_conformance.parts import PARTS, Stores
from perdure_conformance.stepping import SteppedProcess

if TYPE_CHECKING:
    from perdure import TurnResult
    from perdure.backend import Journal

ALLOWED = (*TYPED, ToolOutcomeUnknownError)
LONG = timedelta(days=14)
NEEDS: dict[str, Any] = {"parts": PARTS, "needs": ("list", "delete"), "timeout": 60.0}
"""What a law needs that runs an agent over the store."""

LONGER: dict[str, Any] = NEEDS | {"timeout": 120.0}
"""The same, with the time for a turn at every one of its writes."""


class StoreWorld(ConversationWorld):
    """One conversation whose every process has the parts of the store under test."""

    def __init__(self, stores: Stores, **options: Any) -> None:
        """Set up over an open, empty bundle."""
        one, *others = all_journals(stores)
        journal = (
            one if one is not None and all(other is one for other in others) else Apart(stores.sessions.capabilities)
        )
        defaults: dict[str, Any] = {"same_host": False, "allowed": ALLOWED}
        super().__init__(journal, **defaults | options)
        self.stores = stores

    def store(self, name: str, journal: Journal) -> Stores:
        """Return a bundle of a process's own."""
        passed = interceptions_of(journal)
        return over(self.stores, {id(self.journal): journal}, passed, self.identity(name), clock=self.clock)


Program: TypeAlias = Callable[[StoreWorld, Stores], Coroutine[Any, Any, Any]]
Meanwhile: TypeAlias = Callable[[StoreWorld], Coroutine[Any, Any, Any]]
Make: TypeAlias = Callable[[], Awaitable[StoreWorld]]
Check: TypeAlias = Callable[[StoreWorld, SteppedProcess, Mapping[str, Any]], Awaitable[None]]


async def new_world(bench: Bench, **options: Any) -> StoreWorld:
    """Return a world at a fresh place."""
    return StoreWorld(await bench.open(bench.another_place()), **options)


async def decided_world(bench: Bench, **options: Any) -> StoreWorld:
    """Return a world whose turn waited for a decision, and has it."""
    world = await new_world(bench, **options)
    await world.turn("ask a")
    await decide_all(world)
    return world


async def cut_world(bench: Bench) -> StoreWorld:
    """Return a world with one turn in its transcript, and one that was left by a process that died."""
    world = await new_world(bench, keeps=False)
    await world.turn("pay before")
    await world.cut("pay c", 2)
    return world


def is_atomic(bench: Bench) -> bool:
    """Whether a turn is closed together with its transcript, as the store declares."""
    return all(bench.capabilities(part.name).atomic for part in PARTS[:2])


async def ended(work: Awaitable[Any]) -> Any:
    """Return what a program returns, or the typed error that it raises."""
    try:
        return await work
    except ALLOWED as error:
        return error


async def at_every_call(
    bench: Bench,
    make: Make,
    program: Program,
    meanwhile: Meanwhile,
    check: Check | None = None,
    *,
    inner: Callable[[Journal], Journal] = lambda journal: journal,
    since: Callable[[], bool] = lambda: True,
) -> None:
    """Stop a program before each of its calls in turn, let others go on, and check the promises after its end.

    Args:
        bench: Says how many of the calls are tried.
        make: Makes a world where the program begins.
        program: What is stopped.
        meanwhile: What others do then.
        check: More to check; it sees the writes that the program had made when it was stopped.
        inner: Wraps the journal of the program.
        since: Whether it has come far enough to be stopped.
    """

    async def begin() -> tuple[StoreWorld, SteppedProcess]:
        world = await make()
        process = SteppedProcess("paused", inner(world.journal), atomic=is_atomic(bench))
        await process.start(program(world, world.store("paused", process.journal)))
        return world, process

    world, process = await begin()
    numbers = [number async for number in _stops(process) if since()]
    writes = [
        number for number in numbers if process.calls[number - 1].kind == "write"
    ]  # what it knows may be stale then
    holds(len(process.calls) > 1, "the program that was to be stopped made no calls of its store")
    await world.stores.close()
    for number in bench.effort.sweep(numbers, telling=writes):
        world, process = await begin()
        if await process.until(number):
            await _while_it_stands(world, process, number, meanwhile, check)
        else:  # calls that it makes at once may come in another number
            await ended(process.finish())
        await world.stores.close()


async def _stops(process: SteppedProcess) -> AsyncIterator[int]:
    """Let a process run, and return the number of each of its calls while it stands before it."""
    number = 1
    while await process.until(number):
        yield number
        number += 1
    await ended(process.finish())


async def _while_it_stands(
    world: StoreWorld, process: SteppedProcess, number: int, meanwhile: Meanwhile, check: Check | None
) -> None:
    where = f"a process was stopped before its call {number}: {process.calls[-1]}"
    try:
        written = [call for call in process.calls[: number - 1] if call.kind == "write"]
        other = await ended(meanwhile(world))
        outcomes = {"paused": await ended(process.finish()), "other": other}
        if check is not None:
            process.interception.calls[:] = written
            await check(world, process, outcomes)
        await world.check(outcomes)
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise LawBrokenError(f"{where}; then: {kind}{error}") from error
    finally:
        if not process.ended:
            await process.kill()


# --- programs ---


def send(given: str) -> Program:
    """Send an input."""
    return lambda world, store: world.session(store).send(given)


def resume(world: StoreWorld, store: Stores) -> Coroutine[Any, Any, Any]:
    """Go on with what is pending."""
    return world.session(store).resume()


def lapsed(given: str) -> Meanwhile:
    """Let another host go on with the conversation when the lease of the one that sleeps is over."""

    async def meanwhile(world: StoreWorld) -> TurnResult:
        world.clock.advance(LAPSE)
        return await world.session(world.fresh("other")).send(given)

    return meanwhile


def claim(action: str) -> Program:
    """Clear the conversation, discard its turn, or delete it."""

    def run(world: StoreWorld, store: Stores) -> Coroutine[Any, Any, Any]:
        if action == "delete":
            return store.delete_session(SESSION)
        session = world.session(store)
        return session.clear() if action == "clear" else session.discard_pending()

    return run


async def decide_all(world: StoreWorld) -> None:
    """Approve whatever is asked."""
    store = world.fresh("human")
    for approval in (await store.approvals.list(status="pending")).items:
        await store.decide(approval.id, approved=True)
