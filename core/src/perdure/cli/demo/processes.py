"""The processes of the demo as their parent sees them: started without a shell, told their job, heard, and ended."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

from pydantic import TypeAdapter

from perdure.cli.demo.reading import Report
from perdure.cli.demo.worker import Job

WORKER = (sys.executable, "-P", "-m", "perdure.cli.demo.worker")
PATIENCE = 120.0
"""How long one process may take, in seconds."""


class ProcessFailedError(Exception):
    """A process of the demo did not do what it was told."""


async def run(job: Job) -> Report:
    """Run one process to its end, and return its report."""
    async with started(job) as process:
        report = await process.report()
        await process.end()
        return report


@asynccontextmanager
async def started(job: Job) -> AsyncIterator[ChildProcess]:
    """Start a process of the demo, and see to it that it does not outlive the block."""
    with tempfile.TemporaryFile() as errors:
        child = await asyncio.create_subprocess_exec(
            *WORKER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, limit=2**20
        )
        process = ChildProcess(job.step, child, errors)
        try:
            async with asyncio.timeout(PATIENCE):
                process.give(job)
                yield process
        except TimeoutError:
            raise ProcessFailedError(f"the process for {job.step!r} did not end within {PATIENCE:g} seconds") from None
        finally:
            await process.kill()


@dataclass(frozen=True)
class ChildProcess:
    """A running process of the demo."""

    step: str
    child: asyncio.subprocess.Process
    errors: IO[bytes]

    def give(self, job: Job) -> None:
        """Hand it its job; its input stays open."""
        assert self.child.stdin is not None
        self.child.stdin.write(TypeAdapter(Job).dump_json(job) + b"\n")

    async def report(self) -> Report:
        """Wait for its report."""
        assert self.child.stdout is not None
        line = await self.child.stdout.readline()
        if not line:
            raise await self._failure()
        return TypeAdapter(Report).validate_json(line)

    async def end(self) -> None:
        """Wait until it has ended well."""
        if await self.child.wait() != 0:
            raise await self._failure()

    async def kill(self) -> str:
        """Kill it unless it has ended, and return what ended it: the name of a signal, or its exit code."""
        if self.child.returncode is None:
            self.child.kill()
        code = await self.child.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def _failure(self) -> ProcessFailedError:
        code = await self.child.wait()
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", errors="replace").strip()
        return ProcessFailedError(f"the process for {self.step!r} ended with {code}:\n{said or 'it said nothing'}")
