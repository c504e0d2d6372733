"""Files that are replaced whole or not at all, and that stay what they are: links, modes, devices."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from caramel.errors import InputError

_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of an address such as ``gs://bucket``, which as a path would be a directory ``gs:`` of this machine.

One slash is enough: `pathlib.Path` leaves no more of them.
"""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def refuse_remote(path: str | os.PathLike[str]) -> None:
    """Refuse what is an address and no path of this machine.

    Raises:
        OSError: it is one.
    """
    text = os.fspath(path)
    if _REMOTE.match(text):
        raise OSError(errno.EINVAL, "it is an address, not a path of this machine: name a file or mount it", text)


def file_to_replace(path: str | os.PathLike[str]) -> Path:
    """The regular file that a path leads to, through links, whether it exists yet or not.

    Args:
        path: path of a file that is to be written.

    Raises:
        OSError: there is something else, which should not become a file; or links that go in a circle.
    """
    refuse_remote(path)
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(path).st_mode  # of the path, as where it leads need not have a name: /dev/stdout to a pipe
    except FileNotFoundError:
        return target
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise OSError(errno.EINVAL, f"there is {kind}, no regular file: give another name", str(path))
    return target


def file_beside(file: str, part: str) -> str:
    """The path of a JSON file that belongs to another one: ``a.part.json`` for ``a.json``, and for ``a``.

    Args:
        file: path of the other one.
        part: what it is.

    Raises:
        InputError: that path has no name.
    """
    return f"{_named(file).removesuffix('.json')}.{part}.json"


def _named(file: str) -> str:
    if not os.path.basename(file):
        raise InputError(f"{file!r} cannot be written: it is no name of a file")
    return file


def check_writable(file: str) -> None:
    """Refuse a file that cannot be written, before anything is done for it.

    Args:
        file: path of a file.

    Raises:
        InputError: it has no name; there is no such directory, or it is not writable; or there is something other than
            a regular file.
    """
    _named(file)
    try:
        target = file_to_replace(file)
    except OSError as error:
        raise InputError(f"{file!r} cannot be written: {error.strerror}") from error
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{file!r} cannot be written: there is no such directory, or it is not yours to write to")
    try:
        tempfile.TemporaryFile(dir=target.parent, prefix=target.name).close()
    except OSError as error:  # a file system without files of one's own, for one
        raise InputError(f"{file!r} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file under a temporary name, then put it in place.

    A link stays a link: the file that it leads to is replaced. The new file has the mode of the old one. It is on the
    disk before it gets its name.

    Args:
        path: path of the file, in an existing directory.

    Yields:
        The path to write to.

    Raises:
        OSError: the file cannot be written; nothing has changed then.
    """
    target = file_to_replace(path)
    temporary = target.with_name(f"{target.name}.writing-{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        sync(temporary)
        os.replace(temporary, target)
        sync(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sync(path: Path) -> None:
    """Wait until a file's content, or a directory's names, are on the disk.

    Raises:
        OSError: the content could not be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):  # a file system that has no such call
            raise
    finally:
        os.close(descriptor)
