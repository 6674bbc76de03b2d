"""What must come of a turn, told from its inputs, what is recorded of it, and what humans have decided."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

from core.tests.machine.observed import CallSeen, Seen, State, StepSeen, TurnSeen, fresh
from core.tests.machine.programs import KINDS, calls_at, fails_at, name_of, place_of
from core.tests.machine.world import World

from perdure.contracts.approvals import Approval
from perdure.errors import PropagatingToolError, ToolOutcomeUnknownError

STOP, AWAITING = "stop", "awaiting-approval"


@dataclass
class End:
    """How a turn ends, or why it does not.

    Attributes:
        says: `stop`, `awaiting-approval`, or the error that it raises.
        taken: How many of its inputs it took, if it has ended.
    """

    says: str | type[BaseException]
    taken: int = 0


@dataclass
class _Step:
    """What becomes of the calls of one response."""

    raises: type[BaseException] | None = None
    waits: list[str] = field(default_factory=list)


class Forecast:
    """Goes on with turns as the promises say."""

    def __init__(self, world: World, seen: Seen) -> None:
        self.world = world
        self.approvals = seen.approvals
        self.now = world.clock.now()

    def end_of(self, turn: TurnSeen, *, running: bool = False, in_flight: int | None = None) -> End:
        """Return how a turn ends.

        Args:
            turn: What is recorded of it.
            running: Whether its calls run right now, and are not in doubt.
            in_flight: How many inputs the request holds that the model has been asked and not answered yet.
        """
        steps = copy.deepcopy(turn.steps)
        if turn.status == "finished":
            return End(STOP, turn.taken)
        while True:
            if steps:
                step = self._bring_on(turn, len(steps) - 1, steps[-1], running=running and in_flight is None)
                if step.raises is not None:
                    return End(step.raises)
                if step.waits:
                    return End(AWAITING)
                if not steps[-1].calls:
                    return End(STOP, steps[-1].inputs)
            running = False
            count = len(turn.texts) if in_flight is None else in_flight
            text, number = place_of(turn.texts, [*(step.inputs for step in steps), count], len(steps))
            asked = in_flight is not None or (name_of(text), number) in self.world.failed
            if fails_at(text, number) and not asked:
                return End(ConnectionError)
            in_flight = None
            steps.append(StepSeen(count, [CallSeen(call.tool, {"what": call.id}) for call in calls_at(text, number)]))

    def _bring_on(self, turn: TurnSeen, number: int, step: StepSeen, *, running: bool) -> _Step:
        outcome = _Step()
        steers = any(place >= step.inputs for place in turn.steered)
        for place, call in enumerate(step.calls):
            key = f"{turn.run_id}.s{number}.c{place}"
            if not call.answered:
                self._judge(outcome, call, key, running=running, steers=steers)
        if any(self._unknowable(call) for call in step.calls) and not running:
            outcome.raises = ToolOutcomeUnknownError
        return outcome

    def _unknowable(self, call: CallSeen) -> bool:
        kind = KINDS[call.tool]
        without = kind.in_doubt is None and not kind.idempotent and not kind.probe
        return not call.answered and without and call.starts > call.failures

    def _judge(self, outcome: _Step, call: CallSeen, key: str, *, running: bool, steers: bool) -> None:
        kind = KINDS[call.tool]
        if kind.gated and key not in call.applied:
            if not self.decided(key) and not steers:
                outcome.waits.append(key)
            return
        doubtful = call.starts > call.failures and not kind.idempotent and not (running and call.starts > call.stale)
        if doubtful and kind.in_doubt == "ask":
            question = f"{key}.d{call.starts}"
            if question not in call.applied and not self.decided(question):
                outcome.waits.append(question)
            return
        if kind.raises == "propagating" and (call.failures > 0 if running else key not in self.world.tripped):
            outcome.raises = PropagatingToolError

    def decided(self, approval_id: str) -> bool:
        """Whether nothing is left to decide about an approval."""
        approval = self.approvals.get(approval_id)
        if approval is None:
            return False
        return approval.status != "pending" or (approval.expires_at is not None and approval.expires_at <= self.now)

    def undecided(self, turn: TurnSeen) -> bool:
        """Whether a waiting turn still waits."""
        return turn.status in (AWAITING, "ready") and not all(map(self.decided, turn.waits_for))


class Course:
    """The states that a conversation goes through, one after another, while a call does its work."""

    def __init__(self, world: World, seen: Seen) -> None:
        self.forecast = Forecast(world, seen)
        self.state = seen.state
        self.turn = seen.turn
        self.path = [seen.state]
        self._void = seen.is_void

    def move(self, state: State) -> None:
        """Go on to a state."""
        self.state = state
        self.path.append(state)

    def decide(self, approval: Approval) -> None:
        """Take note of a decision."""
        self.forecast.approvals = {**self.forecast.approvals, approval.id: approval}

    def settle(self) -> None:
        """Finish or undo what somebody has left half done."""
        claim = self.state.claim
        if claim == "discarding":
            self.drop()
        elif claim == "deleting":
            self.delete()
        elif claim == "compacting" or (claim == "clearing" and self._void):
            self.move(replace(self.state, claim=None))
        elif claim == "clearing":
            self.clear()

    def drop(self) -> None:
        """Drop the turn."""
        self.move(replace(self.state, claim="discarding"))
        self.turn = None
        self.move(replace(self.state, open=(), finished=False, claim=None))

    def clear(self) -> None:
        """Empty the transcript."""
        self.move(replace(self.state, claim="clearing"))
        self.move(replace(self.state, turns=(), summed=()))
        self.turn = None
        self.move(replace(self.state, open=(), finished=False, claim=None))

    def compact(self, keep: int) -> None:
        """Put a summary in the place of all but the newest turns."""
        cut = len(self.state.turns) - keep
        if cut <= 0:
            return
        summed = (*self.state.summed, *(name for turn in self.state.turns[:cut] for name in turn))
        self.move(replace(self.state, claim="compacting"))
        self.move(replace(self.state, turns=self.state.turns[cut:], summed=summed))
        self.move(replace(self.state, claim=None))

    def delete(self) -> None:
        """Delete the conversation."""
        self.move(replace(self.state, claim="deleting"))
        self.move(replace(self.state, turns=(), summed=(), exists=False))
        self.turn = None
        self.move(State())

    def open(self, text: str) -> None:
        """Open a turn on an input."""
        self.move(replace(self.state, exists=True))
        self.turn = fresh([text])
        self.move(replace(self.state, open=self.turn.names))

    def run(self, *, running: bool = False, in_flight: int | None = None) -> End:
        """Go on with the open turn; if it ends, inputs that it did not take open the next one."""
        turn = self.turn
        assert turn is not None
        end = self.forecast.end_of(turn, running=running, in_flight=in_flight)
        if end.says != STOP:
            return end
        before = self.state.turns[:-1] if turn.saved else self.state.turns
        saved = (*before, turn.names[: end.taken])
        self.move(replace(self.state, finished=True))
        self.move(replace(self.state, turns=saved))
        left = turn.texts[end.taken :]
        self.turn = fresh(left) if left else None
        self.move(replace(self.state, finished=False, open=turn.names[end.taken :]))
        return end
