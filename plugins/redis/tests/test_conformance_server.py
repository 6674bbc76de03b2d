"""The server that the plugin starts for the conformance kit."""

import os
import select
import signal
import subprocess
import sys

import pytest
from plugins.redis.tests.servers import VALKEY

PATIENCE = 60.0

KIT = """
import sys, threading
from perdure_redis.conformance import _servers, started

started(sys.argv[1])
(server,) = _servers.values()
if sys.argv[2] == "again":
    server.kill()
    server.start()
print(server._process.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the end of a process that is no child is told by a pidfd")
@pytest.mark.parametrize("starts", ["once", "again"])
def test_no_server_outlives_a_kit_that_is_killed(starts: str) -> None:
    words = [sys.executable, "-c", KIT, VALKEY, starts]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as kit:
        assert kit.stdout is not None
        server = os.pidfd_open(int(kit.stdout.readline()))
        kit.send_signal(signal.SIGKILL)
    assert select.select([server], [], [], PATIENCE)[0], "the server is still there"
    os.close(server)
