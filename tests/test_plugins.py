"""Finding, loading and explaining plugins, on distributions that each test writes."""

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from core.tests.command_line import Program, Ran

import perdure
from perdure import plugins
from perdure.backend import (
    PluginConflictError,
    PluginLoadError,
    Resources,
    SessionStore,
    StoreClosedError,
    StoreURL,
    StoreURLError,
    UnknownSchemeError,
    VersionConflictError,
)

GOOD = """
from perdure.backend import SessionStore, hookimpl

PERDURE_CONTRACT = 1

class Empty(SessionStore):
    async def _load(self, session_id, **_):
        return None

    async def _append(self, session_id, records, **_):
        return 1

@hookimpl
def perdure_session_store(url, resources):
    return Empty()
"""

JOURNAL = "from perdure.backend import journal_hooks; PERDURE_CONTRACT = 1\n"

ODD_OPTIONS = """
from pydantic import BaseModel, model_validator

class Options(BaseModel):
    @model_validator(mode="after")
    def _fail(self):
        raise RuntimeError("odd")
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a distribution with a plugin module into a folder of its own, at the end of the path."""
    before = set(sys.modules)
    count = 0

    def install(scheme: str, source: str = GOOD, *, name: str = "", version: str = "1.0", entry: str = "") -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / f"site{count}"
        name = name or f"{scheme}-store"
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        module = f"{scheme}_plugin{count}".replace("+", "_")
        info.joinpath("entry_points.txt").write_text(f"[perdure.stores]\n{scheme} = {entry or module}\n")
        folder.joinpath(f"{module}.py").write_text(source)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        return folder

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def of(scheme: str) -> list[tuple[str, str]]:
    return [(one.distribution, one.version) for one in plugins.installed() if one.scheme == scheme]


def run(code: str, *folders: Path) -> str:
    """Run code in a process of its own, with folders on its path."""
    prepare = "".join(f"import sys; sys.path.append({str(folder)!r})\n" for folder in folders)
    command = [sys.executable, "-W", "error", "-c", prepare + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def cli(*arguments: str, folders: tuple[Path, ...] = ()) -> Ran:
    code = "".join(f"import sys; sys.path.append({str(folder)!r})\n" for folder in folders)
    code += f"import sys; from perdure.cli import main; sys.argv = ['perdure', *{arguments!r}]; main()"
    return Program("python", Path.cwd(), os.environ)("-c", code)


# --- loading ---


def test_a_good_plugin_loads_and_makes_its_store(install: Install) -> None:
    install("good")
    plugin = plugins.load("good")
    assert plugin.installed.distribution == "good-store"
    url = plugin.check(StoreURL.parse("good:a"))
    assert isinstance(plugin.make("sessions", url, Resources()), SessionStore)
    assert plugin.make("checkpoints", url, Resources()) is None
    assert plugin.make("approvals", url, Resources()) is None


def test_an_entry_may_name_an_object(install: Install) -> None:
    source = "import types\nplugin = types.SimpleNamespace()\n" + GOOD + "\nplugin.__dict__.update(globals())\n"
    folder = install("object", source, entry="object_plugin1:plugin")
    assert folder.joinpath("object_plugin1.py").exists()
    assert plugins.load("object").installed.module == "object_plugin1:plugin"


BROKEN: dict[str, tuple[str, str, type[BaseException] | None]] = {
    "missing-import": (
        "import driver_that_is_missing",
        "its import failed with ModuleNotFoundError: No module named 'driver_that_is_missing'",
        ModuleNotFoundError,
    ),
    "syntax": ("def", "its import failed with SyntaxError", SyntaxError),
    "exit": ("raise SystemExit(3)", "its import failed with SystemExit: 3", SystemExit),
    "error": ("1 / 0", "its import failed with ZeroDivisionError: division by zero", ZeroDivisionError),
    "base": ("class Odd(BaseException): pass\nraise Odd('odd')", "its import failed with Odd: odd", BaseException),
    "stop": ("raise StopIteration", "its import failed with StopIteration", StopIteration),
    "ours": (
        "from perdure.backend import StoreClosedError\nraise StoreClosedError('x')",
        "its import failed with StoreClosedError: x is closed",
        StoreClosedError,
    ),
    "no-contract": (
        GOOD.replace("PERDURE_CONTRACT", "CONTRACT"),
        "it has no PERDURE_CONTRACT, and this release of perdure speaks contract 1",
        None,
    ),
    "other-contract": (
        GOOD.replace("CONTRACT = 1", "CONTRACT = 2"),
        "it speaks contract 2, and this release of perdure speaks contract 1",
        None,
    ),
    "text-contract": (
        GOOD.replace("CONTRACT = 1", "CONTRACT = '1'"),
        "it speaks contract '1', and this release of perdure speaks contract 1",
        None,
    ),
    "true-contract": (
        GOOD.replace("CONTRACT = 1", "CONTRACT = True"),
        "it speaks contract True, and this release of perdure speaks contract 1",
        None,
    ),
    "options": (GOOD + "\nclass Options: pass\n", "its Options is no pydantic model", None),
    "no-hook": (
        "PERDURE_CONTRACT = 1",
        "it has none of the hooks perdure_session_store, perdure_checkpoint_store, perdure_approval_store",
        None,
    ),
    "only-events": (
        "from perdure.backend import hookimpl\nPERDURE_CONTRACT = 1\n@hookimpl\ndef perdure_event(event): pass",
        "it has none of the hooks perdure_session_store, perdure_checkpoint_store, perdure_approval_store",
        None,
    ),
    "unmarked": (
        GOOD + "\ndef perdure_approval_store(url, resources): return None\n",
        "perdure_approval_store is not marked as a hook by @hookimpl",
        None,
    ),
    "signature": (
        GOOD.replace("(url, resources)", "(url, pool)"),
        "Argument(s) {'pool'} are declared in the hookimpl but can not be found in the hookspec",
        Exception,
    ),
    "misspelt": (GOOD.replace("perdure_session_store", "perdure_sessions_store"), "unknown hook", Exception),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_named_with_its_version_and_cause(case: str, install: Install) -> None:
    source, problem, cause = BROKEN[case]
    install("broken", source, name="Broken.Store", version="2.3")
    install("good")
    with pytest.raises(PluginLoadError) as caught:
        plugins.load("broken")
    error = caught.value
    assert (error.scheme, error.distribution, error.version) == ("broken", "Broken.Store", "2.3")
    assert problem in error.problem
    assert isinstance(error.__cause__, cause) if cause else error.__cause__ is None
    assert pickle.loads(pickle.dumps(error)).args == error.args
    assert plugins.load("good").installed.scheme == "good"


def test_ctrl_c_during_an_import_stays_ctrl_c(install: Install) -> None:
    install("stopped", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        plugins.load("stopped")


@pytest.mark.parametrize("entry", ["no such module", "json:missing", "missing_module_x", ""])
def test_an_entry_that_names_nothing_is_a_broken_plugin(entry: str, install: Install) -> None:
    install("dangling", entry=entry or "1")
    with pytest.raises(PluginLoadError, match="its import failed"):
        plugins.load("dangling")


HOOKS: dict[str, tuple[str, str, type[Exception]]] = {
    "async": (
        GOOD.replace("\ndef perdure", "\nasync def perdure"),
        "perdure_session_store answered an awaitable; hooks are plain functions",
        PluginLoadError,
    ),
    "wrong-type": (
        GOOD.replace("return Empty()", "return 'store'"),
        "perdure_session_store answered a str, not a SessionStore",
        PluginLoadError,
    ),
    "false": (GOOD.replace("return Empty()", "return False"), "answered a bool", PluginLoadError),
    "class": (GOOD.replace("return Empty()", "return Empty"), "not a SessionStore", PluginLoadError),
    "error": (
        GOOD.replace("return Empty()", "return 1 / 0"),
        "perdure_session_store failed with ZeroDivisionError: division by zero",
        PluginLoadError,
    ),
    "exit": (
        GOOD.replace("return Empty()", "raise SystemExit"),
        "perdure_session_store failed with SystemExit",
        PluginLoadError,
    ),
    "driver": (
        JOURNAL + "perdure_session_store, *_ = journal_hooks('driver_that_is_missing:Journal')",
        "perdure_session_store failed with ModuleNotFoundError: No module named 'driver_that_is_missing'",
        PluginLoadError,
    ),
    "no-journal": (
        JOURNAL + "perdure_session_store, *_ = journal_hooks(lambda url: 5)",
        "made something of type int, where a Journal is needed",
        PluginLoadError,
    ),
    "ours": (
        GOOD.replace("return Empty()", "raise VersionConflictError('k', 1, 2)").replace(
            "import SessionStore", "import VersionConflictError, SessionStore"
        ),
        "k is at version 2",
        VersionConflictError,
    ),
    "url": (
        GOOD.replace("return Empty()", "url.path_only()"),
        "has a host where a path is meant",
        StoreURLError,
    ),
    "options": (
        GOOD + ODD_OPTIONS,
        "its Options failed with RuntimeError: odd",
        PluginLoadError,
    ),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", HOOKS)
async def test_a_hook_that_fails_is_explained(case: str, install: Install) -> None:
    source, problem, kind = HOOKS[case]
    install("hooks", source)
    with pytest.raises(kind) as caught:
        await perdure.open_store(sessions="hooks://host" if case == "url" else "hooks:")
    assert problem in str(caught.value)
    if isinstance(caught.value, PluginLoadError) and "failed with" in problem:
        assert caught.value.__cause__ is not None


# --- finding ---


def test_an_unknown_scheme_names_the_installed_and_the_nearest(install: Install) -> None:
    install("tickets")
    with pytest.raises(UnknownSchemeError) as caught:
        plugins.load("ticket")
    assert caught.value.scheme == "ticket"
    assert "tickets" in caught.value.installed
    assert list(caught.value.installed) == sorted(set(caught.value.installed))
    assert caught.value.nearest == "tickets"
    assert caught.value.install == ""
    with pytest.raises(UnknownSchemeError) as caught:
        plugins.load("qqqqqq")
    assert caught.value.nearest is None


@pytest.mark.parametrize(("scheme", "extra"), sorted(plugins.FIRST_PARTY.items()))
def test_an_unknown_scheme_of_ours_says_how_to_install_it(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UnknownSchemeError) as caught:
        plugins.load(scheme)
    assert caught.value.installed == ()
    assert caught.value.install == f"pip install 'perdure[{extra}]'"


def test_two_distributions_of_one_scheme_conflict_when_it_is_asked_for(install: Install) -> None:
    install("twice", name="one-store")
    install("twice", name="other-store")
    install("good")
    assert plugins.load("good").installed.scheme == "good"
    with pytest.raises(PluginConflictError) as caught:
        plugins.load("twice")
    assert (caught.value.scheme, caught.value.distributions) == ("twice", ("one-store", "other-store"))


@pytest.mark.parametrize("stale", ["2.0", "1.0"])
def test_a_distribution_that_is_there_twice_is_one_and_the_first_on_the_path_wins(install: Install, stale: str) -> None:
    install("twice", name="Twice.Store", version="2.0")
    install("twice", "1 / 0", name="twice-store", version=stale)
    assert of("twice") == [("Twice.Store", "2.0")]
    assert plugins.load("twice").installed.version == "2.0"


def test_a_distribution_with_broken_metadata_hurts_nobody(install: Install) -> None:
    importlib.import_module("perdure.contracts.options")  # pydantic makes no first model while metadata is unreadable
    unreadable, nameless, undecodable = install("unreadable"), install("nameless"), install("undecodable")
    next(unreadable.glob("*.dist-info/entry_points.txt")).write_text("[perdure.stores]\nno equals sign\n")
    next(nameless.glob("*.dist-info/METADATA")).unlink()
    next(undecodable.glob("*.dist-info/entry_points.txt")).write_bytes(b"[perdure.stores]\nx = \xff\xfe\n")
    install("good")
    assert of("good") == [("good-store", "1.0")]
    assert plugins.load("good").installed.scheme == "good"
    assert [one for one in plugins.installed() if one.scheme == ""] == []


def dated(folder: Path, seconds: int) -> None:
    """Give a folder a date of its own, however coarse the clock of the file system is."""
    os.utime(folder, (seconds, seconds))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the places of the path whose distributions are read."""
    noted: list[str] = []
    read = metadata.distributions

    def distributions(*, path: list[str]) -> Iterable[metadata.Distribution]:
        noted.extend(path)
        return read(path=path)

    monkeypatch.setattr(metadata, "distributions", distributions)
    return noted


def test_what_is_installed_is_read_once_until_something_is_installed(
    install: Install, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("early")
    assert (of("early"), of("early"), of("late")) == ([("early-store", "1.0")], [("early-store", "1.0")], [])
    assert reads.count(str(folder)) == 1
    assert len(set(reads)) == len(reads)
    later = install("late")
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    for made in list(later.iterdir()):
        made.rename(folder / made.name)  # as an installer brings it, to a folder that is on the path already
    dated(folder, 1)
    assert of("late") == [("late-store", "1.0")]
    shutil.rmtree(next(folder.glob("early_store*")))
    dated(folder, 2)
    assert of("early") == []


def test_an_installation_that_was_looked_at_halfway_is_found_when_it_is_asked_for(install: Install) -> None:
    folder = install("halfway")
    entries = next(folder.glob("*.dist-info/entry_points.txt"))
    away = entries.rename(folder.parent / "away")
    assert of("halfway") == []
    away.rename(entries)  # changes no date of the folder that is on the path
    assert plugins.load("halfway").installed.distribution == "halfway-store"
    assert of("halfway") == [("halfway-store", "1.0")]


def test_a_file_written_to_one_place_of_the_path_costs_no_look_at_the_others(
    install: Install, reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("kept")
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.setattr(sys, "path", [str(working), *sys.path])
    assert of("kept") == [("kept-store", "1.0")]
    reads.clear()
    working.joinpath("agent.db").touch()
    dated(working, 1)
    assert of("kept") == [("kept-store", "1.0")]
    assert reads == [str(working)]


def test_a_place_of_the_path_that_is_not_there_yet_is_seen_when_it_comes(install: Install) -> None:
    folder = install("coming")
    away = folder.rename(folder.with_name("away"))
    assert of("coming") == []
    away.rename(folder)
    assert plugins.load("coming").installed.distribution == "coming-store"


def test_the_working_folder_counts_where_the_path_names_it(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install("here")
    monkeypatch.setattr(sys, "path", ["", *sys.path[:-1]])
    assert of("here") == []
    monkeypatch.chdir(folder)
    assert of("here") == [("here-store", "1.0")]


def test_a_scheme_is_lower_case(install: Install) -> None:
    install("Upper")
    assert of("upper") == [("Upper-store", "1.0")]


def test_listing_imports_no_plugin(install: Install) -> None:
    folder = install("explodes", "raise SystemExit('imported')")
    listed = run(
        """
        from perdure import plugins
        print([one.scheme for one in plugins.installed()])
        import sys
        print([name for name in sys.modules if "plugin1" in name or name.startswith(("perdure_memory", "perdure_sqlite"))])
        """,
        folder,
    ).splitlines()
    assert "'explodes'" in listed[0]
    assert listed[1] == "[]"


def test_loading_imports_the_one_that_is_asked_for_and_no_driver(install: Install) -> None:
    folder = install("explodes", "raise SystemExit('imported')")
    loaded = run(
        """
        import sys
        before = {name.partition(".")[0] for name in sys.modules}
        from perdure import plugins
        for scheme in ("memory", "sqlite"):
            plugins.load(scheme)
        watched = {"aiosqlite", "sqlite3", "explodes_plugin1", "perdure_conformance", "typer", "rich"}
        print(sorted(watched & {name.partition(".")[0] for name in sys.modules} - before))
        print(sorted(name for name in sys.modules if name.startswith(("perdure_memory.", "perdure_sqlite."))))
        """,
        folder,
    ).splitlines()
    assert loaded == ["[]", "['perdure_memory.plugin', 'perdure_sqlite.plugin']"]


# --- the command ---


def test_stores_lists_without_importing_when_told(install: Install) -> None:
    folder = install("explodes", "raise SystemExit('imported')")
    shown = cli("stores", "--no-load", "--json", folders=(folder,))
    assert (shown.code, shown.err) == (0, "")
    rows = json.loads(shown.out)["result"]["stores"]
    assert {"scheme": "explodes", "distribution": "explodes-store", "version": "1.0"} in rows
    assert {"memory", "sqlite"} <= {row["scheme"] for row in rows}
    table = cli("stores", "--no-load", folders=(folder,))
    assert (table.code, table.err) == (0, "")
    assert "explodes-store" in table.out


def test_stores_shows_what_is_broken_and_fails(install: Install) -> None:
    good, broken = install("good"), install("broken", "raise SystemExit('[red]out[/red]')")
    conflicting = (install("twice", name="one-store"), install("twice", name="other-store"))
    shown = cli("stores", "--json", folders=(good, broken, *conflicting))
    assert shown.code == 1
    document = json.loads(shown.out)
    assert (document["command"], document["exit_code"]) == ("stores", 1)
    rows = {row["scheme"]: row for row in document["result"]["stores"]}
    assert rows["good"]["problem"] is None
    assert {"name": "busy_timeout", "default": 5.0} in rows["sqlite"]["options"]
    assert "broken-store 1.0 is broken: its import failed with SystemExit: [red]out[/red]" in rows["broken"]["problem"]
    assert "claimed by one-store and other-store" in rows["twice"]["problem"]
    table = cli("stores", folders=(good, broken))
    assert table.code == 1
    assert "[red]out[/red]" in table.out
    assert "busy_timeout" in table.out
    assert cli("stores", folders=(good,)).code == 0


def test_without_its_libraries_the_command_says_what_to_install() -> None:
    file = Path(perdure.__file__).parent / "cli" / "__init__.py"
    command = [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({str(file)!r})['main']()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "perdure: the command line needs typer and rich: pip install 'perdure[cli]'\n"
