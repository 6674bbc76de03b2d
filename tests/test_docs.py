"""What the pages show is run: every Python block, and every command of a console.

The blocks of a page run in order, in one namespace and in one empty directory. The info string says what a block is:

* `python`: run. A `text` block right behind it is what it prints.
* `python title="x.py"`: a file, saved under that name.
* `python no-run`: for the reader alone.
* `console`: lines with `$` are commands, run if they call `python`, `perdure` or `perdure-conformance`; below stands what they print, where
  `...` stands for anything.
"""

import ast
import asyncio
import contextlib
import inspect
import io
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from core.tests.command_line import Program

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/README.md"),
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("integrations/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
)

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        info: What stands behind the fence.
        text: What stands within it.
        line: Where it begins.
        follows: Whether only blank lines are between it and the block before.
    """

    info: str
    text: str
    line: int
    follows: bool

    @property
    def title(self) -> str | None:
        found = _TITLE.search(self.info)
        return found[1] if found else None


def blocks_of(page: str) -> Iterator[Block]:
    end = 0
    for found in _BLOCK.finditer(page):
        line = page.count("\n", 0, found.start()) + 1
        yield Block(found["info"].strip(), found["text"], line, not page[end : found.start()].strip())
        end = found.end()


class Reader:
    """Does with one page what a reader would do, in a directory of its own."""

    def __init__(self, page: Path, directory: Path) -> None:
        self.page = page
        self.directory = directory
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def read(self) -> int:
        """Go through the page; return how many blocks there were to run or to compare."""
        done = 0
        for block in blocks_of(self.page.read_text(encoding="utf-8")):
            kind = block.info.partition(" ")[0]
            if kind == "python" and block.title:
                (self.directory / block.title).write_text(block.text, encoding="utf-8")
            elif kind == "python" and "no-run" not in block.info:
                self._run(block)
            elif kind == "text" and block.follows:
                assert self.printed == block.text, f"{self.page}:{block.line}"
            elif kind == "console":
                self._type(block)
            else:
                continue
            done += 1
        return done

    def _run(self, block: Block) -> None:
        shown = io.StringIO()
        code = compile("\n" * block.line + block.text, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(shown):
            awaited = eval(code, self.names)  # like exec, and a coroutine if the block awaits outside of functions
            if inspect.iscoroutine(awaited):
                asyncio.run(awaited)
        self.printed = shown.getvalue()

    def _type(self, block: Block) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PERDURE_OBSERVERS_OFF"}
        environment |= {"COLUMNS": "100", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for command, expected in _commands(block.text):
            words = shlex.split(command)
            if words[0] not in ("python", "perdure", "perdure-conformance"):
                continue
            ran = Program(words[0], self.directory, environment, errors_in_out=True)(*words[1:])
            said = ran.out + ("Killed\n" if ran.code == -signal.SIGKILL else "")
            assert _alike(said, expected), f"{self.page}:{block.line}: $ {command}\n{said}"


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _alike(said: str, expected: str) -> bool:
    pattern = ".*?".join(re.escape(piece) for piece in expected.strip().split("..."))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_page_does_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    caplog.set_level(logging.NOTSET, "perdure")  # set back at the end, also where the page sets another
    before = set(sys.modules)
    try:
        if not Reader(page, tmp_path).read():
            pytest.skip("the page shows nothing to run")
    finally:
        for name in set(sys.modules) - before:
            if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(tmp_path):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))]
    files = [unquote(link) for link in links if link and "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_every_page_of_the_docs_is_in_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text(encoding="utf-8"))}
    pages = {page for page in PAGES if page.is_relative_to(index.parent) and page != index}
    assert pages - linked == set()


LAWS_OF_THE_EXAMPLE = """
from perdure_conformance.laws import all_laws
from perdure_conformance.runner import Outcome, run_laws
from perdure_conformance.target import Target

few = [law.id for law in all_laws() if law.id.startswith("sessions-") and law.promise in (1, 2, 3, 5, 7, 8)]
verdicts = run_laws(Target.from_url("notebook:{dir}/notes.json"), few)
print(*(verdict for verdict in verdicts if verdict.outcome is Outcome.FAILED), sep="\\n")
print(sum(verdict.outcome is Outcome.PASSED for verdict in verdicts) >= 20)
"""


def test_the_backend_of_the_docs_keeps_the_laws(tmp_path: Path) -> None:
    """Install the example as a distribution of its own, and try some laws on it; it keeps all."""
    Reader(ROOT / "docs" / "how-to" / "write-a-journal-backend.md", tmp_path).read()
    info = tmp_path / "perdure_notebook-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: perdure-notebook\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perdure.stores]\nnotebook = perdure_notebook_plugin\n")
    ran = Program("python", tmp_path, os.environ | {"PYTHONPATH": str(tmp_path)})("-c", LAWS_OF_THE_EXAMPLE)
    assert (ran.out.strip(), ran.err) == ("True", "")


def test_blocks_are_found_and_outputs_are_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        Reader(page, tmp_path).read()
    page.write_text("```console\n$ python -c 'print(1 + 1)'\n3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"\$ python -c"):
        Reader(page, tmp_path).read()
    assert _alike("a 17 b\n", "a ... b\n")
    assert not _alike("a 17 b\n", "a ...\nb\n")
