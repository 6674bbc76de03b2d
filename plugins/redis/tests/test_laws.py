"""The laws on other servers than the one of `tests/test_laws.py`: only a real server certifies, the fake is for speed."""

from plugins.redis.tests.targets import FAKE

from perdure_conformance.pytest_support import law_tests

test_law = law_tests(FAKE)
