"""Files that commands write."""

from __future__ import annotations

import os
import tempfile

from caramel.errors import InputError
from caramel.util.whole_files import file_to_replace


def check_writable(file: str) -> None:
    """Refuse a file that cannot be written, before anything is measured or planned for it.

    Raises:
        InputError: there is no such directory, or it is not writable; or there is something other than a regular file.
    """
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
