"""Loading TensorFlow without what its libraries say about themselves on the way."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""Environment variable of TensorFlow, which much of its start does not look at yet."""

_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|.*oneDNN custom operations are on"
    r"|.*Could not find cuda drivers on your machine"
    r"|.*This TensorFlow binary is optimized to use available CPU instructions"
    r"|To enable the following instructions"
    r"|.*failed call to cuInit"
    r"|.*Unable to register cu(FFT|DNN|BLAS) factory"
    r"|\s*$"
)
"""Lines that say nothing about the program: what kind of build this is, and that there is no accelerator."""


def load_quietly() -> None:
    """Load TensorFlow and look for devices; lines of `_NOISE` are left out, unless it fails, or the level is 0."""
    from caramel.runtime.host.environment import load_tensorflow

    if os.environ.get(_LEVEL) == "0" or "tensorflow" in sys.modules:
        load_tensorflow()
        return
    os.environ.setdefault(_LEVEL, "2")  # start-up messages of later parts
    with _held_back():
        tf = load_tensorflow()
        tf.config.list_physical_devices()  # initializes nothing that a program could still set


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold back what is written to the descriptor of standard error, also by libraries."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines()
            sys.stderr.writelines(line + "\n" for line in lines if failed or not _NOISE.match(line))
            sys.stderr.flush()
