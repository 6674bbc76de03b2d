"""The docs show what the kit catches as its own JSON says, for every planted store that there is."""

import pytest
from conformance.tests.faults.every import FAULTS
from tests.kit_tables import EXPLANATION, PLANTED, clean, merged, planted, read_grade, shown, summary

ANEW = (
    "`perdure-conformance grade --seeds 10 --json FILE`, then `python -m tests.kit_tables grade FILE`, writes it anew"
)


def test_every_planted_store_is_graded_against_its_laws() -> None:
    graded = {(one.name, catch.law) for one in read_grade().planted for catch in one.own}
    assert graded == {(fault.name, law) for fault in FAULTS for law in fault.laws}, ANEW


def test_the_tables_are_those_of_the_grade() -> None:
    grade = read_grade()
    assert shown(PLANTED, "planted") == planted(grade), ANEW
    assert shown(EXPLANATION, "summary") == summary(grade), ANEW
    assert shown(EXPLANATION, "clean") == clean(grade), ANEW


def test_the_tables_have_every_store_and_law() -> None:
    table = planted(read_grade())
    for fault in FAULTS:
        lines = [line for line in table.splitlines() if f"| `{fault.name}` |" in line]
        assert all(any(f"| `{law}` |" in line for line in lines) for law in fault.laws), fault.name


def test_grades_together_end_as_all_of_their_stores_say() -> None:
    kept = read_grade().model_copy(update={"seconds": 100.0, "exit_code": 0})
    one = kept.planted[0]
    missed = one.model_copy(update={"own": tuple(law.model_copy(update={"caught": 0}) for law in one.own)})
    partial = {"clean": None, "seconds": 2.0, "exit_code": 0}
    both = merged(kept, kept.model_copy(update={**partial, "planted": (kept.planted[1],)}))
    assert (both.planted, both.clean, both.seconds, both.exit_code) == (kept.planted, kept.clean, 102.0, 0)
    assert merged(kept, kept.model_copy(update={**partial, "planted": (missed,)})).exit_code == 1
    worse = kept.model_copy(update={"planted": (missed, *kept.planted[1:])})
    assert merged(worse, kept.model_copy(update={**partial, "planted": (kept.planted[1],)})).exit_code == 1
    with pytest.raises(SystemExit, match="this grade has other profile"):
        merged(kept, kept.model_copy(update={**partial, "profile": "full", "planted": (one,)}))
