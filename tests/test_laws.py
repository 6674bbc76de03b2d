"""Every law on every store of ours, one test id for each."""

import pytest
from plugins.redis.tests.targets import KILLED, VALKEY_TARGET

from perdure_conformance.laws import all_laws
from perdure_conformance.pytest_support import law_tests
from perdure_conformance.target import Target

FILE = Target.from_url("file:{dir}/x")
MEMORY = Target.from_url("memory:{place}")
SQLITE = Target.from_url("sqlite:{dir}/x.db")

test_law = law_tests(MEMORY, FILE, SQLITE, VALKEY_TARGET)
test_law_about_a_killed_server = law_tests(
    KILLED, only=[law.id for law in all_laws() if law.id.endswith("-server-kill")]
)
test_law_in_full = pytest.mark.soak(law_tests(MEMORY, FILE, SQLITE, VALKEY_TARGET, profile="full"))
