"""Text files: written whole or not at all, and read, with errors that name their content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caramel.errors import CaramelError
from caramel.util.arguments import shown
from caramel.util.whole_files import replacing


def path_text(path: Any, what: str, error: type[CaramelError]) -> str:
    """A path, as text.

    Args:
        path: argument that should be a path.
        what: noun for the file in the error, such as ``"the plan"``.
        error: class of the error.

    Raises:
        CaramelError: of that class: it is none, or the system can have no file of that name.
    """
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(name, str):
        raise error(f"{what} is named by a path, got {shown(path)}")
    if "\0" in name:
        raise error(f"{what} cannot be named {name!r}: no file's name has the character NUL")
    try:
        os.fsencode(name)
    except UnicodeEncodeError as failure:
        raise error(f"{what} cannot be named {name!r}: the name is not text") from failure
    return name


@contextmanager
def about_file(path: Any) -> Iterator[None]:
    """Let errors name the file that they are about.

    Args:
        path: path of the file; anything else changes nothing.

    Raises:
        CaramelError: as it was, with the file's name in front if it lacks it.
    """
    try:
        yield
    except CaramelError as error:
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        if name is None or str(name) in str(error):
            raise
        raise type(error)(f"{name!r}: {error}") from error


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
    name = path_text(path, what, error)
    if not Path(path).name:
        raise error(f"{what} cannot be written to {name!r}: it is no name of a file")
    try:
        write_whole(path, text)
    except OSError as failure:
        raise error(f"{what} cannot be written to {name!r}: {failure.strerror}") from failure


def read_text(path: str | os.PathLike[str], what: str, error: type[CaramelError], most_bytes: int | None = None) -> str:
    """The text of a file.

    Args:
        path: path of the file.
        what: noun for the content in the error, such as ``"the plan"``.
        error: class of the error.
        most_bytes: size from which on the file is refused before it is read; None for any.

    Raises:
        CaramelError: of that class: the file cannot be read, or is too large.
    """
    name = path_text(path, what, error)
    try:
        with open(name, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            content = b"" if most_bytes and size_bytes > most_bytes else file.read(most_bytes + 1 if most_bytes else -1)
        if most_bytes and max(size_bytes, len(content)) > most_bytes:  # a device says that it has no bytes
            raise error(
                f"{what} {name!r} has more than {most_bytes / 1e6:,.0f} MB, which no file of this library has: it is "
                "something else"
            )
        return content.decode()
    except OSError as failure:
        raise error(f"{what} {name!r} cannot be read: {failure.strerror}") from failure
    except UnicodeDecodeError as failure:
        raise error(f"{what} {name!r} cannot be read: it is not text") from failure
