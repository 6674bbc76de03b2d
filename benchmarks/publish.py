"""Put the results of a run into the documentation: `python -m benchmarks.publish build/bench/results.json`.

They are kept in `benchmarks/results.json`, and the tables of `docs/explanation/performance.md` are made of them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.table import lines

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "performance.md"


def begin(name: str) -> str:
    """Return the mark before the table of a question."""
    return f"<!-- figures of {name} -->\n"


END = "<!-- end of the figures -->\n"


def filled(page: str, results: dict[str, Any]) -> str:
    """Return the page with the tables of the results."""
    for name, question in results["questions"].items():
        before, mark, rest = page.partition(begin(name))
        if mark:
            _, end, after = rest.partition(END)
            _, _, *table = lines(question)
            page = "".join((before, mark, "\n", "\n".join(table), "\n\n", end, after))
    return page


def main(path: str) -> None:
    """Keep the results and fill the page."""
    results = json.loads(Path(path).read_text("utf-8"))
    for question in results["questions"].values():
        for figure in question["figures"]:
            del figure["ratios"]  # their median and quartiles are enough for a page
    RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
