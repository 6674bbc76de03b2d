"""What must be there when a server was killed or the power was lost: all that was acknowledged, and versions that go on."""

from __future__ import annotations

from perdure.errors import StoreCorruptedError, VersionConflictError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import broken, equal, holds
from perdure_conformance.parts import Stores
from perdure_conformance.storm import WRITERS, state_after, state_of
from perdure_conformance.target import Place


async def first_writes(stores: Stores, kind: str, count: int) -> list[int]:
    """Make the first writes of a storm, and return the version after each, 0: the key is gone."""
    versions = [0]
    for number in range(1, count + 1):
        versions.append(await WRITERS[kind](stores, number, versions[-1]))
    return versions[1:]


async def all_there(bench: Bench, place: Place, kind: str, versions: list[int], when: str) -> None:
    """Open a place, compare it with the writes that were acknowledged, and make the next one at the version of the last.

    Args:
        bench: What opens the place.
        place: Where a storm was.
        kind: Which writes.
        versions: The version that each was acknowledged with.
        when: What happened to the storm, in words.
    """
    number = len(versions)
    storm = f"a storm ({kind}) {when} write {number}"
    store = await bench.open(place)
    try:
        equal(await state_of(store, kind), state_after(kind, number), f"what is stored of {storm}")
        following = await WRITERS[kind](store, number + 1, versions[-1])
    except VersionConflictError as error:
        raise broken(f"the next write of {storm}, at the version that this one answered: {error}") from error
    except StoreCorruptedError as error:
        raise broken(f"what is stored of {storm}: expected what was acknowledged, got damage: {error}") from error
    if follows(kind, number):
        equal(following, versions[-1] + 1, f"the version of the next write of {storm}")
    else:
        holds(following == 0 or following not in versions, f"the next write of {storm} answers {following} once more")
    equal(await state_of(store, kind), state_after(kind, number + 1), f"what is stored after one more write of {storm}")
    await store.close()


def follows(kind: str, number: int) -> bool:
    """Whether the write after the n-th of a storm changes the same key, and leaves it there."""
    return kind != "delete" and (kind != "decide" or number % 2 == 1)
