"""What the stores hold, read plainly: no part of the runtime is asked what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.backend import JournalStores
from perdure.contracts.approvals import Approval
from perdure.contracts.checkpoints import Checkpoint
from perdure.contracts.sessions import Transcript

SESSION: Final = "s"
RUN: Final = "r.run"
"""The journal of the one run without a session."""
SUMMARY: Final = "sum: "
"""What the text of a summary begins with."""
CLAIMS: Final = ("discarding", "clearing", "compacting", "deleting", "copying")


@dataclass(frozen=True)
class State:
    """A conversation as far as promises go.

    Attributes:
        exists: Whether there is a transcript.
        summed: The inputs that a summary stands for.
        turns: The inputs of each turn in the transcript.
        open: The inputs in the turn journal, in order.
        claim: What is being done to the conversation as a whole.
        finished: Whether the open turn has ended and is to be saved.
    """

    exists: bool = False
    summed: tuple[str, ...] = ()
    turns: tuple[tuple[str, ...], ...] = ()
    open: tuple[str, ...] = ()
    claim: str | None = None
    finished: bool = False

    def has(self, name: str) -> bool:
        """Whether an input is part of a turn that has ended."""
        return name in self.summed or any(name in turn for turn in self.turns)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is half done."""
        return self.claim is None and not self.finished


@dataclass
class CallSeen:
    """What the journal says of a call.

    Attributes:
        stale: How often it was started before the turn was taken up the last time.
    """

    tool: str
    arguments: dict[str, Any]
    starts: int = 0
    stale: int = 0
    failures: int = 0
    answered: bool = False
    applied: set[str] = field(default_factory=set)


@dataclass
class StepSeen:
    """What the journal says of a response."""

    inputs: int
    calls: list[CallSeen]


@dataclass
class TurnSeen:
    """What the journal says of the open turn."""

    run_id: str
    texts: list[str]
    steps: list[StepSeen] = field(default_factory=list)
    steered: set[int] = field(default_factory=set)
    status: str = "in-progress"
    failed: bool = False
    waits_for: tuple[str, ...] = ()
    saved: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(text.partition(":")[0] for text in self.texts)

    @property
    def is_unknowable(self) -> bool:
        """Whether nobody can tell what became of a call, and the turn can only be dropped."""
        calls = self.steps[-1].calls if self.steps else []
        return any(call.tool == "pay" and call.starts > call.failures and not call.answered for call in calls)

    @property
    def taken(self) -> int:
        """How many of its inputs a response has followed; the first is always one."""
        return self.steps[-1].inputs if self.steps else 1


@dataclass(frozen=True)
class Seen:
    """All that the stores hold of the conversation."""

    transcript: Transcript | None
    journal: Checkpoint | None
    approvals: dict[str, Approval]
    sessions: tuple[str, ...]
    archives: tuple[str, ...]
    state: State
    turn: TurnSeen | None

    @property
    def owner(self) -> str | None:
        """Who owns the turn journal."""
        return None if self.journal is None else self.journal.head.owner

    @property
    def is_void(self) -> bool:
        """Whether a clearing that was cut short cannot be gone on with: the transcript has another version by now."""
        if self.journal is None or self.transcript is None or self.state.claim != "clearing":
            return False
        named = [entry["session_version"] for entry in self.journal.entries if entry["kind"] == "claim"][-1]
        return bool(self.transcript.rewritten <= named != self.transcript.version)

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        """The records of the turns in the transcript."""
        records = () if self.transcript is None else self.transcript.records
        return [record for record in records if record["kind"] == "message"]

    @property
    def summary(self) -> dict[str, Any] | None:
        """The record of the summary that the transcript begins with."""
        records = () if self.transcript is None else self.transcript.records
        return records[0] if records and records[0]["kind"] == "summary" else None


async def observe_run(stores: JournalStores) -> Seen:
    """Read what there is of the run without a session."""
    journal = await stores.checkpoints.load(RUN)
    turn = None if journal is None else _turn(journal)
    listed = () if turn is None else (await stores.approvals.list(run_id=turn.run_id)).items
    return Seen(None, journal, {one.id: one for one in listed}, (), (), _state(None, journal, turn), turn)


async def observe(stores: JournalStores) -> Seen:
    """Read everything of the conversation."""
    transcript = await stores.sessions.load(SESSION)
    journal = await stores.checkpoints.load(SESSION)
    approvals = {approval.id: approval for approval in (await stores.approvals.list(session_id=SESSION)).items}
    turn = None if journal is None else _turn(journal)
    records = () if transcript is None else transcript.records
    if turn is not None:
        turn.saved = any(record.get("run_id") == turn.run_id for record in records)
    chain = await _archives(stores, transcript)
    sessions = tuple(info.session_id for info in (await stores.sessions.list()).items)
    return Seen(transcript, journal, approvals, sessions, chain, _state(transcript, journal, turn), turn)


async def _archives(stores: JournalStores, transcript: Transcript | None) -> tuple[str, ...]:
    """Follow the archives that summaries name, the newest first."""
    names: list[str] = []
    while transcript is not None and transcript.records and "archive" in transcript.records[0]:
        names.append(transcript.records[0]["archive"])
        transcript = await stores.sessions.load(names[-1])
    return tuple(names)


def _state(transcript: Transcript | None, journal: Checkpoint | None, turn: TurnSeen | None) -> State:
    turns: dict[str, list[str]] = {}
    summed: tuple[str, ...] = ()
    for record in () if transcript is None else transcript.records:
        if record["kind"] == "summary":
            summed = summed_by(record["message"]["content"])
            continue
        names = turns.setdefault(record["run_id"], [])
        if record["message"]["role"] == "user":
            names.append(record["input_id"])
    status = "idle" if journal is None else journal.head.status
    return State(
        exists=transcript is not None,
        summed=summed,
        turns=tuple(map(tuple, turns.values())),
        open=() if turn is None else turn.names,
        claim=status if status in CLAIMS else None,
        finished=turn is not None and turn.status == "finished",
    )


def _turn(journal: Checkpoint) -> TurnSeen | None:
    if not any(entry["kind"] == "input" for entry in journal.entries):
        return None
    head = journal.head
    turn = TurnSeen(head.run_id or "", [], status=head.status, failed=head.failed, waits_for=tuple(head.approval_ids))
    for entry in journal.entries:
        _read(turn, entry)
    if head.status not in CLAIMS:
        turn.status = head.status
    return turn


def _read(turn: TurnSeen, entry: dict[str, Any]) -> None:
    kind = entry["kind"]
    if kind in ("input", "input-queued"):
        if entry.get("steer"):
            turn.steered.add(len(turn.texts))
        turn.texts.append(entry["messages"][0]["content"])
    elif kind == "model":
        calls = [CallSeen(call["name"], call["arguments"]) for call in entry["message"].get("tool_calls", ())]
        turn.steps.append(StepSeen(entry["inputs"], calls))
    elif kind == "resumed":
        for call in (call for step in turn.steps for call in step.calls):
            call.stale = call.starts
    elif kind == "claim":
        turn.status = entry["was"]
    elif kind in ("tool-started", "tool-failed", "tool", "approval-applied"):
        _note(turn.steps[entry["step"]].calls[entry["call"]], kind, entry)


def _note(call: CallSeen, kind: str, entry: dict[str, Any]) -> None:
    call.starts += kind == "tool-started"
    call.failures += kind == "tool-failed"
    call.answered = call.answered or kind == "tool"
    if kind == "approval-applied":
        call.applied.add(entry["approval_id"])


def summed_by(text: str) -> tuple[str, ...]:
    """Return the inputs that a summary stands for."""
    return tuple(text.removeprefix(SUMMARY).split())


def fresh(texts: Sequence[str]) -> TurnSeen:
    """Return a turn of which nothing but its inputs is recorded."""
    return TurnSeen("", list(texts))
