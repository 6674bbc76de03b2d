"""The benchmarks run: the figures in the documentation can be repeated."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.__main__ import QUESTIONS
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.messages import STEP, as_bytes, message
from benchmarks.pairs import in_turn
from benchmarks.publish import PAGE, RESULTS, begin, filled
from benchmarks.table import table

ROOT = Path(__file__).resolve().parent.parent


def test_unit_costs_are_measured(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "benchmarks.unit_costs", f"file:{tmp_path}", "25"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True, cwd=ROOT)
    found = json.loads(ran.stdout)["conversations"]
    assert list(found) == ["25"]
    assert all(costs["bytes a conversation"] > 4_000 and costs["turn"][0] > 0 for costs in found.values())


@pytest.mark.soak
def test_a_question_gives_results_and_a_table(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "benchmarks", "--quick", "--out", str(tmp_path), "imports"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True, cwd=ROOT)
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    figures = results["questions"]["imports"]["figures"]
    assert figures[0]["what"] == "import perdure"
    assert figures[0]["ratio"] > 0
    assert results["machine"]["packages"]["perdure"]
    assert table(results) in ran.stdout


def test_the_page_has_the_figures_that_are_kept() -> None:
    results, page = json.loads(RESULTS.read_text("utf-8")), PAGE.read_text("utf-8")
    assert filled(page, results) == page
    assert set(results["questions"]) == set(QUESTIONS)
    assert all(begin(name) in page for name in QUESTIONS)
    assert not results["quick"]


def test_each_question_is_a_file_that_says_what_it_asks() -> None:
    for name in QUESTIONS:
        module = import_module(f"benchmarks.{name}")
        assert (module.__doc__ or "").partition("\n")[0].endswith("?"), name
        assert callable(module.measure)


@pytest.mark.parametrize(
    ("goal", "ratio", "met"), [(at_least(0.9), 0.9, True), (at_least(0.9), 0.89, False), (at_most(2), 2.1, False)]
)
def test_a_goal_is_met_or_not(goal: object, ratio: float, met: bool) -> None:
    figure = Figure("append", "insert", "full", "µs", 1.0, 1.0, [ratio], goal)  # type: ignore[arg-type]  # reason: it is a Goal
    assert (figure.met, figure.to_json()["goal"]) == (met, str(goal))


def test_without_an_anchor_there_is_neither_a_ratio_nor_a_verdict() -> None:
    figure = Figure("append", "claude-agent-sdk (not installed)", "none", "µs", 12.0, goal=at_most(2))
    assert (figure.ratio, figure.met, figure.spread) == (None, None, None)
    results = {"questions": {"append": {"question": "What?", "figures": [figure.to_json()]}}}
    assert "| append | 12 µs | claude-agent-sdk (not installed) |  | ≤ 2 |  | none |" in table(results)


@pytest.mark.anyio
async def test_pairs_are_taken_in_turn_and_the_first_is_not_counted() -> None:
    ran: list[str] = []

    async def ours() -> None:
        ran.append("ours")

    async def theirs() -> None:
        ran.append("theirs")

    pairs = await in_turn(ours, theirs, pairs=2, calls=1)
    assert ran == ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
    assert (len(pairs.ours), len(pairs.theirs)) == (2, 2)


@pytest.mark.parametrize("size", [100, 1024, 4096, 1 << 20])
def test_a_message_has_the_size_that_is_asked_for(size: int) -> None:
    assert len(as_bytes(message(size))) == size
    assert [len(as_bytes(one)) for one in STEP] == [1024, 4096]
