"""Where a program is, among the callers of TensorFlow's functions."""

from __future__ import annotations

import functools
import os
import sys
import traceback

from tensorflow.python.util import tf_stack


def user_location() -> str:
    """``file:line`` of the innermost caller outside TensorFlow, Keras and this library."""
    for frame in reversed(tf_stack.extract_stack()):  # maps code that AutoGraph made to the user's own lines
        if not is_library(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return "unknown location"


def in_optimizer() -> bool:
    """Whether a Keras optimizer is among the callers."""
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)}
    return any("optimizer" in "".join(file.split(os.sep)[-2:]) and is_library(file) for file in files)


@functools.cache
def is_library(filename: str) -> bool:
    """Whether a file belongs to TensorFlow, Keras, this library or the interpreter itself."""
    libraries = tuple(
        os.path.dirname(os.path.abspath(module.__file__)) + os.sep
        for name in ("tensorflow", "keras", "caramel")
        if (module := sys.modules.get(name)) is not None and module.__file__
    )
    return filename.startswith("<") or os.path.abspath(filename).startswith(libraries)
