"""Many writers at once, whose backend goes down under them, and whether each of them was told the truth."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from perdure.errors import OutcomeUnknownError, StoreUnavailableError, VersionConflictError
from perdure_conformance.checks import broken, equal, holds
from perdure_conformance.parts import Stores, WritablePart

BATCH = 3
AFTERWARDS = 3
"""How many writes each writer makes when the backend is there again."""
APART = 100_000
"""How far the numbers of two writers' writes are apart."""
SHARED = "shared"
"""The key that several writers write to, at whatever version it has."""
OWN = ("s1", "s2", "s3", "s4")
"""The keys that one writer each writes to, at the version that it knows."""
KEYS = (*OWN, SHARED, SHARED)
"""The key of each writer."""
NOTHING_WRITTEN = (StoreUnavailableError, VersionConflictError)
TRIES = 20
"""How often a writer may find dead connections when it looks at its key again."""


def batch(number: int) -> list[dict[str, int]]:
    """Return the records of a write."""
    return [{"write": number, "place": place} for place in range(BATCH)]


@dataclass
class Writers:
    """Writers that go on through a failure of the backend.

    Attributes:
        part: What they write to.
        handles: What they write with, in turn.
        answers: After how many answers the backend goes down.
        told: By key and number of a write, what it came to: a version or an error.
    """

    part: WritablePart
    handles: Sequence[Stores]
    answers: int
    told: dict[str, dict[int, int | Exception]] = field(default_factory=dict)
    _first: dict[str, int] = field(default_factory=dict)
    _answered: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    _back: asyncio.Event = field(default_factory=asyncio.Event)

    async def write_through(self, failure: Callable[[], Awaitable[None]]) -> None:
        """Write, let the backend fail after some answers, and go on when it is back."""
        for key in (*OWN, SHARED):
            self.told[key] = {}
            self._first[key] = await self.part.make(self.handles[0], key)
        writers = [asyncio.create_task(self._write_on(number, key)) for number, key in enumerate(KEYS)]
        try:
            for _ in range(self.answers):
                await self._answered.acquire()
            await failure()
        finally:
            self._back.set()
            await asyncio.gather(*writers)

    async def _write_on(self, writer: int, key: str) -> None:
        store = self.handles[writer % len(self.handles)]
        version = None if key == SHARED else self._first[key]
        afterwards = 0
        for number in count(writer * APART):
            afterwards += self._back.is_set()
            outcome = await self._write(store, key, number, version)
            if isinstance(outcome, Exception):
                await self._back.wait()
            if version is not None:
                version = outcome if isinstance(outcome, int) else await self._look(store, key)
            if afterwards == AFTERWARDS:
                break

    async def _write(self, store: Stores, key: str, number: int, version: int | None) -> int | Exception:
        try:
            outcome: int | Exception = await self.part.write(store, key, list(batch(number)), expected_version=version)
        except Exception as error:  # noqa: BLE001  # reason: what it may be is looked at later
            outcome = error
        self.told[key][number] = outcome
        self._answered.release()
        return outcome

    async def _look(self, store: Stores, key: str) -> int:
        for _ in range(TRIES):
            try:
                found = await self.part.read(store, key)
            except StoreUnavailableError:
                continue
            holds(found is not None, f"{key} is gone after the backend came back")
            assert found is not None
            return found.version
        raise broken(f"expected {key} to be read within {TRIES} calls since the backend is back")

    async def check(self, store: Stores) -> None:
        """Compare what is stored with what each write was told."""
        for key, told in self.told.items():
            found = await self.part.read(store, key)
            assert found is not None, f"{key} is gone"
            values = list(found.values[1:])
            batches = [values[start : start + BATCH] for start in range(0, len(values), BATCH)]
            numbers: list[int] = [one[0].get("write", -1) for one in batches]
            for number, one in zip(numbers, batches, strict=True):
                equal(one, batch(number), f"a batch of {key} after its server was killed")
            self._compare(key, told, Counter(numbers))
            for writer in range(len(KEYS)):
                own = [number for number in numbers if number // APART == writer]
                equal(own, sorted(own), f"the order of the writes of one writer to {key}")
            equal(found.version, self._first[key] + len(batches), f"the version of {key} after {len(batches)} writes")

    def _compare(self, key: str, told: dict[int, int | Exception], stored: Counter[int]) -> None:
        for number, outcome in told.items():
            said = f"answered {outcome}" if isinstance(outcome, int) else f"raised {type(outcome).__name__}: {outcome}"
            allowed = _allowed(outcome)
            holds(allowed, f"a write to {key} {said}; expected an answer or a typed error")
            times, found = " or ".join(map(str, allowed)), stored[number]
            holds(found in allowed, f"a write to {key} {said}; expected its batch {times} times, got it {found} times")


def _allowed(outcome: int | Exception) -> tuple[int, ...]:
    """Return how often the batch of a write may be there; never: it may not come to that."""
    if isinstance(outcome, int):
        return (1,)
    if isinstance(outcome, NOTHING_WRITTEN):
        return (0,)
    return (0, 1) if isinstance(outcome, OutcomeUnknownError) else ()
