"""How long do imports take, and how many modules do they load?"""

import statistics
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.figures import Figure, at_most

START = """
import asyncio
from perdure import Agent, open_store, tool

@tool
def look_up(order: int) -> str:
    return "sent"

async def start():
    async with open_store("memory:"):
        pass

asyncio.run(start())
"""
"""What an application does before its first turn; pydantic is loaded with its first tool or store."""

IMPORTS = {
    "import perdure": "import perdure",
    "import perdure.backend": "import perdure.backend",
    "from perdure import Agent, open_store": "from perdure import Agent, open_store",
    "these, a tool made and a store opened": START,
    "import pydantic, for comparison": "import pydantic",
}
ANCHOR = "import asyncio"
TIMED = "import sys, time\nbegan = time.perf_counter()\n{code}\nprint(time.perf_counter() - began, len(sys.modules))"


async def measure(bench: Bench) -> list[Figure]:
    """Import in processes of their own, in turn with asyncio; the start of Python is not counted."""
    return [figure for what, code in IMPORTS.items() for figure in figures(what, in_turn(bench, code))]


Sides = list[tuple[tuple[float, int], tuple[float, int]]]
"""Of each pair, ours and the anchor's: seconds and modules."""


def in_turn(bench: Bench, code: str) -> Sides:
    """Import in turn with the anchor; the pair before the first fills the caches and is not counted."""
    pairs = []
    for number in range(bench.size(20, 3) + 1):
        first = imported(code if number % 2 else ANCHOR)
        second = imported(ANCHOR if number % 2 else code)
        pairs.append((first, second) if number % 2 else (second, first))
    return pairs[1:]


def figures(what: str, pairs: Sides) -> list[Figure]:
    """Make a figure of the times and one of the modules."""
    ours, theirs = (statistics.median(pair[side][0] for pair in pairs) * 1e6 for side in (0, 1))
    ratios = [own[0] / other[0] for own, other in pairs]
    own, other = (pairs[0][side][1] for side in (0, 1))
    goal = at_most(2.7) if what == "import perdure" else None
    return [
        Figure(what, ANCHOR, "", "µs", ours, theirs, ratios, goal),
        Figure(f"modules of: {what}", ANCHOR, "", "modules", own, other, [own / other]),
    ]


def imported(code: str) -> tuple[float, int]:
    """Return how many seconds an import takes in a fresh process, and how many modules there are then."""
    program = [sys.executable, "-I", "-c", TIMED.format(code=code)]
    seconds, modules = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(modules)
