"""Look at all files of a store, for `perdure doctor`, and salvage those that are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perdure.backend import InvalidArgumentError, Part, PerdureError, StoreCorruptedError, describe
from perdure_file.directory import SUFFIX
from perdure_file.names import to_id
from perdure_file.salvage import FileReport, Problem, salvage, verify

if TYPE_CHECKING:
    from collections.abc import Iterator


def doctor(
    directory: str | Path,
    *,
    namespace: str | None = None,
    repair: bool = False,
    busy_timeout: float = 5.0,
    shared: bool = True,
) -> Iterator[FileReport]:
    """Verify a store's files, and salvage those that are damaged if asked for. None keeps it from looking at the others.

    Args:
        directory: The store's directory.
        namespace: Only this one; `None`: all.
        repair: Whether to salvage.
        busy_timeout: How long to wait for a writer of a key, in seconds.
        shared: Whether several processes may write, so that locks must work.

    Raises:
        InvalidArgumentError: There is no such directory.
        OSError: A folder cannot be listed.
    """
    root = Path(directory)
    if not root.is_dir():
        problem = "is a file, where a directory is needed" if root.exists() else "does not exist"
        raise InvalidArgumentError("directory", f"{problem}: {root}")
    for path in _files(root, namespace):
        try:
            report = verify(path, busy_timeout=busy_timeout, shared=shared)
            if repair and not report.whole:
                report = salvage(path, busy_timeout=busy_timeout, shared=shared)
        except FileNotFoundError:
            continue  # it was deleted meanwhile
        except StoreCorruptedError as error:
            report = _unread(path, error.problem, "restore a backup, or remove it")
        except PerdureError as error:
            report = _unread(path, str(error), error.hint.rstrip("."))
        except OSError as error:
            report = _unread(path, describe(error), "see to it that the file can be read and written")
        yield report


def _files(root: Path, namespace: str | None) -> Iterator[Path]:
    """List the files of a store. What has the name of no key is no store's."""
    for above in sorted(root.iterdir()):
        known = to_id(above.name)
        if known is None or namespace not in (None, known):
            continue
        for folder in (above / part for part in Part):
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    if path.name.endswith(SUFFIX) and to_id(path.name.removesuffix(SUFFIX)) is not None:
                        yield path
            elif folder.exists() or folder.is_symlink():
                yield folder  # no store can use it


def _unread(path: Path, problem: str, way_out: str) -> FileReport:
    return FileReport(path.absolute(), None, 0, 0, 0, (Problem(1, 0, problem),), way_out)
