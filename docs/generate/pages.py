"""Fills the pages that are made from the code: the laws, the errors and the commands.

A page says with `<!-- generated: NAME -->` where its part belongs.
"""

import inspect
import logging
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby

import typer
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click
from typer.main import get_command

import perdure_conformance.cli
from perdure.cli import COMMANDS
from perdure.cli.application import application
from perdure.errors import PerdureError
from perdure_conformance.laws import Law, all_laws

_log = logging.getLogger("mkdocs.hooks.pages")
_STRANGE = re.compile(r'^```(?!\w*(?: title="[^"]*")?$).*$', re.MULTILINE)
"""A fence with something behind it that the site does not know."""

_PLACE = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put what is generated into its place, and take away what only the tests of the pages need."""
    text = filled(markdown).replace("```python no-run\n", "```python\n")
    for fence in _STRANGE.findall(text):
        _log.warning("%s has a block that would be shown as it is written: %s", page.file.src_uri, fence)
    return text


def filled(markdown: str) -> str:
    """Return a page with what is generated in its places.

    Raises:
        KeyError: A place has a name that is unknown.
    """
    return _PLACE.sub(lambda found: _PARTS[found[1]](), markdown)


# --- laws -------------------------------------------------------------------------------------------------------------


def laws() -> str:
    """Return a section for each area, with the id, the promise and the contract methods of its laws."""
    areas = groupby(all_laws(), key=lambda law: law.area)
    return "\n".join(line for area, members in areas for line in _area(area, list(members)))


def _area(name: str, members: list[Law]) -> Iterator[str]:
    yield f"## {name.replace('_', ' ').capitalize()}\n\n| law | promise | checks | if the store declares |\n| --- | --- | --- | --- |"
    for law in members:
        methods = ", ".join(_method(one) for one in law.methods)
        needs = ", ".join(f"`{one}`" for one in law.needs)
        yield f'| <span id="{law.id}">`{law.id}`</span> | {law.sentence.replace("|", "&#124;")} | {methods} | {needs} |'
    yield ""


def _method(name: str) -> str:
    """Return a link from a method such as `sessions.append` to its docstring."""
    part, dot, method = name.partition(".")
    return f"[`{name}`][{_OWNERS[part]}{dot}{method}]"


_OWNERS = {
    "sessions": "perdure.backend.SessionStore",
    "checkpoints": "perdure.backend.CheckpointStore",
    "approvals": "perdure.backend.ApprovalStore",
    "bundle": "perdure.AgentStore",
    "append_once": "perdure.backend.append_once",
}


# --- errors -----------------------------------------------------------------------------------------------------------


def errors() -> str:
    """Return the tree of the errors, and what each carries."""
    for module in ("perdure.blocking", "perdure.models"):
        import_module(module)  # has an error of its own
    tree = "\n".join(_branch(PerdureError, ""))
    rows = "\n".join(_row(error) for error in _below(PerdureError))
    return f"```text\n{tree}\n```\n\n| error | attributes | retryable | hint |\n| --- | --- | --- | --- |\n{rows}\n"


def _children(error: type[PerdureError]) -> list[type[PerdureError]]:
    return [one for one in error.__subclasses__() if one.__module__.startswith("perdure.")]


def _below(error: type[PerdureError]) -> Iterator[type[PerdureError]]:
    for one in _children(error):
        yield one
        yield from _below(one)


def _branch(error: type[PerdureError], indent: str) -> Iterator[str]:
    where = "" if error.__module__ == PerdureError.__module__ else f"  (in {error.__module__})"
    yield f"{indent}{error.__name__}{where}"
    for one in _children(error):
        yield from _branch(one, f"{indent}    ")


def _row(error: type[PerdureError]) -> str:
    parameters = inspect.signature(error.__init__).parameters
    given = [name for name in parameters if name not in ("self", "args", "kwargs", "hint")]
    hint = error.hint or ("tells what to do in this case" if given else "")
    retryable = "as given" if "retryable" in given else "yes" if error.retryable else "no"
    return f"| `{error.__name__}` | {', '.join(f'`{one}`' for one in given)} | {retryable} | {hint.replace('|', '&#124;')} |"


# --- commands ---------------------------------------------------------------------------------------------------------


def perdure_command() -> str:
    """Return what `perdure --help` and the help of each of its commands say."""
    return _help("perdure", application(COMMANDS))


def conformance_command() -> str:
    """Return the same of `perdure-conformance`."""
    return _help("perdure-conformance", perdure_conformance.cli.application())


def _help(name: str, app: typer.Typer) -> str:
    command = get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command), name=name, indent=1)


_PARTS = {
    "laws": laws,
    "errors": errors,
    "perdure_command": perdure_command,
    "conformance_command": conformance_command,
}
