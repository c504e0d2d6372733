"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path


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
