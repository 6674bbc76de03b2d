"""All planted stores, and the way to open one by its name in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.tests.faults import (
    approvals,
    checkpoints,
    concurrency,
    durability,
    fidelity,
    ids,
    listing,
    prune,
    sessions,
    turns,
)
from conformance.tests.faults.planting import Fault, OnDisk

if TYPE_CHECKING:
    from perdure import AgentStore


async def nothing(_: Any) -> None:
    """Show nothing: there is no fault."""


RIGHT = Fault("right", (), nothing)
RIGHT_ON_DISK = Fault("right-on-disk", (), nothing, OnDisk)
FAULTS: tuple[Fault, ...] = (
    *sessions.FAULTS,
    *checkpoints.FAULTS,
    *listing.FAULTS,
    *approvals.FAULTS,
    *concurrency.FAULTS,
    *fidelity.FAULTS,
    *ids.FAULTS,
    *prune.FAULTS,
    *durability.FAULTS,
    *turns.FAULTS,
)


async def open_by_name(text: str) -> AgentStore:
    """Open a store of this file in another process."""
    name, place, directory = text.split("|")
    fault = next(one for one in (RIGHT, RIGHT_ON_DISK, *FAULTS) if one.name == name)
    return await fault.open_elsewhere(place, directory)
