"""The benchmarks run: the figures in the documentation can be repeated."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_unit_costs_are_measured(tmp_path: Path) -> None:
    program = [sys.executable, str(BENCHMARKS / "unit_costs.py"), f"file:{tmp_path}", "25"]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=100, check=True)
    found = json.loads(ran.stdout)["conversations"]
    assert list(found) == ["25"]
    assert all(costs["bytes a conversation"] > 4_000 and costs["turn"][0] > 0 for costs in found.values())
