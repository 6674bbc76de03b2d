"""All planted stores, and the way to open one by its name in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conformance.tests.faults import (
    approvals,
    checkpoints,
    concurrency,
    conditions,
    corners,
    deleting,
    durability,
    errors,
    fidelity,
    ids,
    large,
    lifecycle,
    listing,
    locks,
    meanwhile,
    overlooked,
    power_losses,
    prune,
    server_kills,
    sessions,
    times,
    torn_writes,
    turns,
    versions,
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
    *times.FAULTS,
    *versions.FAULTS,
    *checkpoints.FAULTS,
    *listing.FAULTS,
    *approvals.FAULTS,
    *prune.FAULTS,
    *deleting.FAULTS,
    *durability.FAULTS,
    *server_kills.FAULTS,
    *power_losses.FAULTS,
    *torn_writes.FAULTS,
    *concurrency.FAULTS,
    *locks.FAULTS,
    *corners.FAULTS,
    *conditions.FAULTS,
    *overlooked.FAULTS,
    *large.FAULTS,
    *meanwhile.FAULTS,
    *fidelity.FAULTS,
    *ids.FAULTS,
    *errors.FAULTS,
    *lifecycle.FAULTS,
    *turns.FAULTS,
)


async def open_by_name(text: str) -> AgentStore:
    """Open a store of this file in another process."""
    name, place, directory = text.split("|")
    fault = next(one for one in (RIGHT, RIGHT_ON_DISK, *torn_writes.RIGHT, *FAULTS) if one.name == name)
    return await fault.open_elsewhere(place, directory)
