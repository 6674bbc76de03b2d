"""How a law failed, as data: the calls, what was expected, why it matters, and how to try it again."""

from __future__ import annotations

import shlex

from perdure_conformance.recording import shown
from perdure_conformance.reports.model import CallData, FailureData, taken_apart
from perdure_conformance.resolve import Named
from perdure_conformance.runner import Verdict
from perdure_conformance.standalone import written_test
from perdure_conformance.why import why_it_matters

CASE_SHOWN = 2000
"""About how many characters of a drawn case are shown."""


def failure_data(named: Named, verdict: Verdict, seed: int, replay: str) -> FailureData:
    """Return how a law failed.

    Args:
        named: The store under test.
        verdict: The failure.
        seed: The seed of its round.
        replay: The command that tries it again.
    """
    what, where, expected, got = taken_apart(verdict.message)
    trace = verdict.trace
    calls = tuple(CallData(text=call.text, answer=call.answer or "did not answer") for call in trace.calls)
    return FailureData(
        what=what,
        where=where,
        expected=expected,
        got=got,
        why=why_it_matters(verdict.law),
        case=shown(trace.case[0], CASE_SHOWN) if trace.case else None,
        calls=calls,
        calls_left_out=trace.left_out,
        seed=seed,
        replay=replay,
        test=_test(named, verdict),
    )


def replay_command(target: str, law: str | None, profile: str, seed: int) -> str:
    """Return the command that tries one law again as it was tried; `None` for the opening, which comes before each."""
    words = ["perdure-conformance", "check", target, *(() if law is None else ("--only", law))]
    return shlex.join([*words, "--profile", profile, "--seed", str(seed)])


def _test(named: Named, verdict: Verdict) -> str | None:
    try:
        return written_test(named, verdict)
    except Exception:  # noqa: BLE001  # reason: whatever is wrong with the test, the failure is to be told
        return None
