"""A report as JUnit XML, as CI servers read it."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from perdure_conformance.reports.model import LawData, Report
from perdure_conformance.runner import Outcome

_FORBIDDEN = re.compile(r"[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold, in any spelling."""


def junit_xml(report: Report) -> str:
    """Return a report as JUnit XML: one suite, one case for each law, and what the check was as properties.

    Laws that were not claimed, not run or excused are skipped ones. A check that is no pass although no law failed (nothing
    was run, the time was over) is an error.
    """
    suites = ET.Element("testsuites", name="perdure-conformance")
    suite = ET.SubElement(suites, "testsuite", name=_clean(f"perdure-conformance on {report.target}"))
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report):
        ET.SubElement(properties, "property", name=name, value=_clean(value))
    for law in report.laws:
        _add(suite, law)
    if report.exit_code and not report.errors:
        case = ET.SubElement(suite, "testcase", classname="perdure-conformance", name="check", time="0")
        ET.SubElement(case, "error", message=str(report.verdict))
    cases = suite.findall("testcase")
    for name, count in {
        "tests": len(cases),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }.items():
        suite.set(name, str(count))
    suite.set("time", f"{report.seconds:.3f}")
    suite.set("timestamp", report.started_at.isoformat(timespec="seconds"))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _properties(report: Report) -> list[tuple[str, str]]:
    found = [
        ("target", report.target),
        ("verdict", str(report.verdict)),
        ("kit", report.versions.kit),
        ("perdure", report.versions.perdure),
        ("contract", str(report.versions.contract)),
        ("python", report.versions.python),
        ("profile", report.profile.name),
        ("seeds", " ".join(map(str, report.profile.seeds))),
    ]
    found += [(f"level.{level.name}", str(level.standing)) for level in report.levels]
    return [*found, *(("not tested", line) for line in report.not_tested)]


def _add(suite: ET.Element, law: LawData) -> None:
    case = ET.SubElement(suite, "testcase", classname=f"laws.{law.area}", name=law.id, time=f"{law.seconds:.3f}")
    if law.is_error:
        message = law.excuse.problem if law.excuse is not None else law.message
        failure = ET.SubElement(case, "failure", message=_clean(message))
        failure.text = _clean(_details(law))
    elif law.excuse is not None and law.outcome is Outcome.FAILED:
        ET.SubElement(case, "skipped", message=_clean(f"known failure: {law.excuse.reason}"))
    elif law.outcome is not Outcome.PASSED:
        ET.SubElement(case, "skipped", message=_clean(f"{law.outcome}: {law.message}"))


def _details(law: LawData) -> str:
    lines = [law.sentence, law.message]
    if law.failure is not None:
        lines += [
            law.failure.why,
            *(f"{call.text}\n  -> {call.answer}" for call in law.failure.calls),
            law.failure.replay,
        ]
    return "\n".join(lines)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)
