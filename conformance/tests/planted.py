"""Targets for the tests of the command and its reports: a store with one fault, the right one, and openers that are wrong."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import perdure
from perdure import AgentStore
from perdure.backend import Append, journal_stores
from perdure.clock import Clock
from perdure_conformance.target import Place, Target
from perdure_conformance.testing import StoreConformance
from perdure_memory.journal import MemoryJournal


class NoVersionCheck(MemoryJournal):
    """Every append is taken, whatever version it expects."""

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        changed = [replace(one, expected_version=None) if isinstance(one, Append) else one for one in operations]
        return await super().write(changed)


class Hangs(MemoryJournal):
    """The third write never ends."""

    writes = 0

    async def write(self, operations: Sequence[Any], /) -> tuple[int, ...]:
        self.writes += 1
        if self.writes == 3:
            await asyncio.Event().wait()
        return await super().write(operations)


def over(journal: type[MemoryJournal]) -> Any:
    """Return the opener of stores that are made of a kind of journal."""

    async def opener(place: Place, clock: Clock) -> AgentStore:
        made = journal(place.name, namespace=place.namespace)
        await made.open()
        stores = journal_stores(made)
        parts = {name: getattr(stores, name) for name in ("sessions", "checkpoints", "approvals")}

        async def closing() -> None:
            for part in parts.values():
                part.seal()
            await made.close()

        for part in parts.values():
            part.bind(max_record=place.max_record)
        return AgentStore(**parts, clock=clock, closing=closing)

    return opener


async def refusing(place: Place, clock: Clock) -> AgentStore:
    raise OSError("no such disk")


async def one_place(place: Place, clock: Clock) -> AgentStore:
    return await perdure.open_store("memory:everywhere", clock=clock)


async def exiting(place: Place, clock: Clock) -> AgentStore:
    await asyncio.to_thread(os._exit, 0)
    raise AssertionError("nobody comes here")


BROKEN = Target("broken", over(NoVersionCheck))
RIGHT = Target("right", over(MemoryJournal))
HANGING = Target("hanging", over(Hangs))
CLOSED = Target("closed", refusing)
EXITING = Target("exiting", exiting)
SHARED_PLACE = Target("shared-place", one_place)
NUMBER = 3


def made() -> Target:
    return RIGHT


class RightStore(StoreConformance):
    def opener(self, place: Place) -> Any:
        return perdure.open_store(f"file:{place.directory}/x?namespace={place.namespace}", clock=place.clock)

    limits = False

    def raw_damage(self, place: Place) -> None:
        for file in Path(place.directory).rglob("*.jsonl"):
            file.write_bytes(b"this is not a journal\n" * 50)


def made_class() -> type[StoreConformance]:
    return RightStore


def failing() -> Target:
    raise RuntimeError("no licence")


def ending() -> Target:
    raise SystemExit(0)


def asking(name: str) -> Target:
    return Target.from_url(name)


class NoOpener(StoreConformance):
    pass


class NoTarget(RightStore):
    def target(self) -> Target:
        raise OSError("no such disk")


released = threading.Event()


async def blocked(place: Place, clock: Clock) -> AgentStore:
    released.wait()
    raise OSError("nobody waits for it")


BLOCKED = Target("blocked", blocked)
