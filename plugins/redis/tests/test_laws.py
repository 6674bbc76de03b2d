"""The laws on other servers than the one of `tests/test_laws.py`: only a real one certifies, the fake is for speed.

In `make test` the fake is held to the model of a journal (`test_semantics.py`), and a real server to all the laws.

What the fake does otherwise: it has no INFO, so that nothing is known of its settings and `durable` is not declared; no
other process can reach it; its scripts have no `redis.sha1hex`, which ours do without.
"""

import pytest
from plugins.redis.tests.targets import CLUSTER, FAKE, REDIS_TARGETS

from perdure_conformance.pytest_support import law_tests

test_law = pytest.mark.soak(law_tests(FAKE, CLUSTER, *REDIS_TARGETS))
