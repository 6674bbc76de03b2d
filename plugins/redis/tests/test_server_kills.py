"""The laws that kill a server, on real ones: in `tests/test_laws.py` one that saves passes them all."""

import shutil
from collections.abc import Callable

import pytest
from plugins.redis.tests.servers import Server
from plugins.redis.tests.targets import url_of

from perdure import AgentStore, open_store
from perdure.clock import Clock
from perdure_conformance.laws import all_laws
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Place, Target

LAWS = {law.id: law for law in all_laws()}


@pytest.mark.parametrize(
    "law",
    [
        "sessions-append-survives-server-kill",
        "approvals-decision-survives-server-kill",
        "checkpoints-answers-hold-through-server-kill",
        "sessions-client-outlives-server-kill",
    ],
)
def test_a_server_whose_disk_keeps_nothing_is_caught(law: str, servers: Callable[..., Server]) -> None:
    server = servers().start()

    def kill_server(_: Place) -> None:
        server.kill()
        shutil.rmtree(server.directory / "appendonlydir")
        server.start()

    async def opener(place: Place, clock: Clock) -> AgentStore:
        return await open_store(url_of(place, server.url), clock=clock)

    verdict = run_law(Target("forgetful", opener, kill_server=kill_server), LAWS[law], points=1)
    assert verdict.outcome is Outcome.FAILED, str(verdict)
