"""Text files: written whole or not at all, and read, with errors that name their content."""

from __future__ import annotations

import os
from pathlib import Path

from caramel.errors import CaramelError
from caramel.util.whole_files import replacing


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a text to a file; what was there is replaced only once all is written.

    Args:
        path: path of the file, in an existing directory; see `replacing` for what may be there.
        text: text to write, as UTF-8.

    Raises:
        OSError: the file cannot be written; nothing has changed then.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_text(path: str | os.PathLike[str], text: str, what: str, error: type[CaramelError]) -> None:
    """`write_whole`, with an error of the library.

    Args:
        path: path of the file.
        text: text to write.
        what: noun for the content in the error, such as ``"the plan"``.
        error: class of the error.

    Raises:
        CaramelError: of that class: the file cannot be written; an earlier file is untouched.
    """
    name = os.fspath(path)
    if not Path(path).name:
        raise error(f"{what} cannot be written to {name!r}: it is no name of a file")
    try:
        write_whole(path, text)
    except OSError as failure:
        raise error(f"{what} cannot be written to {name!r}: {failure.strerror}") from failure


def read_text(path: str | os.PathLike[str], what: str, error: type[CaramelError]) -> str:
    """The text of a file.

    Args:
        path: path of the file.
        what: noun for the content in the error, such as ``"the plan"``.
        error: class of the error.

    Raises:
        CaramelError: of that class: the file cannot be read.
    """
    name = os.fspath(path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as failure:
        raise error(f"{what} {name!r} cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{what} {name!r} cannot be read: it is not text") from failure
