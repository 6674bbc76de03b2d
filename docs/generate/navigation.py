"""Makes the navigation of the site from docs/index.md: its sections, and the links in each."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([^)\s#]+\.md)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set `nav`; a page that the index lacks is then reported by the build."""
    config.nav = navigation((Path(config.docs_dir) / "index.md").read_text(encoding="utf-8"))
    return config


def navigation(index: str) -> list[dict[str, object]]:
    """Return the sections of an index, each with the paths of its pages; a page is called what its title says."""
    nav: list[dict[str, object]] = [{"Home": "index.md"}]
    _, *parts = _SECTION.split(index)
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        nav.append({title: _PAGE.findall(text)})
    return nav
