"""`perdure-conformance explain`: all that there is to say about one law."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from perdure_conformance.cli.output import refuse, show
from perdure_conformance.explain import explanation
from perdure_conformance.laws.register import all_laws


def command(law: Annotated[str, typer.Argument(help="The id of a law.")]) -> None:
    """Tell what a law promises, why it matters, which line of the contract it checks, and show its test."""
    laws = {one.id: one for one in all_laws()}
    if law not in laws:
        near = difflib.get_close_matches(law, laws, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`perdure-conformance list` shows all"
        refuse(f"there is no law {law!r}; {hint}")
    show(explanation(laws[law]))
