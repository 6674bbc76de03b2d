"""Real processes that use the store under test, one call at a time and told by the law."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any, TypeAlias

from perdure_conformance.checks import NotRunError, broken
from perdure_conformance.fork_server import HEADER
from perdure_conformance.recording import CallLog

LINE_LIMIT = 64 * 1024 * 1024

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ForkServer:
    """The process that forks the workers of this one; it is started when the first of them is wanted, or before."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, so that it has imported everything when the first worker is wanted."""
        with self._lock:
            self._started()

    def fork(self, url: str, *channels: int) -> int:
        """Have a worker forked for a URL.

        Args:
            url: What it opens.
            *channels: The descriptors of its input and output, of its complaints, and of where it is told how it ended.

        Returns:
            The number that the worker is killed by.
        """
        number = next(self._numbers)
        path = [os.getcwd(), *(entry for entry in sys.path if entry)]  # noqa: PTH109  # reason: a text, as the others
        asked = {"number": number, "url": url, "path": path, "folder": path[0], "environ": dict(os.environ)}
        self._ask(asked, channels)
        return number

    def kill(self, number: int) -> None:
        """Kill a worker as `kill -9` does, with all that it has started; nothing happens if it has ended."""
        self._ask({"kill": number})

    def end(self) -> None:
        """End the server, and with it each worker that is left."""
        with self._lock:
            if self._control is not None and self._process is not None:
                self._control.close()
                self._process.wait()
            self._control = self._process = None

    def forget(self) -> None:
        """Be without a server, as in a forked child: it is the parent's."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        self._control = self._process = None

    def _ask(self, request: dict[str, Any], channels: tuple[int, ...] = ()) -> None:
        text = json.dumps(request).encode()
        with self._lock:
            control = self._started()
            socket.send_fds(control, [b"%0*d" % (HEADER, len(text))], channels)
            control.sendall(text)

    def _started(self) -> socket.socket:
        if self._control is not None and self._process is not None and self._process.poll() is None:
            return self._control
        self._control, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perdure_conformance.fork_server", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
                pass_fds=[other.fileno()],
                start_new_session=True,  # what interrupts the kit at a terminal is not for its workers
            )
        return self._control


_server = ForkServer()
atexit.register(_server.end)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_server.forget)


def prepare() -> None:
    """Say that workers will be wanted soon."""
    if hasattr(os, "fork"):
        _server.start()


class Worker:
    """A process that runs `perdure_conformance.worker` and answers each line with a line."""

    def __init__(self, number: int, speech: Streams, ending: Streams, complaints: IO[bytes]) -> None:
        """Wrap a worker that is forked; use `start`."""
        self.name = "process"
        self.log = CallLog()
        self._number = number
        self._reader, self._writer = speech
        self._ending, self._listening = ending
        self._complaints = complaints
        self._turn = asyncio.Lock()
        self._code: int | None = None

    @classmethod
    async def start(cls, url: str) -> Worker:
        """Start a process and wait until it is ready for calls; it opens the store at the first of them.

        Raises:
            NotRunError: The system does not fork.
        """
        if not hasattr(os, "fork"):
            raise NotRunError("this system does not fork, and the kit's other processes are forked")
        complaints = tempfile.TemporaryFile()  # noqa: SIM115  # reason: it is closed with the worker
        (speech, its_speech), (ending, its_ending) = socket.socketpair(), socket.socketpair()
        with its_speech, its_ending:
            channels = (its_speech.fileno(), complaints.fileno(), its_ending.fileno())
            number = _server.fork(url, *channels)
        spoken = await asyncio.open_unix_connection(sock=speech, limit=LINE_LIMIT)
        worker = cls(number, spoken, await asyncio.open_unix_connection(sock=ending), complaints)
        try:
            await worker.read_line("start")
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def call(self, command: str, **arguments: Any) -> Any:
        """Have the process do one thing.

        Returns:
            What the call answered, as JSON; an error is `{"error": <its class>, ...}`.
        """
        async with self._turn:
            noted = self.log.call(f"{self.name}.{command}", (), arguments)
            self._write(command, arguments)
            with self.log.timed(noted):
                answer = await self.read_line(command)
            noted.answered(answer)
            return answer

    def send(self, command: str, **arguments: Any) -> None:
        """Tell the process what to do, without waiting for it."""
        self.log.call(f"{self.name}.{command}", (), arguments).says("not waited for")
        self._write(command, arguments)

    async def storm(self, url: str, kind: str, **how: Any) -> tuple[int, dict[str, Any]]:
        """Have a child of the process open the store of a URL and write until it is killed.

        Args:
            url: The place.
            kind: Which writes.
            **how: `kill=`, before which point of which write it is killed, as `KillPoints` takes it; `by_time=True`; or
                `directory=` and `cut=`, as `storm_cut` takes them. Nothing: it is killed after the last write.

        Returns:
            The number of the last write that was acknowledged, 0: none; and what else it said.
        """
        told: dict[str, Any] = {name: how[name] for name in ("kill", "cut", "by_time") if name in how}
        noted = self.log.call(f"{self.name}.storm", (), {"kind": kind, **told})
        self._write("storm", {"url": url, "kind": kind, **how})
        said: dict[str, Any] = {"write": 0}
        with self.log.timed(noted):
            while "ended" not in said:
                said |= await self.read_line("storm")
        noted.says(f"killed after the acknowledgement of write {said['write']}")
        if "error" in said or -said["ended"] not in (signal.SIGKILL, signal.SIGALRM, signal.SIGXFSZ):
            raise broken(f"a process that was to write until it is killed did not get there: {said}")
        return said["write"], said

    def _write(self, command: str, arguments: dict[str, Any]) -> None:
        self._writer.write(json.dumps({"command": command, **arguments}).encode() + b"\n")

    async def read_line(self, what: str) -> Any:
        """Return the next line that the process says."""
        try:
            line = await self._reader.readline()
        except ConnectionError:  # it ended before it had read what it was told
            line = b""
        if not line:
            await self._ended()
            raise broken(f"a process that was to {what} ended without a word: {self._last_words()}")
        return json.loads(line)

    async def kill(self) -> None:
        """Kill the process as `kill -9` does, if it lives; it takes no calls from then on."""
        if self._code is None:
            self.log.begin(f"{self.name} is killed")
            _server.kill(self._number)
        await self._ended()
        for writer in (self._writer, self._listening):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        self._complaints.close()

    async def end(self, command: str) -> int:
        """Send a last command and return the exit code of the process."""
        self.send(command)
        return await self._ended()

    async def _ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        if self._code is None:
            line = await self._ending.readline()
            if not line:
                raise RuntimeError("the process that forks the kit's workers is gone")
            self._code = int(line)
        return self._code

    def _last_words(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-2000:].strip() or f"exit code {self._code}"


def error_of(answer: Any) -> str | None:
    """Return the class of the error that a worker answered, or `None`."""
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else None
