"""How much of a sweep is tried, and that the report says so."""

from itertools import pairwise

from conformance.tests import planted
from hypothesis import given
from hypothesis import strategies as st

from perdure_conformance.checking import Check, Plan
from perdure_conformance.effort import Effort
from perdure_conformance.profiles import PROFILES
from perdure_conformance.reports.html import html_page
from perdure_conformance.reports.model import Report
from perdure_conformance.reports.text import report_text
from perdure_conformance.resolve import Named


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6), st.integers(1, 8) | st.none())
def test_a_sweep_tries_some_points_in_order_the_last_one_always(sizes: list[tuple[int, int]], most: int | None) -> None:
    effort, again = Effort(most), Effort(most)
    for size, few in sizes:
        points = list(range(size))
        telling = points[: min(few, size)]
        chosen = effort.sweep(points, telling=telling)
        assert chosen == again.sweep(points, telling=telling)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == (size if most is None else min(most, size))
        if len(chosen) < size:
            assert chosen[-1] == (telling if len(telling) >= len(chosen) else points)[-1]
            assert set(chosen) <= set(telling) or set(telling) <= set(chosen)
        if len(chosen) < size and not telling:
            gaps = [later - earlier for earlier, later in pairwise(chosen)]
            assert max(gaps, default=0) <= 2 * size / len(chosen) + 1
    assert effort.points == sum(size for size, _ in sizes)


def test_many_sweeps_of_few_points_come_to_each_point() -> None:
    effort = Effort(3)
    assert {point for _ in range(12) for point in effort.sweep(range(10))} == set(range(10))


def checked(profile: str) -> Report:
    named = Named("conformance.tests.planted:RIGHT", planted.RIGHT)
    return Check(Plan(named, PROFILES[profile], only=["sessions-cut-anywhere-is-old-or-new"])).run()


def test_a_report_says_how_much_was_tried() -> None:
    report = checked("quick")
    (law,) = report.laws
    assert (law.tried, law.points, report.profile.points) == (15, 40, 3)
    assert any(line.startswith("25 of 40 points at which a call is stopped") for line in report.not_tested)
    assert "at 15 of 40 points" in report_text(report, every_law=True)
    assert "at 15 of 40 points" in html_page(report)


def test_the_full_profile_leaves_no_point_out() -> None:
    report = checked("full")
    (law,) = report.laws
    assert (law.tried, law.points) == (40, 40)
    assert law.rounds == 1, "another round would try the same points"
    assert not any("points" in line for line in report.not_tested)
