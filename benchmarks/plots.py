"""Plots of the results: for each question the ratios with their quartiles, and the goals."""

from pathlib import Path
from typing import Any

from benchmarks.bench import anchor


def draw(results: dict[str, Any], out: Path) -> list[Path]:
    """Draw a plot for each question; none where matplotlib is not installed.

    Args:
        results: What `results.json` holds.
        out: The directory.

    Returns:
        The files.
    """
    matplotlib = anchor("matplotlib")
    if matplotlib is None:
        return []
    matplotlib.use("svg")
    plots = [plot(one["question"], _with_ratio(one), out / f"{name}.svg") for name, one in results["questions"].items()]
    return [path for path in plots if path is not None]


def _with_ratio(question: dict[str, Any]) -> list[dict[str, Any]]:
    return [figure for figure in question["figures"] if figure["ratio"] is not None]


def plot(title: str, figures: list[dict[str, Any]], path: Path) -> Path | None:
    """Draw one question: a line for each figure, whose dot is the median, and a mark at its goal."""
    pyplot = anchor("matplotlib.pyplot")
    if pyplot is None or not figures:
        return None
    drawing, axes = pyplot.subplots(figsize=(10, 1.2 + 0.32 * len(figures)), layout="constrained")
    for place, figure in enumerate(reversed(figures)):
        low, high = figure["spread"] or (figure["ratio"], figure["ratio"])
        colour = {True: "tab:green", False: "tab:red", None: "tab:blue"}[figure["met"]]
        axes.plot([low, high], [place, place], color=colour)
        axes.plot([figure["ratio"]], [place], "o", color=colour)
        if figure["goal"] is not None:
            sign, bound = figure["goal"].split()
            axes.plot([float(bound)], [place], marker=">" if sign == "≥" else "<", color="black")
    axes.set_yticks(range(len(figures)), [figure["what"] for figure in reversed(figures)], fontsize=8)
    if all(figure["ratio"] > 0 for figure in figures):
        axes.set_xscale("log")
    axes.axvline(1, color="lightgrey", zorder=0)
    axes.set_xlabel("ratio to the anchor: median and quartiles; black: the goal, which points to where it is met")
    axes.set_title(title, fontsize=10)
    drawing.savefig(path)
    pyplot.close(drawing)
    return path
