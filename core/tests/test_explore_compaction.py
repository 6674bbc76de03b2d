"""A compaction against whatever else can be done to its conversation, in every order of their store calls.

With the archives read in the place of the summaries, a conversation must be what it would have been without any
compaction: so the promises of conversations are checked as they are, and the archives on top.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from core.tests.programs import (
    WEEK,
    Program,
    Setting,
    clear,
    delete,
    discard,
    entitle,
    prune,
    resume,
    send,
    the_title_is_kept,
)

from perdure import AgentStore, Message, Usage
from perdure.archives import archive_named_by, archive_of, archives_of
from perdure.contracts.records import Record
from perdure.errors import SessionExistsError, ToolOutcomeUnknownError
from perdure_conformance.conversation_world import SESSION, TYPED, ConversationWorld
from perdure_conformance.explorer import Bounds, Explorer
from perdure_conformance.stepping import has_died
from perdure_memory.journal import MemoryJournal

pytestmark = pytest.mark.anyio

SIGN, BETWEEN = "\u2211", "\x1f"


async def to_the_letter(messages: Sequence[Message]) -> str:
    """Summarise by quoting, so that what a model has read can be told from its summary."""
    return SIGN + BETWEEN.join(read([message.text for message in messages]))


def read(texts: Sequence[str]) -> tuple[str, ...]:
    """Return what texts say, a summary in full."""
    if not texts or not texts[0].startswith(SIGN):
        return tuple(texts)
    return (*texts[0][1:].split(BETWEEN), *texts[1:])


class CompactedWorld(ConversationWorld):
    """A conversation that may be compacted, always with an archive."""

    async def check(self, outcomes: Mapping[str, Any]) -> None:
        await super().check(outcomes)
        await self.check_archives()
        records = await self._stored(SESSION)
        said = [Message.from_record(record["message"]).text for record in records]
        full = [Message.from_record(record["message"]).text for record in await self.transcript()]
        assert list(read(said)) == full, "a summary does not stand for what it has replaced"
        assert await self.session(self.fresh()).history() == tuple(
            Message.from_record(record["message"]) for record in await self.transcript()
        )
        self._check_spent(records)

    def _check_history(self, records: Sequence[Record]) -> None:
        self.facts.asked = [(given, step, read(before)) for given, step, before in self.facts.asked]
        super()._check_history(records)

    def _check_spent(self, records: Sequence[Record]) -> None:
        spent = [Usage.from_record(record["spent"]).requests for record in records if "spent" in record]
        assert spent == sorted(spent), f"what was spent goes back: {spent}"

    async def transcript(self) -> Sequence[Record]:
        """Return the records as they would be if nothing had been compacted."""
        records = await self._stored(SESSION)
        while (named := archive_named_by(records)) is not None:
            archived = await self._stored(named)
            assert len(archived) >= records[0]["archived"], f"the archive {named} is missing, or not whole"
            records = [*archived[: records[0]["archived"]], *records[1:]]
        return records

    async def _stored(self, session_id: str) -> Sequence[Record]:
        found = await self.fresh("judge").sessions.load(session_id)
        return () if found is None else found.records

    async def check_nothing_left(self) -> None:
        await super().check_nothing_left()
        assert await self.archives() == [], "archives are left"

    async def check_archives(self) -> None:
        """Check that each archive is named."""
        assert sorted(await self.archives()) == sorted(await archives_of(self.fresh("judge"), SESSION))

    async def archives(self) -> list[str]:
        page = await self.fresh("judge").sessions.list()
        return [info.session_id for info in page.items if archive_of(info) == SESSION]


def compact(keep: int = 1) -> Program:
    return lambda world, store: world.session(store).compact(keep=keep, summarize=to_the_letter, archive=True)


async def fork_and_read(world: ConversationWorld, store: AgentStore) -> None:
    made = await world.session(store).fork("copy")
    texts = read([message.text for message in await made.load()])
    assert len(texts) % 2 == 0, f"the fork has {texts}"


async def talked(world: ConversationWorld) -> None:
    for given in ("pay before", "say", "pay more"):
        await world.turn(given)


async def compacted(world: ConversationWorld) -> None:
    """Compacted once already."""
    await talked(world)
    await compact()(world, world.fresh("earlier"))
    await world.turn("say again")


async def old(world: ConversationWorld) -> None:
    await compacted(world)
    world.clock.advance(2 * WEEK)


async def called(world: ConversationWorld) -> None:
    await talked(world)
    await world.cut("pay c", 3)


async def finished(world: ConversationWorld) -> None:
    await talked(world)
    await world.cut("pay c", 6, atomic=False)


async def waiting(world: ConversationWorld) -> None:
    await talked(world)
    await world.turn("ask c")


async def all_is_gone(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    if outcomes["B"] is True and not has_died(outcomes["A"]):
        await world.check_nothing_left()


async def all_is_empty(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    """What a clear has emptied holds nothing from before, whatever a compaction wanted to put back."""
    if outcomes["B"] is None and not has_died(outcomes["A"]):
        assert list(await world.transcript()) == []


async def the_fork_is_its_own(world: ConversationWorld, outcomes: Mapping[str, Any]) -> None:
    found = await world.fresh().sessions.load("copy")
    assert (found is not None) == (outcomes["B"] is None) or has_died(outcomes["B"])
    if found is not None:
        assert all("archive" not in record for record in found.records)


@dataclass(frozen=True)
class Pair:
    """What is done beside a compaction, and where the two start."""

    start: Callable[[ConversationWorld], Awaitable[None]]
    second: Program
    keeps: bool = True
    after: Callable[[ConversationWorld, Mapping[str, Any]], Awaitable[None]] | None = None
    raises: tuple[type[BaseException], ...] = (ToolOutcomeUnknownError,)


PAIRS = {
    "send": Pair(talked, send("pay a")),
    "send again": Pair(compacted, send("say a", "i")),
    "compact": Pair(talked, compact(keep=0)),
    "compact again": Pair(compacted, compact(keep=2)),
    "resume": Pair(called, resume),
    "resume the end": Pair(finished, resume),
    "discard": Pair(called, discard(), keeps=False),
    "discard by force": Pair(talked, discard(force=True)),
    "discard what waits": Pair(waiting, discard(force=True), keeps=False),
    "clear": Pair(compacted, clear, keeps=False, after=all_is_empty),
    "delete": Pair(compacted, delete(), keeps=False, after=all_is_gone),
    "delete by force": Pair(compacted, delete(force=True), keeps=False, after=all_is_gone),
    "prune": Pair(old, prune, keeps=False),
    "entitle": Pair(talked, entitle, after=the_title_is_kept),
    "fork": Pair(compacted, fork_and_read, after=the_fork_is_its_own, raises=(SessionExistsError,)),
}


SETTINGS = {
    "alive": Setting(),
    "elsewhere": Setting(same_host=False, slow_switches=True),
    "it dies": Setting(killed="A"),
    "the other dies": Setting(killed="B"),
}


def explorer(name: str, setting: str, bounds: Bounds) -> Explorer:
    pair, where = PAIRS[name], SETTINGS[setting]

    async def make() -> ConversationWorld:
        world = CompactedWorld(
            MemoryJournal(),
            {"A": compact(), "B": pair.second},
            allowed=(*TYPED, *pair.raises),
            keeps=pair.keeps,
            same_host=where.same_host,
            slow_switches=where.slow_switches,
            after=pair.after,
        )
        await pair.start(world)
        return world

    return Explorer(f"compact and {name} ({setting})", ("A", "B"), make, bounds)


def chosen() -> list[tuple[str, str]]:
    """Each pair in one of the settings; `make soak` takes all, and goes deeper."""
    settings = ("elsewhere", "alive", "it dies", "the other dies")
    return [(name, settings[place % 4]) for place, name in enumerate(PAIRS)]


@pytest.mark.parametrize(("name", "setting"), chosen())
async def test_all_orders_with_a_switch(name: str, setting: str) -> None:
    covered = await explorer(name, setting, Bounds(1, SETTINGS[setting].killed, atomic=True)).explore()
    print(f"compact, {name} ({setting}), at most 1 switch: {covered}")
    assert covered.ends >= 2
    assert not covered.capped


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "split"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", PAIRS)
async def test_all_orders(name: str, setting: str, *, atomic: bool) -> None:
    bounds = Bounds(3, SETTINGS[setting].killed, runs=600, atomic=atomic)
    covered = await explorer(name, setting, bounds).explore()
    print(f"compact, {name} ({setting}), 3 switches: {covered}")
    assert covered.ends >= 2
