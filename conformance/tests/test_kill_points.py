"""The kit kills at counted points: which calls are counted, and that they are the same each time."""

import asyncio
import fcntl
import io
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from conformance.tests.faults.durability import TempFileBlocks
from conformance.tests.faults.every import FAULTS, RIGHT_ON_DISK
from conformance.tests.faults.planting import Fault

from perdure_conformance.kill_points import changes_something
from perdure_conformance.processes import Worker
from perdure_conformance.storm import COUNTED
from perdure_conformance.target import Place

BLOCKING = next(fault for fault in FAULTS if fault.name == TempFileBlocks.__name__)
SAVE = ["open", "write", "replace"]
"""What the right store on the disk does in each write."""


class Connection(sqlite3.Connection):
    """What a backend makes of a class of the standard library."""


def test_calls_that_write_are_counted(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:", factory=Connection)
    with (tmp_path / "file").open("wb") as file:
        counted = [file.write, file.flush, os.pwrite, os.fsync, os.replace, fcntl.flock, connection.execute]
        assert [changes_something(one) for one in counted] == [True] * len(counted)
    connection.close()


def test_calls_that_read_or_stay_in_the_process_are_not_counted() -> None:
    memory: list[Any] = []
    others = [
        open,
        os.stat,
        os.read,
        len,
        memory.append,
        "".replace,
        io.StringIO().write,
        sys.stdout.write,
        orjson.dumps,
    ]
    assert [changes_something(one) for one in others] == [False] * len(others)


async def storms(fault: Fault, directory: Path, *kills: tuple[int, int] | None) -> list[tuple[int, Any]]:
    """Return what a writer acknowledged and how many points it passed, killed at each of these points at a fresh place."""
    urls = [fault.url(Place(f"p{number}", directory / str(number))) for number in range(len(kills) + 1)]
    worker = await Worker.start(urls[0])
    _, said = await worker.storm(urls[0], "append", by_time=True)
    await worker.call("import", modules=said["modules"])
    try:
        told = [await worker.storm(url, "append", kill=kill) for url, kill in zip(urls[1:], kills, strict=True)]
    finally:
        await worker.kill()
    return [(acknowledged, said.get("points")) for acknowledged, said in told]


@pytest.mark.parametrize("fault", [RIGHT_ON_DISK, BLOCKING], ids=lambda fault: fault.name)
def test_a_storm_has_the_same_points_each_time(fault: Fault, tmp_path: Path) -> None:
    first, second = asyncio.run(storms(fault, tmp_path, None, None))
    assert first == second
    assert first[0] == COUNTED
    assert first[1][0] == 1, "the opening of a fresh place changes nothing"
    assert all(count >= len(SAVE) + 1 for count in first[1][1:])


def test_a_writer_dies_where_it_is_told(tmp_path: Path) -> None:
    kills = [(0, 0), (1, 0), (2, len(SAVE)), (3, 1)]
    told = asyncio.run(storms(RIGHT_ON_DISK, tmp_path, *kills))
    assert told == [(0, None), (0, None), (1, None), (2, None)]
    left = [sorted(file.name.partition("-")[0] for file in (tmp_path / str(n)).iterdir()) for n in range(1, 5)]
    assert left == [[], [], ["data"], ["data", "fresh"]]
