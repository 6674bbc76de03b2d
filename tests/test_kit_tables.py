"""The docs show what the kit catches as its own JSON says, for every planted store that there is."""

from conformance.tests.faults.every import FAULTS
from tests.kit_tables import EXPLANATION, PLANTED, clean, planted, read_grade, shown, summary

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
