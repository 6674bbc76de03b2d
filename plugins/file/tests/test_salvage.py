"""What is whole in a damaged file comes back, the rest is reported, and nothing is dropped in silence."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.backend import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SchemaVersionError,
    StoreCorruptedError,
    VersionConflictError,
)
from perdure_file.directory import Place
from perdure_file.disk import Disk
from perdure_file.doctor import doctor
from perdure_file.journal import FileJournal
from perdure_file.lines import _sealed
from perdure_file.salvage import salvage, verify
from perdure_file.waiting import Patience

pytestmark = pytest.mark.anyio


@pytest.fixture
async def lines(journal: FileJournal, op: Any, file_of: Callable[..., Path]) -> list[bytes]:
    """Ten records, one a write; line 2n is record n, and line 2n + 1 its commit."""
    for number in range(10):
        await journal.write([op.append("s", b'{"n":%d}' % number, data=b'{"title":"t"}', group="g")])
    return file_of("s").read_bytes().splitlines(keepends=True)


def put(path: Path, lines: list[bytes]) -> None:
    path.unlink()
    path.write_bytes(b"".join(lines))


async def numbers(journal: FileJournal, op: Any) -> list[int]:
    return [json.loads(item)["n"] for item in (await op.read(journal, "s")).items]


async def test_a_whole_file_is_whole_and_stays(journal: FileJournal, op: Any, file_of: Any, lines: list[bytes]) -> None:
    report = verify(file_of("s"))
    assert (report.whole, report.version, report.count, report.torn) == (True, 10, 10, 0)
    identity = file_of("s").stat()
    assert salvage(file_of("s")) == report
    assert file_of("s").stat() == identity


@pytest.mark.parametrize(
    ("spoiled", "recovered", "unproven"),
    [
        (b'{"item":{"role":"us\n', [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b"\n", [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b"42\n", [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b"\0" * 40 + b"\n", [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b"", [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b'{"base64":"123456789"}\n', [0, 1, 2, 3, 5, 6, 7, 8, 9], 0),
        (b'{"item":{"n":44}}\n', [0, 1, 2, 3, 44, 5, 6, 7, 8, 9], 1),
    ],
    ids=str.split("half empty number zeros gone base64 changed"),
)
async def test_a_bad_record_hides_no_other(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], spoiled: bytes, recovered: Any, unproven: int
) -> None:
    path = file_of("s")
    lines[9] = spoiled
    put(path, lines)
    damaged = path.read_bytes()
    with pytest.raises(StoreCorruptedError):
        await op.read(journal, "s")
    found = verify(path)
    assert not found.whole
    assert {problem.line for problem in found.problems} <= {9, 10, 11}
    assert path.read_bytes() == damaged
    report = salvage(path)
    assert (report.recovered, report.unproven) == (len(recovered), unproven)
    assert report.problems == found.problems
    assert report.kept_as is not None
    assert report.kept_as.read_bytes() == damaged
    assert await numbers(journal, op) == recovered
    assert verify(path).whole
    snapshot = await op.read(journal, "s")
    assert (snapshot.head.data, snapshot.head.group) == (b'{"title":"t"}', "g")
    assert snapshot.version > 10
    with pytest.raises(VersionConflictError):
        await journal.write([op.append("s", b'{"n":10}', expected=10)])
    await journal.write([op.append("s", b'{"n":10}', expected=snapshot.version)])
    assert await numbers(journal, op) == [*recovered, 10]


async def test_every_single_spoiled_line_loses_at_most_itself(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes]
) -> None:
    path = file_of("s")
    for place in range(len(lines)):
        for spoiled in (lines[place][:9] + b"\xff" + lines[place][10:], b"\0" * len(lines[place])):
            put(path, [*lines[:place], spoiled, *lines[place + 1 :]])
            report = salvage(path)
            if place == len(lines) - 1 and spoiled.startswith(b"\0"):
                assert (report.whole, report.torn) == (True, len(lines[-2]) + len(spoiled))  # as a power loss leaves it
                continue
            assert report.problems, place
            assert report.recovered == len(await numbers(journal, op))
            assert report.recovered in (9, 10)
            if place % 2 == 0:
                assert report.recovered == 10  # only a commit, or the first line, was lost


async def test_a_torn_end_is_no_damage(journal: FileJournal, op: Any, file_of: Any, lines: list[bytes]) -> None:
    put(file_of("s"), [*lines, b'{"item":{"n":10}}\n{"com'])
    report = salvage(file_of("s"))
    assert (report.whole, report.torn, report.recovered) == (True, 23, None)
    assert await numbers(journal, op) == list(range(10))


async def test_lost_and_doubled_pieces_are_found(journal: FileJournal, file_of: Any, lines: list[bytes]) -> None:
    for changed in (
        [*lines[:5], *lines[7:]],
        [*lines[:5], *lines[3:]],
        [*lines[:3], *lines[5:7], *lines[3:5], *lines[7:]],
    ):
        put(file_of("s"), changed)
        assert any("missing" in problem.what for problem in verify(file_of("s")).problems)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"nothing of ours\n"], ids=["empty", "zeros", "other"])
async def test_what_has_nothing_whole_stays_damaged_and_never_becomes_an_empty_session(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], content: bytes
) -> None:
    put(file_of("s"), [content])
    report = salvage(file_of("s"))
    assert (report.version, report.count, report.recovered, report.kept_as) == (None, 0, None, None)
    assert any("no whole commit" in problem.what for problem in report.problems)
    assert "remove the file" in report.way_out
    assert file_of("s").read_bytes() == content
    with pytest.raises(StoreCorruptedError):
        await op.read(journal, "s")
    file_of("s").unlink()  # the way out
    assert await op.read(journal, "s") is None
    assert await journal.write([op.append("s", expected=0, first=50)]) == (50,)


async def test_an_approval_without_a_whole_commit_stays_where_it_is(root: Path, file_of: Any, journal: Any) -> None:
    path = file_of("a.turn-1", "approvals")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    report = salvage(path)
    assert (report.recovered, report.kept_as) == (None, None)
    assert "remove the file" in report.way_out
    assert path.read_bytes() == b"x"


async def test_a_newer_format_is_left_alone(journal: FileJournal, file_of: Any, lines: list[bytes]) -> None:
    content = _sealed(b'{"perdure":"file","format":7') + b"?"
    put(file_of("s"), [content])
    for look in (verify, salvage):
        with pytest.raises(SchemaVersionError):
            look(file_of("s"))
    assert file_of("s").read_bytes() == content


async def test_a_path_of_no_store_is_refused(tmp_path: Path) -> None:
    for path in ("x.jsonl", "d/other/x.jsonl", "d/sessions/X.jsonl", "d/sessions/x.txt"):
        with pytest.raises(InvalidArgumentError):
            verify(tmp_path / path)


async def test_the_doctor_looks_at_all_and_repairs_when_told(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], root: Path
) -> None:
    await journal.write([op.append("whole", b"{}")])
    other = FileJournal(root, namespace="other")
    await other.open()
    await other.write([op.append("s", b"{}")])
    await other.close()
    assert [report.whole for report in doctor(root)] == [True] * 3
    put(file_of("s"), [*lines[:5], *lines[7:]])
    assert [report.path for report in doctor(root) if not report.whole] == [file_of("s")]
    assert [report.whole for report in doctor(root, namespace="other")] == [True]
    assert [report.recovered for report in doctor(root, repair=True)] == [9, None, None]
    assert [report.whole for report in doctor(root)] == [True] * 3
    with pytest.raises(InvalidArgumentError):
        list(doctor(root / "nowhere"))


async def test_nothing_keeps_the_doctor_from_looking_at_the_rest(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], root: Path
) -> None:
    await journal.write([op.append("zz", b"{}")])
    elsewhere = root.parent / "elsewhere.jsonl"
    elsewhere.write_bytes(file_of("zz").read_bytes())
    folder = file_of("s").parent
    (folder / "a.jsonl").symlink_to(elsewhere)
    (folder / "b.jsonl").mkdir()
    os.mkfifo(folder / "c.jsonl")
    (folder / "d.jsonl").write_bytes(_sealed(b'{"perdure":"file","format":7'))
    (folder / "e.jsonl").symlink_to("nowhere")
    (folder / "Backup.jsonl").write_bytes(b"the name of no key")
    (folder / "notes.txt").write_bytes(b"the name of no key")
    (root / "default/runs").write_bytes(b"no folder")
    (root / "Old copy/sessions").mkdir(parents=True)
    (root / "Old copy/sessions/x.jsonl").write_bytes(b"no namespace")
    (root / "README").write_bytes(b"no namespace")
    put(file_of("s"), [*lines[:5], *lines[7:]])
    for repair in (False, True):
        reports = {report.path.name: report for report in doctor(root, repair=repair)}
        assert list(reports) == [*(f"{name}.jsonl" for name in ("a", "b", "c", "d", "e", "s", "zz")), "runs"]
        for name in ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl", "e.jsonl", "runs"):
            assert not reports[name].whole
            assert reports[name].way_out in str(reports[name])
            assert reports[name].recovered is None
        assert reports["zz.jsonl"].whole
        assert reports["s.jsonl"].recovered == (9 if repair else None)
    assert (folder / "a.jsonl").is_symlink()
    assert verify(file_of("zz")).whole


async def test_a_file_that_may_not_be_read_is_reported_and_no_other_is_kept_back(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.write([op.append("a", b"{}")])
    plain = Disk.open

    def refusing(self: Disk, name: str, flags: int, directory: int | None) -> int:
        if name == "a.jsonl":
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(self, name, flags, directory)

    monkeypatch.setattr(Disk, "open", refusing)
    first, second = doctor(root)
    assert "Permission denied" in str(first)
    assert (first.whole, second.whole) == (False, True)


async def test_the_file_of_another_key_is_never_taken_for_this_one(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes]
) -> None:
    copy = file_of("copy")
    copy.write_bytes(b"".join(lines))
    report = salvage(copy)
    assert (report.whole, report.recovered, report.kept_as) == (False, None, None)
    assert "sessions s" in str(report)
    assert "give the file the name of that key" in report.way_out
    assert copy.read_bytes() == b"".join(lines)
    with pytest.raises(StoreCorruptedError):
        await op.read(journal, "copy")


async def test_a_lost_last_commit_and_its_state_are_reported(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes]
) -> None:
    await journal.write([op.append("s", data=b'{"title":"new"}')])
    content = file_of("s").read_bytes()
    put(file_of("s"), [content[:-30] + b"?" + content[-29:]])
    report = salvage(file_of("s"))
    assert (report.version, report.recovered) == (10, 10)
    assert any("the commit after version 10 is lost" in problem.what for problem in report.problems)
    assert [problem.offset for problem in report.problems] == sorted(problem.offset for problem in report.problems)
    assert (await op.read(journal, "s")).head.data == b'{"title":"t"}'


async def test_verifying_makes_nothing_and_looks_again_beside_a_writer(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], root: Path
) -> None:
    path = file_of("s")
    whole = b"".join(lines)
    shutil.rmtree(root / "default/locks")
    shutil.rmtree(root / "default/temporary")
    before = op.paths(root)
    path.write_bytes(whole[:-1] + b"?")
    assert not verify(path).whole
    path.write_bytes(whole)
    assert verify(path).whole
    assert op.paths(root) == before
    await journal.close()

    class Mending(Disk):
        """A writer that cuts off a torn write and writes anew while somebody reads."""

        def read(self, file: int, offset: int, size: int) -> bytes:
            data = super().read(file, offset, size)
            if not self.mended:
                self.mended = True
                return data[:-200] + b"x" * 200
            return data

        mended = False

    assert verify(path, disk=Mending()).whole
    assert op.paths(root) == before


async def test_a_writer_that_holds_a_damaged_key_is_waited_for(
    journal: FileJournal, op: Any, file_of: Any, lines: list[bytes], root: Path
) -> None:
    put(file_of("s"), [*lines[:5], *lines[7:]])
    with journal._guards.locked(Place(op.key("s")), Patience(9), look=False):
        (report,) = doctor(root, repair=True, busy_timeout=0)
    assert not report.whole
    assert report.recovered is None
    assert "read of s failed" in str(report)
    assert "another writer" in str(report)


async def test_where_locks_do_not_work_and_are_not_needed_a_damaged_file_is_salvaged(
    op: Any, file_of: Any, lines: list[bytes], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(Disk, "lock", refuse)
    put(file_of("s"), [*lines[:5], *lines[7:]])
    (report,) = doctor(root, shared=False)
    assert not report.whole
    (report,) = doctor(root, repair=True, shared=False)
    assert report.recovered == 9


async def test_a_salvage_that_fails_half_way_leaves_the_damaged_file_and_can_be_repeated(
    journal: FileJournal, op: Any, file_of: Any, disk: Any, lines: list[bytes], root: Path
) -> None:
    put(file_of("s"), [*lines[:5], *lines[7:]])
    damaged = file_of("s").read_bytes()
    for call in ("write", "rename"):
        disk.fail(call, errno.ENOSPC)
        with pytest.raises((OSError, OutcomeUnknownError)):
            salvage(file_of("s"), disk=disk)
        assert file_of("s").read_bytes() == damaged
    assert list((root / "default/temporary").iterdir()) == []
    assert salvage(file_of("s")).recovered == 9
    kept = sorted((root / "default/damaged/sessions").iterdir())
    assert [path.read_bytes() for path in kept] == [damaged] * 3
    assert len(await numbers(journal, op)) == 9
