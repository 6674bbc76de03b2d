"""A state machine over the whole session runtime: two processes, any call, a fault at any write, and a model of it all.

Each rule is one call. Before it the model tells what must come of it, from what the stores hold; afterwards the stores are
read again. Without a fault there is one outcome. With one the call may stop at any of the states that it goes through;
which one it was is seen in the stores, and holds from then on.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from core.tests.machine.checks import Ledger
from core.tests.machine.observed import SUMMARY, summed_by
from core.tests.machine.oracle import Expected, Oracle
from core.tests.machine.programs import name_of, programs
from core.tests.machine.world import PATIENCE, Fault, Gate, Held, Slot, World
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from perdure import AgentStore, Message, open_store
from perdure.errors import OutcomeUnknownError, StoreUnavailableError
from perdure.journal.stores import JournalSessions
from perdure.runtime.results import PendingTurn, TurnResult
from perdure_conformance.conversation_world import LAPSE
from perdure_conformance.interception import OUTCOMES, Died

T = TypeVar("T")

FAULTS = (StoreUnavailableError, OutcomeUnknownError, Died)

who = st.sampled_from("AB")
a_free = st.runner().flatmap(lambda machine: st.sampled_from(machine.free))
"""A process of which no call stands at a gate."""
a_standing = st.runner().flatmap(lambda machine: st.sampled_from(machine.standing))
"""A process of which one does."""
a_joinable = st.runner().flatmap(lambda machine: st.sampled_from(machine.joinable))
"""One of those that still own the turn in which the call stands."""
faults = st.sampled_from([False, False, True]).flatmap(
    lambda wrong: st.builds(Fault, st.integers(1, 8), st.sampled_from(OUTCOMES)) if wrong else st.none()
)
places = st.sampled_from(["model", "tool"])
decisions = st.sampled_from(["yes", "no", "edit"])


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


async def _prune(slot: Slot) -> str:
    await slot.store.prune(older_than=timedelta(days=1))
    return "ok"


async def _summarize(messages: Sequence[Message]) -> str:
    """Name the inputs that a summary shall stand for."""
    names: list[str] = []
    for text in (message.text for message in messages if message.role == "user"):
        names += summed_by(text) if text.startswith(SUMMARY) else [name_of(text)]
    return SUMMARY + " ".join(names)


class RuntimeMachine(RuleBasedStateMachine):
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
        self.run(self._begin())

    async def _begin(self) -> None:
        self.store = await open_store(f"{self.url}?namespace={uuid.uuid4().hex}")
        assert isinstance(self.store.sessions, JournalSessions)
        self.world = World(self.store.sessions.journal, atomic=self.atomic)
        self.ledger = Ledger(self.world)
        self.seen = await self.world.see()

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
    ) -> Told:
        """Make one call, and hold what it says and what the stores hold then against what must come of it.

        Args:
            name: The process.
            expect: What must come of it.
            act: The call.
            fault: What goes wrong.
            own: The input that it is about.
        """
        return self.run(self._call(name, expect, act, fault, own))

    async def _call(
        self,
        name: str,
        expect: Callable[[Oracle], Expected],
        act: Callable[[Slot], Awaitable[Any]],
        fault: Fault | None,
        own: str | None,
    ) -> Told:
        slot = self.slot(name)
        expected = expect(Oracle(slot, self.seen))
        slot.interception.plan(fault)
        said = await told(act(slot))
        fired = slot.interception.fired
        slot.interception.plan(None)
        if slot.interception.dead:
            await self.world.kill(name)
        before = self.seen.owner
        await self._look()
        self._judge(expected, said, own, fired=fired)
        left = self.seen.owner is not None and self.seen.owner != before and not fired
        assert not left, f"{self.seen.owner} is left as the owner of a turn that nobody runs"
        return said

    async def _look(self) -> None:
        self.seen = await self.world.see()
        self.ledger.check(self.seen)

    def _judge(self, expected: Expected, said: Told, own: str | None, *, fired: bool) -> None:
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
        self._judge_word(said, own)

    def _judge_word(self, said: Told, own: str | None) -> None:
        """Hold what was said of an input against where it is."""
        if own is None:
            return
        state = self.seen.state
        if said.what == "stop":
            assert state.has(own), f"{own} has ended, and is not in {state}"
        elif said.what == "awaiting-approval":
            assert own in state.open, f"{own} waits, and is not in {state}"
        elif said.what == "aborted":
            assert own not in state.open, f"{own} was aborted, and is in {state}"
            assert not state.has(own), f"{own} was aborted, and is in {state}"

    # --- turns ---

    @precondition(lambda self: self.free)
    @rule(name=a_free, program=programs, fault=faults)
    def send(self, name: str, program: str, fault: Fault | None) -> None:
        self._send(name, self.new(program), fault)

    def _send(self, name: str, text: str, fault: Fault | None) -> None:
        own = name_of(text)
        self.call(name, lambda o: o.send(text), lambda slot: slot.session().send(text, input_id=own), fault, own=own)

    @precondition(lambda self: self.texts and self.free)
    @rule(name=a_free, place=st.integers(0, 30), fault=faults)
    def send_again(self, name: str, place: int, fault: Fault | None) -> None:
        self._send(name, list(self.texts.values())[place % len(self.texts)], fault)

    @precondition(lambda self: self.free)
    @rule(name=a_free, program=programs, fault=faults)
    def submit(self, name: str, program: str, fault: Fault | None) -> None:
        text = self.new(program)

        async def act(slot: Slot) -> str:
            await slot.session().submit(text, input_id=name_of(text))
            return "ok"

        self.call(name, lambda o: o.submit(text), act, fault)

    @precondition(lambda self: self.free)
    @rule(name=a_free, fault=faults)
    def resume(self, name: str, fault: Fault | None) -> None:
        self.call(name, lambda o: o.resume(), lambda slot: slot.session().resume(), fault)

    @precondition(lambda self: self.free)
    @rule(name=a_free, program=programs, events=st.integers(0, 12))
    def leave_stream(self, name: str, program: str, events: int) -> None:
        """Leave a stream after so many events, which aborts the turn that it has opened."""
        text = self.new(program)
        own = name_of(text)

        async def act(slot: Slot) -> Any:
            left = events
            async with slot.session().stream(text, input_id=own) as run:
                async for _ in run:
                    left -= 1
                    if left < 0:
                        break
            return "left" if run._task is None or run._task.cancelled() else run.result

        self.call(name, lambda o: o.leave(text), act, own=own)

    # --- a turn that stands at a gate ---

    @precondition(lambda self: self.free)
    @rule(name=a_free, program=programs, place=places)
    def send_and_stand(self, name: str, program: str, place: str) -> None:
        """Send, and stand still in the middle of the turn, if it comes there."""
        text = self.new(program)
        own = name_of(text)
        self.run(
            self._stand(name, text, lambda o: o.send(text), lambda slot: slot.session().send(text, input_id=own), place)
        )

    @precondition(lambda self: self.free)
    @rule(name=a_free, place=places)
    def resume_and_stand(self, name: str, place: str) -> None:
        """Resume, and stand still in the middle of the turn, if it comes there."""
        self.run(self._stand(name, None, lambda o: o.resume(), lambda slot: slot.session().resume(), place))

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

    @precondition(lambda self: self.joinable)
    @rule(name=a_joinable, program=programs, fault=faults)
    def queue(self, name: str, program: str, fault: Fault | None) -> None:
        """Send an input that joins the turn which stands at a gate."""
        self.run(self._join(self.slot(name), self.new(program), "queue", fault))

    @precondition(lambda self: self.joinable)
    @rule(name=a_joinable, program=programs, fault=faults)
    def steer(self, name: str, program: str, fault: Fault | None) -> None:
        """Send an input that joins the turn which stands at a gate, and shall be heard at once."""
        self.run(self._join(self.slot(name), self.new(program), "steer", fault))

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
        held = slot.held
        assert held is not None
        said = await held.task
        others = [(own, await task) for own, task in held.joined]
        fired = slot.interception.fired
        slot.interception.plan(None)
        slot.held = slot.gate = None
        if slot.interception.dead:
            await self.world.kill(slot.name)
        await self._look()
        self._judge(expected, said, None if held.text is None else name_of(held.text), fired=fired)
        for own, word in others:
            self._judge_word(word, own)

    @precondition(lambda self: self.standing)
    @rule(name=a_standing, fault=faults)
    def let_go(self, name: str, fault: Fault | None) -> None:
        """Open the gate, and let the turn go on to its end."""
        slot = self.slot(name)
        if slot.held is not None and slot.gate is not None:
            held, lost = slot.held, self.is_lost(slot)
            expected = Oracle(slot, self.seen).let_go(held.text, held.names, lost=lost, in_flight=held.in_flight)
            slot.interception.plan(fault)
            slot.gate.opened.set_result(None)
            self.run(self._end(slot, expected))

    @precondition(lambda self: self.standing)
    @rule(name=a_standing, how=st.sampled_from(["cancel", "abort", "kill"]), fault=faults)
    def interrupt(self, name: str, how: str, fault: Fault | None) -> None:
        """Cancel the task of the call that stands at a gate, abort its turn, or kill its process."""
        slot = self.slot(name)
        held, lost = slot.held, self.is_lost(slot)
        assert held is not None
        if how == "kill":
            self._kill(name)
        elif how == "abort":
            turn = self.seen.turn
            left = self.seen.owner is None and turn is not None and turn.run_id == held.run_id
            expected = Oracle(slot, self.seen).aborted(held.text, lost=lost and not left)
            slot.interception.plan(fault)
            self.run(self._abort(slot, expected, lost=lost and not left))
        else:
            expected = Oracle(slot, self.seen).cancelled(held.names, lost=lost)
            slot.interception.plan(fault)
            held.task.cancel()
            self.run(self._end(slot, expected))

    async def _abort(self, slot: Slot, expected: Expected, *, lost: bool) -> None:
        said = await told(slot.session().abort())
        assert said.what is True or slot.interception.fired, f"abort said {said.what}"
        if lost and slot.held is not None and not self.strict:
            slot.held.text = None  # see test_an_abort_does_not_speak_for_a_turn_that_somebody_else_runs
        await self._end(slot, expected)

    def _kill(self, name: str) -> None:
        """Let a process die where it stands."""
        state = self.seen.state
        self.run(self.world.kill(name))
        self.run(self._look())
        assert self.seen.state == state, f"after a death the stores hold {self.seen.state}"

    # --- decisions ---

    def _asked(self, place: int) -> str | None:
        asked = sorted(approval.id for approval in self.seen.approvals.values() if not approval.decided)
        return asked[place % len(asked)] if asked else None

    def _words(self, approval_id: str, how: str) -> dict[str, Any]:
        words: dict[str, Any] = {"approved": how != "no", "note": "so be it", "decided_by": "ann"}
        if how == "edit" and self.seen.approvals[approval_id].kind == "approve":
            words["arguments"] = {"what": "edited"}
        return words

    @precondition(lambda self: self._asked(0) is not None)
    @rule(name=who, place=st.integers(0, 5), how=decisions, fault=faults)
    def decide(self, name: str, place: int, how: str, fault: Fault | None) -> None:
        approval_id = self._asked(place)
        assert approval_id is not None
        words = self._words(approval_id, how)

        async def act(slot: Slot) -> str:
            await slot.store.decide(approval_id, **words)
            return "ok"

        said = self.call(name, lambda o: o.decide(approval_id), act, fault)
        if said.what == "ok":
            assert self.seen.approvals[approval_id].status == ("approved" if words["approved"] else "rejected")

    @precondition(lambda self: self._asked(0) is not None and self.seen.state.claim is None and self.free)
    @rule(name=a_free, place=st.integers(0, 5), how=decisions, fault=faults)
    def resolve(self, name: str, place: int, how: str, fault: Fault | None) -> None:
        approval_id = self._asked(place)
        assert approval_id is not None
        approval, words = self.seen.approvals[approval_id], self._words(approval_id, how)
        self.call(
            name,
            lambda o: o.resolve(approval, approved=words["approved"]),
            lambda slot: slot.agent.approvals.resolve(approval_id, **words),
            fault,
        )

    # --- the conversation as a whole ---

    @precondition(lambda self: self.free)
    @rule(name=a_free, how=st.sampled_from(["discard", "force", "abort", "clear"]), fault=faults)
    def drop(self, name: str, how: str, fault: Fault | None) -> None:
        """Drop the pending turn, also one that somebody else runs, or all of the transcript."""
        if how == "clear":
            self.call(name, lambda o: o.clear(), lambda slot: slot.session().clear(), fault)
        elif how == "abort":
            self.call(name, lambda o: o.discard(), lambda slot: slot.session().abort(), fault)
        else:
            self._discard(name, fault, force=how == "force")

    def _discard(self, name: str, fault: Fault | None, *, force: bool) -> None:
        self.call(
            name, lambda o: o.discard(force=force), lambda slot: slot.session().discard_pending(force=force), fault
        )

    @precondition(lambda self: self.free)
    @rule(name=a_free, fault=faults)
    def pending(self, name: str, fault: Fault | None) -> None:
        self.call(name, lambda o: o.pending(), lambda slot: slot.session().pending(), fault)

    @rule(name=who, fault=faults)
    def update_state(self, name: str, fault: Fault | None) -> None:
        async def act(slot: Slot) -> str:
            await slot.session().update_state(lambda state: {"n": state.get("n", 0) + 1})
            return "ok"

        self.call(name, lambda o: o.update_state(), act, fault)

    @precondition(lambda self: self.free)
    @rule(name=a_free, keep=st.integers(0, 2), archive=st.booleans(), fault=faults)
    def compact(self, name: str, keep: int, archive: bool, fault: Fault | None) -> None:
        async def act(slot: Slot) -> str:
            await slot.session().compact(keep=keep, summarize=_summarize, archive=archive)
            return "ok"

        self.call(name, lambda o: o.compact(keep), act, fault)

    @rule(name=who, fault=faults)
    def fork(self, name: str, fault: Fault | None) -> None:
        """Copy the conversation, look at the copy, and delete it."""

        async def act(slot: Slot) -> str:
            try:
                await slot.session().fork("copy")
            finally:
                await self._look_at_copy()
            return "ok"

        self.call(name, lambda o: o.fork(), act, fault)

    async def _look_at_copy(self) -> None:
        copy, source = await self.world.stores.sessions.load("copy"), self.seen.transcript
        if copy is not None and source is not None:
            said = [record["message"] for record in copy.records]
            assert said == [record["message"] for record in source.records], f"the copy says {said}"
            await AgentStore(sessions=self.world.stores.sessions).delete_session("copy")

    @rule(name=who, force=st.booleans(), fault=faults)
    def delete(self, name: str, force: bool, fault: Fault | None) -> None:
        """Delete the conversation, also one that somebody runs."""
        self.call(
            name, lambda o: o.delete(force=force), lambda slot: slot.store.delete_session("s", force=force), fault
        )

    @rule(name=who, later=st.booleans(), fault=faults)
    def prune(self, name: str, later: bool, fault: Fault | None) -> None:
        """Prune what is older than a day, now or two days later."""
        self.world.clock.advance(timedelta(days=2) if later else timedelta(0))
        self.call(name, lambda o: o.prune(timedelta(days=1)), _prune, fault)

    @rule(long=st.booleans())
    def pass_time(self, long: bool) -> None:
        """Let time pass: leases lapse; or so much of it that questions expire."""
        self.world.clock.advance(2 * PATIENCE if long else LAPSE)

    # --- the end ---

    def teardown(self) -> None:
        """Heal everything and finish: every input that is not told to be dropped comes to its end."""
        try:
            if not self.failed:
                self._finish()
        finally:
            self.run(self._close())
            self.runner.close()

    def _finish(self) -> None:
        for name in self.standing:
            self.let_go(name, None)
        for _ in range(40):
            self.pass_time(long=False)
            self.pending("A", None)
            if not self.seen.state.open and self.seen.state.is_clean:
                break
            while self._asked(0) is not None:
                self.decide("A", 0, "yes", None)
            self.resume("A", None)
            turn = self.seen.turn
            if turn is not None and turn.is_unknowable:
                self._discard("A", None, force=False)
        assert self.seen.state.is_clean, self.seen.state
        assert not self.seen.state.open, self.seen.state

    async def _close(self) -> None:
        for name in "AB":
            await self.world.kill(name)
        await self.store.close()
