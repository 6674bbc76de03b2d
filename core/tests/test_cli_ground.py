"""What all commands share: the store, JSON, exit codes, secrets, a closed pipe, Ctrl-C, colour and completion."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from core.tests import cli_world
from core.tests.command_line import Perdure, Program

from perdure.cli import COMMANDS, application, main
from perdure.cli.application import arguments_of_command
from perdure.cli.exit_codes import ExitCode, code_of
from perdure.cli.output import CommandError, explained, safe, safe_line
from perdure.errors import (
    ApprovalNotFoundError,
    InvalidIdError,
    OutcomeUnknownError,
    StoreCorruptedError,
    StoreUnavailableError,
    UnknownSchemeError,
)

SECRET = "hunter2"


@pytest.fixture
def perdure(tmp_path: Path) -> Perdure:
    return Perdure(tmp_path)


def test_the_installed_command_tells_its_version_and_its_commands(perdure: Perdure) -> None:
    script = Path(sys.executable).with_name("perdure")
    told = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.startswith("perdure 0.")
    shown = perdure("--help", code=0).out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    assert "Exit codes" in shown


def loaded_by(*arguments: str) -> set[str]:
    """Return which modules of ours there are when a command has ended."""
    code = (
        f"import sys; from perdure.cli import main; sys.argv = {['perdure', *arguments]}\n"
        "try: main()\nexcept SystemExit: print(*(name for name in sys.modules if name.startswith('perdure.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    loaded = loaded_by("stores", "--no-load", "--json")
    assert loaded & {f"perdure.cli.{module}" for module in COMMANDS.values()} == {"perdure.cli.stores"}


def test_help_and_version_load_nothing_that_only_the_run_of_a_command_needs() -> None:
    run = ("at_rest", "cli.demo.showing", "contracts.options", "interchange", "moving", "runtime.agent")
    loaded = loaded_by("--help")
    assert {f"perdure.cli.{module}" for module in COMMANDS.values()} <= loaded
    assert [name for name in loaded if name.startswith(tuple(f"perdure.{one}" for one in run))] == []
    assert "perdure.bundle" not in loaded_by("--version")


def test_ctrl_c_before_a_command_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(application, "run", lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "perdure: interrupted\n")


def test_without_a_store_it_is_said_how_to_give_one(perdure: Perdure) -> None:
    for command in (["ls"], ["approvals", "list"], ["doctor"], ["prune", "--older-than", "1d"]):
        ran = perdure(*command, code=2)
        assert ran.out == ""
        assert "no store is given. Give --store URL, such as --store sqlite:agent.db, or set PERDURE_STORE." in ran.err
    error = perdure("ls", "--json", code=2).error
    assert error["type"] == "CommandError"
    assert "PERDURE_STORE" in error["hint"]


def test_an_empty_variable_is_none_and_the_option_comes_first(perdure: Perdure) -> None:
    assert "no store is given" in perdure("ls", code=2, PERDURE_STORE="").err
    assert "the empty URL: has no scheme" in perdure("ls", "--store", "", code=2).err
    assert "there.db" in perdure("ls", "--store", "sqlite:there.db", code=2, PERDURE_STORE="sqlite:other.db").err


LOOKS = (
    ["ls"],
    ["pending"],
    ["approvals", "list"],
    ["export"],
    ["show", "x"],
    ["delete", "x", "--yes"],
    ["prune", "--older-than", "1d", "--dry-run"],
    ["doctor"],
)


@pytest.mark.parametrize("url", ["sqlite:deep/none.db", "file:none", "memory:"])
def test_a_store_that_is_not_there_is_not_made(perdure: Perdure, url: str) -> None:
    for command in (*LOOKS, ["prune", "--older-than", "1d"], ["copy", url, "sqlite:b.db"]):
        err = perdure(*command, code=2, PERDURE_STORE=url).err
        assert "names no store" in err or "keeps nothing" in err
    assert list(perdure.directory.iterdir()) == []


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_what_only_looks_makes_nothing_in_what_is_no_store(perdure: Perdure, command: list[str]) -> None:
    perdure.directory.joinpath("empty.db").touch()
    for folder in ("empty", "other/sub"):
        perdure.directory.joinpath(folder).mkdir(parents=True)
    before = {path: path.stat().st_size for path in perdure.directory.rglob("*")}
    for url in ("sqlite:empty.db", "file:empty", "file:other"):
        perdure(*command, PERDURE_STORE=url)
    assert {path: path.stat().st_size for path in perdure.directory.rglob("*")} == before


def test_what_is_empty_is_no_store(perdure: Perdure) -> None:
    perdure.directory.joinpath("empty.db").touch()
    perdure.directory.joinpath("empty").mkdir()
    for url, path in (("sqlite:empty.db", "empty.db"), ("file:empty", "empty")):
        for command in (["ls"], ["prune", "--older-than", "1d"], ["copy", url, "sqlite:new.db"]):
            told = perdure(*command, code=2, PERDURE_STORE=url).err
            assert f"names no store: {path} is empty. Correct the path." in told
    assert perdure.directory.joinpath("empty.db").stat().st_size == 0
    assert "nothing was ever stored in it" in perdure("doctor", "sqlite:empty.db", code=0).out


def test_a_worker_makes_no_store_and_waits_for_one(perdure: Perdure) -> None:
    shutil.copy(cli_world.__file__, perdure.directory)
    script = str(Path(sys.executable).with_name("perdure"))
    command = [script, "worker", "cli_world:agent", "--store", "sqlite:none.db"]
    with subprocess.Popen(command, cwd=perdure.directory, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert "sqlite:none.db names no store: none.db does not exist" in worker.stdout.readline()
            assert not perdure.directory.joinpath("none.db").exists()
            asyncio.run(cli_world.fill(f"sqlite:{perdure.directory / 'none.db'}"))
            assert any("worker started" in line for line in worker.stdout)
            worker.send_signal(signal.SIGTERM)
            worker.stdout.read()
            assert worker.wait() == 0
        finally:
            worker.kill()
    assert "keeps nothing" in perdure("worker", "cli_world:agent", "--store", "memory:", code=2).err


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--store", f"redis://me:{SECRET}@127.0.0.1:1"],
        ["ls", "--store", f"redis://:{SECRET}@127.0.0.1:1/x"],
        ["ls", "--store", f"sqlite:a.db?key={SECRET}"],
        ["ls", "--store", f"redis+sentinel://h/m?sentinel_password={SECRET}&timeout=x"],
        ["ls", "--store", f"redis:{SECRET}@127.0.0.1"],
        ["ls", f"redis:{SECRET}@host"],
        ["ls", f"redis://me:{SECRET}@host"],
        ["doctor", "a:b", f"redis://{SECRET}@host"],
        ["ls", f"--stroe=redis://me:{SECRET}@host"],
        [f"redis://me:{SECRET}@host"],
        ["bench", f"redis://me:{SECRET}@127.0.0.1:1"],
        ["doctor", f"redis://me:{SECRET}@127.0.0.1:1"],
        ["ls", "--store", f"redis://me:{SECRET}/@127.0.0.1:1"],
        ["prune", "--older-than", f"redis://me:{SECRET}@host"],
        ["ls", "--json", f"redis://me:{SECRET}@host"],
        ["ls", "--json", "--store", f"redis://me:{SECRET}@127.0.0.1:1"],
    ],
)  # fmt: skip
def test_no_secret_of_a_url_is_printed(perdure: Perdure, arguments: list[str]) -> None:
    ran = perdure(*arguments, code=2)
    assert SECRET not in ran.out + ran.err
    assert ran.out + ran.err != ""


def test_wrong_use_is_told_as_json_too(perdure: Perdure) -> None:
    error = perdure("ls", "--limit", "many", "--json", code=2).error
    assert "--limit" in error["message"]
    assert error["hint"] == "Try 'perdure ls --help'."
    assert perdure("approvals", "show", "--json", code=2).error["hint"] == "Try 'perdure approvals show --help'."
    before = "No such option: --codec. It goes before the command: perdure --codec MODULE:OBJECT ls"
    assert before in perdure("ls", "--codec", "a:b", "--json", code=2).error["message"]
    assert "goes before the command" in perdure("ls", "--codec", "a:b", code=2, COLUMNS="200").err
    assert "Did you mean 'approvals'?" in perdure("aprovals", code=2).err
    assert perdure("ls", "--", "--json", code=2).out == ""
    assert "'--limit'" in perdure("ls", "--limit", "-1", code=2).err


def test_a_fault_is_told_apart_from_a_finding(perdure: Perdure) -> None:
    site = perdure.directory / "broken_store-1.0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-store\nVersion: 1.0\n")
    (site / "entry_points.txt").write_text("[perdure.stores]\nfaulty = faulty\n")
    (perdure.directory / "faulty.py").write_text(
        "from perdure.backend import *\nPERDURE_CONTRACT = 1\nclass J(Journal):\n    capabilities = Capabilities(durable=True)\n"
        "    async def open(self): pass\n    async def close(self): pass\n    async def read(self, *a, **k): pass\n"
        "    async def write(self, *a): pass\n    async def scan(self, *a, **k): pass\n"
        "perdure_session_store, perdure_checkpoint_store, perdure_approval_store = journal_hooks(lambda url: J())\n"
        "def doctor(url, *, salvage): raise ZeroDivisionError('a bug')\n"
    )
    code = "import sys; sys.path.insert(0, '.'); from perdure.cli import main; main()"
    done = Program("python", perdure.directory, perdure.environment)("-c", code, "doctor", "faulty:", "--json")
    assert done.code == ExitCode.FAULT
    assert "Traceback" in done.err
    assert done.error["message"] == "a bug"


def test_a_reader_that_goes_away_ends_it_quietly(perdure: Perdure) -> None:
    for arguments in (["stores"], ["stores", "--json"], ["--help"], ["stores", "--help"]):
        ran = perdure.into_closed_pipe(*arguments)
        assert (ran.code, ran.err) == (ExitCode.PIPE_CLOSED, "")


@pytest.mark.parametrize("arguments", ["stores", "stores --json", "--version"])
def test_output_that_cannot_be_written_is_said(perdure: Perdure, arguments: str) -> None:
    full = perdure.into("/dev/full", *arguments.split())
    assert (full.code, "No space left on device" in full.err, "Traceback" in full.err) == (2, True, False)


def without_stream(perdure: Perdure, arguments: str, stream: str) -> subprocess.CompletedProcess[str]:
    """Run a command of which a standard stream is closed, as `sh` writes it."""
    command = f"{sys.executable} -c 'from perdure.cli import main; main()' {arguments} {stream}"
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=perdure.directory
    )


def test_output_that_is_closed_fails_no_command(perdure: Perdure) -> None:
    closed = without_stream(perdure, "stores", ">&-")
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ["delete user-2", "import -"])
def test_input_that_is_closed_is_like_an_empty_one(perdure: Perdure, arguments: str) -> None:
    asyncio.run(cli_world.fill(f"sqlite:{perdure.directory}/a.db"))
    closed = without_stream(perdure, f"{arguments} --store sqlite:a.db", "<&-")
    assert (closed.returncode, "Traceback" in closed.stderr) == (2, False), closed.stderr


def test_sigterm_ends_what_a_shell_has_started_in_the_background(perdure: Perdure) -> None:
    """There SIGINT is ignored."""
    code = "from perdure.cli import main; main()"
    command = f"trap '' INT; exec {sys.executable} -c {code!r} bench sqlite:a.db --seconds 60"
    with subprocess.Popen(["sh", "-c", command], cwd=perdure.directory, stderr=subprocess.PIPE, text=True) as running:
        while not any(perdure.directory.glob("perdure-bench-*/store-wal")):
            assert running.poll() is None
            threading.Event().wait(0.01)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (143, "perdure bench: interrupted\n")
    assert list(perdure.directory.iterdir()) == []


def test_colour_is_for_terminals(perdure: Perdure) -> None:
    assert "\x1b[" in perdure.on_terminal("stores").out
    assert "\x1b" not in perdure.on_terminal("stores", NO_COLOR="1", TERM="dumb").out
    assert "\x1b" not in perdure("stores").out
    assert "\x1b" not in perdure.on_terminal("stores", "--json").out


def test_the_shell_can_complete(perdure: Perdure) -> None:
    shown = perdure("", code=None, _PERDURE_COMPLETE="complete_bash", COMP_WORDS="perdure app", COMP_CWORD="1")
    assert shown.out.split() == ["approvals"]
    shown = perdure("", code=None, _PERDURE_COMPLETE="complete_bash", COMP_WORDS="perdure approvals re", COMP_CWORD="2")
    assert shown.out.split() == ["reject"]


def test_output_that_its_locale_cannot_show_is_escaped(perdure: Perdure) -> None:
    ran = perdure("show", "é", "--store", "sqlite:none.db", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert ran.code == 2


# --- in this process ---


def test_the_reference_names_every_command_and_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text("utf-8")
    assert [name for name in COMMANDS if f"`perdure {name}" not in page and f"`{name}`" not in page] == []
    table = page.partition("## Exit codes")[2].partition("## JSON")[0]
    assert [code for code in ExitCode if f"| {code.value} |" not in table and f"| {code.value}, " not in table] == []


def test_what_could_steer_a_terminal_is_escaped() -> None:
    assert safe("a\x1b[31m\x07b\x9b\u202e\r\x7f\ud800") == r"a\x1b[31m\x07b\x9b\u202e\r\x7f\ud800"
    assert safe("line\n\ttab é 漢 👩‍👩‍👧") == "line\n\ttab é 漢 👩‍👩‍👧"
    assert safe_line("line\n\ttab\u2028") == r"line\n\ttab\u2028"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApprovalNotFoundError("a"), 1),
        (StoreCorruptedError("there", "bad"), 1),
        (InvalidIdError("session id", "a b", "rule"), 2),
        (UnknownSchemeError("x", ()), 2),
        (StoreUnavailableError("load", "a"), 2),
        (PermissionError(), 2),
        (OutcomeUnknownError("append", "a"), 3),
        (CommandError("no"), 1),
        (CommandError("no", "", ExitCode.CANNOT), 2),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert code_of(error) == code


@pytest.mark.parametrize("name", ["protected_args", "_protected_args"])
def test_a_command_is_named_whatever_click_calls_its_arguments(name: str) -> None:
    assert arguments_of_command(SimpleNamespace(**{name: ["ls"]}, args=["--json"])) == ["ls", "--json"]


def test_a_hint_is_told_once() -> None:
    assert explained(CommandError("It is so.", "Do that.")) == "It is so. Do that."
    assert explained(InvalidIdError("session id", "a b", "rule", "Do that.")).count("Do that") == 1
    assert explained(PermissionError()) == "PermissionError"
