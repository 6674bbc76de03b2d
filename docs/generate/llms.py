"""Writes llms.txt, which has a line about each page, llms-full.txt, which has all their texts, and each text beside its page."""

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

_log = logging.getLogger("mkdocs.hooks.llms")
_texts: dict[str, str] = {}
_sections: list[tuple[str, list[Page]]] = []

_TITLE = re.compile(r"\A\s*# .*\n\s*")
_LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")


def on_nav(nav: Navigation, **_: object) -> None:
    """Remember the sections and their pages."""
    _sections[:] = [(item.title, list(_pages(item.children))) for item in nav.items if isinstance(item, Section)]


def _pages(items: Iterable[StructureItem]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Page):
            yield item
        elif isinstance(item, Section):
            yield from _pages(item.children)


def on_page_markdown(markdown: str, page: Page, **_: object) -> None:
    """Remember the text of a page, what is generated included: this hook comes last."""
    _texts[page.file.src_uri] = markdown
    if not first_sentence(markdown):
        _log.warning("%s has no sentence below its title, which llms.txt would show", page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the files."""
    site = Path(config.site_dir)
    head = f"# {config.site_name}\n\n> {first_sentence(_texts['index.md'])}\n"
    (site / "llms.txt").write_text("\n".join([head, *_listing()]), encoding="utf-8")
    texts = [_texts[page.file.src_uri] for _, pages in _sections for page in pages if _is_text(page)]
    (site / "llms-full.txt").write_text("\n".join(texts), encoding="utf-8")
    for path, text in _texts.items():
        (site / path).write_text(text, encoding="utf-8")


def _listing() -> Iterator[str]:
    for title, pages in _sections:
        yield f"## {title}\n"
        yield from (_line(page) for page in pages)
        yield ""


def _line(page: Page) -> str:
    """Return the title of a page, where its text is, and what it says first."""
    path = page.file.src_uri if _is_text(page) else page.file.url
    return f"- [{page.title}]({path}): {first_sentence(_texts[page.file.src_uri])}"


def _is_text(page: Page) -> bool:
    """Whether the text of a page has all that the page shows: docstrings come in later."""
    return not re.search(r"^::: ", _texts[page.file.src_uri], re.MULTILINE)


def first_sentence(markdown: str) -> str:
    """Return the first sentence below the title of a page, without its links; empty if no paragraph stands there."""
    paragraph = _TITLE.sub("", markdown).partition("\n\n")[0]
    if paragraph.startswith(("#", "|", "```", ":::", "* ", "- ")):
        return ""
    text = " ".join(_LINK.sub(r"\1", paragraph).split())
    return re.split(r"(?<=\.) (?=[A-Z`]|perdure )", text)[0].rstrip(":")
