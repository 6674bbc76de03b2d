"""The laws: `pytest test_laws.py`, or `perdure-conformance check test_laws:TestJsonLinesSessions`."""

from collections.abc import Callable

from json_lines_sessions import JsonLinesSessions

from perdure import AgentStore
from perdure_conformance.target import Place, overwrite_files
from perdure_conformance.testing import StoreConformance


class TestJsonLinesSessions(StoreConformance):
    namespaces = False  # a tenant has a directory of its own; the store itself knows none

    async def opener(self, place: Place) -> AgentStore:
        sessions = JsonLinesSessions(place.directory)
        sessions.bind(max_record=place.max_record)
        return AgentStore(sessions=sessions, clock=place.clock, closing=sessions.close)

    def raw_damage(self, place: Place) -> None:
        overwrite_files(place)

    def newer_schema(self, place: Place) -> Callable[[], None]:
        before = {file: file.read_bytes() for file in place.directory.glob("*.jsonl")}
        for file, content in before.items():
            file.write_bytes(content.replace(b'{"schema":1,', b'{"schema":2,'))

        def undo() -> None:
            for file, content in before.items():
                file.write_bytes(content)

        return undo
