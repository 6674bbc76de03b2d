"""Planted stores whose listings keep each condition alone, and not what several of them say together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from conformance.tests.faults.planting import HEAD, Around, Fault, Scans, Scene

from perdure.backend import JournalInfo, Part
from perdure.contracts.checkpoints import CheckpointHead


class BeforeAloneCounts(Scans):
    """`before` counts where nothing else is asked for."""

    def fits(self, info: JournalInfo, **options: Any) -> bool:
        before = options["before"] if options["group"] is None else None
        return super().fits(info, **(options | {"before": before}))


class LimitsBeforeItFilters(Around):
    """A page is cut before what `before` leaves out is left out."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        before = options["before"]
        found = await super().scan(part, **(options | {"before": None}))
        return [info for info in found if before is None or info.updated_at < before]


class BeforeGoesByTheOrder(Scans):
    """`before` goes by the instant that the order goes by."""

    def fits(self, info: JournalInfo, **options: Any) -> bool:
        if options["order"] == "created":
            info = replace(info, updated_at=info.created_at)
        return super().fits(info, **options)


class TiesGoUpwards(Scans):
    """In order `recent` keys of one instant go by id upwards, and the pages downwards."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        if options["order"] != "recent":
            return await super().scan(part, **options)
        found = [info for info in await self.everything(part, "recent", options["after"]) if self.fits(info, **options)]
        found.sort(key=lambda info: info.id)
        found.sort(key=lambda info: info.updated_at, reverse=True)
        return found[: options["limit"]]


class ReadsHeadsLater(Around):
    """A listing finds its keys, and reads their heads afterwards."""

    async def scan(self, part: Part, **options: Any) -> Sequence[JournalInfo]:
        found = await super().scan(part, **options)
        await asyncio.sleep(0)
        now = {info.id: info for info in await self.everything(part, "id", None)}
        return [now[info.id] for info in found if info.id in now]


# --- witnesses ---


async def listed(scene: Scene) -> Any:
    """What conditions that go together list, and whether a page of one that leaves something out is the last."""
    now = scene.clock.now()
    for name, seconds in (("b", 0), ("c", 1), ("d", 2), ("a", 9), ("d", 9)):
        await scene.append(seconds, to=name, scope="ann", at=now + timedelta(seconds=seconds))
    cut = now + timedelta(seconds=5)
    found = [await scene.ids(before=cut), await scene.ids(before=cut, scope="ann")]
    page = await scene.store.sessions.list(before=cut, limit=1)
    return found, page.cursor is None, await scene.ids(before=cut, order="created")


async def recent(scene: Scene) -> Any:
    for name in "abc":
        await scene.append(1, to=name)
    page = await scene.store.sessions.list(order="recent", limit=2)
    return sorted([*(one.session_id for one in page.items), *await scene.ids(order="recent", cursor=page.cursor)])


async def of_one_status(scene: Scene) -> Any:
    """The statuses that a listing by status shows while the head changes."""
    await scene.turn(head=CheckpointHead("ready"))
    listing = asyncio.ensure_future(scene.store.checkpoints.list(status="ready"))
    await asyncio.sleep(0)
    await scene.turn(head=HEAD)
    return [one.head.status for one in (await listing).items]


def of(journal: type[Around], witness: Any, *laws: str) -> Fault:
    return Fault(journal.__name__, laws, witness, journal)


def each(law: str) -> tuple[str, str]:
    return f"sessions-{law}", f"checkpoints-{law}"


FAULTS = (
    of(BeforeAloneCounts, listed, *each("conditions-go-together")),
    of(LimitsBeforeItFilters, listed, *each("conditions-go-together")),
    of(BeforeGoesByTheOrder, listed, *each("conditions-go-together")),
    of(TiesGoUpwards, recent, *each("recent-pages-give-each-key-once")),
    of(ReadsHeadsLater, of_one_status, "checkpoints-page-shows-one-instant"),
)
