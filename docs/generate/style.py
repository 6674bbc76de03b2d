"""Writes site.css: what stands beside this file, and the colours of code."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters.html import HtmlFormatter  # type: ignore[import-untyped]  # reason: Pygments has no types


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the style sheet to the site."""
    own = Path(__file__).with_name("site.css").read_text(encoding="utf-8")
    colours = str(HtmlFormatter(style="default").get_style_defs(".highlight"))
    files.append(File.generated(config, "site.css", content=f"{own}\n{colours}\n"))
    return files
