"""Promise 4, power loss: what is acknowledged was synced, so it is there when all that was not synced is gone."""

from __future__ import annotations

from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError
from perdure_conformance.laws.acknowledged import all_there, first_writes
from perdure_conformance.laws.register import law
from perdure_conformance.parts import APPROVALS, CHECKPOINTS, SESSIONS
from perdure_conformance.storm import COUNTED


async def survives_power_loss(bench: Bench, kind: str) -> None:
    """Cut the power behind the n-th write, with the store open, and compare what is found then."""
    note = bench.target.power_loss
    if note is None:
        raise NotRunError("power loss is not tested: the target tells no way to drop what was not synced")
    bench.needs_reopening()
    for count in bench.effort.sweep(range(1, COUNTED + 1)):
        place = bench.another_place()
        cut = note(place)
        try:
            store = await bench.open(place)
            versions = await first_writes(store, kind, count)
        finally:
            drop = cut()
        bench.log.begin(f"the power of {place.name} goes").says("what was not synced is lost")
        await store.close()
        drop()
        await all_there(bench, place, kind, versions, "that lost its power after")


@law(
    "sessions-append-survives-power-loss",
    parts=[SESSIONS],
    needs=("durable",),
    promise=4,
    timeout=60,
    methods=["sessions.append"],
)
async def append_survives_power_loss(bench: Bench) -> None:
    """Every acknowledged batch is there after the power was lost, and the version goes on."""
    await survives_power_loss(bench, "append")


@law(
    "sessions-replace-survives-power-loss",
    parts=[SESSIONS],
    needs=("durable", "replace"),
    promise=4,
    timeout=60,
    methods=["sessions.replace"],
)
async def replace_survives_power_loss(bench: Bench) -> None:
    """A replaced session has its new content, and nothing else, after the power was lost."""
    await survives_power_loss(bench, "replace")


@law(
    "sessions-delete-survives-power-loss",
    parts=[SESSIONS],
    needs=("durable", "delete"),
    promise=4,
    timeout=60,
    methods=["sessions.delete"],
)
async def delete_survives_power_loss(bench: Bench) -> None:
    """A deleted session stays deleted after the power was lost, and one that was created again stays."""
    await survives_power_loss(bench, "delete")


@law(
    "checkpoints-turn-survives-power-loss",
    parts=[CHECKPOINTS],
    needs=("durable",),
    promise=4,
    timeout=60,
    methods=["checkpoints.append"],
)
async def turn_survives_power_loss(bench: Bench) -> None:
    """Head and entries of a turn journal are those of its last acknowledged write after the power was lost."""
    await survives_power_loss(bench, "turn")


@law(
    "approvals-decision-survives-power-loss",
    parts=[APPROVALS],
    needs=("durable",),
    promise=4,
    timeout=60,
    methods=["approvals.decide"],
)
async def decision_survives_power_loss(bench: Bench) -> None:
    """Every acknowledged request and decision is there after the power was lost."""
    await survives_power_loss(bench, "decide")
