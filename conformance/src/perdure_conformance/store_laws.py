"""The laws as tests of pytest, for `pytest --store URL --pyargs perdure_conformance`: one for each store and law."""

from __future__ import annotations

from perdure_conformance.laws.register import Law
from perdure_conformance.resolve import Named
from perdure_conformance.testing import check_law


def test_law(perdure_store: Named, law: Law) -> None:
    """Try one law on one store."""
    check_law(perdure_store.target, law, named=perdure_store)
