"""The command: what it takes, what it prints, and how it ends."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from perdure_conformance.cli import application
from perdure_conformance.cli.output import EVERY, Progress, refuse
from perdure_conformance.laws import all_laws

MEMORY = "memory:{place}"
LAW = "sessions-write-adds-one"
BROKEN_LAW = "sessions-append-refuses-another-version"


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a module with a broken store and a right one where the command is called."""
    (tmp_path / "planted.py").write_bytes(Path(__file__).with_name("planted.py").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted", raising=False)


def run(*words: str) -> Result:
    return CliRunner().invoke(application(), list(words))


def check(*words: str) -> Result:
    return run("check", "--quiet", *words)


def only(*laws: str) -> list[str]:
    return [word for law in laws for word in ("--only", law)]


# --- how it ends ---


def test_a_url_without_a_place_says_what_to_write_before_any_law_is_tried() -> None:
    ran = check("memory:", *only(LAW))
    assert ran.exit_code == 4, ran.output
    assert (
        "'memory:' cannot be checked as it is: an opening does not find what another one wrote. Put {place}"
        in ran.output
    )
    assert "replay:   perdure-conformance check memory: --profile quick --seed 0" in ran.output
    assert check("memory:everywhere", *only(LAW)).exit_code == 0, "a fresh namespace is a place"


def test_what_held_ends_with_0() -> None:
    ran = check(MEMORY, *only(LAW))
    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines()[-1] == "held"


def test_a_failed_law_ends_with_1_and_tells_how() -> None:
    ran = check("planted:BROKEN", *only(BROKEN_LAW, LAW))
    assert ran.exit_code == 1, ran.output
    for told in (
        f"FAILED {BROKEN_LAW}",
        "law:      An append at a version that the key does not have is a conflict and changes nothing.",
        "expected VersionConflictError, but the call answered",
        "why:      The compare-and-set",
        "store.sessions.append('s1', [{'n': 2}], expected_version=0)",
        f"replay:   perdure-conformance check planted:BROKEN --only {BROKEN_LAW} --profile quick --seed 0",
    ):
        assert told in ran.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosuch:{dir}"], "nosuch"),
        (["planted:MISSING"], "planted:MISSING"),
        (["planted:NUMBER"], "is a int"),
        (["planted:failing"], "'planted:failing' makes no target: RuntimeError: no licence"),
        (["planted:ending"], "'planted:ending' makes no target: SystemExit: 0"),
        (["planted:asking"], "'planted:asking' makes no target: TypeError: asking() missing 1 required"),
        (
            ["planted:NoOpener"],
            "'planted:NoOpener' makes no target: TypeError: Can't instantiate abstract class NoOpener",
        ),
        (["planted:NoTarget"], "'planted:NoTarget' makes no target: OSError: no such disk"),
        (["{dir}"], "{dir}: has no scheme"),
        (["memory:x?colour=red"], "colour"),
        ([MEMORY, "--profile", "slow"], "there is no profile 'slow', only quick, full, nightly"),
        ([MEMORY, "--only", "no-such-law"], "there is no law 'no-such-law'"),
        ([MEMORY, "--known-failures", "missing.toml"], "missing.toml"),
        (["nosuchplugin"], "nosuchplugin"),
    ],
)
def test_wrong_use_ends_with_2_and_says_why(words: list[str], told: str) -> None:
    ran = check(*words)
    assert (ran.exit_code, told in ran.stderr) == (2, True), ran.output


def test_nothing_run_ends_with_3() -> None:
    ran = check(MEMORY, *only("sessions-append-survives-kill"))
    assert ran.exit_code == 3
    assert ran.output.splitlines()[-1] == "nothing was run"


def test_a_store_that_does_not_open_ends_with_4() -> None:
    ran = check("planted:CLOSED")
    assert ran.exit_code == 4
    assert "no such disk" in ran.output
    assert "it was not tried: the opener failed" in ran.output


def test_a_store_that_would_end_the_process_is_told_as_one_that_does_not_open() -> None:
    ran = check("planted:EXITING")
    assert ran.exit_code == 4, ran.output
    assert "os._exit(0) would have ended the process" in ran.output


def test_places_that_are_one_end_with_4_and_no_other_law_is_tried() -> None:
    ran = check("planted:SHARED_PLACE")
    assert ran.exit_code == 4
    assert "FAILED sessions-places-are-apart" in ran.output
    assert f"{len(all_laws())} laws: " in ran.output
    assert "  granted" not in ran.output


def test_a_check_without_time_ends_with_5_and_says_what_was_cut() -> None:
    ran = check(MEMORY, "--max-time", "0.5")
    assert ran.exit_code == 5, ran.output
    assert "it was cut: the time of the check was over" in ran.output
    assert "after 0.5 seconds the check was cut" in ran.output
    assert ran.output.splitlines()[-1] == "cut"


@pytest.mark.parametrize(("target", "seconds"), [(MEMORY, "0"), ("planted:BLOCKED", "0.2")])
def test_an_opener_that_has_no_time_did_not_fail(target: str, seconds: str) -> None:
    ran = check(target, "--max-time", seconds)
    importlib.import_module("planted").released.set()
    assert (ran.exit_code, ran.output.splitlines()[-1]) == (5, "cut"), ran.output
    assert "the opener failed" not in ran.output
    assert f"after {seconds} seconds the check was cut: 0 of" in ran.output


def test_some_laws_alone_grant_no_level() -> None:
    ran = check(MEMORY, *only(LAW))
    assert "  granted" not in ran.output
    assert f"{len(all_laws()) - 1} laws: only some were chosen" in ran.output


def test_a_module_is_found_where_the_command_is_called() -> None:
    assert check("planted:made", *only(BROKEN_LAW)).exit_code == 0
    assert check("planted:made_class", *only(BROKEN_LAW)).exit_code == 0


def test_secrets_of_a_url_are_not_shown() -> None:
    ran = check("redis://user:hunter2@127.0.0.1:1/0", *only(LAW))
    assert ran.exit_code == 4
    assert "hunter2" not in ran.output


# --- what it prints ---


@pytest.mark.parametrize(("closing", "code", "told"), [("read", 0, ""), ("written", 2, "could not be written")])
def test_reports_are_there_though_standard_output_is_not(tmp_path: Path, closing: str, code: int, told: str) -> None:
    words = (sys.executable, "-m", "perdure_conformance", "check", MEMORY, "-q", *only(LAW), "--json", "report.json")
    reading, writing = os.pipe()
    os.close(reading)
    closed = "import os, runpy, sys; sys.stdout.close(); runpy.run_module('perdure_conformance', run_name='__main__')"
    words = words if closing == "read" else (words[0], "-c", closed, *words[3:])
    ran = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ran.returncode, told in ran.stderr, "Traceback" in ran.stderr) == (code, True, False), ran.stderr
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["verdict"] == "held"


@pytest.mark.parametrize("full", [False, True])
def test_standard_error_that_takes_nothing_ends_no_check(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    told = os.fdopen(os.open("/dev/full", os.O_WRONLY) if full else writing, "w")
    monkeypatch.setattr(sys, "stderr", told)
    Progress(quiet=False).noted(EVERY, EVERY, LAW)
    with pytest.raises(typer.Exit) as end:
        refuse("it is wrong")
    assert end.value.exit_code == 2
    with contextlib.suppress(OSError):
        told.close()
    if full:
        os.close(writing)


# --- known failures ---


def known(tmp_path: Path, law: str, *, expires: str = "2999-01-01") -> str:
    file = tmp_path / "known.toml"
    file.write_text(f'[[failure]]\nlaw = "{law}"\nreason = "slow"\nlink = "issue 7"\nexpires = {expires}\n')
    return str(file)


def test_a_known_failure_is_excused_and_shown(tmp_path: Path) -> None:
    ran = check("planted:BROKEN", *only(BROKEN_LAW, LAW), "--known-failures", known(tmp_path, BROKEN_LAW))
    assert ran.exit_code == 0, ran.output
    assert "known:    slow (issue 7), until 2999-01-01" in ran.output


def test_an_unexpected_pass_is_an_error(tmp_path: Path) -> None:
    ran = check(MEMORY, *only(LAW), "--known-failures", known(tmp_path, LAW))
    assert ran.exit_code == 1
    assert "the law passed: remove it from the known failures" in ran.output


def test_an_excuse_that_is_over_is_an_error(tmp_path: Path) -> None:
    file = known(tmp_path, BROKEN_LAW, expires="2020-01-01")
    ran = check("planted:BROKEN", *only(BROKEN_LAW), "--known-failures", file)
    assert ran.exit_code == 1
    assert "it is excused until 2020-01-01 only" in ran.output


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[failure]]\nlaw = 'x'\n", "failure.0.reason: Field required"),
        (f"[[failure]]\nlaw='{LAW}'\nreason=''\nlink='x'\nexpires=2999-01-01\n", "failure.0.reason"),
        ("[[failure]]\nlaw='x'\nreason='x'\nlink='x'\nexpires=2999-01-01\n", "there is no law 'x'"),
        (f"[[failure]]\nlaw='{LAW}'\nreason='x'\nlink='x'\nexpires=2999-01-01\n" * 2, "stands there twice"),
        ("law =", "known.toml"),
        ("[[failures]]\n", "failures: Extra inputs"),
    ],
)
def test_a_wrong_file_of_known_failures_is_wrong_use(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    ran = check(MEMORY, "--known-failures", str(file))
    assert (ran.exit_code, told in ran.stderr) == (2, True), ran.stderr


# --- profiles ---


def report(tmp_path: Path, *words: str) -> Any:
    file = tmp_path / "report.json"
    check(*words, "--json", str(file))
    return json.loads(file.read_text(encoding="utf-8"))


def test_a_profile_tries_laws_in_rounds_with_seeds_of_their_own(tmp_path: Path) -> None:
    found = report(tmp_path, MEMORY, *only(LAW), "--profile", "full", "--seed", "7")
    assert found["profile"]["seeds"] == [7, 8, 9]
    assert [law["rounds"] for law in found["laws"]] == [3]


def test_nightly_draws_fresh_seeds(tmp_path: Path) -> None:
    first = report(tmp_path, MEMORY, *only("approvals-absent-is-none"), "--profile", "nightly")
    second = report(tmp_path, MEMORY, *only("approvals-absent-is-none"), "--profile", "nightly")
    assert first["profile"]["seeds"] != second["profile"]["seeds"]
    assert first["laws"][0]["rounds"] == len(first["profile"]["seeds"])


def test_a_law_that_failed_is_not_tried_again(tmp_path: Path) -> None:
    (law,) = report(tmp_path, "planted:BROKEN", *only(BROKEN_LAW), "--profile", "full")["laws"]
    assert (law["rounds"], law["failure"]["seed"]) == (1, 0)


# --- list and explain ---


def test_the_list_shows_every_law() -> None:
    printed = run("list").stdout
    assert [law.id for law in all_laws() if f"  {law.id}" not in printed] == []


def test_the_list_as_json_is_the_register() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert [row["id"] for row in rows] == [law.id for law in all_laws()]
    assert {row["area"] for row in json.loads(run("list", "--json", "--area", "compare and set").stdout)} == {
        "compare_and_set"
    }
    assert run("list", "--area", "nowhere").exit_code == 2


@pytest.mark.parametrize("law", all_laws(), ids=lambda law: law.id)
def test_every_law_is_explained(law: Any) -> None:
    from perdure_conformance.explain import contract_lines, explanation

    text = explanation(law)
    assert law.sentence in text
    assert "why it matters: " in text
    assert f"async def {getattr(law.function, '__wrapped__', law.function).__name__}" in text
    assert len(contract_lines(law)) == len(law.methods)
    assert all(len(line.text) > 10 for line in contract_lines(law))


def test_explain_names_the_line_of_the_contract() -> None:
    printed = run("explain", "sessions-one-of-many-tasks-wins").stdout
    assert "the contract says, in SessionStore.append (perdure.contracts.sessions:" in printed
    assert "Concurrent: Check and write are one step" in printed


def test_a_law_that_is_not_there_is_answered_with_near_ones() -> None:
    ran = run("explain", "sessions-write-add-one")
    assert ran.exit_code == 2
    assert f"did you mean {LAW}" in ran.stderr.replace("\n", " ")
