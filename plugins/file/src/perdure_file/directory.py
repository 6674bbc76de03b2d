"""The directories of a store: opened one below the other without following a link, so that no name leads out of it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perdure.backend import Key, UnsupportedOperationError
from perdure_file.known import Known
from perdure_file.log import Log
from perdure_file.names import to_id, to_name
from perdure_file.reports import damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure_file.disk import Disk

SUFFIX: Final = ".jsonl"
TEMPORARY: Final = "temporary"
LOCKS: Final = "locks"
NOT_OURS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
"""How a link, a folder for a file, a file for a folder and a socket refuse to be opened."""

READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Place:
    """Where a key is.

    Attributes:
        key: The key.
        part: The name of its part, and of the folder.
        file: The name of its file there.
        lock: The name of its lock.
        path: Both names, below the namespace.
    """

    def __init__(self, key: Key) -> None:
        """Find the names of a key."""
        name = to_name(key.id)
        self.key, self.part = key, key.part.value
        self.file, self.lock = name + SUFFIX, name + ".lock"
        self.path = f"{self.part}/{self.file}"


class Directory:
    """The folders of one namespace. Descriptors are kept open, and all names are relative to them."""

    def __init__(self, disk: Disk, root: str, namespace: str, title: str, *, shared: bool) -> None:
        """Take the path of the store's directory; nothing is touched before `open`."""
        self.disk = disk
        self._root, self._namespace = root, to_name(namespace)
        self._title, self._shared = title, shared
        self._locks_proven = not shared
        self._folders: dict[tuple[str, ...], int] = {}
        self._settled: set[tuple[str, ...]] = set()
        self._opening = threading.Lock()
        self._known = Known()

    def open(self) -> None:
        """Make the directory if it is missing, see that locks work, and collect what killed writers left."""
        path = Path(os.path.realpath(self._root))
        for missing in [folder for folder in (*reversed(path.parents), path) if not folder.exists()]:
            with contextlib.suppress(FileExistsError):  # another process was faster
                self.disk.make_directory(str(missing), None)
        self.enter()
        if self.disk.status_at(self._namespace, self._folders[()]) is None:
            # Also for folders that were there: whoever made them may have died before this. The namespace comes after it.
            for parent in path.parents:
                self._sync_path(parent)
        try:
            folder = self.make(TEMPORARY)
            self._prove_locks(folder)
            self._collect(folder)
        except OSError as error:
            # What is there can be read, and on a full disk added to and deleted; a write that cannot be will say the same.
            if error.errno not in (*READ_ONLY, *FULL):
                raise

    def enter(self) -> None:
        """Open the directory as it is; nothing is made."""
        self.close()  # what an opening that failed has left
        self._folders[()] = self.disk.open(os.path.realpath(self._root), os.O_RDONLY | os.O_DIRECTORY, None)

    def close(self) -> None:
        """Close all descriptors."""
        with self._opening:
            self._settled.clear()
            while self._folders:
                self.disk.let_go(self._folders.popitem()[1])

    def where(self, place: Place) -> str:
        """Return the path of a key's file, for messages."""
        return str(Path(self._root, self._namespace, place.part, place.file))

    def find(self, *names: str) -> int | None:
        """Return the descriptor of a folder of the namespace, or `None` if there is no such folder."""
        path = (self._namespace, *names)
        found = self._folders.get(path)
        if found is None:
            with self._opening:
                found = self._find(path)
        return found

    def make(self, *names: str) -> int:
        """Return the descriptor of a folder of the namespace, made and on the disk if it was not."""
        path = (self._namespace, *names)
        if path not in self._settled:
            with self._opening:
                for length in range(1, len(path) + 1):
                    self._make(path[:length])
        return self._folders[path]

    def check_in_place(self, *names: str) -> None:
        """See that a folder in which nothing was found, or the one above it, has not been removed since it was opened."""
        path = (self._namespace, *names)
        opened = next(path[:length] for length in range(len(path), -1, -1) if path[:length] in self._folders)
        if not self.disk.status(self._folders[opened]).st_nlink:
            problem = (
                "its directory was removed or replaced while the store was open: close the store and open it again"
            )
            raise OSError(errno.ESTALE, problem)

    def log(self, place: Place, *, write: bool = False) -> Log | None:
        """Open the file of a key, or answer `None` if it is absent."""
        folder = self.find(place.part)
        if folder is None:
            self.check_in_place(place.part)
            return None
        where = self.where(place)
        try:
            flags = os.O_RDWR if write else os.O_RDONLY
            file = self.open_file(place.file, flags, folder, f"{where} ({place.part} {place.key.id})")
        except FileNotFoundError:
            self.check_in_place(place.part)
            return None
        log = Log(self.disk, file, place.part, place.key.id, where, self._known)
        log.check()
        return log

    def open_file(self, name: str, flags: int, folder: int, where: str) -> int:
        """Open a file, and say so if it is a link."""
        try:
            return self.disk.open(name, flags, folder)
        except OSError as error:
            if error.errno in NOT_OURS:
                raise damage(where, "it is a symbolic link, or not what belongs there") from error
            raise

    def ids(self, part: str) -> Iterator[str]:
        """List the ids of a part. What is in its folder and is none of ours is left alone."""
        self.check_in_place(part)
        folder = self.find(part)
        if folder is None:
            return
        changed, names = None, set[str]()
        for _ in range(3):
            # While a file is replaced, some file systems show it to nobody who is in the middle of a listing.
            if changed != (changed := self.disk.status(folder).st_mtime_ns):
                names.update(self.disk.names(folder))
        for name in names:
            known = to_id(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
            if known is not None:
                yield known

    def lock(self, file: int) -> bool:
        """Lock an open file, or answer `False` at once."""
        try:
            return self.disk.lock(file)
        except OSError:
            if self._shared:
                raise
            return True  # there are no locks here, and the user has said that none are needed

    def temporary(self) -> tuple[str, int]:
        """Make a file with a name of its own, locked, so that nobody collects it while its writer lives."""
        folder = self.make(TEMPORARY)
        self._prove_locks(folder)  # if it could not be done at opening
        while True:
            name = f"{secrets.token_hex(8)}.tmp"
            file = self.disk.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, folder)
            try:
                # A collector may have been here between the two calls. Then the name is gone.
                if self.lock(file) and self.disk.status(file).st_nlink:
                    return name, file
            except OSError:
                self.discard(name, file)
                raise
            self.disk.let_go(file)

    def discard(self, name: str, file: int) -> None:
        """Close and remove a temporary file that is not needed any more, if it has not got another name."""
        self.disk.let_go(file)
        with contextlib.suppress(OSError):
            self.disk.unlink(name, self._folders[self._namespace, TEMPORARY])

    def _find(self, path: tuple[str, ...]) -> int | None:
        if path not in self._folders:
            parent = self._find(path[:-1])
            if parent is None:
                return None
            try:
                where = str(Path(self._root, *path))
                self._folders[path] = self.open_file(path[-1], os.O_RDONLY | os.O_DIRECTORY, parent, where)
            except FileNotFoundError:
                return None
        return self._folders[path]

    def _make(self, path: tuple[str, ...]) -> None:
        if path in self._settled:
            return
        parent = self._folders[path[:-1]]
        if self._find(path) is None:
            with contextlib.suppress(FileExistsError):  # another process was faster
                self.disk.make_directory(path[-1], parent)
            self._find(path)
        self.disk.sync(parent)  # also for a folder that was there: whoever made it may have died before this
        self._settled.add(path)

    def _sync_path(self, path: Path) -> None:
        try:
            folder = self.disk.open(str(path), os.O_RDONLY | os.O_DIRECTORY, None)
            try:
                self.disk.sync(folder)
            finally:
                self.disk.let_go(folder)
        except OSError as error:
            # It may not be read, or is of a file system that syncs no folder: then nobody has made a folder there.
            if error.errno not in (*READ_ONLY, errno.EINVAL):
                raise

    def _prove_locks(self, folder: int) -> None:
        """See once that locks work, before anything is collected or a key is made."""
        if not self._locks_proven:
            self._probe(folder)
            self._locks_proven = True

    def _probe(self, folder: int) -> None:
        """Refuse a mount on which two handles of a file do not exclude each other: some accept every lock."""
        name = f"{secrets.token_hex(8)}.tmp"
        file = self.disk.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, folder)
        works: bool | None
        try:
            other = self.disk.open(name, os.O_RDWR, folder)
            try:
                works = self._exclude(file, other)
            finally:
                self.disk.let_go(other)
        except FileNotFoundError:  # a collector took it for one of a dead writer
            works = None
        finally:
            self.disk.let_go(file)
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(name, folder)
        if works is None:
            self._probe(folder)
        elif not works:
            raise self._refused()

    def _exclude(self, file: int, other: int) -> bool:
        """Whether a lock of one handle of a file keeps the other from locking it."""
        try:
            while not self.disk.lock(file):  # a collector looks at the file just now
                os.sched_yield()
            return not self.disk.lock(other)
        except OSError as error:
            raise self._refused() from error

    def _refused(self) -> UnsupportedOperationError:
        error = UnsupportedOperationError(self._title, "shared")
        error.hint = (
            "Locks do not work on this mount: use a local file system, or ?shared=false and a single process at a time."
        )
        return error

    def _collect(self, folder: int) -> None:
        """Remove the temporary files whose writers are dead: the kernel has released their locks."""
        for name in self.disk.names(folder):
            try:
                file = self.disk.open(name, os.O_RDWR, folder)
            except OSError:  # it is gone, or something that no writer has made, such as `lost+found`
                continue
            try:
                if self.lock(file):
                    with contextlib.suppress(FileNotFoundError):  # another process was faster
                        self.disk.unlink(name, folder)
            finally:
                self.disk.let_go(file)
