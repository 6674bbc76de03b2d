"""The kit cuts writes in the middle: at the byte that it says, and it tells where there is nothing to cut."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.tests.faults.durability import NeverSaves
from conformance.tests.faults.every import FAULTS, RIGHT_ON_DISK
from conformance.tests.faults.planting import Fault
from conformance.tests.faults.torn_writes import RIGHT

from perdure import AgentStore
from perdure.clock import Clock
from perdure_conformance.file_limits import WrittenFiles
from perdure_conformance.laws import all_laws
from perdure_conformance.laws.torn_writes import cuts
from perdure_conformance.processes import Worker
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.storm import COUNTED
from perdure_conformance.target import Place

LINES, TELLING = RIGHT
LAWS = {law.id: law for law in all_laws()}
LAW, DECISION = LAWS["sessions-append-survives-torn-write"], LAWS["approvals-decision-survives-torn-write"]
NEAR = 40
"""More bytes than a number or a time makes a file longer in another storm."""


async def storms(directory: Path, *storms: dict[str, Any], fault: Fault = LINES) -> list[tuple[int, dict[str, Any]]]:
    """Return what became of storms on a store of lines, each at a fresh place."""
    worker = await Worker.start("")
    told = []
    try:
        for number, how in enumerate(storms):
            place = Place(f"p{number}", directory / str(number))
            told.append(await worker.storm(fault.url(place), "append", directory=str(place.directory), **how))
    finally:
        await worker.kill()
    return told


def test_a_writer_is_cut_at_the_byte_that_it_is_told(tmp_path: Path) -> None:
    (_, whole), *_ = asyncio.run(storms(tmp_path, {}))
    opening, *writes = [list(map(tuple, extents)) for extents in whole["written"]]
    assert opening == []
    assert [start for [(start, _)] in writes] == [0, *(end for [(_, end)] in writes[:-1])]
    [(start, end)] = writes[2]
    for size in (start + NEAR, (start + end) // 2, end - NEAR, end + NEAR):
        folder = tmp_path / str(size)
        folder.mkdir()
        [(acknowledged, said)] = asyncio.run(storms(folder, {"cut": (3, size)}))
        assert said["ended"] == -signal.SIGXFSZ
        assert acknowledged == (3 if size > end else 2), "a write that ends where it may is whole"
        assert (folder / "0" / "data").stat().st_size == size


def test_a_store_that_tells_of_a_cut_write_is_no_worse_than_one_that_dies_of_it(tmp_path: Path) -> None:
    (_, said), (_, told) = asyncio.run(storms(tmp_path, {"cut": (2, 1)}, {"cut": (1, 999)}, fault=TELLING))
    assert (said["ended"], told["ended"]) == (-signal.SIGXFSZ, -signal.SIGKILL), "a write from its first byte on"
    assert "the disk is full" in told["refused"]


def test_what_was_written_of_a_file_is_its_end_or_all_of_it(tmp_path: Path) -> None:
    grown, same, gone = (tmp_path / name for name in ("grown", "same", "gone"))
    for file in (grown, same, gone):
        file.write_bytes(b"12")
    files = WrittenFiles(tmp_path)
    assert files.written() == []
    grown.write_bytes(b"12345")
    same.write_bytes(b"34")
    os.utime(same, ns=(1, 1))
    gone.unlink()
    (tmp_path / "empty").touch()
    assert files.written() == [(0, 2), (2, 5)]
    assert files.written() == []


def test_cuts_lie_inside_of_writes() -> None:
    points, telling = cuts([[], [(0, 100)], [(0, 4), (100, 300)], [(7, 8)], [(300, 500)]])
    assert [point for point in points if point[0] < 2] == [(1, 1), (1, 25), (1, 50), (1, 75), (1, 60), (1, 99)]
    assert [point for point in points if point[0] in (2, 3)] == [
        *((2, 1), (2, 2), (2, 3)),
        *((2, 101), (2, 150), (2, 200), (2, 250), (2, 260), (2, 299)),
    ]
    assert telling == [(1, 50), (2, 299), (COUNTED, 460)]
    assert cuts([[]] * (COUNTED + 1)) == ([], [])


def test_a_store_that_writes_no_file_has_nothing_to_cut() -> None:
    never = next(fault for fault in FAULTS if fault.journal is NeverSaves)
    verdict = run_law(never.target(), LAW)
    assert (verdict.outcome, "writes no file" in verdict.message) == (Outcome.NOT_CLAIMED, True)


def test_files_that_the_kit_cannot_find_leave_the_law_unrun(tmp_path: Path) -> None:
    def elsewhere(place: Place) -> str:
        return RIGHT_ON_DISK.url(replace(place, path=tmp_path / place.name))

    verdict = run_law(replace(RIGHT_ON_DISK.target(), url=elsewhere), LAW)
    assert (verdict.outcome, "{dir}" in verdict.message) == (Outcome.NOT_RUN, True)


def test_a_store_of_approvals_alone_is_asked_for_nothing_else() -> None:
    async def alone(place: Place, clock: Clock) -> AgentStore:
        stores = await LINES.open(place, clock)
        return AgentStore(approvals=stores.approvals, clock=clock, closing=stores.close)

    verdict = run_law(replace(LINES.target(), opener=alone), DECISION)
    assert (verdict.outcome, verdict.message) == (Outcome.PASSED, "")
