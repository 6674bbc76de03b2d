"""One conversation on three backends: sessions on Redis, turn journals on SQLite, approvals on files.

No write covers two of them, so the order of the writes alone keeps the conversation whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
from core.tests.crash_world import World
from core.tests.test_crash_points import AWAY, SCENARIOS, USERS, crash
from plugins.redis.tests.servers import VALKEY, shared

from perdure import Agent, AgentStore, ToolCall, open_store, tool
from perdure.backend import (
    Capabilities,
    Journal,
    JournalInfo,
    JournalSnapshot,
    Key,
    Operation,
    Part,
    Position,
)
from perdure.journal.stores import JournalApprovals, JournalCheckpoints, JournalSessions
from perdure.models import ScriptedModel
from perdure_conformance.interception import OUTCOMES

pytestmark = pytest.mark.anyio


async def open_mixed(directory: Path) -> AgentStore:
    namespace = f"?namespace={directory.name[-60:].replace('.', '-')}"
    return await open_store(
        f"{shared(VALKEY).url}{namespace}",
        checkpoints=f"sqlite:{directory / 'turns.db'}{namespace}",
        approvals=f"file:{directory / 'approvals'}{namespace}",
    )


class ThreeJournals(Journal):
    """Each part of a conversation in the journal of another backend; several operations at once are refused."""

    def __init__(self, bundle: AgentStore) -> None:
        sessions, checkpoints, approvals = bundle.sessions, bundle.checkpoints, bundle.approvals
        assert isinstance(sessions, JournalSessions)
        assert isinstance(checkpoints, JournalCheckpoints)
        assert isinstance(approvals, JournalApprovals)
        self.bundle = bundle
        self.capabilities = Capabilities(durable=True, shared=True)
        self.parts = {
            Part.SESSIONS: sessions.journal,
            Part.RUNS: checkpoints.journal,
            Part.APPROVALS: approvals.journal,
        }

    async def open(self) -> None:
        """Be open already."""

    async def close(self) -> None:
        await self.bundle.close()

    async def read(
        self, key: Key, *, after: int = 0, limit: int | None = None, last: int | None = None
    ) -> JournalSnapshot | None:
        return await self.parts[key.part].read(key, after=after, limit=limit, last=last)

    async def write(self, operations: Sequence[Operation], /) -> tuple[int, ...]:
        (operation,) = operations
        return await self.parts[operation.key.part].write(operations)

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
        return await self.parts[part].scan(
            part, group=group, status=status, before=before, order=order, after=after, limit=limit
        )


class MixedWorld(World):
    """The world of the crash tests, on three backends."""

    async def journal(self) -> Journal:
        self._place.mkdir(exist_ok=True)
        journal = ThreeJournals(await open_mixed(self._place))
        self._open.append(journal)
        return journal


async def crash_points(name: str, outcome: str, directory: Path, every: int) -> int:
    """Run a scenario with a fault at every so many writes, until each user has met none; return how many had one."""
    points = misses = 0
    for turn in itertools.count():
        async with MixedWorld("mixed", directory, SCENARIOS[name]) as world:
            hit = await crash(world, 1 + turn * every, outcome, USERS[turn % len(USERS)], atomic=False)
        points, misses = points + bool(hit), misses + (not hit)
        if misses == len(USERS):
            break
    return points


@pytest.mark.parametrize("outcome", ["die-before", "die-after", "unknown"])
@pytest.mark.parametrize(("name", "every"), [("text", 1), ("gated", 4)])
async def test_a_turn_survives_faults(name: str, every: int, outcome: str, tmp_path: Path) -> None:
    assert await crash_points(name, outcome, tmp_path, every) > 2


@pytest.mark.soak
@pytest.mark.parametrize("outcome", [*OUTCOMES, AWAY])
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_turn_survives_a_fault_at_every_write(name: str, outcome: str, tmp_path: Path) -> None:
    assert await crash_points(name, outcome, tmp_path, 1) > 3


async def test_a_user_notices_nothing_of_it(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool(needs_approval=True)
    def pay(to: str) -> str:
        paid.append(to)
        return f"paid {to}"

    def agent(store: AgentStore) -> Agent:
        model = ScriptedModel([[ToolCall("c1", "pay", {"to": "ann"})], "Done."])
        return Agent(model=model, tools=[pay], store=store)

    async with await open_mixed(tmp_path) as store:
        assert not store.atomic
        waits = await agent(store).session("s").send("Pay ann.")
    async with await open_mixed(tmp_path) as store:
        result = await agent(store).approvals.resolve(waits.approval_ids[0], approved=True)
        assert (result.text, paid) == ("Done.", ["ann"])
        assert await agent(store).session("s").pending() is None
        assert await store.delete_session("s")
        assert (await store.sessions.list()).items == ()
        assert (await store.checkpoints.list()).items == ()
        assert (await store.approvals.list()).items == ()
