"""What every question gets: how much to measure, where, and the servers."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

from benchmarks.figures import Figure, Goal
from benchmarks.pairs import Pairs, Work, alone, in_turn
from plugins.redis.tests.servers import Server


@dataclass
class Bench:
    """One run of the benchmarks.

    Attributes:
        quick: Whether to measure little, to see that it works.
        directory: Where files go.
        servers: The Redis servers that were started, by their `appendfsync`.
    """

    quick: bool
    directory: Path
    servers: dict[str, Server] = field(default_factory=dict)
    _places: int = 0

    def size(self, full: int, quick: int) -> int:
        """Return how much of something to take."""
        return quick if self.quick else full

    def place(self, name: str) -> Path:
        """Return a path that is not there yet, in a directory of its own."""
        self._places += 1
        folder = self.directory / str(self._places)
        folder.mkdir()
        return folder / name

    def server(self, appendfsync: str = "everysec") -> Server:
        """Return a Redis server of this run on this machine, with `appendonly yes`."""
        if appendfsync not in self.servers:
            options = {"appendfsync": appendfsync}
            self.servers[appendfsync] = Server(self.place("server"), options=options).start()
        return self.servers[appendfsync]

    async def pairs(self, ours: Work, theirs: Work, *, calls: int = 20, pairs: int = 60) -> Pairs:
        """Time two works in turn; a quick run takes a few of each."""
        return await in_turn(ours, theirs, pairs=self.size(pairs, 4), calls=self.size(calls, min(calls, 4)))

    async def compare(
        self,
        what: str,
        ours: Work,
        theirs: Work | None,
        *,
        anchor: str,
        durability: str,
        goal: Goal | None = None,
        rate: bool = False,
        calls: int = 20,
        pairs: int = 60,
    ) -> Figure:
        """Time two works in turn and make a figure of it; without an anchor, ours alone."""
        if theirs is not None:
            found = await self.pairs(ours, theirs, calls=calls, pairs=pairs)
            return found.figure(what, anchor=anchor, durability=durability, goal=goal, rate=rate)
        times = sorted(await alone(ours, pairs=self.size(pairs, 4), calls=self.size(calls, min(calls, 4))))
        return Figure(what, f"{anchor} (not installed)", durability, "µs", times[len(times) // 2] * 1e6, goal=goal)


def anchor(module: str) -> ModuleType | None:
    """Import what an anchor is made of; `None`: it is not installed (`requirements/bench.txt` has it)."""
    try:
        return import_module(module)
    except ImportError:
        return None


@contextmanager
def running(*, quick: bool, directory: Path | None = None) -> Iterator[Bench]:
    """Make a bench whose files and servers are gone at the end."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="perdure-benchmarks-", dir=directory))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        bench = Bench(quick, folder)
        try:
            yield bench
        finally:
            for server in bench.servers.values():
                server.kill()
