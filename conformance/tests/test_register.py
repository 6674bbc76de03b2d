"""The register: unique ids, and a law for each promise of the contract."""

import re
from collections import Counter
from pathlib import Path

import pytest

from perdure_conformance.bench import Bench
from perdure_conformance.laws import all_laws
from perdure_conformance.laws.register import law

LAWS = all_laws()

PROMISES = {
    1: "versions",
    2: "compare and set",
    3: "all or nothing",
    4: "durable when acknowledged",
    5: "order",
    6: "fidelity",
    7: "no aliasing",
    8: "absent, empty and unreadable",
    9: "errors of the contract",
    10: "ids never merge",
    11: "isolation",
    12: "bounded reads",
    13: "lifecycle",
    14: "cancellation",
}
"""Section 2 of the contract."""

PARTS = ("sessions", "checkpoints", "approvals")
CAPABILITIES = {"replace", "delete", "list", "durable", "shared", "atomic"}


def test_ids_are_unique_and_speak() -> None:
    counted = Counter(one.id for one in LAWS)
    assert [name for name, count in counted.items() if count > 1] == []
    assert [one.id for one in LAWS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", one.id)] == []


def test_a_second_law_of_one_id_is_refused() -> None:
    async def again(bench: Bench) -> None:
        """Say nothing."""

    with pytest.raises(ValueError, match="two laws have the id"):
        law(LAWS[0].id)(again)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda number: f"{number}-{PROMISES[number].replace(' ', '-')}")
def test_each_promise_has_laws(promise: int) -> None:
    assert [one.id for one in LAWS if one.promise == promise]


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_laws_of_each_promise(part: str) -> None:
    covered = {one.promise for one in LAWS if part in one.parts}
    shared_by_lists = {5} if part == "approvals" else set()
    assert set(PROMISES) - covered - shared_by_lists == set()


def test_laws_are_one_sentence() -> None:
    assert [one.id for one in LAWS if not re.fullmatch(r"[A-Z`].{15,}\.", one.sentence)] == []


def test_laws_need_what_can_be_declared() -> None:
    assert {name for one in LAWS for name in one.needs} == CAPABILITIES
    assert [one.id for one in LAWS if one.promise not in (None, *PROMISES)] == []


def test_laws_that_draw_say_how_often() -> None:
    assert [one.id for one in LAWS if (one.cases is None) != (one.examples == 0)] == []


def test_the_page_for_authors_says_how_many_laws_there_are() -> None:
    page = (
        Path(__file__).parents[2].joinpath("docs", "how-to", "write-a-journal-backend.md").read_text(encoding="utf-8")
    )
    assert f"more than {len(LAWS) // 50 * 50} of them" in page
