"""A report as text: what the terminal shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from perdure_conformance.reports.causes import common_causes
from perdure_conformance.reports.model import LawData, Report
from perdure_conformance.runner import Outcome
from perdure_conformance.why import why_it_matters

if TYPE_CHECKING:
    from perdure_conformance.runner import Verdict

CALLS_SHOWN = 12
"""How many calls of a failure the terminal shows, the last ones; the other reports show all that were kept."""


def report_text(report: Report, *, every_law: bool = False) -> str:
    """Return a report as text.

    Args:
        report: The report.
        every_law: Show each law with what became of it, not only the failures and the counts.
    """
    blocks = [
        _heading(report),
        *(_failed(law) for law in report.laws if law.failure is not None),
        section("one cause, many failures", [(str(cause),) for cause in common_causes(report.laws)]),
        *(_excuse_problem(law) for law in report.laws if law.excuse is not None and law.excuse.problem),
        _every_law(report.laws) if every_law else _areas(report.laws),
        _left(report.laws, Outcome.NOT_CLAIMED),
        _left(report.laws, Outcome.NOT_RUN),
        _capabilities(report),
        _levels(report),
        section("not tested", [(line,) for line in report.not_tested]),
        _end(report),
    ]
    return "\n\n".join(block for block in blocks if block)


def failure_text(verdict: Verdict, replay: str) -> str:
    """Return how one law failed, as text.

    Args:
        verdict: The failure.
        replay: The command that tries it again.
    """
    calls = [(call.text, call.answer or "did not answer") for call in verdict.trace.calls]
    law = verdict.law
    return _told(law.id, law.sentence, verdict.message, why_it_matters(law), calls, verdict.trace.left_out, replay)


def _heading(report: Report) -> str:
    versions, profile = report.versions, report.profile
    seeds = ", ".join(map(str, profile.seeds[:3])) + (", ..." if len(profile.seeds) > 3 else "")
    return (
        f"perdure-conformance {versions.kit} on {report.target}\n"
        f"perdure {versions.perdure}, contract {versions.contract}, Python {versions.python}; profile {profile.name}: "
        f"{profile.rounds} round{'s'[: profile.rounds != 1]}, {profile.examples} examples, "
        f"{profile.points or 'all'} points of a sweep, seed {seeds}"
    )


def _failed(law: LawData) -> str:
    assert law.failure is not None
    failure = law.failure
    calls = [(call.text, call.answer) for call in failure.calls]
    text = _told(law.id, law.sentence, law.message, failure.why, calls, failure.calls_left_out, failure.replay)
    if law.excuse is not None and not law.excuse.problem:
        text += f"\n  known:    {law.excuse.reason} ({law.excuse.link}), until {law.excuse.expires.isoformat()}"
    return text


def _told(
    law: str, sentence: str, message: str, why: str, calls: Sequence[tuple[str, str]], left_out: int, replay: str
) -> str:
    lines = [f"FAILED {law}", f"  law:      {sentence}", f"  failed:   {_indented(message)}", f"  why:      {why}"]
    if calls:
        lines.append("  calls:")
        hidden = left_out + max(len(calls) - CALLS_SHOWN, 0)
        if hidden:
            lines.append(f"    ... {hidden} calls before these")
        lines += [f"    {text}\n      -> {answer}" for text, answer in calls[-CALLS_SHOWN:]]
    return "\n".join([*lines, f"  replay:   {replay}"])


def _indented(text: str) -> str:
    return text.replace("\n", "\n            ")


def _excuse_problem(law: LawData) -> str:
    assert law.excuse is not None
    return f"KNOWN FAILURE {law.id}\n  {law.excuse.problem} ({law.excuse.reason}, {law.excuse.link})"


def _every_law(laws: Iterable[LawData]) -> str:
    return section("laws", [(law.id, str(law.outcome), _remark(law)) for law in laws])


def _remark(law: LawData) -> str:
    """Say why a law did not pass, or at how many of its stopping points one did."""
    return law.message.partition("\n")[0] or (f"at {law.tried} of {law.points} points" if law.points else "")


def _areas(laws: Iterable[LawData]) -> str:
    counts: dict[str, dict[Outcome, int]] = defaultdict(lambda: dict.fromkeys(Outcome, 0))
    for law in laws:
        counts[law.area.replace("_", " ")][law.outcome] += 1
    rows = [("", *map(str, Outcome))]
    rows += [(area, *(str(count or "-") for count in counted.values())) for area, counted in counts.items()]
    return section("laws by area", rows)


def _left(laws: Iterable[LawData], outcome: Outcome) -> str:
    """Say which laws ended without being tried, by the reason."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for law in laws:
        if law.outcome is outcome:
            reasons[law.message].append(law.id)
    rows = [(f"{len(names)} law{'s'[: len(names) != 1]}", reason) for reason, names in reasons.items()]
    return section(str(outcome), rows)


def _capabilities(report: Report) -> str:
    if not report.capabilities:
        return ""
    names = list(next(iter(report.capabilities.values())))
    rows = [("", *names)]
    rows += [
        (part, *("yes" if declared[name] else "no" for name in names)) for part, declared in report.capabilities.items()
    ]
    return section("declared capabilities", rows)


def _levels(report: Report) -> str:
    rows = []
    for level in report.levels:
        laws = f"{level.passed} of {level.laws} laws" if level.laws else ""
        rows.append((level.name, str(level.standing), "; ".join(filter(None, (laws, level.why)))))
    return section("levels", rows)


def _end(report: Report) -> str:
    counts = ", ".join(f"{report.count(outcome)} {outcome}" for outcome in Outcome)
    return (
        f"{len(report.laws)} law{'s'[: len(report.laws) != 1]}: {counts}, in {report.seconds:.1f} s\n{report.verdict}"
    )


def section(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns under a title; nothing if there is no row."""
    return "\n".join([title, *_columns(rows)]) if rows else ""


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
