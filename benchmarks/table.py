"""The table of the results, in Markdown."""

from collections.abc import Iterator
from typing import Any

HEADINGS = ("figure", "ours", "anchor", "ratio", "goal", "met", "durability")


def table(results: dict[str, Any]) -> str:
    """Return all figures, a table for each question."""
    return "\n".join(line for one in results["questions"].values() for line in lines(one))


def lines(question: dict[str, Any]) -> Iterator[str]:
    """Return the lines of one question."""
    yield f"\n{question['question']}"
    yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{' --- |' * len(HEADINGS)}"
    for figure in question["figures"]:
        yield f"| {' | '.join(row(figure))} |"


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one figure."""
    theirs, unit, spread = figure["theirs"], figure["unit"], figure["spread"]
    return (
        figure["what"],
        f"{number(figure['ours'])} {unit}",
        figure["anchor"] + ("" if theirs is None else f": {number(theirs)} {unit}"),
        ""
        if figure["ratio"] is None
        else f"{figure['ratio']:.2f}" + ("" if spread is None else f" ({spread[0]:.2f} to {spread[1]:.2f})"),
        figure["goal"] or "",
        {True: "yes", False: "**no**", None: ""}[figure["met"]],
        figure["durability"],
    )


def number(value: float) -> str:
    """Return a number with three figures that count, and commas between thousands."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
