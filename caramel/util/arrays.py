"""Arrays of what TensorFlow has."""

from __future__ import annotations

from typing import Any

import numpy as np


def array_of(value: Any) -> np.ndarray:
    """The array of a tensor, without a copy of what is on this host; it must not be written to.

    Args:
        value: an array, or a tensor that has a value.
    """
    if value.ndim == 0 and not isinstance(value, np.ndarray):  # not all scalars of TensorFlow are arrays for numpy
        return np.asarray(value.numpy(), value.dtype.as_numpy_dtype)
    return np.asarray(value)
