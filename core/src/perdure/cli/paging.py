"""The options of commands that list a page of what there is."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

LimitOption: TypeAlias = Annotated[int, typer.Option(min=0, help="How many at the most.")]

CursorOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Go on where another call ended; it told the cursor.")
]
