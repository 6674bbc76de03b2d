"""Promise 4, power loss: what is acknowledged was synced, so it is there when all that was not synced is gone."""

from __future__ import annotations

from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotRunError
from perdure_conformance.laws.acknowledged import all_there, first_writes
from perdure_conformance.laws.storms import law_of_storm
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


@law_of_storm("append", "survives-power-loss")
async def append_survives_power_loss(bench: Bench) -> None:
    """Every acknowledged batch is there after the power was lost, and the version goes on."""
    await survives_power_loss(bench, "append")


@law_of_storm("replace", "survives-power-loss")
async def replace_survives_power_loss(bench: Bench) -> None:
    """A replaced session has its new content, and nothing else, after the power was lost."""
    await survives_power_loss(bench, "replace")


@law_of_storm("delete", "survives-power-loss")
async def delete_survives_power_loss(bench: Bench) -> None:
    """A deleted session stays deleted after the power was lost, and one that was created again stays."""
    await survives_power_loss(bench, "delete")


@law_of_storm("turn", "survives-power-loss")
async def turn_survives_power_loss(bench: Bench) -> None:
    """Head and entries of a turn journal are those of its last acknowledged write after the power was lost."""
    await survives_power_loss(bench, "turn")


@law_of_storm("decide", "survives-power-loss")
async def decision_survives_power_loss(bench: Bench) -> None:
    """Every acknowledged request and decision is there after the power was lost."""
    await survives_power_loss(bench, "decide")
