"""The laws on stores that are encrypted and compressed."""

from collections.abc import Awaitable

import pytest

import perdure
from perdure import AgentStore
from perdure.at_rest import Codec, Compression, Encryption, KeyRing
from perdure_conformance.laws.register import all_laws
from perdure_conformance.pytest_support import law_tests
from perdure_conformance.target import Place, located
from perdure_conformance.testing import StoreConformance

KEYS = KeyRing([bytes(range(32))])


def codecs() -> list[Codec]:
    return [Compression(), Encryption(KEYS)]


class EncryptedMemory(StoreConformance):
    processes = False

    def opener(self, place: Place) -> Awaitable[AgentStore]:
        return perdure.open_store(located("memory:{place}", place), clock=place.clock, codec=codecs())


class EncryptedSqlite(StoreConformance):
    def opener(self, place: Place) -> Awaitable[AgentStore]:
        return perdure.open_store(located("sqlite:{dir}/x.db", place), clock=place.clock, codec=codecs())

    def raw_damage(self, place: Place) -> None:
        for file in place.directory.iterdir():
            file.write_bytes(b"this is not a database" * 500)


class EncryptedFile(StoreConformance):
    def opener(self, place: Place) -> Awaitable[AgentStore]:
        return perdure.open_store(located("file:{dir}/x", place), clock=place.clock, codec=codecs())


class EncryptedValkey(StoreConformance):
    processes = False  # they would start a server of their own

    def opener(self, place: Place) -> Awaitable[AgentStore]:
        # Not above: the processes of the other laws import this module, and start faster without it.
        from plugins.redis.tests.servers import VALKEY, shared
        from plugins.redis.tests.targets import url_of

        return perdure.open_store(url_of(place, shared(VALKEY).url), clock=place.clock, codec=codecs())


AREAS = (
    "aliasing",
    "appending_once",
    "atomicity",
    "compare_and_set",
    "errors",
    "fidelity",
    "isolation",
    "order",
    "versions",
)
"""What a codec could get wrong by itself; the other laws need whole turns or processes, and minutes."""

QUICK = {law.id for law in all_laws() if law.area in AREAS and "shared" not in law.needs and law.cases is None}

test_law = law_tests(EncryptedMemory().target(), only=QUICK)
test_every_law = pytest.mark.soak(
    law_tests(*(kind().target() for kind in (EncryptedMemory, EncryptedSqlite, EncryptedFile, EncryptedValkey)))
)
