"""What must hold of the stores whatever has been called: each turn whole, once, and as its inputs and decisions say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from core.tests.machine.observed import SESSION, Seen, State
from core.tests.machine.programs import Planned, calls_at, place_of, said_at
from core.tests.machine.world import World, arguments_of

from perdure.contracts.approvals import Approval

NOT_RUN = "not run: the user has sent a new message"


class Ledger:
    """What was seen so far, which what is seen later is held against."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turns: dict[str, list[dict[str, Any]]] = {}
        self.approvals: dict[str, Approval] = {}
        self.doubtful: set[str] = set()
        self.steered: set[str] = set()

    def check(self, seen: Seen) -> None:
        """Hold everything against what must be."""
        assert self.world.problems == [], self.world.problems
        self._note_turn(seen)
        self._check_approvals(seen)
        runs = [run_id for run_id, _ in groupby(seen.records, key=lambda record: record["run_id"])]
        assert len(runs) == len(set(runs)), f"a turn is in the transcript twice, or in pieces: {runs}"
        for run_id in runs:
            self._check_turn(run_id, [record for record in seen.records if record["run_id"] == run_id])
        self._check_summary(seen)
        if seen.state == State() and seen.journal is None:
            assert not seen.sessions, f"the conversation is gone, and there is still {seen.sessions}"
            assert not seen.approvals, f"the conversation is gone, and there is still {list(seen.approvals)}"

    def _check_summary(self, seen: Seen) -> None:
        """Check that a summary stands for what it says, and that no archive is left that none stands for."""
        summary = seen.summary
        known = [name for turn in summary["turns"] for name in turn["input_ids"]] if summary is not None else []
        assert tuple(known) == seen.state.summed, f"a summary of {seen.state.summed} tells of {known}"
        if seen.state.claim is None:
            stray = set(seen.sessions) - {SESSION, *seen.archives}
            assert not stray, f"nothing stands for {stray}"

    def _note_turn(self, seen: Seen) -> None:
        turn = seen.turn
        if turn is None:
            return
        if turn.steered:
            self.steered.add(turn.run_id)
        for number, step in enumerate(turn.steps):
            for place, call in enumerate(step.calls):
                if call.starts > call.failures and not call.answered:
                    self.doubtful.add(f"{turn.run_id}.s{number}.c{place}")

    def _check_approvals(self, seen: Seen) -> None:
        for approval in seen.approvals.values():
            earlier = self.approvals.get(approval.id)
            if earlier is not None and earlier.decided:
                assert approval == earlier, f"{approval.id} was {earlier.status}, and is {approval.status}"
            self.approvals[approval.id] = approval
            if not approval.decided:
                open_run = None if seen.turn is None else seen.turn.run_id
                assert approval.run_id == open_run, f"{approval.id} is undecided, and its run is over"

    def _check_turn(self, run_id: str, records: list[dict[str, Any]]) -> None:
        """Check a turn once, and from then on that nothing of it changes."""
        if run_id in self.turns:
            assert records == self.turns[run_id], f"{run_id} has changed in the transcript"
            return
        ends = [record.get("finish_reason") for record in records]
        assert ends == [None] * (len(ends) - 1) + ["stop"], f"{run_id} ends with {ends}"
        _Walk(self, run_id, [record["message"] for record in records]).walk()
        self.turns[run_id] = records


class _Walk:
    """A walk through the messages of one turn."""

    def __init__(self, ledger: Ledger, run_id: str, messages: Sequence[dict[str, Any]]) -> None:
        self.ledger = ledger
        self.run_id = run_id
        self.left = list(messages)
        self.texts: list[str] = []
        self.counts: list[int] = []

    def walk(self) -> None:
        calls: list[Planned] = []
        while self.left:
            message = self.left.pop(0)
            if message["role"] == "user":
                self.texts.append(message["content"])
                continue
            assert message["role"] == "assistant", f"{self.run_id}: a result without a call: {message}"
            calls = self._check_response(message)
            for place, call in enumerate(calls):
                assert self.left, f"{self.run_id}: {call} has no result"
                self._check_result(f"{self.run_id}.s{len(self.counts) - 1}.c{place}", call, self.left.pop(0))
        assert not calls, f"{self.run_id} is half a turn"

    def _check_response(self, message: dict[str, Any]) -> list[Planned]:
        self.counts.append(len(self.texts))
        text, number = place_of(self.texts, self.counts, len(self.counts) - 1)
        calls = calls_at(text, number)
        said = [(call["id"], call["name"], call["arguments"]) for call in message.get("tool_calls", ())]
        assert said == [(call.id, call.tool, {"what": call.id}) for call in calls], f"{self.run_id}: {said}"
        assert message.get("content", "") == said_at(text, number), f"{self.run_id}: {message}"
        return calls

    def _check_result(self, key: str, call: Planned, message: dict[str, Any]) -> None:
        assert (message["role"], message.get("tool_call_id")) == ("tool", call.id), f"{key}: {message}"
        allowed = self._allowed(key, call)
        said = message["content"]
        assert said in allowed, f"{key} has the result {said!r}, not one of {allowed}"
        ran = {effect.what for effect in self.ledger.world.effects if effect.key == key}
        if said.startswith(f"{call.tool} "):
            assert ran == {said.removeprefix(f"{call.tool} ")}, f"{key} says {said!r}, and ran with {ran}"
        elif said == NOT_RUN or (call.kind.gated and "outcome" not in said):
            assert not ran, f"{key} says {said!r}, and ran with {ran}"

    def _allowed(self, key: str, call: Planned) -> list[str]:
        """Return what the result of a call may say."""
        allowed: list[str] = []
        gate = self.ledger.approvals.get(key)
        if self.run_id in self.ledger.steered:
            allowed.append(NOT_RUN)
        if call.kind.gated and gate is not None and gate.status != "approved":
            return [*allowed, _refusal(gate)]
        if call.kind.gated and gate is None:
            return allowed
        what = call.id if gate is None else arguments_of(gate)["what"]
        allowed.append("RuntimeError: boom" if call.kind.raises == "error" else f"{call.tool} {what}")
        if key in self.ledger.doubtful and call.kind.in_doubt == "fail":
            starts = range(1, 20)
            allowed += [
                f"whether attempt {n} of this call had an effect is not known, and it was not repeated" for n in starts
            ]
        questions = [one for one in self.ledger.approvals.values() if one.id.startswith(f"{key}.d")]
        return allowed + [_refusal(one) for one in questions if one.status != "approved"]


def _refusal(approval: Approval) -> str:
    """Return what the model is told of a call that nobody has approved."""
    decision = approval.decision
    status = approval.status
    if status == "rejected" and decision is not None and decision.decided_by == "expiry":
        status = "expired"
    said: dict[str, Any] = {"status": status, "tool": approval.tool_name}
    if approval.kind == "in-doubt":
        said["outcome"] = "unknown; the call was not repeated"
    if decision is not None and decision.note is not None:
        said["note"] = decision.note
    return json.dumps(said)
