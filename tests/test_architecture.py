"""The directions of the house: who may import whom. import-linter holds the broad ones, these hold the exact ones."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
INTEGRATIONS = sorted(path.parent for path in ROOT.glob("integrations/*/pyproject.toml"))
MEMBERS = [ROOT / "core", *PLUGINS, *INTEGRATIONS, ROOT / "conformance"]
SOURCES = [member / "src" for member in MEMBERS]
CORE = ROOT / "core" / "src" / "perdure"


class Import(NamedTuple):
    """One imported module, and the line that imports it."""

    module: str
    place: str


def _module_name(file: Path, source: Path) -> str:
    parts = file.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_module(name: str, source: Path) -> bool:
    paths = [folder.joinpath(*name.split(".")) for folder in (source, *SOURCES)]
    return any(path.is_dir() or path.with_suffix(".py").exists() for path in paths)


def _imports(file: Path, source: Path) -> Iterator[Import]:
    """Every import of a file, also those within functions and under TYPE_CHECKING, by the full name of the module.

    `from package import name` counts as an import of `package.name` where that is a module of ours, else of `package`.
    """
    name = _module_name(file, source)
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), filename=str(file))):
        place = f"{shown}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, place)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if _is_module(full, source) else base, place)


def _imports_below(folder: Path, source: Path) -> list[Import]:
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return [found for file in files for found in _imports_of(file, source)]


@cache
def _imports_of(file: Path, source: Path) -> tuple[Import, ...]:
    """Read a file once, however many directions it is held to."""
    return tuple(_imports(file, source))


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _package(member: Path) -> str:
    (folder,) = (path.parent.name for path in member.glob("src/*/__init__.py"))
    return folder


def _project(member: Path) -> dict[str, Any]:
    return tomllib.loads((member / "pyproject.toml").read_text(encoding="utf-8"))["project"]  # type: ignore[no-any-return]  # reason: TOML is Any


def _refused(imports: list[Import], *, allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{place} imports {module}" for module, place in imports if not any(_within(module, one) for one in allowed)
    ]


def test_imports_are_found_in_every_form(tmp_path: Path) -> None:
    for name in ("ours/backend.py", "ours/errors.py", "ours/journal/contract.py", "plugin/journal.py"):
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).touch()
    file = tmp_path / "plugin" / "plugin.py"
    file.write_text(
        "import os.path\n"
        "from ours import backend, errors\n"
        "from ours.journal import contract\n"
        "from . import journal\n"
        "from .deep import thing\n"
        "if TYPE_CHECKING:\n"
        "    import ours.errors as errors\n"
        "def function():\n"
        "    from ours import __version__\n",
        encoding="utf-8",
    )
    imports = list(_imports(file, tmp_path))
    assert sorted(found.module for found in imports) == [
        "os.path",
        "ours",
        "ours.backend",
        "ours.errors",
        "ours.errors",
        "ours.journal.contract",
        "plugin.deep",
        "plugin.journal",
    ]
    assert sorted(_refused(imports, allowed=("os", "plugin", "ours.backend", "ours.journal"))) == [
        "plugin.py:2 imports ours.errors",
        "plugin.py:7 imports ours.errors",
        "plugin.py:9 imports ours",
    ]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_sees_only_the_backend_module_of_ours(plugin: Path) -> None:
    package = _package(plugin)
    imports = [one for one in _imports_below(plugin / "src", plugin / "src") if one.module.startswith("perdure")]
    assert _refused(imports, allowed=("perdure.backend", package)) == []


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_module_imports_no_driver_at_import_time(plugin: Path) -> None:
    source = plugin / "src"
    file = source / _package(plugin) / "plugin.py"
    if not file.exists():
        pytest.skip("there is no plugin.py yet")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    at_import_time = {node.lineno for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)}
    imports = [one for one in _imports(file, source) if int(one.place.rpartition(":")[2]) in at_import_time]
    allowed = (*(sys.stdlib_module_names - {"sqlite3"}), "pluggy", "pydantic", "perdure.backend", _package(plugin))
    assert _refused(imports, allowed=allowed) == []


def test_the_kit_sees_the_public_core_and_no_plugin() -> None:
    source = ROOT / "conformance" / "src"
    imports = [one for one in _imports_below(source, source) if one.module.startswith("perdure")]
    assert _refused(imports, allowed=("perdure", "perdure_conformance")) == []
    private = [
        one
        for one in imports
        if _within(one.module, "perdure") and any(part.startswith("_") for part in one.module.split("."))
    ]
    assert private == []


@pytest.mark.parametrize("integration", INTEGRATIONS, ids=lambda path: path.name)
def test_an_integration_sees_the_public_core_and_no_plugin(integration: Path) -> None:
    source, package = integration / "src", _package(integration)
    imports = [one for one in _imports_below(source, source) if one.module.startswith("perdure")]
    assert _refused(imports, allowed=("perdure", package)) == []
    assert [one for one in imports if _within(one.module, "perdure.runtime")] == []


def test_the_contracts_see_the_standard_library_and_little_else() -> None:
    imports = _imports_below(CORE / "contracts", CORE.parent)
    ours = ("perdure.contracts", "perdure.errors", "perdure.codec", "perdure.clock")
    libraries = ("pydantic", "pydantic_core", "pluggy", "orjson", "msgspec")
    assert _refused(imports, allowed=(*sys.stdlib_module_names, *libraries, *ours)) == []


def test_the_runtime_sees_neither_the_journal_nor_a_backend() -> None:
    refused = ("perdure.journal", "perdure.backend", *(_package(plugin) for plugin in PLUGINS))
    imports = _imports_below(CORE / "runtime", CORE.parent)
    assert [one for one in imports if any(_within(one.module, name) for name in refused)] == []


def test_the_core_imports_no_driver_and_no_plugin() -> None:
    drivers = ("aiosqlite", "sqlite3", "redis", "filelock", "asyncpg", "psycopg")
    refused = (*drivers, "perdure_conformance", *(_package(plugin) for plugin in PLUGINS))
    assert list(CORE.rglob("*.py"))
    # The demo's tools have effects in a database of their own, which has nothing to do with the stores.
    demo_tools = "core/src/perdure/cli/demo/tools.py:"
    imports = [
        one
        for one in _imports_below(CORE, CORE.parent)
        if not (one.module == "sqlite3" and one.place.startswith(demo_tools))
    ]
    assert [one for one in imports if any(_within(one.module, name) for name in refused)] == []


def test_all_distributions_have_one_version() -> None:
    assert {_project(member)["version"] for member in MEMBERS} == {_project(ROOT / "core")["version"]}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda path: path.name)
def test_a_distribution_is_typed_and_licensed(member: Path) -> None:
    assert (member / "src" / _package(member) / "py.typed").exists()
    assert (member / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert _project(member)["requires-python"] == ">=3.11"
