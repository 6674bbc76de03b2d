"""The laws as tests of pytest: one test id for each law and target.

In a test module of a store's author::

    from perdure_conformance.pytest_support import law_tests
    from perdure_conformance.target import Target

    test_law = law_tests(Target.from_url("mystore:{dir}/data"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from perdure_conformance.laws.register import Law
from perdure_conformance.pytest_plugin import check_profile, chosen_laws
from perdure_conformance.target import Target
from perdure_conformance.testing import check_law


def law_tests(
    *targets: Target, only: Iterable[str] | None = None, profile: str = "quick"
) -> Callable[[Target, Law], None]:
    """Return a test that pytest runs once for each law and target.

    Args:
        *targets: The stores under test.
        only: The ids of the laws to try; `None`: all.
        profile: How much each law tries, by the name of a profile of the command.

    Raises:
        pytest.UsageError: An id names no law, or there is no such profile.
    """
    check_profile(profile)
    laws = chosen_laws(only)
    cases = [pytest.param(target, law, id=f"{target.name}-{law.id}") for target in targets for law in laws]

    @pytest.mark.parametrize(("target", "law"), cases)
    def test_law(target: Target, law: Law) -> None:
        check_law(target, law, profile=profile)

    return test_law
