"""Locks on files that go with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems that have no locks."""


def lock(descriptor: int) -> bool:
    """Lock an open file; closing it, or the end of the process, unlocks it.

    Returns:
        Whether nobody else holds it. On a file system without locks nobody does.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    return True


class LockFile:
    """A file that one process at a time holds, with a text about this process.

    Args:
        path: path of the file, in an existing directory.
        text: one line about the holder, for those who come too late.

    Raises:
        BlockingIOError: another process holds it; ``strerror`` is that process's text.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._descriptor: int | None = _opened(path)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{text}\n".encode(), 0)
        except BaseException:
            self.release()
            raise
        # A forked child has the same open file: it would hold the lock when this process is dead.
        os.register_at_fork(after_in_child=_closing(weakref.ref(self)))

    def release(self) -> None:
        """Remove the file, and let others have it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()  # while it is still locked: nobody else can have it yet
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None


def _opened(path: Path) -> int:
    """A descriptor of the file, locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            if not lock(descriptor):
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
                raise BlockingIOError(errno.EWOULDBLOCK, holder or "another process", str(path))
            if os.fstat(descriptor).st_nlink > 0:  # else its last holder has removed it meanwhile
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _closing(reference: weakref.ref[LockFile]) -> Callable[[], None]:
    def close() -> None:
        held = reference()
        if held is not None:
            held._close()

    return close
