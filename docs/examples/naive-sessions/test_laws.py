"""The laws: `pytest test_laws.py`, or `perdure-conformance check test_laws:TestNaiveSessions`."""

from naive_sessions import NaiveSessions

from perdure import AgentStore
from perdure_conformance.target import Place, overwrite_files
from perdure_conformance.testing import StoreConformance


class TestNaiveSessions(StoreConformance):
    namespaces = False

    async def opener(self, place: Place) -> AgentStore:
        sessions = NaiveSessions(place.directory / "sessions.json")
        sessions.bind(max_record=place.max_record)
        return AgentStore(sessions=sessions, clock=place.clock, closing=sessions.close)

    def raw_damage(self, place: Place) -> None:
        overwrite_files(place)
