"""`perdure demo`: a turn that survives a SIGKILL and a wait for a human, with real processes on a real store."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    store: Annotated[
        str | None,
        typer.Option(help="URL of a durable store that several processes can share. Default: a new SQLite file."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the store and the shop's files, and say where.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Kill a process in the middle of a turn, and watch others finish it with every effect done once."""
    from perdure.cli.demo.showing import show_demo  # --help does without

    show_demo(store, keep=keep, as_json=as_json)
