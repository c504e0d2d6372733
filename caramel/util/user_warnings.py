"""Warnings that point at the user's line, however deep in the library what they are about is found."""

from __future__ import annotations

import os
import sys
import warnings

_LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn_user(text: str) -> None:
    """Warn whoever has called the library: the innermost caller outside of it.

    Args:
        text: what is said.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def _is_own(file: str) -> bool:
    """Whether a file is the library's, or one of the interpreter's that calls it (``contextlib``)."""
    return file.startswith((_LIBRARY, "<")) or os.path.basename(file) == "contextlib.py"
