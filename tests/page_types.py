"""Writes the Python of the pages as modules for a type checker: `python -m tests.page_types` fills build/pages.

Each file that a page has its readers save is a module, and so is all else of a page that runs; lines keep their numbers. None at
all is checked of what is only shown (`no-run`).
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.test_docs import PAGES, ROOT, Block, blocks_of

FOLDER = ROOT / "build" / "pages"
PACKAGE = "build.pages"
"""What the type checker, which is called in the root, calls that folder; its settings go by that name."""


def write_modules(folder: Path) -> None:
    """Write the modules of all pages into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in PAGES:
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
        for module, text in modules_of(page.read_text(encoding="utf-8"), name).items():
            (folder / f"{module}.py").write_text(text, encoding="utf-8")


def modules_of(page: str, name: str) -> dict[str, str]:
    """Return the modules of a page by name; the name of the page tells them from those of others."""
    blocks = [block for block in blocks_of(page) if block.info.partition(" ")[0] == "python"]
    files = {Path(block.title).stem: block for block in blocks if block.title and block.title.endswith(".py")}
    found = {f"{name}__{stem}": _renamed("\n" * block.line + block.text, name, files) for stem, block in files.items()}
    run = [block for block in blocks if not block.title and "no-run" not in block.info]
    if run:
        found[name] = _renamed(_joined(run), name, files)
    return found


def _renamed(text: str, name: str, files: dict[str, Block]) -> str:
    """Return code that imports the files of its page by the names that they have here."""
    for stem in files:
        text = re.sub(
            rf"^(\s*)import {stem}$", rf"\1import {PACKAGE}.{name}__{stem} as {stem}", text, flags=re.MULTILINE
        )
        text = re.sub(
            rf"^(\s*)from {stem} import", rf"\1from {PACKAGE}.{name}__{stem} import", text, flags=re.MULTILINE
        )
    return text


def _joined(blocks: list[Block]) -> str:
    """Return blocks as one module; what awaits outside of a function stands in one."""
    lines: list[str] = []
    for block in blocks:
        text = block.text
        try:
            compile(text, "page", "exec")
        except SyntaxError:
            text = f"async def block_{block.line}() -> None:\n" + re.sub("^(?=.)", "    ", text, flags=re.MULTILINE)
        lines += [""] * (block.line - len(lines)) + text.splitlines()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_modules(FOLDER)
