"""What the conformance kit takes for a loss of power: it takes all that was not synced, and nothing else."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure_conformance.laws import all_laws
from perdure_conformance.runner import Outcome, run_law
from perdure_conformance.target import Target
from perdure_file.disk import DISK, Disk
from perdure_file.power import Synced

LAWS = [law for law in all_laws() if law.id.endswith("-power-loss")]


@pytest.fixture(autouse=True)
def unwatched() -> Iterator[None]:
    """See that nobody is told of syncs when a test is over."""
    yield
    assert Disk.on_sync is None


def forgetful(forgets: Callable[[int], bool]) -> Any:
    """Return a sync that does nothing for the files of some modes."""
    sync = Disk.sync

    def forget(disk: Disk, file: int) -> None:
        if not forgets(os.fstat(file).st_mode):
            sync(disk, file)

    return forget


@pytest.mark.parametrize("forgets", [stat.S_ISDIR, stat.S_ISREG], ids=["directories", "files"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)
def test_a_store_that_does_not_sync_is_caught(law: Any, forgets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "sync", forgetful(forgets))
    verdict = run_law(Target.from_url("file:{dir}/made/data"), law)
    assert verdict.outcome is Outcome.FAILED, str(verdict)


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    DISK.sync(file)
    os.close(file)


def test_what_was_synced_is_left_as_it_was_then(tmp_path: Path) -> None:
    root = tmp_path / "made/store"
    synced = Synced(root)
    root.mkdir(parents=True)
    for name in ("kept", "changed", "removed", "renamed", "unsynced"):
        (root / name).write_bytes(b"old")
        if name != "unsynced":
            sync(root / name)
    for folder in (root, root.parent, tmp_path):
        sync(folder)
    (root / "changed").write_bytes(b"newer")
    (root / "removed").unlink()
    (root / "renamed").rename(root / "other")
    (root / "late").write_bytes(b"late")
    sync(root / "late")
    drop = synced.cut()
    sync(root)  # too late: the power is gone
    drop()
    left = {path.name: path.read_bytes() for path in root.iterdir()}
    assert left == {"kept": b"old", "changed": b"old", "removed": b"old", "renamed": b"old", "unsynced": b""}


def test_a_directory_whose_name_was_not_synced_is_gone(tmp_path: Path) -> None:
    synced = Synced(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store/file").write_bytes(b"1")
    sync(tmp_path / "store/file")
    sync(tmp_path / "store")
    synced.cut()()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_be_there_if_nothing_is_in_it(tmp_path: Path) -> None:
    synced = Synced(tmp_path)
    for name in ("kept", "lost"):
        (tmp_path / name).mkdir()
        if name == "kept":
            sync(tmp_path)
    (tmp_path / "file").touch()
    synced.cut()()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    with pytest.raises(FileExistsError, match="was in use before"):
        Synced(tmp_path)


@pytest.mark.parametrize("url", ["file:{dir}", "file:{dir}/made/data"])
def test_the_store_keeps_the_laws_wherever_its_directory_is(url: str) -> None:
    verdicts = [run_law(Target.from_url(url), law, points=2) for law in LAWS]
    assert [str(verdict) for verdict in verdicts if verdict.outcome is not Outcome.PASSED] == []
