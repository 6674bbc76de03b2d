"""Real processes that use the store under test, one call at a time and told by the law."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import Any

from perdure_conformance.checks import broken
from perdure_conformance.recording import CallLog

LINE_LIMIT = 64 * 1024 * 1024


class Worker:
    """A process that runs `perdure_conformance.worker` and answers each line with a line."""

    def __init__(self, process: Process) -> None:
        """Wrap a running process; use `start`."""
        self.process = process
        self.name = "process"
        self.log = CallLog()
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, url: str) -> Worker:
        """Start a process and wait until it is ready for calls; it opens the store at the first of them."""
        path = os.pathsep.join(entry for entry in sys.path if entry)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure_conformance.worker", url),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_LIMIT,
            env=os.environ | {"PYTHONPATH": path},
        )
        worker = cls(process)
        await worker.read_line("start")
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

    async def storm(
        self, url: str, kind: str, *, kill: tuple[int, int] | None = None, by_time: bool = False
    ) -> tuple[int, dict[str, Any]]:
        """Have a child of the process open the store of a URL and write until it is killed.

        Args:
            url: The place.
            kind: Which writes.
            kill: Before which point of which write it is killed, as `KillPoints` takes it; `None`: after the last write.
            by_time: Whether it is killed by time instead.

        Returns:
            The number of the last write that was acknowledged, 0: none; and what else it said.
        """
        noted = self.log.call(f"{self.name}.storm", (), {"kind": kind, "kill": "by time" if by_time else kill})
        self._write("storm", {"url": url, "kind": kind, "kill": kill, "by_time": by_time})
        said: dict[str, Any] = {"write": 0}
        with self.log.timed(noted):
            while "ended" not in said:
                said |= await self.read_line("storm")
        noted.says(f"killed after the acknowledgement of write {said['write']}")
        if "error" in said or -said["ended"] not in (signal.SIGKILL, signal.SIGALRM):
            raise broken(f"a process that was to write until it is killed did not get there: {said}")
        return said["write"], said

    def _write(self, command: str, arguments: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"command": command, **arguments}).encode() + b"\n")

    async def read_line(self, what: str) -> Any:
        """Return the next line that the process says."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise broken(f"a process that was to {what} ended without a word: {await self._last_words()}")
        return json.loads(line)

    async def kill(self) -> None:
        """Kill the process as `kill -9` does."""
        if self.process.returncode is None:
            self.log.begin(f"{self.name} is killed")
            self.process.kill()
        await self.process.communicate()

    async def end(self, command: str) -> int:
        """Send a last command and return the exit code of the process."""
        self.send(command)
        await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode

    async def _last_words(self) -> str:
        _, complaint = await self.process.communicate()
        return complaint.decode(errors="replace")[-2000:].strip() or f"exit code {self.process.returncode}"


def error_of(answer: Any) -> str | None:
    """Return the class of the error that a worker answered, or `None`."""
    return str(answer["error"]) if isinstance(answer, dict) and "error" in answer else None
