"""What there is to say about a law: why it matters, which line of the contract it checks, and its test."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from perdure import AgentStore
from perdure.backend import append_once
from perdure.contracts.approvals import ApprovalStore
from perdure.contracts.checkpoints import CheckpointStore
from perdure.contracts.sessions import SessionStore
from perdure_conformance.laws.register import Law
from perdure_conformance.levels import LEVELS
from perdure_conformance.why import why_it_matters

OWNERS: dict[str, type] = {
    "sessions": SessionStore,
    "checkpoints": CheckpointStore,
    "approvals": ApprovalStore,
    "bundle": AgentStore,
}
"""By the first part of a law's method, the class that has it; `append_once` is a function."""

HEADINGS = {2: "Concurrent", 3: "Atomic", 4: "Durable", 9: "Raises", 14: "Cancelled"}
"""By promise, the heading of a docstring under which a method makes it; every other is in its first line and Returns."""


@dataclass(frozen=True, slots=True)
class ContractLine:
    """A line of the contract that a law checks.

    Attributes:
        method: The method of the contract, such as `SessionStore.append`.
        place: Its module and the line, such as `perdure.contracts.sessions:120`.
        text: The line.
    """

    method: str
    place: str
    text: str


def contract_lines(law: Law) -> list[ContractLine]:
    """Return the lines of the contract's docstrings that a law checks, one for each method that names it."""
    return [_line(law, name) for name in law.methods]


def _line(law: Law, name: str) -> ContractLine:
    method: Callable[..., Any] = (
        append_once if name == "append_once" else attrgetter(name.partition(".")[2])(_owner(name))
    )
    source, first = inspect.getsourcelines(method)
    heading = HEADINGS.get(law.promise or 0, "")
    found = next((row for row, line in enumerate(source) if heading and line.strip().startswith(f"{heading}:")), None)
    row = next(row for row, line in enumerate(source) if '"""' in line) if found is None else found
    text = source[row].strip().strip('"')
    if text == f"{heading}:":
        text += " " + source[row + 1].strip()
    return ContractLine(method.__qualname__, f"{method.__module__}:{first + row}", text)


def _owner(name: str) -> type:
    return OWNERS[name.partition(".")[0]]


def source_of(law: Law) -> tuple[str, str]:
    """Return where the test of a law is, as module and line, and its source."""
    function = getattr(law.function, "__wrapped__", law.function)
    source, first = inspect.getsourcelines(function)
    return f"{function.__module__}:{first}", textwrap.dedent("".join(source)).rstrip()


def explanation(law: Law) -> str:
    """Return all that there is to say about a law, as text."""
    return "\n".join(_lines(law))


def _lines(law: Law) -> Iterator[str]:
    place, source = source_of(law)
    yield law.id
    yield f"  {law.sentence}"
    yield ""
    yield f"why it matters: {why_it_matters(law)}"
    yield f"about:          {', '.join(law.parts) or 'all three stores together'}"
    yield f"switched on by: {', '.join(law.needs) or 'nothing: every store promises it'}"
    yield f"levels:         {', '.join(level.name for level in LEVELS if level.belongs(law)) or 'none'}"
    yield f"since:          perdure-conformance {law.since}"
    if law.promise is not None:
        yield f"promise:        {law.promise} of the storage contract"
    if law.cases is not None:
        yield f"drawn cases:    {law.examples}, more or fewer by the profile"
    yield ""
    for line in contract_lines(law):
        yield f"the contract says, in {line.method} ({line.place}):"
        yield f"  {line.text}"
    if not law.methods:
        yield "no method of the contract names it: it is about the stores as a whole"
    yield ""
    yield f"its test ({place}):"
    yield ""
    yield from re.sub(r"(?m)^(?=.)", "  ", source).splitlines()
