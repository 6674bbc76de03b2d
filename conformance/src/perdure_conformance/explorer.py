"""Every order in which the store calls of two processes can fall, tried one after another.

A schedule says which process goes on at each store call, reads too. A run follows one schedule from a fresh world to the
end, and the world checks what is left. What a process does next depends only on what its calls have answered so far, so
two schedules that lead to the same answers for each process and to the same data have the same future: it is tried once.
That makes all interleavings of two turns (millions) a matter of some thousand runs. What is random (versions, owners)
never decides anything, so equal means equal up to such names; every count is the same each time.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.backend import Delete, Journal
from perdure_conformance.stepping import SteppedProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
    from datetime import datetime

    from perdure.backend import JournalInfo, JournalSnapshot, Key, Operation, Part, Position

KILL = "!"
"""What marks a step of a schedule as the death of its process."""


Branch: TypeAlias = tuple[int, tuple[str, ...]]
"""How many switches more a schedule makes than the run that it leaves, and the schedule."""


class World(Protocol):
    """What two processes share, made anew for each run."""

    journal: Journal

    def program(self, process: SteppedProcess) -> Coroutine[Any, Any, Any]:
        """Return what a process does, by its name."""
        ...

    def switched(self) -> None:
        """Take note that one process stops and the other goes on: time may pass."""
        ...

    def died(self, name: str) -> None:
        """Take note that a process was killed."""
        ...

    async def check(self, outcomes: Mapping[str, Any]) -> None:
        """Check what the run has left; raise `AssertionError` if a promise is broken.

        Args:
            outcomes: What each process returned, or the exception that it raised.
        """
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is tried.

    Attributes:
        switches: How often a run may switch between processes that could both go on; `None`: as often as it likes, in
            a world where a switch takes no time.
        killed: The process that may die at a switch; `None`: none does.
        runs: After how many runs to stop; schedules with fewer switches come first. `None`: when all is covered.
        atomic: Whether the processes see an atomic journal; `None`: as the backend says.
    """

    switches: int | None = 2
    killed: str | None = None
    runs: int | None = None
    atomic: bool | None = None


@dataclass
class Coverage:
    """What was covered.

    Attributes:
        runs: Schedules that were run.
        ends: Different ends that were checked.
        states: Different states that were seen.
        capped: Whether runs were left out because of `Bounds.runs`.
    """

    runs: int = 0
    ends: int = 0
    capped: bool = False
    graph: dict[Hashable, list[Hashable]] = field(default_factory=dict, repr=False)
    start: Hashable = None

    @property
    def states(self) -> int:
        """How many different states were seen."""
        return len(self.graph)

    @cached_property
    def interleavings(self) -> int:
        """How many interleavings that is: the ways through the states from the start to an end."""
        counts: dict[Hashable, int] = {}
        todo = [self.start]
        while todo:
            state = todo[-1]
            missing = [child for child in self.graph.get(state, ()) if child not in counts]
            if missing:
                todo.extend(missing)
                continue
            counts[state] = sum(counts[child] for child in self.graph.get(state, ())) or 1
            todo.pop()
        return counts[self.start]

    def __str__(self) -> str:
        text = f"{self.interleavings} interleavings ({self.states} states, {self.runs} runs, {self.ends} ends)"
        return text + (", capped" if self.capped else "")


class ScheduleFailed(AssertionError):  # noqa: N818  # reason: it is a failure of what is tested
    """A schedule broke a promise: it names both programs, and the schedule to replay."""

    def __init__(self, title: str, schedule: str, problem: BaseException, trace: Sequence[str]) -> None:
        lines = "\n  ".join(trace)
        super().__init__(f"{title}, schedule {schedule!r}: {type(problem).__name__}: {problem}\n  {lines}")
        self.schedule = schedule


class Explorer:
    """Runs two processes in all orders within bounds."""

    def __init__(
        self,
        title: str,
        names: tuple[str, str],
        make: Callable[[], Awaitable[World]],
        bounds: Bounds | None = None,
        choose: Callable[[list[Branch]], list[Branch]] = lambda branches: branches,
    ) -> None:
        """Set up.

        Args:
            title: What failures call the pair.
            names: The two processes.
            make: Makes a fresh world.
            bounds: What to try.
            choose: Which of the branches off a run are followed.
        """
        self.title = title
        self.names = names
        self.make = make
        self.bounds = Bounds() if bounds is None else bounds
        self.choose = choose
        self.coverage = Coverage()

    async def explore(self) -> Coverage:
        """Try every schedule within the bounds; raise `ScheduleFailed` at the first that breaks a promise."""
        numbers = itertools.count()
        todo: list[tuple[int, int, tuple[str, ...]]] = [(0, next(numbers), ())]
        while todo:
            if self.coverage.runs == self.bounds.runs:
                self.coverage.capped = True
                break
            switches, _, schedule = heapq.heappop(todo)
            for more, branch in self.choose(await self._run(schedule)):
                heapq.heappush(todo, (switches + more, next(numbers), branch))
        return self.coverage

    async def replay(self, schedule: str) -> None:
        """Run one schedule, as a failure names it; what it leaves open goes on without a switch."""
        run = await _Run.begin(self.names, await self.make(), self.bounds)
        async with self._reported(run):
            for step in _parse(schedule):
                await run.take(step)
            while choices := run.choices():
                await run.take(choices[0])
            await run.check()

    async def _run(self, schedule: tuple[str, ...]) -> list[Branch]:
        """Follow a schedule, and go on from there while it leads to states not seen; return what else could be done."""
        self.coverage.runs += 1
        run = await _Run.begin(self.names, await self.make(), self.bounds)
        branches: list[Branch] = []
        async with self._reported(run):
            for step in schedule[:-1]:
                await run.take(step)
            state = run.state()
            if not schedule:
                self.coverage.start = state
            elif state not in self.coverage.graph:
                raise AssertionError("a program does not do the same again: something random decides what it does")
            for step in schedule[-1:]:
                state = await self._follow(run, state, step)
            while state not in self.coverage.graph:
                self.coverage.graph[state] = []
                choices = run.choices()
                if not choices:
                    self.coverage.ends += 1
                    await run.check()
                    break
                branches += [(run.cost(choice), (*run.steps, choice)) for choice in choices[1:]]
                state = await self._follow(run, state, choices[0])
        return branches

    async def _follow(self, run: _Run, state: Hashable, step: str) -> Hashable:
        await run.take(step)
        reached = run.state()
        self.coverage.graph[state].append(reached)
        return reached

    @contextlib.asynccontextmanager
    async def _reported(self, run: _Run) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            raise ScheduleFailed(self.title, run.schedule, error, run.trace) from error
        finally:
            await run.abandon()


class _Run:
    """One run: two processes in one world, and the schedule so far."""

    def __init__(self, world: World, bounds: Bounds) -> None:
        self.world = world
        self.bounds = bounds
        self.data = _Signatures()
        self.processes: dict[str, SteppedProcess] = {}
        self.views: dict[str, _SignedJournal] = {}
        self.steps: list[str] = []
        self.trace: list[str] = []
        self.current: str | None = None
        self.switches = 0

    @classmethod
    async def begin(cls, names: Sequence[str], world: World, bounds: Bounds) -> _Run:
        """Start the processes; each stands before its first call then."""
        run = cls(world, bounds)
        for name in names:
            view = run.views[name] = _SignedJournal(name, world.journal, run.data, run.trace)
            process = run.processes[name] = SteppedProcess(name, view, atomic=bounds.atomic)
            await process.start(world.program(process))
        return run

    @property
    def schedule(self) -> str:
        """The schedule so far, in short."""
        return " ".join(f"{step}{len(list(group))}" for step, group in itertools.groupby(self.steps))

    def state(self) -> Hashable:
        """Return what the future depends on."""
        histories = tuple((view.history, self.processes[name].died) for name, view in self.views.items())
        if self.bounds.switches is None:
            return histories, self.data.state()
        return histories, self.data.state(), self.current, self.switches

    def choices(self) -> list[str]:
        """Return what may be done next, going on without a switch first."""
        going = [name for name, process in self.processes.items() if not process.ended]
        choices = sorted(going, key=lambda name: name != self.current)
        killed, bounded = self.bounds.killed, self.bounds.switches is not None
        if killed in going and (not bounded or killed == self.current):
            choices.append(f"{killed}{KILL}")
        if self.bounds.switches is not None and self.switches >= self.bounds.switches and self.current in going:
            return choices[:1]
        return choices

    def cost(self, choice: str) -> int:
        """Return how many switches a choice makes."""
        return int(self._is_switch(choice))

    async def take(self, step: str) -> None:
        """Do one step of a schedule."""
        if self._is_switch(step):
            self.switches += 1
            self.world.switched()
        self.steps.append(step)
        name = step.removesuffix(KILL)
        self.current = name
        if step.endswith(KILL):
            self.trace.append(f"{name} dies")
            await self.processes[name].kill()
            self.world.died(name)
        else:
            await self.processes[name].step()

    async def check(self) -> None:
        """Let the world check what is left."""
        await self.world.check({name: process.outcome() for name, process in self.processes.items()})

    async def abandon(self) -> None:
        """End the processes that stand somewhere."""
        for process in self.processes.values():
            if not process.ended:
                await process.kill()

    def _is_switch(self, step: str) -> bool:
        if step.endswith(KILL):
            return True
        current = None if self.current is None else self.processes[self.current]
        return current is not None and not current.ended and step != self.current


@dataclass
class _Signatures:
    """What the data is, up to random names: for each key, which write of which past made it what it is."""

    keys: dict[Key, int] = field(default_factory=dict)

    def state(self) -> Hashable:
        return frozenset(self.keys.values())


class _SignedJournal(Journal):
    """One process's view of the backend, which keeps a signature of all that its calls have answered."""

    def __init__(self, name: str, inner: Journal, data: _Signatures, trace: list[str]) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.namespace = inner.namespace
        self.title = inner.title
        self.history: int = hash(name)
        self._name = name
        self._data = data
        self._trace = trace

    async def open(self) -> None:
        """Do nothing: the backend is open."""

    async def close(self) -> None:
        """Do nothing: the backend is closed by whoever opened it."""

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        """Read, and sign what was seen."""
        found = await self.inner.read(key, after=after, limit=limit, last=last)
        self._saw("read", str(key.part), self._data.keys.get(key))
        seen = "absent" if found is None else f"{found.head.status or ''} v{found.version} of {found.count}"
        self._trace.append(f"{self._name} reads {key.part} {key.id}: {seen}")
        return found

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        """Write, and sign what became of it."""
        told = ", ".join(
            f"{type(operation).__name__} {operation.key.part} {operation.key.id}" for operation in operations
        )
        try:
            versions = await self.inner.write(operations)
        except Exception as error:
            self._saw("refused", type(error).__name__, None)
            self._trace.append(f"{self._name} writes {told}: {type(error).__name__}")
            raise
        for place, operation in enumerate(operations):
            if isinstance(operation, Delete):
                self._saw("deleted", versions[place] != 0, None)
            else:
                self._saw("wrote", place, self._data.keys.get(operation.key))
            self._data.keys[operation.key] = self.history
        self._trace.append(f"{self._name} writes {told}: {', '.join(f'v{version}' for version in versions)}")
        return versions

    async def scan(
        self,
        part: Part,
        *,
        group: str | None,
        status: str | None,
        before: datetime | None,
        order: str,
        after: Position | None,
        limit: int,
    ) -> Sequence[JournalInfo]:
        """List, and sign what all of the part was then."""
        filters: dict[str, Any] = {"group": group, "status": status, "before": before}
        found = await self.inner.scan(part, **filters, order=order, after=after, limit=limit)
        self._saw("scanned", str(part), frozenset(sign for key, sign in self._data.keys.items() if key.part == part))
        self._trace.append(f"{self._name} lists {part}: {len(found)}")
        return found

    def _saw(self, *seen: object) -> None:
        self.history = hash((self.history, *seen))


def _parse(schedule: str) -> tuple[str, ...]:
    """Read a schedule as failures write it: `A3 B2 A!1` is three steps of A, two of B, and the death of A."""
    steps: list[str] = []
    for word in schedule.split():
        name = word.rstrip("0123456789")
        steps += [name] * int(word[len(name) :])
    return tuple(steps)
