"""What the conformance kit may do to what a store has left, and a server that it may kill. Nothing but the kit comes here."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import RedisError

from perdure_redis.clients import clients_of
from perdure_redis.heads import FORMAT

if TYPE_CHECKING:
    from perdure.backend import StoreURL

SERVERS = ("valkey-server", "redis-server")
PATIENCE = 20.0
"""How long a server may take to start, in seconds."""

WATCH = 'read -r _; kill -9 "$0"'
"""Kills a process when this one has ended, by `kill -9` too: then the pipe ends from which it reads."""


def targets() -> dict[str, str]:
    """Start a server on a socket of its own, which ends with this process, and return its URL.

    Raises:
        LookupError: There is no program of a server.
        RuntimeError: It does not start.
    """
    program = next(filter(None, map(shutil.which, SERVERS)), None)
    if program is None:
        raise LookupError(f"neither {' nor '.join(SERVERS)} is in the PATH; name a server: redis://host")
    return {"redis": started(program)}


def started(program: str) -> str:
    """Start a server on a socket of its own, which ends with this process, and return its URL.

    Raises:
        RuntimeError: It does not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="perdure-redis-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = _Server(program, directory)
    server.start()
    atexit.register(server.kill)
    _servers[server.socket] = server
    return f"redis+unix:{server.socket}"


@dataclass
class _Server:
    """A server of this process, which has each write on the disk before it answers."""

    program: str
    directory: Path
    _process: subprocess.Popen[bytes] | None = None
    _watch: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return f"{self.directory}/socket"

    def start(self) -> None:
        """Start it, and return when it has read its data and answers."""
        settings = {"port": "0", "unixsocket": self.socket, "dir": str(self.directory), "daemonize": "no", "save": ""}
        settings |= {"appendonly": "yes", "appendfsync": "always"}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._process = process = subprocess.Popen(
            [self.program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )
        deadline = time.monotonic() + PATIENCE
        with Redis(unix_socket_path=self.socket) as client:
            while True:
                with suppress(RedisError):
                    client.ping()
                    return
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.program} does not start")
                time.sleep(0.01)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        for process in (self._watch, self._process):  # the watch first: the process id may be another's afterwards
            if process is not None:
                process.kill()
                process.communicate()


_servers: dict[str, _Server] = {}
"""The servers that were started here, by their sockets: no other one may be killed."""


# --- what can be done to a store ---


def helpers(url: StoreURL) -> dict[str, Callable[[StoreURL], object]]:
    """Return what can be done to the stores of a URL, in a namespace that is the kit's own, and to a server started here."""
    offered: dict[str, Callable[[StoreURL], object]] = {"damage": damage, "newer_schema": newer_schema}
    if url.path in _servers:
        offered["kill_server"] = kill_server
    return offered


def kill_server(url: StoreURL) -> None:
    """Kill the server as `kill -9` does, start it again on what it has left, and return when it answers."""
    server = _servers[url.path]
    server.kill()
    server.start()


def damage(url: StoreURL) -> None:
    """Put what is none in the place of each head."""

    async def spoil(client: Any) -> None:
        async for key in _journals(client, url):
            await client.lset(key, 0, b"no head")

    _run(url, spoil)


def newer_schema(url: StoreURL) -> Callable[[], None]:
    """Mark each head as a newer release's, and return what takes the marks back."""
    before: dict[bytes, bytes] = {}

    async def mark(client: Any) -> None:
        async for key in _journals(client, url):
            before[key] = await client.lindex(key, 0)
            await client.lset(key, 0, b"%d %s" % (FORMAT + 1, before[key].partition(b" ")[2]))

    async def unmark(client: Any) -> None:
        for key, head in before.items():
            await client.lset(key, 0, head)

    _run(url, mark)
    return lambda: _run(url, unmark)


async def _journals(client: Any, url: StoreURL) -> AsyncIterator[bytes]:
    """Return the keys of the lists of a namespace. Listing all keys of a server is for tests alone."""
    async for key in client.scan_iter(f"perdure:{url.namespace}:*", _type="list"):
        yield key


def _run(url: StoreURL, work: Callable[[Any], Awaitable[None]]) -> None:
    """Do something with a client of its own, on a loop of its own: the kit calls from within one."""

    async def connected() -> None:
        clients = clients_of(url)
        try:
            await work(clients.client)
        finally:
            await clients.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, connected()).result()
