"""Write reports to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure_conformance.reports.model import LawData, Report


def json_text(report: Report) -> str:
    """Return a report as JSON."""
    return report.model_dump_json(indent=2) + "\n"


def write_reports(
    report: Report,
    *,
    json: Path | None = None,
    junit: Path | None = None,
    html: Path | None = None,
    badge: Path | None = None,
    tests: Path | None = None,
) -> list[Path]:
    """Write a report in each form that has a file, and return what was written.

    Raises:
        OSError: A file could not be written.
    """
    from perdure_conformance.reports.badge import badge_svg
    from perdure_conformance.reports.html import html_page
    from perdure_conformance.reports.junit import junit_xml

    forms: list[tuple[Path | None, Callable[[Report], str]]] = [
        (json, json_text),
        (junit, junit_xml),
        (html, html_page),
        (badge, badge_svg),
    ]
    written: list[Path] = []
    for file, form in forms:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(form(report), encoding="utf-8")
            written.append(file)
    if tests is not None:
        for law in report.laws:
            written += _write_case(tests, report, law)
    return written


def _write_case(folder: Path, report: Report, law: LawData) -> list[Path]:
    """Write what is left of a failure: a case for `replay`, and a test module if there is one."""
    if law.failure is None:
        return []
    from perdure_conformance.replay import Case

    folder.mkdir(parents=True, exist_ok=True)
    case = folder / f"{law.id}.json"
    case.write_text(Case.of(report, law).model_dump_json(indent=2) + "\n", encoding="utf-8")
    if law.failure.test is None:
        return [case]
    test = folder / f"test_{law.id.replace('-', '_')}.py"
    test.write_text(law.failure.test, encoding="utf-8")
    return [case, test]
