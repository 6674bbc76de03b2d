"""A state machine over the whole session runtime: two processes, any call, a fault at any write, and a model of it all.

Each rule is one call. Before it the model tells what must come of it, from what the stores hold; afterwards the stores are
read again. Without a fault there is one outcome. With one the call may stop at any of the states that it goes through;
which one it was is seen in the stores, and holds from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from core.tests.machine.driver import Driver
from core.tests.machine.observed import SUMMARY, summed_by
from core.tests.machine.oracle import Oracle
from core.tests.machine.programs import name_of, programs
from core.tests.machine.world import PATIENCE, Fault, Slot
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from perdure import AgentStore, Message
from perdure_conformance.conversation_world import LAPSE
from perdure_conformance.interception import OUTCOMES

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


async def _prune(slot: Slot) -> str:
    await slot.store.prune(older_than=timedelta(days=1))
    return "ok"


async def _summarize(messages: Sequence[Message]) -> str:
    """Name the inputs that a summary shall stand for."""
    names: list[str] = []
    for text in (message.text for message in messages if message.role == "user"):
        names += summed_by(text) if text.startswith(SUMMARY) else [name_of(text)]
    return SUMMARY + " ".join(names)


class RuntimeMachine(Driver):
    """One conversation, two processes that work on it, and everything that can be called."""

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
            left = turn is not None and turn.run_id == held.run_id and not Oracle(slot, self.seen).live
            expected = Oracle(slot, self.seen).aborted(held.text, lost=lost and not left)
            slot.interception.plan(fault)
            self.run(self._abort(slot, expected, lost=lost and not left))
        else:
            expected = Oracle(slot, self.seen).cancelled(held.names, lost=lost)
            slot.interception.plan(fault)
            held.task.cancel()
            self.run(self._end(slot, expected))

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

    # --- a run without a session ---

    @rule(name=who, program=programs, fault=faults)
    def run_alone(self, name: str, program: str, fault: Fault | None) -> None:
        """Run an agent without a session; the same run id goes on with the same run."""
        text = f"r{len(self.texts) + 1}: {program}"
        said = self.call(
            name, lambda o: o.run_alone(text), lambda slot: slot.agent.run(text, run_id="r"), fault, alone=True
        )
        assert said.what != "stop" or self.alone.state.finished, f"a run has ended, and is at {self.alone.state}"

    @precondition(lambda self: any(not one.decided for one in self.alone.approvals.values()))
    @rule(name=who, how=decisions, fault=faults)
    def decide_alone(self, name: str, how: str, fault: Fault | None) -> None:
        """Decide the first that a run without a session asks for."""
        approval_id = min(one.id for one in self.alone.approvals.values() if not one.decided)

        async def act(slot: Slot) -> str:
            await slot.store.decide(approval_id, approved=how != "no", decided_by="ann")
            return "ok"

        self.call(name, lambda o: o.decide(approval_id), act, fault, alone=True)

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
        self.alone_path = Oracle(self.slot(name), self.alone).prune(timedelta(days=1)).path
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
