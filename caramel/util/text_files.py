"""Text files: written whole or not at all, and read, with errors that say what was to be in them."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path

from caramel.errors import CaramelError


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text to a file; what was there is replaced only once all is written.

    Args:
        path: the file, in a directory that is there.
        text: what to write, as UTF-8.

    Raises:
        OSError: it cannot be written; nothing has changed then.
    """
    target = Path(path)
    temporary = target.with_name(f"{target.name}.writing-{uuid.uuid4().hex[:8]}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_text(path: str | os.PathLike[str], text: str, what: str, error: type[CaramelError]) -> None:
    """`write_whole`, with an error of the library.

    Args:
        path: the file.
        text: what to write.
        what: what it is, for the error.
        error: its class.

    Raises:
        CaramelError: of that class: it cannot be written; what was there is untouched.
    """
    name = os.fspath(path)
    if not Path(path).name:
        raise error(f"{what} cannot be written to {name!r}: it is no name of a file")
    try:
        write_whole(path, text)
    except OSError as found:
        raise error(f"{what} cannot be written to {name!r}: {found.strerror}") from found


def read_text(path: str | os.PathLike[str], what: str, error: type[CaramelError]) -> str:
    """The text of a file.

    Args:
        path: the file.
        what: what it is, for the error.
        error: its class.

    Raises:
        CaramelError: of that class: it cannot be read.
    """
    name = os.fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as found:
        raise error(f"{what} {name!r} cannot be read: {found.strerror}") from found
    except UnicodeDecodeError as found:
        raise error(f"{what} {name!r} cannot be read: it is not text") from found
