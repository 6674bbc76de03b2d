"""Promise 4, torn writes: what one system call was to write is cut in the middle, and is there whole or not at all."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

from perdure.errors import PerdureError
from perdure_conformance.bench import Bench
from perdure_conformance.checks import NotClaimedError, NotRunError, broken, equal
from perdure_conformance.file_limits import Extent
from perdure_conformance.laws.storms import law_of_storm
from perdure_conformance.parts import CHECKPOINTS, SESSIONS
from perdure_conformance.processes import Worker
from perdure_conformance.storm import COUNTED, KEY, WRITERS, state_after, state_of
from perdure_conformance.target import Place

MORE = 2
"""How many writes follow a torn one: the second shows what became of the first behind the torn end."""
TAIL = 40
"""So many bytes before its end a write is cut also in a storm whose numbers and times are some digits longer."""
BY_VERSION = {"append": SESSIONS, "replace": SESSIONS, "delete": SESSIONS, "turn": CHECKPOINTS}
"""The kinds of storms whose writes expect the version of a key, and whose key that is."""


async def survives_torn_write(bench: Bench, kind: str) -> None:
    """Cut what a writer writes at places of its files, look at what it has left, and write more behind it."""
    worker = await bench.worker()
    place = bench.another_place()
    _, said = await worker.storm(bench.url(place), kind, directory=str(place.directory))
    await worker.call("import", modules=said["modules"])
    points, telling = cuts(said["written"])
    if not points:
        raise await nothing_to_cut(bench, worker, kind)
    torn = [await cut(bench, worker, kind, *point) for point in bench.effort.sweep(points, telling=telling)]
    if not any(torn):
        raise NotRunError("no write was cut: the store wrote elsewhere than it did at another place")


def cuts(written: list[list[Extent]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the writes and sizes to cut at, 0: the opening; and those of them that tell most."""
    points = [(number, size) for number, extents in enumerate(written) for one in extents for size in inside(one)]
    last = [max(extents, key=lambda one: one[1], default=(0, 0)) for extents in written]
    telling = [(1, sum(last[1]) // 2), (2, last[2][1] - 1), (COUNTED, last[COUNTED][1] - TAIL)]
    return list(dict.fromkeys(points)), [point for point in telling if point in points]


def inside(extent: Extent) -> Iterator[int]:
    """Return the sizes that cut a write: after its first byte, before its last one or last few, and between these."""
    start, end = extent
    sizes = (start + 1, *(start + (end - start) * quarter // 4 for quarter in (1, 2, 3)), end - TAIL, end - 1)
    return (size for size in sizes if start < size < end)


async def nothing_to_cut(bench: Bench, worker: Worker, kind: str) -> Exception:
    """Say why no write can be cut: the store writes no file, or it is not known where."""
    place = bench.another_place()
    _, said = await worker.storm(bench.url(place), kind, directory=str(place.directory), cut=(0, 0))
    if was_cut(said):
        return NotRunError(
            "the store writes no file in the directory of its place, but elsewhere: name a URL with {dir}"
        )
    return NotClaimedError("the process that calls the store writes no file, so none of its writes can be torn")


async def cut(bench: Bench, worker: Worker, kind: str, write: int, size: int) -> bool:
    """Cut a writer at a fresh place, look at what it has left, and return whether it was cut."""
    place = bench.another_place()
    acknowledged, said = await worker.storm(bench.url(place), kind, directory=str(place.directory), cut=(write, size))
    where = f"write {write}" if write else "its opening"
    when = f"a storm ({kind}) that was cut at byte {size} of a file in {where}, after write {acknowledged}"
    await goes_on(bench, place, kind, acknowledged, when)
    return was_cut(said)


def was_cut(said: dict[str, Any]) -> bool:
    """Whether the system did not take all of a write: it has ended the writer, or this one told so."""
    return said["ended"] == -signal.SIGXFSZ or "refused" in said


async def goes_on(bench: Bench, place: Place, kind: str, acknowledged: int, when: str) -> None:
    """Open the place of a torn write, compare with what was acknowledged, and write on; each write is there at the next opening."""
    try:
        store = await bench.open(place)
        found = await state_of(store, kind)
        number = acknowledged + (found == state_after(kind, acknowledged + 1))
        equal(found, state_after(kind, number), f"what is stored of {when}")
        for following in range(number + 1, number + 1 + MORE):
            await WRITERS[kind](store, following, await version_of(store, kind))
            await store.close()
            store = await bench.open(place)
            expected = state_after(kind, following)
            equal(await state_of(store, kind), expected, f"what is stored after write {following}, behind {when}")
        await store.close()
    except PerdureError as error:
        raise broken(f"the place of {when} is to be read and written, but: {type(error).__name__}: {error}") from error


async def version_of(store: Any, kind: str) -> int:
    """Return the version that the next write expects; 0: there is none, or it finds that out itself."""
    part = BY_VERSION.get(kind)
    seen = None if part is None else await part.read(store, KEY)
    return 0 if seen is None else seen.version


@law_of_storm("append", "survives-torn-write")
async def append_survives_torn_write(bench: Bench) -> None:
    """A batch whose write was cut in the middle is there whole or not at all, and what is appended later stays behind it."""
    await survives_torn_write(bench, "append")


@law_of_storm("replace", "survives-torn-write")
async def replace_survives_torn_write(bench: Bench) -> None:
    """A session has its old content or its new one, and takes the next, when the write of a replace was cut in the middle."""
    await survives_torn_write(bench, "replace")


@law_of_storm("delete", "survives-torn-write")
async def delete_survives_torn_write(bench: Bench) -> None:
    """A session is there whole or gone when the write of its deletion was cut in the middle, and can be created again."""
    await survives_torn_write(bench, "delete")


@law_of_storm("turn", "survives-torn-write")
async def turn_survives_torn_write(bench: Bench) -> None:
    """Head and entries of a turn journal are those of one write when an append or the replace that closes it was cut in the middle."""
    await survives_torn_write(bench, "turn")


@law_of_storm("decide", "survives-torn-write")
async def decision_survives_torn_write(bench: Bench) -> None:
    """An approval is pending or decided with all that was said when the write of its decision was cut in the middle."""
    await survives_torn_write(bench, "decide")


@law_of_storm("commit", "survives-torn-write")
async def atomic_write_survives_torn_write(bench: Bench) -> None:
    """Session and turn journal are both as before or both as after when the write of both was cut in the middle."""
    await survives_torn_write(bench, "commit")
