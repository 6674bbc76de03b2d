"""The system calls of this backend, in one place, so that tests can count them and make them fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: there fsync leaves the data in the drive's cache
_LARGEST_READ = 1 << 30


class Disk:
    """The operating system. Names are relative to a directory's descriptor, and no symbolic link is followed.

    Attributes:
        on_sync: Told of each descriptor that is on the disk, for whoever must know what a loss of power would leave.
    """

    on_sync: ClassVar[Callable[[int], None] | None] = None

    def open(self, name: str, flags: int, directory: int | None) -> int:
        """Open a file, or with `O_EXCL` make it, for nobody but its owner. It never waits, not even for a pipe's other end."""
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=directory)
        if flags & os.O_EXCL and os.geteuid() == 0:
            _hand_over(file, name, directory)
        return file

    def close(self, file: int) -> None:
        """Close a descriptor."""
        os.close(file)

    def let_go(self, file: int) -> None:
        """Close a descriptor that is not needed any more.

        What was written has been synced, so an error of closing says nothing of it, and whoever called is not told.
        """
        with contextlib.suppress(OSError):
            self.close(file)

    def status(self, file: int) -> os.stat_result:
        """Return size and identity of an open file."""
        return os.fstat(file)

    def status_at(self, name: str, directory: int) -> os.stat_result | None:
        """Return the identity of what has a name, or `None`."""
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, file: int, offset: int, size: int) -> bytes:
        """Read so many bytes, or what is there of them."""
        data = os.pread(file, min(size, _LARGEST_READ), offset)
        while len(data) < size:
            more = os.pread(file, min(size - len(data), _LARGEST_READ), offset + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, file: int, offset: int, data: bytes) -> None:
        """Write all bytes."""
        written = os.pwrite(file, data, offset)
        while written < len(data):  # the kernel takes less when a disk fills up, and says so the next time
            more = os.pwrite(file, memoryview(data)[written:], offset + written)
            if more == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            written += more

    def truncate(self, file: int, size: int) -> None:
        """Cut a file, or lengthen it with zeros."""
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        """Return when a file, or a directory, is on the disk."""
        if _FULL_SYNC is None:
            os.fsync(file)
        else:
            fcntl.fcntl(file, _FULL_SYNC)
        if Disk.on_sync is not None:
            Disk.on_sync(file)

    def rename(self, name: str, directory: int, new_name: str, new_directory: int) -> None:
        """Give a file another name, in one step, in place of whatever has that name."""
        os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=new_directory)

    def link(self, name: str, directory: int, new_name: str, new_directory: int) -> None:
        """Give a file another name beside the one it has; fail if that is taken."""
        os.link(name, new_name, src_dir_fd=directory, dst_dir_fd=new_directory, follow_symlinks=False)

    def unlink(self, name: str, directory: int) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=directory)

    def make_directory(self, name: str, directory: int | None) -> None:
        """Make a directory for nobody but its owner."""
        os.mkdir(name, 0o700, dir_fd=directory)
        if os.geteuid() == 0:
            made = self.open(name, os.O_RDONLY | os.O_DIRECTORY, directory)
            try:
                if not self.names(made):  # or another one has been put in its place
                    _hand_over(made, name, directory)
            finally:
                self.let_go(made)

    def names(self, directory: int) -> Sequence[str]:
        """List a directory."""
        return os.listdir(directory)

    def lock(self, file: int) -> bool:
        """Lock an open file against all other descriptors, or answer `False` at once."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, file: int) -> None:
        """Release the lock, also for a forked child that has inherited the descriptor."""
        fcntl.flock(file, fcntl.LOCK_UN)


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what is the same for two statuses of one file only."""
    return status.st_ino, status.st_dev


def _hand_over(made: int, name: str, directory: int | None) -> None:
    """Give what root has made to the owner of its folder: a command of an administrator locks no application out.

    Some file systems and user namespaces let not even root do this.
    """
    with contextlib.suppress(OSError):
        folder = os.stat(Path(name).parent, dir_fd=directory)
        os.fchown(made, folder.st_uid, folder.st_gid)


DISK = Disk()
