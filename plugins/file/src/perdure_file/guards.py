"""The locks of the keys, and the descriptors that writers keep.

A lock is a kernel lock on a file of its own, so that it is released when its process dies and is never broken by age.
The file lies beside the data, for the data is replaced by renaming. It is removed with its key, and only by who holds
the lock; so whoever gets the lock looks whether its file still has the name, and otherwise tries again.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from perdure.backend import StoreCorruptedError
from perdure_file.directory import LOCKS, READ_ONLY, Directory, Place
from perdure_file.disk import identity
from perdure_file.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure_file.log import Log, Tail

T = TypeVar("T")

KEPT: Final = 64
"""How many keys keep their descriptors while nobody writes them."""


class Guard:
    """A key that is being written: its lock, and its file.

    Attributes:
        place: Which key.
        log: The file; `None`: the key is absent.
        marked: Whether the last write may not be on the disk: its writer died, or a sync failed. The kernel reports a
            failed sync once and then takes the pages for written, and a rename that was not synced is not made durable
            by a sync of the file. So the mark, a byte in the lock's file, outlives the writer.
    """

    def __init__(self, directory: Directory, place: Place) -> None:
        self._directory, self._disk = directory, directory.disk
        self.place = place
        self.log: Log | None = None
        self.marked = False
        self.mutex = threading.Lock()
        self.users = 0
        self._size: int | None = None
        self._folder: int | None = None
        self._lock: int | None = None
        self._identity: tuple[int, int] | None = None

    def lock(self, patience: Patience, *, make: bool, look: bool) -> None:
        """Take the lock, and open the file that the key has now. A reader makes no lock where there is none."""
        patience.wait(lambda: self.mutex.acquire(blocking=False), self.place)
        try:
            self._acquire(patience, make=make)
        except BaseException:
            self.mutex.release()
            raise
        try:
            if look:
                self._look()
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Release the lock. The file stays open for the next writer."""
        try:
            self._release()
        finally:
            self.mutex.release()

    def tail(self) -> Tail | None:
        """Find the last whole commit, if the key is there."""
        return None if self.log is None else self.log.tail(self._size)

    def mark(self, *, doubtful: bool = True) -> None:
        """Set or remove the mark. One that cannot be removed does no harm: the next writer does more than it must."""
        self.marked = self.marked or doubtful  # also if it cannot be set
        try:
            if self._lock is not None:
                self._disk.truncate(self._lock, int(doubtful))
            self.marked = doubtful
        except OSError:
            if doubtful:
                raise

    def adopt(self, log: Log | None) -> None:
        """Take what is the key's file from now on; `None`: it has none."""
        old, self.log, self._size = self.log, log, None
        if old is not None:
            old.close()

    def close(self) -> None:
        """Close the descriptors."""
        self.adopt(None)
        self._close_lock()

    def _acquire(self, patience: Patience, *, make: bool) -> None:
        while True:
            folder = self._folder if self._folder is not None else self._find_folder(make=make)
            if folder is None:
                return
            if self._lock is None:
                self._lock = self._open(folder, make=make)
                if self._lock is None:
                    return
                self._identity = identity(self._disk.status(self._lock))
            patience.wait(partial(self._directory.lock, self._lock), self.place)
            if self._is_at_its_name(folder):
                return
            self._close_lock()

    def _find_folder(self, *, make: bool) -> int | None:
        find = self._directory.make if make else self._directory.find
        found = find(LOCKS, self.place.part)
        if make:
            self._folder = found  # made and on the disk, and open as long as the directory
        return found

    def _open(self, folder: int, *, make: bool) -> int | None:
        where = f"the lock of {self._directory.where(self.place)}"
        open_file = partial(self._directory.open_file, self.place.lock, folder=folder, where=where)
        try:
            return open_file(flags=os.O_RDWR)
        except FileNotFoundError:
            self._directory.check_in_place(LOCKS, self.place.part)
        if not make:
            return None
        try:
            return open_file(flags=os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another writer was faster
            return self._open(folder, make=make)

    def _look(self) -> None:
        """Keep the open file only if it is still the key's: another process may have replaced or deleted it."""
        folder = self._directory.find(self.place.part)
        found = None if folder is None else self._disk.status_at(self.place.file, folder)
        if self.log is not None and found is not None and self.log.still_at(found):
            self._size = found.st_size
            return
        self.adopt(self._directory.log(self.place, write=True))

    def _is_at_its_name(self, folder: int) -> bool:
        try:
            found = self._disk.status_at(self.place.lock, folder)
            self.marked = self.marked or (found is not None and found.st_size > 0)
            return found is not None and identity(found) == self._identity
        except BaseException:
            self._close_lock()  # it is held
            raise

    def _release(self) -> None:
        if self._lock is None:
            return
        try:
            folder = self._find_folder(make=False) if self.log is None else None
            if folder is not None and self._key_is_gone():
                self._disk.unlink(self.place.lock, folder)
                self._close_lock()
            else:
                self._disk.unlock(self._lock)
        except (OSError, StoreCorruptedError):  # what stays is an empty file
            self._close_lock()

    def _close_lock(self) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            self._disk.let_go(lock)

    def _key_is_gone(self) -> bool:
        folder = self._directory.find(self.place.part)
        there = folder is not None and self._disk.status_at(self.place.file, folder) is not None
        return not there and not self.marked


class Held:
    """A key that is locked while a `with` statement runs."""

    def __init__(self, guards: Guards, place: Place, patience: Patience, make: bool, look: bool) -> None:
        self._guards, self._guard = guards, guards.take(place)
        self._patience, self._make, self._look = patience, make, look

    def __enter__(self) -> Guard:
        try:
            self._guard.lock(self._patience, make=self._make, look=self._look)
        except BaseException:
            self._guards.leave(self._guard)
            raise
        return self._guard

    def __exit__(self, *_: object) -> None:
        try:
            self._guard.unlock()
        finally:
            self._guards.leave(self._guard)


class Guards:
    """The guards of the keys in use, and of some that were used last."""

    def __init__(self, directory: Directory) -> None:
        """Take the directory."""
        self._directory = directory
        self._guards: dict[str, Guard] = {}
        self._counting = threading.Lock()
        _all.add(self)

    def locked(self, place: Place, patience: Patience, *, make: bool = True, look: bool = True) -> Held:
        """Lock a key against all others, threads, processes and other journals, while a `with` statement runs.

        Args:
            place: The key.
            patience: How long to wait.
            make: Whether to make the lock if there is none.
            look: Whether to open the key's file; a damaged one cannot be.
        """
        return Held(self, place, patience, make, look)

    def read(self, place: Place, busy_timeout: float, work: Callable[[], T]) -> T:
        """Read what looked damaged while nobody writes the key: under its lock, or without one where nobody may lock."""
        try:
            with self.locked(place, Patience(busy_timeout, "read"), make=False, look=False) as guard:
                guard.adopt(None)  # the next writer looks again, too
                return work()
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
        return work()

    def take(self, place: Place) -> Guard:
        """Return the guard of a key, for one more who uses it."""
        with self._counting:
            guard = self._guards.pop(place.path, None) or Guard(self._directory, place)
            self._guards[place.path] = guard  # at the end: it was used last
            guard.users += 1
            return guard

    def leave(self, guard: Guard) -> None:
        """Take note that somebody uses a guard no longer."""
        with self._counting:
            guard.users -= 1
            if len(self._guards) > KEPT:
                self._drop(len(self._guards) - KEPT)

    def drop_idle(self) -> None:
        """Close the descriptors of the keys that nobody writes now."""
        with self._counting:
            self._drop(len(self._guards))

    def close(self) -> None:
        """Close all descriptors."""
        while self._guards:
            self._guards.popitem()[1].close()

    def _drop(self, many: int) -> None:
        idle = (guard for guard in self._guards.values() if not guard.users)
        for guard in list(islice(idle, many)):
            del self._guards[guard.place.path]
            guard.close()


_all: WeakSet[Guards] = WeakSet()


def _close_all() -> None:
    """Close what a forked child has inherited: it would keep the lock of a parent that is killed."""
    for guards in list(_all):
        guards.close()


os.register_at_fork(after_in_child=_close_all)
