"""Makes the calls of the machine over the runtime, and holds what comes of them against what must."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from core.tests.machine.checks import Ledger
from core.tests.machine.observed import State
from core.tests.machine.oracle import Expected, Oracle
from core.tests.machine.programs import name_of
from core.tests.machine.world import Fault, Gate, Held, Slot, World
from hypothesis.stateful import RuleBasedStateMachine

from perdure import open_store
from perdure.errors import OutcomeUnknownError, SessionBusyError, StoreUnavailableError
from perdure.journal.stores import JournalSessions
from perdure.runtime.results import PendingTurn, TurnResult
from perdure_conformance.interception import Died

T = TypeVar("T")

FAULTS = (StoreUnavailableError, OutcomeUnknownError, Died)


@dataclass
class Told:
    """What a call has said: a word, or an error."""

    what: Any

    @property
    def is_error(self) -> bool:
        """Whether it is an error."""
        return isinstance(self.what, type)


async def told(work: Awaitable[Any]) -> Told:
    """Await a call, and return what it says."""
    try:
        value = await work
    except asyncio.CancelledError:
        return Told("cancelled")
    except (Exception, Died) as error:  # noqa: BLE001  # reason: whatever it raises is held against what it may raise
        return Told(type(error))
    if isinstance(value, TurnResult):
        return Told(value.finish_reason)
    return Told(value.status if isinstance(value, PendingTurn) else value)


class Driver(RuleBasedStateMachine):
    """One conversation, and two processes that work on it.

    Attributes:
        url: Where the data is; each machine has a namespace of its own there.
        atomic: Whether the processes see an atomic journal; `None`: as the backend says.
        strict: Whether promises are checked too of which it is known that they are not kept.
    """

    url: ClassVar[str]
    atomic: ClassVar[bool | None] = None
    strict: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.texts: dict[str, str] = {}
        self.failed = False
        self.alone_path: list[State] | None = None
        self.run(self._begin())

    async def _begin(self) -> None:
        self.store = await open_store(f"{self.url}?namespace={uuid.uuid4().hex}")
        assert isinstance(self.store.sessions, JournalSessions)
        self.world = World(self.store.sessions.journal, atomic=self.atomic)
        self.ledger = Ledger(self.world)
        self.seen = await self.world.see()
        self.alone = await self.world.see(alone=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what a rule does on the machine's own loop."""
        try:
            return self.runner.run(work)
        except BaseException:
            self.failed = True
            raise

    def new(self, program: str) -> str:
        """Return a new input."""
        text = f"n{len(self.texts) + 1}: {program}"
        self.texts[name_of(text)] = text
        return text

    def slot(self, name: str) -> Slot:
        """Return a process."""
        return self.world.slots[name]

    @property
    def free(self) -> list[str]:
        """The processes of which no call stands at a gate."""
        return [name for name, slot in self.world.slots.items() if slot.held is None]

    @property
    def standing(self) -> list[str]:
        """The processes of which one does."""
        return [name for name, slot in self.world.slots.items() if slot.held is not None]

    @property
    def joinable(self) -> list[str]:
        """Those of them whose turn is still their own."""
        return [name for name in self.standing if not self.is_lost(self.slot(name))]

    def is_lost(self, slot: Slot) -> bool:
        """Whether the turn in which a call of this process stands is another's by now."""
        return slot.held is not None and slot.held.owner != self.seen.owner

    # --- one call ---

    def call(
        self,
        name: str,
        expect: Callable[[Oracle], Expected],
        act: Callable[[Slot], Awaitable[Any]],
        fault: Fault | None = None,
        *,
        own: str | None = None,
        alone: bool = False,
    ) -> Told:
        """Make one call, and hold what it says and what the stores hold then against what must come of it.

        Args:
            name: The process.
            expect: What must come of it.
            act: The call.
            fault: What goes wrong.
            own: The input that it is about.
            alone: Whether it is about the run without a session.
        """
        return self.run(self._call(name, expect, act, fault, own, alone=alone))

    async def _call(
        self,
        name: str,
        expect: Callable[[Oracle], Expected],
        act: Callable[[Slot], Awaitable[Any]],
        fault: Fault | None,
        own: str | None,
        *,
        alone: bool,
    ) -> Told:
        slot = self.slot(name)
        about = self.alone if alone else self.seen
        expected = expect(Oracle(slot, about))
        if alone:
            self.alone_path, expected.path = expected.path, [self.seen.state]
        slot.interception.plan(fault)
        said = await told(act(slot))
        fired = slot.interception.fired
        slot.interception.plan(None)
        if slot.interception.dead:
            await self.world.kill(name)
        before = self.seen.owner
        await self._look()
        self.alone_path = None
        self._judge(expected, said, own, fired=fired)
        left = self.seen.owner is not None and self.seen.owner != before and not fired
        assert not left, f"{self.seen.owner} is left as the owner of a turn that nobody runs"
        return said

    async def _look(self) -> None:
        self.seen = await self.world.see()
        self.ledger.check(self.seen)
        before, self.alone = self.alone.state, await self.world.see(alone=True)
        allowed = [before] if self.alone_path is None else self.alone_path
        assert self.alone.state in allowed, f"the run without a session is at {self.alone.state}, not in {allowed}"

    def _judge(
        self, expected: Expected, said: Told, own: str | None, *, fired: bool, run_id: str | None = None
    ) -> None:
        state, path = self.seen.state, expected.path
        allowed = path if fired or expected.loose else path[-1:]
        shown = "\n  ".join(map(str, allowed))
        assert state in allowed, f"it said {said.what}; the stores hold\n  {state}, which is none of\n  {shown}"
        if expected.loose and not expected.says:
            pass
        elif fired:
            assert said.what in expected.says or (said.is_error and issubclass(said.what, FAULTS)), said
            assert said.is_error or said.what not in expected.says or state == path[-1], f"{said} at {state}"
        else:
            assert said.what in expected.says, f"it said {said.what}, not one of {expected.says}"
        self._judge_word(said, own, run_id)

    def _judge_word(self, said: Told, own: str | None, run_id: str | None) -> None:
        """Hold what was said of an input against where it is.

        Args:
            said: The word.
            own: The input.
            run_id: The run that it was said of, if that was lost: the same input may have another one by now.
        """
        if own is None:
            return
        state = self.seen.state
        if run_id is not None and said.what == "aborted":
            runs = [record["run_id"] for record in self.seen.records]
            assert run_id not in runs, f"{run_id} was aborted, and is in the transcript"
            assert self.seen.turn is None or self.seen.turn.run_id != run_id, f"{run_id} was aborted, and is open"
            return
        if said.what == "stop":
            assert state.has(own), f"{own} has ended, and is not in {state}"
        elif said.what == "awaiting-approval":
            assert own in state.open, f"{own} waits, and is not in {state}"
        elif said.what == "aborted":
            assert own not in state.open, f"{own} was aborted, and is in {state}"
            assert not state.has(own), f"{own} was aborted, and is in {state}"

    # --- a turn that stands at a gate ---

    async def _stand(
        self,
        name: str,
        text: str | None,
        expect: Callable[[Oracle], Expected],
        act: Callable[[Slot], Coroutine[Any, Any, Any]],
        place: str,
    ) -> None:
        slot = self.slot(name)
        expected = expect(Oracle(slot, self.seen))
        own = None if text is None else name_of(text)
        slot.hold, slot.gate = place, None
        task = asyncio.create_task(told(act(slot)))
        await slot.stands_or(task)
        slot.hold = None
        await self._look()
        gate: Gate | None = slot.gate
        if gate is None or task.done():
            self._judge(expected, await task, own, fired=False)
            return
        assert self.seen.state in [state for state in expected.path if state.is_clean], self.seen.state
        turn = self.seen.turn
        assert turn is not None
        in_flight = len(turn.texts) if gate.place == "model" else None
        slot.held = Held(text, task, turn.run_id, owner=self.seen.owner, in_flight=in_flight)

    async def _join(self, slot: Slot, text: str, policy: str, fault: Fault | None) -> None:
        held, gate = slot.held, slot.gate
        assert held is not None
        assert gate is not None
        steer = policy == "steer"
        expected = Oracle(slot, self.seen).join(text, steer=steer)
        if steer and gate.place == "model":  # the request that stands there is made again, and the turn goes on
            past = Oracle(slot, await self.world.see()).join_and_go_on(held.text, held.names, text)
        else:
            past = expected
        slot.interception.plan(fault)
        task = asyncio.create_task(told(slot.session(policy).send(text, input_id=name_of(text))))
        await slot.quiet()
        if gate.opened.cancelled():
            held.joined.append((name_of(text), task))
            await self._end(slot, past)
            return
        fired = slot.interception.fired
        slot.interception.plan(None)
        if slot.interception.dead:
            await self.world.kill(slot.name)
            await asyncio.gather(task, return_exceptions=True)
        await self._look()
        self._judge(expected, task.result() if task.done() else Told("waits"), None, fired=fired)
        if not task.done():
            held.joined.append((name_of(text), task))

    async def _end(self, slot: Slot, expected: Expected) -> None:
        """Await a call that goes on from its gate, and those that joined it."""
        held, lost = slot.held, self.is_lost(slot)
        assert held is not None
        said = await held.task
        others = [(own, await task) for own, task in held.joined]
        fired = slot.interception.fired
        slot.interception.plan(None)
        slot.held = slot.gate = None
        if slot.interception.dead:
            await self.world.kill(slot.name)
        await self._look()
        run_id = held.run_id if lost else None
        self._judge(expected, said, None if held.text is None else name_of(held.text), fired=fired, run_id=run_id)
        for own, word in others:
            self._judge_word(word, own, run_id)

    async def _abort(self, slot: Slot, expected: Expected, *, lost: bool) -> None:
        said = await told(slot.session().abort())
        refused = said.what is SessionBusyError and lost
        assert said.what is True or refused or slot.interception.fired, f"abort said {said.what}"
        await self._end(slot, expected)

    def _kill(self, name: str) -> None:
        """Let a process die where it stands."""
        state = self.seen.state
        self.run(self.world.kill(name))
        self.run(self._look())
        assert self.seen.state == state, f"after a death the stores hold {self.seen.state}"

    async def _close(self) -> None:
        for name in "AB":
            await self.world.kill(name)
        await self.store.close()
