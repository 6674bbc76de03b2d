"""What the conformance kit may do to what a closed store has left, and a server for it. Nothing but the kit comes here."""

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


def targets() -> dict[str, str]:
    """Start a server on a socket of its own, which ends with this process, and return its URL.

    Raises:
        LookupError: There is no program of a server.
        RuntimeError: It does not start.
    """
    program = next(filter(None, map(shutil.which, SERVERS)), None)
    if program is None:
        raise LookupError(f"neither {' nor '.join(SERVERS)} is in the PATH; name a server: redis://host")
    directory = Path(tempfile.mkdtemp(prefix="perdure-redis-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    _start(program, directory)
    return {"redis": f"redis+unix:{directory}/socket"}


def _start(program: str, directory: Path) -> None:
    settings = {"port": "0", "unixsocket": f"{directory}/socket", "dir": str(directory), "daemonize": "no", "save": ""}
    settings |= {"appendonly": "yes", "appendfsync": "always"}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    atexit.register(server.wait)
    atexit.register(server.kill)
    deadline = time.monotonic() + PATIENCE
    with Redis(unix_socket_path=f"{directory}/socket") as client:
        while True:
            with suppress(RedisError):
                client.ping()
                return
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program} does not start")
            time.sleep(0.01)


# --- what can be done to a store that is closed ---


def helpers(_: StoreURL) -> dict[str, Callable[[StoreURL], object]]:
    """Return what can be done to the stores of a URL, in a namespace that is the kit's own."""
    return {"damage": damage, "newer_schema": newer_schema}


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
