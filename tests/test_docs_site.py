"""The site: its build is strict, its navigation is the index, and what is made from the code is complete.

The whole site is built by `make docs`, which is part of `make check`; here small ones are.
"""

import importlib.util
import inspect
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from typer.main import get_command

import perdure.errors
import perdure_conformance.cli
from perdure.cli import COMMANDS
from perdure.cli.application import application
from perdure.errors import PerdureError
from perdure_conformance.laws import all_laws

ROOT = Path(__file__).resolve().parent.parent

INDEX = "# Home\n\nWhat it is.\n\n## Learn\n\n* [One](one.md): the first page\n\n## Look up\n\n### Much\n\n* [Two](more/two.md)\n"
ONE = "# First\n\nThe first sentence of [one](more/two.md#part). Another.\n"
TWO = "# Second\n\nThe second page.\n\n## Part\n\nText.\n"
PAGES = {"index.md": INDEX, "one.md": ONE, "more/two.md": TWO}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Take away what the build hangs on its logger to count warnings."""
    logger = logging.getLogger("mkdocs")
    handlers = list(logger.handlers)
    yield
    logger.handlers = handlers


def built(pages: dict[str, str], directory: Path) -> Path:
    """Build a site of these pages by the settings of the real one, and return where it is."""
    for name, text in pages.items():
        (directory / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / "docs" / name).write_text(text, encoding="utf-8")
    site = directory / "site"
    build(
        load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(directory / "docs"), site_dir=str(site), plugins=["search"])
    )
    return site


def test_a_sound_site_is_built_with_a_line_about_each_page(tmp_path: Path) -> None:
    site = built(PAGES, tmp_path)
    assert (site / "llms.txt").read_text(encoding="utf-8") == (
        "# perdure\n\n> What it is.\n\n"
        "## Learn\n\n- [First](one.md): The first sentence of one.\n\n"
        "## Look up\n\n- [Second](more/two.md): The second page.\n"
    )
    assert (site / "llms-full.txt").read_text(encoding="utf-8") == f"{ONE}\n{TWO}"
    assert (site / "more/two.md").read_text(encoding="utf-8") == TWO
    assert "<title>Second - perdure</title>" in (site / "more/two.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        pytest.param("one.md", ONE.replace("two.md", "three.md"), id="a link to no page"),
        pytest.param("one.md", ONE.replace("#part", "#parts"), id="a link to no heading"),
        pytest.param("one.md", ONE.replace("more/two.md#part", "/more/two.md"), id="a link from the root of a site"),
        pytest.param("one.md", "# First\n\n| a | b |\n| --- | --- |\n", id="a page that no sentence is about"),
        pytest.param("one.md", f"{ONE}\n```python no-such\n1\n```\n", id="a block that is not understood"),
        pytest.param("index.md", INDEX.replace("more/two.md", "more/three.md"), id="an index that names no page"),
        pytest.param("three.md", "# Third\n\nA page.\n", id="a page that the index lacks"),
    ],
)
def test_a_site_with_a_fault_is_not_built(page: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(Abort, match="strict mode"):
        built(PAGES | {page: text}, tmp_path)


def test_the_command_of_make_docs_fails_on_a_fault(tmp_path: Path) -> None:
    """An option of the command, such as --quiet, may switch the strictness off."""
    recipe = re.search(r"/mkdocs (build.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert recipe is not None
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\nSee [one](one.md).\n", encoding="utf-8")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\nsite_dir: site\nhooks: []\nplugins: [search]\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "mkdocs", *recipe[1].split(), "--config-file", str(settings)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "one.md" in ran.stderr
    assert ran.returncode == 1


def test_a_block_that_no_test_runs_is_shown_like_others(tmp_path: Path) -> None:
    site = built(PAGES | {"one.md": f"{ONE}\n```python no-run\nawait there\n```\n"}, tmp_path)
    assert '<span class="k">await</span>' in (site / "one.html").read_text(encoding="utf-8")


def test_a_place_for_something_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="nothing_known"):
        built(PAGES | {"one.md": f"{ONE}\n<!-- generated: nothing_known -->\n"}, tmp_path)


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    """Return the hook that makes pages from the code."""
    return loaded("pages")


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "generate" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled(pages: ModuleType, name: str) -> str:
    return str(pages.filled((ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")))


def test_the_page_of_laws_has_each_with_its_sentence(pages: ModuleType) -> None:
    text = filled(pages, "laws.md")
    assert [law.id for law in all_laws() if f"`{law.id}`" not in text or law.sentence not in text] == []


def test_the_page_of_errors_has_each_with_its_hint_and_says_what_is_true(pages: ModuleType) -> None:
    own = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    text = filled(pages, "errors.md")
    found = (one for _, one in inspect.getmembers(perdure.errors, inspect.isclass))
    errors = [one for one in found if issubclass(one, PerdureError) and one is not PerdureError]
    assert [one.__name__ for one in errors if f"`{one.__name__}`" not in own] == []
    assert [one.__name__ for one in errors if one.hint not in text] == []
    assert "| `RecordTooLargeError` | `where`, `size`, `limit` | no |" in text


@pytest.mark.parametrize(
    ("name", "app"),
    [("perdure", application(COMMANDS)), ("perdure-conformance", perdure_conformance.cli.application())],
    ids=["perdure", "perdure-conformance"],
)
def test_the_page_of_commands_has_each(pages: ModuleType, name: str, app: typer.Typer) -> None:
    text = filled(pages, "commands.md")
    command = get_command(app)
    commands = command.list_commands(typer.Context(command))  # type: ignore[attr-defined]  # reason: an app is a group
    assert commands
    assert [one for one in commands if f"### `{name} {one}`" not in text] == []


def test_promises_of_a_docstring_become_a_list_and_examples_keep_their_code() -> None:
    assert loaded("docstrings").rewritten(
        "Do it.\n\nAtomic: All,\n    or nothing.\nRetry: Safe.\nLaws: a-law,\n    b-law\n\nExample:\n    >>> 1\n"
    ) == (
        "Do it.\n\n* **Atomic**: All, or nothing.\n* **Retry**: Safe.\n* **Laws**: `a-law`, `b-law`\n\n"
        "Examples:\n    >>> 1\n"
    )
