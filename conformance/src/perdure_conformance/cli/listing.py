"""`perdure-conformance list`: the laws, by area."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Annotated

import typer

from perdure_conformance.cli.output import refuse, show
from perdure_conformance.laws.register import Law, all_laws


def command(
    area: Annotated[str | None, typer.Option(help="Only the laws of this area.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the laws by area."""
    laws = [law for law in all_laws() if area is None or law.area == area.replace(" ", "_")]
    if not laws:
        areas = dict.fromkeys(law.area for law in all_laws())
        refuse(f"there is no area {area!r}, only {', '.join(areas)}")
    if as_json:
        print(json.dumps([law_row(law) for law in laws], indent=2))
        return
    for name, members in groupby(laws, key=lambda law: law.area):
        rows = list(members)
        show(f"{name.replace('_', ' ')} ({len(rows)})")
        for law in rows:
            needs = f" [{', '.join(law.needs)}]" if law.needs else ""
            show(f"  {law.id}{needs}\n    {law.sentence}")
        show("")
    show(f"{len(laws)} laws. perdure-conformance explain LAW tells more of one.")


def law_row(law: Law) -> dict[str, object]:
    """Return a law as JSON."""
    return {
        "id": law.id,
        "sentence": law.sentence,
        "area": law.area,
        "parts": list(law.parts),
        "needs": list(law.needs),
        "promise": law.promise,
        "methods": list(law.methods),
        "since": law.since,
        "drawn": law.cases is not None,
    }
