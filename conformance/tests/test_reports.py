"""Reports: the JSON, JUnit, HTML and badge of one check, and what each says."""

import json
import re
import xml.etree.ElementTree as ET
from datetime import date, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conformance.tests import planted

from perdure_conformance import checks
from perdure_conformance.checking import Check, Plan
from perdure_conformance.known_failures import KnownFailure
from perdure_conformance.profiles import PROFILES
from perdure_conformance.reports.badge import badge_svg, badge_text
from perdure_conformance.reports.causes import common_causes
from perdure_conformance.reports.files import json_text, write_reports
from perdure_conformance.reports.html import html_page
from perdure_conformance.reports.junit import junit_xml
from perdure_conformance.reports.model import SCHEMA, LawData, LevelData, Report, Verdict, taken_apart
from perdure_conformance.reports.text import report_text
from perdure_conformance.resolve import Named
from perdure_conformance.target import Target

BROKEN_LAW = "sessions-append-refuses-another-version"
LAWS = [BROKEN_LAW, "sessions-write-adds-one", "sessions-append-survives-kill", "sessions-forked-child-is-refused"]


def checked(target: Target, *laws: str, **more: Any) -> Report:
    named = Named(f"conformance.tests.planted:{target.name.upper()}", target)
    return Check(Plan(named, PROFILES["quick"], only=laws or LAWS, **more)).run()


@pytest.fixture(scope="module")
def failed() -> Report:
    return checked(planted.BROKEN)


@pytest.fixture(scope="module")
def held() -> Report:
    return checked(planted.RIGHT)


# --- JSON ---


def shape(schema: Any) -> Any:
    """Return the fields of a JSON schema with their types, and which are required."""
    found = {"Report": schema, **schema["$defs"]}
    return {name: sorted(part.get("properties", part.get("enum", ()))) for name, part in found.items()}


def test_the_json_has_the_fields_of_its_version() -> None:
    assert SCHEMA == "perdure-conformance-report/1"
    assert shape(Report.model_json_schema()) == {
        "Report": sorted(
            [
                "schema_version",
                "target",
                "verdict",
                "exit_code",
                "versions",
                "profile",
                "started_at",
                "seconds",
                "capabilities",
                "levels",
                "not_tested",
                "laws",
            ]
        ),
        "Versions": ["contract", "kit", "perdure", "python"],
        "ProfileData": ["examples", "max_time", "name", "points", "rounds", "seeds"],
        "LevelData": ["laws", "meaning", "name", "passed", "standing", "why"],
        "LawData": sorted(
            [
                "id",
                "sentence",
                "area",
                "parts",
                "needs",
                "promise",
                "since",
                "outcome",
                "message",
                "rounds",
                "seconds",
                "tried",
                "points",
                "excuse",
                "failure",
            ]
        ),
        "FailureData": sorted(
            ["what", "where", "expected", "got", "why", "case", "calls", "calls_left_out", "seed", "replay", "test"]
        ),
        "CallData": ["answer", "text"],
        "ExcuseData": ["expires", "link", "problem", "reason"],
        "Outcome": ["failed", "not claimed", "not run", "passed"],
        "Standing": ["granted", "not claimed", "not tested", "refused"],
        "Verdict": ["cut", "failed", "held", "nothing was run", "the opener failed"],
    }


def test_the_json_is_read_back_as_it_was_written(failed: Report) -> None:
    assert Report.model_validate_json(json_text(failed)) == failed
    assert json.loads(json_text(failed))["schema_version"] == SCHEMA


def test_every_law_has_its_outcome(failed: Report) -> None:
    outcomes = {law.id: (str(law.outcome), law.message) for law in failed.laws}
    assert outcomes[LAWS[1]] == ("passed", "")
    assert outcomes[LAWS[2]] == ("not claimed", "sessions does not declare durable")
    assert outcomes[LAWS[3]][0] == "not run"
    assert outcomes[BROKEN_LAW][0] == "failed"
    assert (failed.verdict, failed.exit_code) == (Verdict.FAILED, 1)


def test_a_failure_tells_calls_values_and_why(failed: Report) -> None:
    failure = next(law.failure for law in failed.laws if law.id == BROKEN_LAW)
    assert failure is not None
    assert (failure.expected, failure.got[:17]) == ("VersionConflictError", "the call answered")
    assert [call.text for call in failure.calls] == [
        "store = open()",
        "store.sessions.append('s1', [{'made': 's1'}], expected_version=0)",
        "store.sessions.load('s1')",
        "store.sessions.append('s1', [{'n': 2}], expected_version=0)",
    ]
    assert failure.calls[-1].answer.isdigit()
    assert failure.why
    assert f"--only {BROKEN_LAW}" in failure.replay


def test_the_calls_of_a_drawn_case_are_those_of_the_smallest() -> None:
    report = checked(planted.BROKEN, "sessions-follow-the-model")
    failure = report.laws[0].failure
    assert failure is not None
    assert failure.case is not None
    assert len(failure.calls) <= 8, [call.text for call in failure.calls]


def test_a_call_that_never_answers_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from perdure_conformance.laws import all_laws

    law = next(law for law in all_laws() if law.id == "sessions-count-follows-records")
    monkeypatch.setattr("perdure_conformance.checking.all_laws", lambda: (replace(law, timeout=0.75),))
    report = checked(planted.HANGING, law.id)
    failure = report.laws[0].failure
    assert failure is not None
    hung = failure.calls[-1]
    assert hung.answer in ("did not answer", "raises CancelledError: ")
    assert (failure.what, failure.expected) == (f"`{hung.text}`", "an answer within 0.5 seconds")


def test_failures_that_sound_alike_are_told_as_one_cause(failed: Report) -> None:
    first = next(law for law in failed.laws if law.failure is not None)
    assert first.failure is not None

    def like(number: int, calls: int) -> LawData:
        assert first.failure is not None
        message = f"OSError escaped at `await store.load('s{number}')` (laws.py:{number}): no file /tmp/x{number}"
        failure = first.failure.model_copy(
            update={"calls": first.failure.calls[:1] * calls, "calls_left_out": 0, "got": message}
        )
        return first.model_copy(update={"id": f"law-{number}", "message": message, "failure": failure})

    alike = [like(1, 3), like(2, 1), like(3, 2)]
    (cause,) = common_causes([first, *alike])
    assert (cause.problem, cause.laws) == ("OSError: no file /tmp/x2", ("law-2", "law-3", "law-1"))
    assert common_causes([first, *alike[:2]]) == []
    report = failed.model_copy(update={"laws": (*failed.laws, *alike)})
    assert "3 laws: OSError: no file /tmp/x2; begin with law-2" in report_text(report)
    assert '<code>OSError: no file /tmp/x2</code>; begin with <a href="#law-2">law-2</a>' in html_page(report)
    assert "one cause" not in report_text(failed)


# --- what a message says ---


@pytest.mark.parametrize(
    ("got", "expected", "where"),
    [
        (1, True, ""),
        ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2}]}, ".'a'[1].'b'"),
        ([1], [1, 2], ""),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, ""),
        ("x" * 500 + "y", "x" * 501, ""),
        ((None, {"k": "v"}), (None, {"k": None}), "[1].'k'"),
    ],
)
def test_messages_of_comparisons_are_taken_apart(got: object, expected: object, where: str) -> None:
    with pytest.raises(checks.LawBrokenError) as caught:
        checks.equal(got, expected, "the value")
    what, at, wanted, came = taken_apart(str(caught.value))
    assert (what, at) == ("the value", where)
    assert wanted
    assert came


def test_a_list_that_is_no_json_is_shown_too() -> None:
    with pytest.raises(
        checks.LawBrokenError, match=r"expected 1 items \[1\], got 2: \[datetime\.timedelta\(days=1\), 1\]"
    ):
        checks.equal([timedelta(days=1), 1], [1], "the value")


def test_a_message_in_other_words_is_what_came() -> None:
    assert taken_apart("a write changed this place") == ("", "", "", "a write changed this place")


# --- JUnit ---


def test_junit_counts_what_it_holds(failed: Report) -> None:
    suite = ET.fromstring(junit_xml(failed)).find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
    }
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "store.sessions.append('s1', [{'n': 2}], expected_version=0)" in (failure.text or "")
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert {"kit", "contract", "profile", "seeds", "level.plain", "not tested"} <= set(properties)


def test_junit_holds_what_xml_cannot(failed: Report) -> None:
    law = failed.laws[0].model_copy(update={"message": "expected '\0\ud800\x1b', got <&>"})
    text = junit_xml(failed.model_copy(update={"laws": (law,)}))
    assert "\\x00\\ud800\\x1b" in "".join(ET.fromstring(text.encode()).itertext())


def test_junit_of_nothing_run_is_an_error() -> None:
    report = checked(planted.RIGHT, "sessions-append-survives-kill")
    suite = ET.fromstring(junit_xml(report)).find("testsuite")
    assert suite is not None
    assert suite.get("errors") == "1"
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message") == "nothing was run"


# --- HTML ---


class Reader(HTMLParser):
    """Holds a page to balance, and collects what it refers to."""

    EMPTY = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src"):
                self.links.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(("name", "links"), [("failed", {"#failures", "#laws", f"#{BROKEN_LAW}"}), ("held", {"#laws"})])
def test_html_is_one_page_that_asks_for_nothing(name: str, links: set[str], request: pytest.FixtureRequest) -> None:
    page = html_page(request.getfixturevalue(name))
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.links == links
    assert {link.removeprefix("#") for link in links} <= reader.ids
    assert not {"script", "link", "img"} & reader.tags
    assert not re.search(r"https?://|@import|url\(", page)


def test_html_shows_what_came_and_escapes_it(failed: Report) -> None:
    law = next(law for law in failed.laws if law.failure is not None)
    assert law.failure is not None
    failure = law.failure.model_copy(update={"got": "<script>alert(1)</script>"})
    page = html_page(failed.model_copy(update={"laws": (law.model_copy(update={"failure": failure}),)}))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    for told in (law.sentence, "Not tested", "power-loss", "append_refuses_another_version"):
        assert told in page


# --- badge ---


def level(name: str, standing: str) -> LevelData:
    return LevelData.model_validate(
        {"name": name, "meaning": "", "standing": standing, "passed": 1, "laws": 1, "why": ""}
    )


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({"plain": "granted", "complete": "granted", "durable": "granted"}, "complete · durable"),
        ({"plain": "granted", "complete": "not claimed"}, "plain"),
        ({"plain": "refused", "atomic": "granted"}, "atomic"),
        ({"plain": "refused"}, "no level"),
        ({}, "no level"),
    ],
)
def test_a_badge_says_what_was_granted(held: Report, levels: dict[str, str], said: str) -> None:
    report = held.model_copy(update={"levels": tuple(level(*one) for one in levels.items())})
    assert badge_text(report)[0] == said
    assert said in "".join(ET.fromstring(badge_svg(report)).itertext())


def test_a_badge_of_a_failure_is_one_of_failure(failed: Report) -> None:
    report = failed.model_copy(update={"levels": (level("plain", "granted"),)})
    assert badge_text(report)[0] == "1 law failed"


@pytest.mark.parametrize(
    "error", [SystemError("AST constructor recursion depth mismatch"), RecursionError(), OSError()]
)
def test_a_failure_is_told_though_no_test_of_it_can_be_written(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> str:
        raise error

    monkeypatch.setattr("perdure_conformance.reports.failures.written_test", broken)
    (law,) = checked(planted.BROKEN, BROKEN_LAW).laws
    assert law.failure is not None
    assert law.failure.test is None
    assert "VersionConflictError" in law.failure.expected


# --- all of them ---


def test_every_report_carries_what_tested_what(failed: Report) -> None:
    for form in (json_text, junit_xml, html_page, report_text):
        text = form(failed)
        assert failed.versions.kit in text
        assert failed.profile.name in text
        assert failed.target in text
    assert f"perdure-conformance {failed.versions.kit}" in badge_svg(failed)


def test_an_excused_failure_is_no_failure_of_a_report() -> None:
    known = KnownFailure(law=BROKEN_LAW, reason="it is slow", link="issue 7", expires=date(2030, 1, 1))
    report = checked(planted.BROKEN, known={BROKEN_LAW: known}, today=date(2030, 1, 1))
    assert (report.verdict, report.errors) == (Verdict.HELD, ())
    assert 'failures="0"' in junit_xml(report)
    assert "it is slow" in html_page(report)
    assert not any(level.standing == "granted" for level in report.levels)
    day_after = checked(planted.BROKEN, known={BROKEN_LAW: known}, today=date(2030, 1, 2))
    assert day_after.verdict is Verdict.FAILED


def test_reports_are_written_to_folders_that_are_made(failed: Report, tmp_path: Path) -> None:
    names = {form: tmp_path / "new" / form for form in ("json", "junit", "html", "badge")}
    assert write_reports(failed, **names) == list(names.values())
    assert all(file.stat().st_size > 200 for file in names.values())
