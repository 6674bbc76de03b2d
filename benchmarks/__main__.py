"""Run the benchmarks: `python -m benchmarks [--quick] [--out DIRECTORY] [QUESTION ...]`; `make bench` runs them all.

Each question is a module. The results are written as JSON, with the facts of the machine, after each question; then the
table is printed, and plots are drawn if matplotlib is installed.
"""

import argparse
import asyncio
import json
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench, running
from benchmarks.machine import machine
from benchmarks.plots import draw
from benchmarks.table import table

QUESTIONS = (
    "append",
    "sqlite_pieces",
    "record_sizes",
    "many_sessions",
    "step_and_turn",
    "runtime_share",
    "resume_and_decide",
    "load_and_tail",
    "list_and_prune",
    "growth",
    "memory",
    "imports",
    "scale",
)


def main() -> None:
    """Run the questions that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}")
    parser.add_argument("--quick", action="store_true", help="measure little, to see that it works")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where results and plots go")
    parser.add_argument("--directory", type=Path, help="the disk to measure; by default that of temporary files")
    given = parser.parse_args()
    if unknown := set(given.questions) - set(QUESTIONS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with running(quick=given.quick, directory=given.directory) as bench:
        results = run(bench, given.questions or QUESTIONS, given.out)
    print(table(results))
    for path in draw(results, given.out):
        print(path)


def run(bench: Bench, questions: tuple[str, ...], out: Path) -> dict[str, Any]:
    """Run questions, write what they found after each, and draw it at the end."""
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": bench.quick,
        "machine": machine(bench.directory),
        "questions": {},
    }
    for name in questions:
        results["questions"][name] = ask(bench, name)
        (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results


def ask(bench: Bench, name: str) -> dict[str, Any]:
    """Run one question."""
    module, began = import_module(f"benchmarks.{name}"), time.perf_counter()
    load = machine()["load"]
    figures = asyncio.run(module.measure(bench))
    seconds = round(time.perf_counter() - began, 1)
    print(f"{name}: {len(figures)} figures in {seconds} s", flush=True)
    question = (module.__doc__ or "").partition("\n")[0]
    return {
        "question": question,
        "load": load,
        "seconds": seconds,
        "figures": [figure.to_json() for figure in figures],
    }


if __name__ == "__main__":
    main()
