"""The machine, and the environment of processes of our own."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

_FRAME_BYTES = 64 * 1024
"""Bytes of an HTTP/2 frame, in which gRPC sends tensors: 16 KiB by default.

Nothing else travels on a connection while a frame does; at 100 Mbit/s this one takes 5 ms.
"""

_GRPC_ENVIRONMENT = {
    "GRPC_EXPERIMENTS": "tcp_rcv_lowat,tcp_frame_size_tuning",
    "TF_GRPC_DEFAULT_OPTIONS": f"grpc.http2.max_frame_size={_FRAME_BYTES}",
}
"""Environment variables that let gRPC sleep until most of a frame is there, instead of waking for every few packets.

Measured at 100 Mbit/s (VGG-like, 4 hosts): 2,000 context switches for a step instead of 7,200, and a quarter less
processor time for moving the same bytes. What a gRPC does not know, it ignores.
"""


_KERAS_MODULES = ("keras.src.optimizers", "tf_keras.src.optimizers")
"""Modules of Keras of which TensorFlow imports one, and with it all of Keras."""


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def child_environment() -> dict[str, str]:
    """This process's environment, and this very package found by ``python -m``."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path}


def server_environment() -> dict[str, str]:
    """The environment of our own processes of TensorFlow servers; variables that the user has set stay."""
    return {**_GRPC_ENVIRONMENT, **child_environment()}


def prepare_server() -> None:
    """Let servers of this very process communicate as those of processes of our own do.

    A part of it has an effect only before TensorFlow is imported.
    """
    for name, value in _GRPC_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def load_tensorflow() -> Any:
    """TensorFlow, imported for a process that may not need Keras; where it is imported already, as it is.

    TensorFlow imports Keras, if it can, and Keras scikit-learn and Matplotlib: 40 % of the time, and of no use to
    what just runs graphs. Whoever imports Keras afterwards gets it, but no other thread may do so meanwhile. The
    garbage collector finds no garbage among modules, and need not look through them later, least of all in processes
    that are forked from this one and share its memory.
    """
    is_first = "tensorflow" not in sys.modules
    hidden = [name for name in _KERAS_MODULES if is_first and name not in sys.modules]
    was_enabled = gc.isenabled()
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: importing it raises ImportError
    try:
        import tensorflow as tf
    finally:
        for name in hidden:
            del sys.modules[name]
        if was_enabled:
            gc.enable()
    if is_first:
        gc.freeze()
    return tf
