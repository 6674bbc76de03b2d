"""Real worker processes, as `perdure worker` starts them, and what is left in their store and of their effects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.tests.worker_agent import STEPS
from core.tests.worker_world import journal, submit

from perdure import AgentStore, open_store

PERDURE = str(Path(sys.executable).with_name("perdure"))
HERE = Path(__file__).parent
TURN = ["user", *["assistant", "tool"] * STEPS, "assistant"]
PATIENCE = 90.0


@dataclass
class WorkerProcess:
    """A worker; all that it says goes into the queue of its field."""

    process: subprocess.Popen[str]
    reader: threading.Thread

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until it has ended, and return its exit code."""
        code = self.process.wait(PATIENCE)
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@dataclass
class Field:
    """A store, a directory for effects, and the workers of a test."""

    url: str
    effects: Path
    said: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    lines: list[str] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)

    def start(self, *options: str, target: str = "worker_agent:agent", store: bool = True) -> WorkerProcess:
        """Start a worker."""
        where = ["--store", self.url] if store else []
        process = subprocess.Popen(
            [PERDURE, "worker", target, *where, "--poll", "0.02", "--slow-poll", "0.1", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE,
            env=os.environ | {"EFFECTS": str(self.effects), "STORE": self.url, "COLUMNS": "200"},
        )
        reader = threading.Thread(target=self._read, args=(process,))
        reader.start()
        self.workers.append(WorkerProcess(process, reader))
        return self.workers[-1]

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.said.put(line.rstrip("\n"))

    def next(self) -> str:
        """Return the next line that any worker says."""
        line = self.said.get(timeout=PATIENCE)
        self.lines.append(line)
        return line

    def until(self, text: str, times: int = 1) -> None:
        """Read on until a text was said so often."""
        while times:
            times -= text in self.next()

    def drained(self) -> list[str]:
        """Return all that was said so far."""
        while not self.said.empty():
            self.next()
        return self.lines

    def attempts(self) -> list[str]:
        """The keys under which tools were called, each time."""
        file = self.effects / "attempts"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def attempted(self, number: int) -> None:
        """Wait until tools were called so often."""
        deadline = time.monotonic() + PATIENCE
        while len(self.attempts()) < number:
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.005)

    def keys(self) -> set[str]:
        """The keys of all effects that happened."""
        return {path.name for path in self.effects.iterdir()} - {"attempts"}


@contextlib.contextmanager
def field_of(url: str, directory: Path) -> Iterator[Field]:
    """A field whose workers end with the block."""
    effects = directory / "effects"
    effects.mkdir()
    made = Field(url, effects)
    try:
        yield made
    finally:
        for worker in made.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            if worker.process.stdout is not None and not worker.process.stdout.closed:
                worker.end()


def submitted(url: str, names: list[str], order: str = "pay") -> dict[str, str]:
    """Record turns for the workers; return their run ids."""

    async def record() -> dict[str, str]:
        async with open_store(url) as store:
            return {name: await submit(store, name, order) for name in names}

    return asyncio.run(record())


def chaos(made: Field, *, workers: int, kills: int, lines: int, seed: int) -> None:
    """Let workers run, and after each so many lines that tell of a turn kill one of them and start another."""
    chance = random.Random(seed)
    alive = [made.start() for _ in range(workers)]
    for _ in range(kills):
        made.until(" turn ", chance.randint(1, lines // kills))
        place = chance.randrange(workers)
        alive[place].process.kill()
        alive[place] = made.start()


def all_ended(made: Field, names: Iterable[str]) -> None:
    """Wait until no turn of sessions is open; what a killed worker did may not have been said."""

    async def wait() -> None:
        deadline = time.monotonic() + PATIENCE
        async with open_store(made.url) as store:
            for name in names:
                while (await journal(store, name)).head.status != "idle":
                    assert time.monotonic() < deadline, (name, made.drained())
                    await asyncio.sleep(0.01)

    asyncio.run(wait())


def verify(made: Field, runs: dict[str, str]) -> None:
    """Each turn is in its transcript once and whole, and each effect happened, and no other."""
    assert made.keys() == {f"{run_id}.s{step}.c0" for run_id in runs.values() for step in range(STEPS)}
    assert set(made.attempts()) == made.keys()
    asyncio.run(_verify_store(made.url, runs))


async def _verify_store(url: str, runs: dict[str, str]) -> None:
    async with open_store(url) as store:
        for name, run_id in runs.items():
            transcript = await store.sessions.load(name)
            assert transcript is not None
            assert [record["message"]["role"] for record in transcript.records] == TURN
            assert {record["run_id"] for record in transcript.records} == {run_id}
            found = await journal(store, name)
            assert (found.head.status, found.head.owner, found.entries) == ("idle", None, ())


def heads(url: str, names: list[str]) -> dict[str, tuple[str, str | None, int]]:
    """Return status, owner and attempts of turns."""

    async def read(store: AgentStore, name: str) -> tuple[str, str | None, int]:
        head = (await journal(store, name)).head
        return head.status, head.owner, head.attempts

    async def all_of_them() -> dict[str, tuple[str, str | None, int]]:
        async with open_store(url) as store:
            return {name: await read(store, name) for name in names}

    return asyncio.run(all_of_them())
