"""What each call must come to: the states that it may go through, the last of which it must reach, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from core.tests.machine.forecast import AWAITING, STOP, Course, End
from core.tests.machine.observed import Seen, State, TurnSeen, fresh
from core.tests.machine.programs import name_of
from core.tests.machine.world import Slot

from perdure.contracts.approvals import Approval
from perdure.errors import (
    ApprovalExpiredError,
    InvalidArgumentError,
    SessionAwaitingApprovalError,
    SessionBusyError,
    TurnFailedError,
)

SKEW: Final = timedelta(seconds=60)


@dataclass
class Expected:
    """What may come of a call.

    Attributes:
        path: The states that it goes through; a fault may stop it at each, and else it reaches the last.
        says: What it may say.
        loose: Whether it may stop anywhere by itself.
    """

    path: list[State]
    says: set[Any] = field(default_factory=set)
    loose: bool = False


class Oracle:
    """Tells what calls of one process must come to, from what the stores hold."""

    def __init__(self, slot: Slot, seen: Seen) -> None:
        self.slot = slot
        self.world = slot.world
        self.seen = seen
        self.course = Course(self.world, seen)

    @property
    def live(self) -> bool:
        """Whether somebody runs the conversation, as far as this process can know."""
        owner, journal = self.seen.owner, self.seen.journal
        if owner is None or journal is None:
            return False
        host, _, _, pid, *_ = owner.split("/")
        mine = self.slot.identity
        if host == mine.host and (pid != str(mine.pid) or owner not in mine.held):
            return False
        expires = journal.head.lease_expires_at
        return expires is None or expires + SKEW >= self.world.clock.now()

    def _expected(self, *says: Any) -> Expected:
        return Expected(self.course.path, set(says))

    def _unless_busy(self, go_on: Callable[[], Expected], *, force: bool = False) -> Expected:
        if self.live and not force:
            return self._expected(SessionBusyError)
        self.course.settle()
        return go_on()

    # --- turns ---

    def send(self, text: str) -> Expected:
        """What `send` must come to."""
        return self._unless_busy(lambda: self._send(text))

    def _send(self, text: str) -> Expected:
        name, course = name_of(text), self.course
        if name in course.state.open:
            return self._expected(self._until_taken(name))
        if course.state.has(name):
            return self._expected(STOP)
        refused = self._finish_pending()
        if refused is not None:
            return self._expected(refused)
        course.open(text)
        return self._expected(course.run().says)

    def _until_taken(self, name: str) -> Any:
        """Run turn after turn until one has taken an input."""
        course = self.course
        while name in course.state.open:
            assert course.turn is not None
            if course.forecast.undecided(course.turn):
                return AWAITING
            end = course.run()
            if end.says != STOP:
                return end.says
        return STOP

    def _finish_pending(self) -> Any:
        """Finish what is pending, turn after turn; return what is raised if that cannot be."""
        course = self.course
        while (turn := course.turn) is not None:
            if turn.failed and turn.status != "finished":
                return TurnFailedError
            if course.forecast.undecided(turn):
                return SessionAwaitingApprovalError
            end = course.run()
            if end.says != STOP:
                return SessionAwaitingApprovalError if end.says == AWAITING else end.says
        return None

    def submit(self, text: str) -> Expected:
        """What `submit` must come to."""
        return self._unless_busy(lambda: self._submit(text))

    def _submit(self, text: str) -> Expected:
        name, course = name_of(text), self.course
        if course.turn is not None and name in course.state.open:
            return self._expected("ok")
        if course.turn is not None and course.turn.status != "finished":
            return self._expected(SessionBusyError)
        refused = self._finish_pending()
        if refused is not None:
            return self._expected(refused)
        if not course.state.has(name):
            course.open(text)
        return self._expected("ok")

    def resume(self) -> Expected:
        """What `resume` must come to."""
        return self._unless_busy(self._resume)

    def _resume(self) -> Expected:
        turn = self.course.turn
        if turn is None:
            return self._expected(None)
        if self.course.forecast.undecided(turn):
            return self._expected(SessionAwaitingApprovalError)
        return self._expected(self.course.run().says)

    def resolve(self, approval: Approval, *, approved: bool) -> Expected:
        """What `resolve` must come to; the turn that asks is open, and nothing is half done."""
        if self.course.forecast.decided(approval.id):
            return self._expected(ApprovalExpiredError)
        self.course.decide(replace(approval, status="approved" if approved else "rejected"))
        turn = self.course.turn
        assert turn is not None
        if self.course.forecast.undecided(turn) or self.live:
            return self._expected(AWAITING)
        return self._expected(self.course.run().says)

    def run_alone(self, text: str) -> Expected:
        """What a run without a session must come to: it is kept as finished, and does not run twice."""
        return self._unless_busy(lambda: self._run_alone(text))

    def _run_alone(self, text: str) -> Expected:
        course = self.course
        if course.turn is None:
            course.turn = fresh([text])
            course.move(State(open=course.turn.names))
        if course.turn.status == "finished":
            return self._expected(STOP)
        if course.forecast.undecided(course.turn):
            return self._expected(AWAITING)
        end = course.forecast.end_of(course.turn)
        if end.says == STOP:
            course.move(replace(course.state, finished=True))
        return self._expected(end.says)

    # --- the conversation as a whole ---

    def discard(self, *, force: bool = False) -> Expected:
        """What `discard_pending` must come to."""
        return self._unless_busy(self._discard, force=force)

    def _discard(self) -> Expected:
        turn = self.course.turn
        if turn is not None and turn.status == "finished":
            self.course.run()
            return self._expected(False)
        if turn is not None:
            self.course.drop()
        return self._expected(turn is not None)

    def clear(self) -> Expected:
        """What `clear` must come to."""
        return self._unless_busy(self._clear)

    def _clear(self) -> Expected:
        course = self.course
        while (turn := course.turn) is not None and turn.status == "finished":
            course.run()
        if turn is not None and course.forecast.undecided(turn):
            return self._expected(SessionAwaitingApprovalError)
        if self.seen.journal is not None or course.state.exists:
            course.clear()
        return self._expected(None)

    def compact(self, keep: int) -> Expected:
        """What `compact` must come to."""
        return self._unless_busy(lambda: self._compact(keep))

    def _compact(self, keep: int) -> Expected:
        course = self.course
        while (turn := course.turn) is not None:
            if course.forecast.undecided(turn):
                return self._expected(SessionAwaitingApprovalError)
            if turn.status != "finished":
                return self._expected(SessionBusyError)
            course.run()
        course.compact(keep)
        return self._expected("ok")

    def fork(self) -> Expected:
        """What `fork` must come to."""
        return self._expected("ok" if self.seen.transcript is not None else InvalidArgumentError)

    def pending(self) -> Expected:
        """What `pending` must come to."""
        if self.live:
            return self._expected(self.seen.state.claim or self._status(self.course.turn))
        self.course.settle()
        turn = self.course.turn
        if turn is not None and turn.status == "finished":
            self.course.run()
            turn = self.course.turn
        return self._expected(self._status(turn))

    def _status(self, turn: TurnSeen | None) -> str | None:
        if turn is None or turn.status not in (AWAITING, "ready"):
            return None if turn is None else turn.status
        return AWAITING if self.course.forecast.undecided(turn) else "ready"

    def delete(self, *, force: bool = False) -> Expected:
        """What `delete_session` must come to."""
        return self._unless_busy(self._delete, force=force)

    def _delete(self) -> Expected:
        anything = self.seen.journal is not None or self.seen.transcript is not None
        if self.course.state != State() or self.seen.state.claim != "deleting":
            self.course.delete()
        return self._expected(anything)

    def decide(self, approval_id: str) -> Expected:
        """What `decide` must come to."""
        return self._expected(ApprovalExpiredError if self.course.forecast.decided(approval_id) else "ok")

    def update_state(self) -> Expected:
        """What `update_state` must come to."""
        self.course.move(replace(self.course.state, exists=True))
        return self._expected("ok")

    def leave(self, text: str) -> Expected:
        """What a stream that is left early may come to: the turn that it opened is dropped, if it was not saved."""
        expected = self.send(text)
        path = [*expected.path[:1], *(state for state in expected.path if state.is_clean)]
        dropped = [replace(state, open=()) for state in path if state.open[:1] == (name_of(text),)]
        return Expected([*path, *dropped], expected.says | {"aborted", "left"}, loose=True)

    def prune(self, older_than: timedelta) -> Expected:
        """What `prune` must come to."""
        cutoff = self.world.clock.now() - older_than
        ages = [part.updated_at for part in (self.seen.transcript, self.seen.journal) if part is not None]
        ages += [_age(approval) for approval in self.seen.approvals.values()]
        old = bool(ages) and all(age < cutoff for age in ages)
        if old and not self.live and not self._waits():
            self.course.delete()
        return self._expected("ok")

    def _waits(self) -> bool:
        turn = self.course.turn
        if turn is None or turn.status == "finished" or self.seen.state.claim in ("discarding", "deleting"):
            return False
        asked = [one.id for one in self.seen.approvals.values() if one.run_id == turn.run_id]
        return not all(map(self.course.forecast.decided, asked))

    # --- a turn that stands at a gate ---

    def let_go(self, text: str | None, joined: Sequence[str], *, lost: bool, in_flight: int | None) -> Expected:
        """What must come of a turn that goes on, of the call that stands in it, and of the inputs that joined it.

        Args:
            text: The input of the call, if it has one.
            joined: The names of those inputs.
            lost: Whether somebody else has taken the turn over.
            in_flight: How many inputs the request holds that waits for its answer.
        """
        opened = text is None or name_of(text) in self.course.state.open
        if lost:
            return self._after_loss(text, opened=opened)
        end = self.course.run(running=True, in_flight=in_flight)
        if not opened and text is not None:
            return self._send_on(end, text)
        if end.says == STOP and joined:
            self._until_taken(joined[-1])
        return self._expected(end.says)

    def _send_on(self, end: End, text: str) -> Expected:
        """Go on with an input that waited for a pending turn to end."""
        if end.says != STOP:
            return self._expected(SessionAwaitingApprovalError if end.says == AWAITING else end.says)
        return self._send(text)

    def cancelled(self, joined: Sequence[str], *, lost: bool) -> Expected:
        """What must come of a turn whose call is cancelled: one whose input joined it goes on with it."""
        if lost:
            return self._after_loss(None, opened=True)
        if joined:
            self._until_taken(joined[-1])
        return Expected(self.course.path, {"cancelled"}, loose=bool(joined))

    def aborted(self, text: str | None, *, lost: bool) -> Expected:
        """What must come of a turn that is aborted; an input that waited for it to end has a turn of its own then."""
        opened = text is None or name_of(text) in self.course.state.open
        if lost:
            return self._after_loss(text, opened=opened)
        self.course.drop()
        if opened or text is None:
            return self._expected("aborted")
        return self._send(text)

    def join(self, text: str, *, steer: bool) -> Expected:
        """What must come of an input that joins the turn that runs."""
        state, turn = self.course.state, self.course.turn
        assert turn is not None
        if steer:
            turn.steered.add(len(turn.texts))
        turn.texts.append(text)
        self.course.move(replace(state, open=(*state.open, name_of(text))))
        return self._expected("waits")

    def join_and_go_on(self, standing: str | None, joined: Sequence[str], text: str) -> Expected:
        """What must come of a steering input, when the request that stands at a gate is made again with it."""
        self.join(text, steer=True)
        return self.let_go(standing, [*joined, name_of(text)], lost=False, in_flight=None)

    def _after_loss(self, text: str | None, *, opened: bool) -> Expected:
        """What may come of a call whose turn is another's: nothing of that turn, but its own input may have one."""
        if text is not None and not opened and not self.live:
            self.course.settle()
            self._send(text)
        return Expected(self.course.path, loose=True)


def _age(approval: Any) -> datetime:
    at = approval.created_at if approval.decision is None else approval.decision.decided_at
    assert isinstance(at, datetime)
    return at
