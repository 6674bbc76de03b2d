"""Long random sequences of calls, beside a small model of what a session is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.errors import VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal
from perdure_conformance.laws.register import law
from perdure_conformance.parts import CHECKPOINTS, SESSIONS, WritablePart

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

NAMES = ("s1", "s10", "S1")


@dataclass
class ModelKey:
    """What a key holds, by the contract."""

    version: int
    values: list[dict[str, Any]] = field(default_factory=list)


def sequences() -> SearchStrategy[list[tuple[Any, ...]]]:
    """Return a strategy of call sequences on few keys: kind, key, size, version asked for, further choice."""
    from hypothesis import strategies as st

    kinds = st.sampled_from(["append", "append", "append", "replace", "delete", "reopen"])
    expected = st.sampled_from(["none", "right", "right", "right", "zero", "one-less", "one-more", "former"])
    call = st.tuples(kinds, st.sampled_from(NAMES), st.integers(0, 4), expected, st.integers(0, 3))
    return st.lists(call, min_size=3, max_size=24)


class Machine:
    """The store and the model, side by side."""

    def __init__(self, bench: Bench, part: WritablePart) -> None:
        """Start with nothing on both sides."""
        self.bench = bench
        self.part = part
        self.keys: dict[str, ModelKey] = {}
        self.former: dict[str, int] = {}
        self.calls: list[str] = []

    async def run(self, calls: list[tuple[Any, ...]]) -> None:
        """Make the calls, and compare both sides after each."""
        for number, (kind, name, size, asked, choice) in enumerate(calls):
            if kind == "reopen":
                if self.bench.target.reopens and self.bench.capabilities(self.part.name).durable:
                    await self.bench.reopen()
            elif kind == "append" or getattr(self.bench.capabilities(self.part.name), kind):
                await self.call(number, kind, name, size, self.expected(name, asked), choice)
            await self.compare()

    def expected(self, name: str, asked: str) -> int | None:
        """Return the version that a call expects."""
        version = self.keys[name].version if name in self.keys else 0
        wrong = {"zero": 0, "one-less": max(version - 1, 0), "one-more": version + 1}
        if asked == "former":
            return self.former.get(name, 0)
        return None if asked == "none" else wrong.get(asked, version)

    async def call(self, number: int, kind: str, name: str, size: int, expected: int | None, choice: int) -> None:
        """Make one call on both sides."""
        values = [{"call": number, "place": place} for place in range(size)]
        known = self.keys.get(name)
        actual = known.version if known else 0
        refused = expected not in (None, actual) or (kind == "replace" and known is None)
        keep = min(choice, len(known.values)) if known and self.part is SESSIONS else 0
        self.calls.append(f"{kind}({name!r}, {size} values, expected_version={expected}, keep={keep})")
        try:
            answer = await self.on_store(kind, name, values, expected, keep)
        except VersionConflictError as error:
            if not refused or error.actual != actual:
                wanted = f"a conflict at version {actual}" if refused else f"an answer, since the version is {actual}"
                raise broken(f"{self.story()}: expected {wanted}; got a conflict at {error.actual}") from error
            return
        if refused:
            raise broken(f"{self.story()}: expected a conflict, since the version is {actual}; got {answer!r}")
        self.on_model(kind, name, values, keep, answer)

    async def on_store(self, kind: str, name: str, values: list[Any], expected: int | None, keep: int) -> int | bool:
        """Make the call on the store."""
        store = self.bench.store
        if kind == "append":
            return await self.part.write(store, name, values, expected_version=expected)
        if kind == "delete":
            return await self.part.delete(store, name, expected_version=expected)
        options = {"keep": keep} if self.part is SESSIONS else {}
        return await self.part.replace(store, name, values, expected_version=expected, **options)

    def on_model(self, kind: str, name: str, values: list[Any], keep: int, answer: int | bool) -> None:
        """Make the call on the model, which learns only first versions from the store."""
        known = self.keys.get(name)
        if kind == "delete":
            equal(answer, known is not None, f"{self.story()}: what delete answers")
            if known is not None:
                self.former[name] = self.keys.pop(name).version
        elif known is None:
            self.keys[name] = ModelKey(answer, list(values))
        else:
            equal(answer, known.version + 1, f"{self.story()}: the new version")
            known.version = answer
            known.values = [*(known.values if kind == "append" else known.values[:keep]), *values]

    async def compare(self) -> None:
        """Demand that the store shows what the model holds."""
        for name in NAMES:
            seen = await self.part.read(self.bench.store, name)
            known = self.keys.get(name)
            expected = known and (known.version, known.values)
            equal(
                seen and (seen.version, list(seen.values)), expected, f"{self.story()}: version and content of {name}"
            )
        if self.bench.capabilities(self.part.name).list:
            listed = await self.part.ids(self.bench.store, limit=2)
            equal(listed, sorted(self.keys), f"{self.story()}: the listing")

    def story(self) -> str:
        """Return the calls made so far."""
        return "; ".join(self.calls) or "before the first call"


@law("sessions-follow-the-model", parts=[SESSIONS], methods=["sessions.append"], cases=sequences, examples=25)
async def sessions_follow_the_model(bench: Bench, calls: list[tuple[Any, ...]]) -> None:
    """After any sequence of calls the session store shows what a simple model of it shows."""
    await Machine(bench, SESSIONS).run(calls)


@law("checkpoints-follow-the-model", parts=[CHECKPOINTS], methods=["checkpoints.append"], cases=sequences, examples=25)
async def checkpoints_follow_the_model(bench: Bench, calls: list[tuple[Any, ...]]) -> None:
    """After any sequence of calls the checkpoint store shows what a simple model of it shows."""
    await Machine(bench, CHECKPOINTS).run(calls)
