"""The tables of the docs that are made from the kit's JSON: what it grants our stores, and which planted stores it catches.

`python -m tests.kit_tables levels` checks the stores with the profile `quick`, and writes what is granted.
`python -m tests.kit_tables grade FILE...` takes grades, as `perdure-conformance grade --json FILE` writes them, and writes
what is caught. A later grade of a store goes before an earlier one, so that a new store can be graded alone.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from conformance.tests.catalogue import CATALOGUE, Entry

from perdure_conformance.grading import exit_code
from perdure_conformance.reports.grade import Grade, PlantedData

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STORES = ("memory", "file", "sqlite", "redis")
CHOICE = DOCS / "how-to" / "choose-a-store.md"
GRADE = DOCS / "reference" / "grade.json"
PLANTED = DOCS / "reference" / "planted-stores.md"
EXPLANATION = DOCS / "explanation" / "what-the-kit-shows.md"


def shown(page: Path, name: str) -> str:
    """Return what a page has in a place of this name."""
    found = _place(name).search(page.read_text(encoding="utf-8"))
    assert found is not None, f"{page} has no place for {name}"
    return found[2].strip()


def write(page: Path, name: str, text: str) -> None:
    """Put text into the place of this name."""
    old = page.read_text(encoding="utf-8")
    page.write_text(_place(name).sub(lambda found: f"{found[1]}\n{text}\n\n{found[3]}", old), encoding="utf-8")


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- from the kit: {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _table(*rows: Iterable[str]) -> str:
    header, *others = [tuple(row) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *others))


# --- levels ---


def page_of(store: str) -> Path:
    """Return the reference page of a store."""
    return DOCS / "reference" / "backends" / f"{store}.md"


def levels(report: dict[str, Any]) -> str:
    """Return what a store declares and what it is granted, from the report as JSON."""
    declared = {
        part: ["yes" if told else "no" for told in names.values()] for part, names in report["capabilities"].items()
    }
    capabilities = _table(
        ("declares", *next(iter(report["capabilities"].values()))), *((part, *told) for part, told in declared.items())
    )
    granted = _table(
        ("level", "", "means"),
        *((level["name"], level["standing"], level["meaning"]) for level in report["levels"]),
    )
    return f"{capabilities}\n\n{granted}"


def choice(reports: dict[str, dict[str, Any]]) -> str:
    """Return the levels of all stores."""
    names = [level["name"] for level in next(iter(reports.values()))["levels"]]
    rows = [(f"`{store}`", *(level["standing"] for level in report["levels"])) for store, report in reports.items()]
    return _table(("", *names), *rows)


def _reports() -> Iterator[tuple[str, dict[str, Any]]]:
    from plugins.redis.tests.servers import VALKEY
    from tests.test_quick import checked

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "valkey-server").symlink_to(VALKEY)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        for store in STORES:
            print(f"checking {store}", file=sys.stderr)
            yield store, checked(store)


def write_levels() -> None:
    """Check the stores, and write the tables of their levels."""
    reports = dict(_reports())
    for store, report in reports.items():
        write(page_of(store), store, levels(report))
    write(CHOICE, "all", choice(reports))


# --- planted stores ---


def read_grade(file: Path = GRADE) -> Grade:
    """Return a grade that the kit wrote."""
    return Grade.model_validate_json(file.read_bytes())


def planted(grade: Grade) -> str:
    """Return a table for each chapter of the catalogue, with a line for each planted store and each of its laws."""
    stores = {one.name: one for one in grade.planted}
    sections = []
    for chapter, entries in _chapters().items():
        rows = [row for entry in entries for name in entry.stores for row in _caught(entry, stores[name])]
        header = ("what is wrong", "planted store", "law", "caught", "calls")
        sections.append(f"## {chapter.capitalize()}\n\n{_table(header, *rows)}")
    return "\n\n".join(sections)


def _caught(entry: Entry, store: PlantedData) -> Iterator[tuple[str, ...]]:
    entries = [one for one in CATALOGUE if store.name in one.stores]
    elsewhere = {law for one in entries for law in one.laws} - set(entry.laws)
    for one in store.own:
        # A law that no entry of the store names stands with the first of them.
        if one.law in entry.laws or (entry is entries[0] and one.law not in elsewhere):
            calls = "" if one.calls is None else f"{one.calls:g}"
            yield entry.fault, f"`{store.name}`", f"`{one.law}`", f"{one.caught} of {store.seeds}", calls


def _chapters() -> dict[str, list[Entry]]:
    chapters: dict[str, list[Entry]] = {}
    for entry in CATALOGUE:
        chapters.setdefault(entry.chapter, []).append(entry)
    return chapters


def summary(grade: Grade) -> str:
    """Return a line for each chapter of the catalogue, and one for all planted stores."""
    stores = {one.name: one for one in grade.planted}
    rows = [
        _summed(chapter, len(entries), [stores[name] for name in _names(entries)])
        for chapter, entries in _chapters().items()
    ]
    header = (
        "chapter",
        "faults",
        "planted stores",
        "seeds",
        "caught by each own law",
        "caught by any law",
        "median calls",
    )
    return _table(header, *rows, _summed("all", len(CATALOGUE), list(stores.values())))


def _names(entries: list[Entry]) -> list[str]:
    return list(dict.fromkeys(name for entry in entries for name in entry.stores))


def _summed(name: str, faults: int, stores: list[PlantedData]) -> tuple[str, ...]:
    calls = [one.calls for store in stores for one in store.own if one.calls is not None]
    own, caught = sum(one.caught_by_own for one in stores), sum(one.caught_by_any for one in stores)
    seeds = sorted({one.seeds for one in stores})
    return (
        *(
            name,
            str(faults),
            str(len(stores)),
            " to ".join(dict.fromkeys((str(seeds[0]), str(seeds[-1])))),
            str(own),
            str(caught),
        ),
        f"{median(calls):g}" if calls else "",
    )


def clean(grade: Grade) -> str:
    """Return what became of the store that is right."""
    found = grade.clean
    assert found is not None, "grade with --clean"
    return (
        f"On `{found.target}`: {found.drawn} laws that draw cases, {found.seeds} seeds each; the other {found.fixed}, "
        f"{found.rounds} times each. {found.trials} trials, {len(found.alarms)} false alarms."
    )


def write_grade(files: Iterable[Path]) -> None:
    """Take grades into the one that is kept, and write the tables."""
    kept = read_grade() if GRADE.exists() else None
    for file in files:
        kept = merged(kept, read_grade(file))
    assert kept is not None, "name a grade"
    GRADE.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write(PLANTED, "planted", planted(kept))
    write(EXPLANATION, "summary", summary(kept))
    write(EXPLANATION, "clean", clean(kept))


def merged(kept: Grade | None, later: Grade) -> Grade:
    """Return two grades as one, which took as long as both and ends as all that is left in it says.

    What a later grade does not try again stays as it was; what it was graded with must be the same then.
    """
    known = {name for entry in CATALOGUE for name in entry.stores}
    if kept is None or (later.clean is not None and known <= {one.name for one in later.planted}):
        return later
    differs = [name for name in ("versions", "profile") if getattr(kept, name) != getattr(later, name)]
    if differs:
        sys.exit(f"this grade has other {differs[0]} than the kept one: grade all stores anew, with --clean")
    stores = {one.name: one for one in (*kept.planted, *later.planted)}
    both = later.model_copy(
        update={
            "planted": tuple(one for name, one in stores.items() if name in known),
            "clean": later.clean or kept.clean,
            "started_at": min(kept.started_at, later.started_at),
            "seconds": round(kept.seconds + later.seconds, 3),
        }
    )
    return both.model_copy(update={"exit_code": exit_code(both)})


def main() -> None:
    """Write the tables that are asked for."""
    logging.getLogger("perdure").addHandler(logging.NullHandler())
    match sys.argv[1:]:
        case ["levels"]:
            write_levels()
        case ["grade", *files]:
            write_grade(map(Path, files))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
