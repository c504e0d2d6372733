"""A directory that one run holds for itself. TensorFlow is not needed for it, so that a command can do so at once."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from caramel.errors import CheckpointError, InputError
from caramel.util.file_locks import LockFile
from caramel.util.whole_files import refuse_remote

_LOCK = ".caramel-lock"
"""Name of the file that the run holds which trains into the directory."""


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """The path of a directory for checkpoints.

    Args:
        path: path of the directory.

    Raises:
        InputError: it is an address and no path of this machine.
    """
    try:
        refuse_remote(path)
    except OSError as error:
        raise InputError(f"there can be no checkpoints in {os.fspath(path)!r}: {error.strerror}") from error
    return Path(path)


@contextlib.contextmanager
def held_directory(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make a directory and hold it for one run; one that was made and stays empty is removed.

    Args:
        path: path of the directory.

    Raises:
        InputError: it is an address and no path of this machine.
        CheckpointError: it cannot be written, or another run holds it.
    """
    directory = checked_directory(path)
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        held = LockFile(directory / _LOCK, _this_process())
    except BlockingIOError as error:
        raise CheckpointError(
            f"another run trains into {str(directory)!r}: {error.strerror}. Wait until it has ended, or give this run "
            "another directory"
        ) from error
    except OSError as error:
        raise CheckpointError(f"no checkpoint can be written to {str(directory)!r}: {error}") from error
    try:
        yield
    finally:
        held.release()
        if is_new:
            with contextlib.suppress(OSError):
                directory.rmdir()  # only if nothing was saved


def _this_process() -> str:
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {platform.node()}, which began at {now}"
