"""The laws: `pytest test_laws.py`, or `perdure-conformance check test_laws:TestSqlApprovals`."""

from sql_approvals import SqlApprovals

from perdure import AgentStore
from perdure_conformance.target import Place
from perdure_conformance.testing import StoreConformance


class TestSqlApprovals(StoreConformance):
    namespaces = False  # a tenant has a file of its own; the store itself knows none

    async def opener(self, place: Place) -> AgentStore:
        approvals = await SqlApprovals(place.directory / "approvals.db").open()
        approvals.bind(max_record=place.max_record)
        return AgentStore(approvals=approvals, clock=place.clock, closing=approvals.close)

    def raw_damage(self, place: Place) -> None:
        (place.directory / "approvals.db").write_bytes(b"no database" * 1000)
