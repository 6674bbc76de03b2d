"""Every law on every store of ours, one test id for each."""

import pytest
from plugins.redis.tests.targets import VALKEY_TARGET

from perdure_conformance.laws.register import all_laws
from perdure_conformance.pytest_support import law_tests
from perdure_conformance.target import Target

FILE = Target.from_url("file:{dir}/x")
MEMORY = Target.from_url("memory:{place}")
SQLITE = Target.from_url("sqlite:{dir}/x.db")

LONG = {law.id for law in all_laws() if law.id.startswith(("protocol-", "turn-comes-out-whole-"))}
"""Laws about whole turns at every stopping point: seconds each on a disk, so memory stands for the others in the quick tests."""

test_law = law_tests(MEMORY)
test_law_on_disk = law_tests(FILE, SQLITE, VALKEY_TARGET, only={law.id for law in all_laws()} - LONG)
test_long_law_on_disk = pytest.mark.soak(law_tests(FILE, SQLITE, VALKEY_TARGET, only=LONG))
