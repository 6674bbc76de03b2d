"""What must hold after the demo. Each figure is computed from what the processes read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perdure.cli.demo.reading import OLD_SESSION, SESSION, Reading, Report
from perdure.cli.demo.tools import CALLS, EFFECTS


@dataclass(frozen=True)
class Story:
    """The four processes of the demo.

    Attributes:
        ended_by: How the first process ended: the name of a signal, or its exit code.
        started: What the process that was killed had told until then.
        resumed: What the second process tells.
        answered: What the third process tells.
        pruned: What the fourth process tells.
    """

    ended_by: str
    started: Report
    resumed: Report
    answered: Report
    pruned: Report


@dataclass(frozen=True)
class Check:
    """One thing that must hold.

    Attributes:
        claim: What must hold.
        read: What was read.
        holds: Whether it does.
    """

    claim: str
    read: str
    holds: bool


def checks(story: Story) -> list[Check]:
    """Look at a story, and say of each claim whether it holds."""
    return [*_crash(story), *_effects(story.pruned.found), *_end(story.pruned.found), *_prune(story.pruned)]


def _crash(story: Story) -> Iterator[Check]:
    found = story.resumed.found
    answered = [name for name, answered in found.calls if answered]
    yield Check("process 1 was killed", story.ended_by, story.ended_by == "SIGKILL")
    yield Check(
        "in the middle of its turn",
        f"{found.status}, {len(answered)} of {len(found.calls)} results stored",
        found.status == "in-progress" and answered == ["reserve_stock"] and len(found.calls) == len(CALLS),
    )
    waited = story.resumed.left
    yield Check(
        "process 2 stopped at the approval",
        f"{waited.status}, {len(waited.undecided)} undecided, {len(waited.effects['transfer_money'])} transferred",
        (waited.status, len(waited.undecided), waited.effects["transfer_money"]) == ("awaiting-approval", 1, []),
    )
    requests = [report.model_requests for report in (story.started, story.resumed, story.answered)]
    yield Check(
        "no response was asked for again",
        f"model requests of processes 1, 2, 3: {', '.join(map(str, requests))}",
        requests == [1, 0, 1],
    )


def _effects(last: Reading) -> Iterator[Check]:
    for tool, effect in EFFECTS.items():
        pids = last.effects[tool]
        read = f"{len(pids)} (by {_listed(pids)})"
        if tool == "charge_card":
            read += f"; asked for by {_listed(last.charge_requests)} with one key"
        yield Check(f"{effect} exactly once", read, len(pids) == 1)


def _end(last: Reading) -> Iterator[Check]:
    asked = [call["id"] for message in last.messages for call in message.get("tool_calls", ())]
    answers = [message["tool_call_id"] for message in last.messages if message["role"] == "tool"]
    roles = [message["role"] for message in last.messages]
    failed = sum(message.get("is_error", False) for message in last.messages)
    yield Check(
        "the transcript has the turn once",
        f"{len(last.messages)} messages, {len(asked)} calls, {len(answers)} results, {failed} of them errors",
        roles == ["user", "assistant", *["tool"] * len(CALLS), "assistant"]
        and asked == answers == [call.id for call in CALLS]
        and not failed,
    )
    yield Check(
        "nothing is pending",
        f"turn journal {last.status}, {len(last.undecided)} approvals undecided",
        last.status == "idle" and not last.undecided,
    )


def _prune(report: Report) -> Iterator[Check]:
    before = list(report.found.sessions)
    yield Check(
        "prune's dry run removed nothing",
        f"named {_listed(report.would_prune)}; still there: {_listed(report.after_dry_run)}",
        list(report.would_prune) == [OLD_SESSION] and list(report.after_dry_run) == before == [OLD_SESSION, SESSION],
    )
    yield Check(
        "prune removed what is old, and no more",
        f"removed {_listed(report.pruned)}; still there: {_listed(report.left.sessions)}",
        list(report.pruned) == [OLD_SESSION] and list(report.left.sessions) == [SESSION],
    )


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items)) or "none"
