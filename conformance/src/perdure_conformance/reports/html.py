"""A report as one HTML file: no script, no font, no picture, nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from itertools import groupby

from perdure_conformance.levels import PARTS
from perdure_conformance.reports.causes import Cause, common_causes
from perdure_conformance.reports.model import CallData, LawData, Report
from perdure_conformance.runner import Outcome

MARKS = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_CLAIMED: "·", Outcome.NOT_RUN: "?"}
"""How the matrix shows an outcome, beside its colour."""

FAILURES, LAWS = "failures", "laws"
"""The places in the page that the counts lead to."""

WHOLE = "together"
"""The column of laws about all stores together."""


def html_page(report: Report) -> str:
    """Return a report as an HTML page: verdict, levels, failures, the matrix of capabilities and laws, what was not tested."""
    style = files("perdure_conformance.reports").joinpath("report.css").read_text(encoding="utf-8")
    title = f"perdure-conformance: {report.target}"
    body = "\n".join(
        [
            *_head(report),
            *_levels(report),
            *_capabilities(report),
            *_failures(report),
            *_matrix(report),
            *_not_tested(report),
            *_how(report),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> Iterator[str]:
    yield f"<h1><code>{escape(report.target)}</code></h1>"
    yield f'<p class="verdict {_class(report.verdict)}">{escape(report.verdict)}</p>'
    counts = (
        f'<li class="{_class(outcome)}"><a href="#{_place_of(report, outcome)}">'
        f"<b>{report.count(outcome)}</b> {escape(outcome)}</a></li>"
        for outcome in Outcome
    )
    yield f'<ul class="counts">{"".join(counts)}</ul>'


def _place_of(report: Report, outcome: Outcome) -> str:
    """Return where in the page laws that ended so are."""
    return FAILURES if outcome is Outcome.FAILED and report.count(outcome) else LAWS


def _levels(report: Report) -> Iterator[str]:
    yield "<h2>Levels</h2>"
    yield "<table><thead><tr><th>level</th><th>standing</th><th>laws</th><th>what it means, or why not</th></tr></thead><tbody>"
    for level in report.levels:
        laws = f"{level.passed} of {level.laws}" if level.laws else ""
        cells = (
            f"<th>{escape(level.name)}</th>"
            f'<td class="{_class(level.standing)}">{escape(level.standing)}</td>'
            f'<td class="laws">{laws}</td><td>{escape(level.why or level.meaning)}</td>'
        )
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table>"


def _capabilities(report: Report) -> Iterator[str]:
    if not report.capabilities:
        return
    names = list(next(iter(report.capabilities.values())))
    yield "<h2>Declared capabilities, and whether their laws held</h2>"
    yield f"<table><thead><tr><th>store</th>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr></thead><tbody>"
    for part, declared in report.capabilities.items():
        cells = "".join(_capability(report, part, name, declared[name]) for name in names)
        yield f"<tr><th>{escape(part)}</th>{cells}</tr>"
    yield "</tbody></table>"


def _capability(report: Report, part: str, name: str, declared: bool) -> str:
    """Return the cell of one capability: what is declared, and how the laws that it switches on ended."""
    if not declared:
        return '<td class="not-claimed">·</td>'
    laws = [law for law in report.laws if name in law.needs and part in law.parts]
    passed = sum(law.outcome is Outcome.PASSED for law in laws)
    tried = sum(law.outcome in (Outcome.PASSED, Outcome.FAILED) for law in laws)
    outcome = Outcome.NOT_RUN if not tried else Outcome.PASSED if passed == tried else Outcome.FAILED
    return f'<td class="{_class(outcome)}">declared, {passed} of {tried} laws held</td>'


def _failures(report: Report) -> Iterator[str]:
    failed = [law for law in report.laws if law.failure is not None or law.is_error]
    if not failed:
        return
    yield f'<h2 id="{FAILURES}">Failures ({len(failed)})</h2>'
    causes = common_causes(failed)
    if causes:
        yield f"<p><b>One cause, many failures</b></p><ul>{''.join(map(_cause, causes))}</ul>"
    for law in failed:
        yield from _failure(law)


def _cause(cause: Cause) -> str:
    link = f'<a href="#{escape(cause.first)}">{escape(cause.first)}</a>'
    return f"<li>{len(cause.laws)} laws: <code>{escape(cause.problem)}</code>; begin with {link}</li>"


def _failure(law: LawData) -> Iterator[str]:
    yield f'<section class="failure" id="{escape(law.id)}"><h3>{escape(law.id)}</h3>'
    yield f"<p>{_prose(law.sentence)}</p>"
    if law.excuse is not None:
        excuse = law.excuse.problem or f"known until {law.excuse.expires.isoformat()}"
        yield f'<p class="excuse">{escape(excuse)}: {escape(law.excuse.reason)} ({escape(law.excuse.link)})</p>'
    failure = law.failure
    if failure is not None:
        yield '<table class="compared"><tbody>'
        rows = [
            ("looked at", failure.what),
            ("at", failure.where),
            ("expected", failure.expected),
            ("got", failure.got),
        ]
        for name, text in rows:
            if text:
                yield f'<tr class="{name.replace(" ", "-")}"><th>{name}</th><td><code>{escape(text)}</code></td></tr>'
        yield "</tbody></table>"
        yield f"<p><b>Why it matters.</b> {_prose(failure.why)}</p>"
        if failure.case is not None:
            yield f"<p><b>Drawn case</b> <code>{escape(failure.case)}</code></p>"
        yield from _calls(failure.calls, failure.calls_left_out)
        yield f"<p><b>Replay</b> <code>{escape(failure.replay)}</code></p>"
        if failure.test is not None:
            yield f"<details><summary>A test module that fails in the same way</summary><pre>{escape(failure.test)}</pre></details>"
    yield "</section>"


def _calls(calls: Iterable[CallData], left_out: int) -> Iterator[str]:
    yield '<p><b>Store calls</b></p><ol class="calls">'
    if left_out:
        yield f'<li class="left-out">{left_out} calls before these</li>'
    for call in calls:
        yield f"<li><code>{escape(call.text)}</code><br><code>→ {escape(call.answer)}</code></li>"
    yield "</ol>"


def _matrix(report: Report) -> Iterator[str]:
    columns = [*PARTS, WHOLE]
    yield f'<h2 id="{LAWS}">Laws</h2>'
    legend = ", ".join(f'<span class="{_class(outcome)}">{mark} {outcome}</span>' for outcome, mark in MARKS.items())
    yield f"<p>{legend}</p>"
    heads = "".join(f"<th>{name}</th>" for name in columns)
    yield f'<table class="matrix"><thead><tr><th>law</th><th>needs</th>{heads}</tr></thead>'
    for area, members in groupby(report.laws, key=lambda law: law.area):
        yield f'<tbody><tr><th class="area" colspan="{len(columns) + 2}">{escape(area.replace("_", " "))}</th></tr>'
        yield from _rows(list(members))
        yield "</tbody>"
    yield "</table>"


def _rows(laws: list[LawData]) -> Iterator[str]:
    """Return one row for the laws that are one promise of several stores."""
    by_name: dict[str, dict[str, LawData]] = {}
    for law in laws:
        column = law.parts[0] if len(law.parts) == 1 else WHOLE
        by_name.setdefault(law.id.removeprefix(f"{column}-"), {})[column] = law
    for name, members in by_name.items():
        first = next(iter(members.values()))
        cells = "".join(_cell(members.get(column)) for column in (*PARTS, WHOLE))
        sentence = f"<small>{_prose(first.sentence)}</small>"
        yield f"<tr><td>{escape(name)}<br>{sentence}</td><td>{escape(', '.join(first.needs))}</td>{cells}</tr>"


def _cell(law: LawData | None) -> str:
    if law is None:
        return "<td></td>"
    remarks = [law.message, f"at {law.tried} of {law.points} points" if law.points else ""]
    mark, said = MARKS[law.outcome], ", ".join([f"{law.id}: {law.outcome}", *filter(None, remarks)])
    shown = f'<a href="#{escape(law.id)}">{mark}</a>' if law.failure is not None else mark
    return f'<td class="{_class(law.outcome)}" title="{escape(said)}">{shown}</td>'


def _not_tested(report: Report) -> Iterator[str]:
    if report.not_tested:
        yield "<h2>Not tested</h2>"
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in report.not_tested)}</ul>"


def _how(report: Report) -> Iterator[str]:
    versions, profile = report.versions, report.profile
    seeds = ", ".join(map(str, profile.seeds))
    how = f"{profile.rounds} rounds, {profile.examples} examples, {profile.points or 'all'} points of a sweep"
    rows = (
        ("kit", f"perdure-conformance {versions.kit}"),
        ("contract", f"{versions.contract}, of perdure {versions.perdure}"),
        ("Python", versions.python),
        ("profile", f"{profile.name}: {how}, {profile.max_time:g} s at most"),
        ("seeds", seeds),
        ("began", report.started_at.isoformat(timespec="seconds")),
        ("took", f"{report.seconds:.1f} s"),
    )
    yield "<h2>How it was tested</h2><table><tbody>"
    yield from (f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    yield "</tbody></table>"


def _class(word: str) -> str:
    return word.replace(" ", "-")


def _prose(text: str) -> str:
    """Return a sentence with what stands in backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
