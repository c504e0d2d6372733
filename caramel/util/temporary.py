"""Directories for temporary files, and what a process leaves alone because another process owns it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caramel.errors import CaramelError

_PAGE_BYTES = 4096


def is_in_process(owner_pid: int) -> bool:
    """Whether this is the process that made something, and not a fork of it, which must leave it alone.

    A fork runs the same finalisers at its end: without this it would stop servers and remove files of its parent.

    Args:
        owner_pid: process id of the maker.
    """
    return os.getpid() == owner_pid


def new_directory(prefix: str, error: type[CaramelError]) -> Path:
    """A new directory for temporary files; whoever made it removes it.

    Args:
        prefix: beginning of its name.
        error: class of the error.

    Raises:
        CaramelError: of that class: there is no place for it.
    """
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as failure:
        raise no_room(failure, error) from failure


@contextmanager
def temporary_directory(prefix: str, error: type[CaramelError]) -> Iterator[Path]:
    """A directory that only exists meanwhile; a fork that ends meanwhile leaves it.

    Args:
        prefix: beginning of its name.
        error: class of the error.

    Raises:
        CaramelError: of that class: there is no place for it.
    """
    owner_pid = os.getpid()
    directory = new_directory(prefix, error)
    try:
        yield directory
    finally:
        if is_in_process(owner_pid):
            shutil.rmtree(directory, ignore_errors=True)


def has_room(directory: Path) -> bool:
    """Whether a file in a directory can grow by a page.

    Args:
        directory: path of the directory.
    """
    try:
        return shutil.disk_usage(directory).free >= _PAGE_BYTES
    except OSError:
        return False


def no_room(failure: object, error: type[CaramelError], place: Path | None = None) -> CaramelError:
    """The error about temporary files that cannot be written.

    Args:
        failure: what the system or TensorFlow says.
        error: class of the error.
        place: path of the directory; default: that of this process.
    """
    reason = getattr(failure, "strerror", None) or str(failure)
    return error(
        f"temporary files cannot be written to {str(place or _place())!r}: {reason}. Make room there, or set TMPDIR to "
        "a directory that has some"
    )


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # none of the directories can be written to
        return os.environ.get("TMPDIR", "")
