"""The options of commands that list a page of what there is."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

_MOST: Final = 1_000_000_000

LimitOption: TypeAlias = Annotated[int, typer.Option(min=0, max=_MOST, help="How many at the most.")]

CursorOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Go on where another call ended; it told the cursor.")
]
