"""Makes the navigation of the site from docs/index.md: its sections and groups, and the links in each."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_GROUP = re.compile(r"^### (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([^)\s#]+\.md)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set `nav`; a page that the index lacks is then reported by the build."""
    index = (Path(config.docs_dir) / "index.md").read_text(encoding="utf-8")
    config.nav = navigation(index)
    return config


def navigation(index: str) -> list[dict[str, object]]:
    """Return the sections of an index, with the pages above the first group and then the groups of each.

    A page is called what its title says.
    """
    nav: list[dict[str, object]] = [{"Home": "index.md"}]
    for title, text in _split(index, _SECTION)[1]:
        above, groups = _split(text, _GROUP)
        nav.append({title: [*_PAGE.findall(above), *({group: _PAGE.findall(below)} for group, below in groups)]})
    return nav


def _split(text: str, heading: re.Pattern[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return what stands above the first heading, and each heading with what stands below it."""
    top, *parts = heading.split(text)
    return top, list(zip(parts[::2], parts[1::2], strict=True))
