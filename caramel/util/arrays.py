"""Arrays of what TensorFlow has."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_values(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays have the same values, where what is no number is equal to itself.

    >>> same_values(np.array([1.0, np.nan]), np.array([1.0, np.nan])), same_values(np.array(["a"]), np.array(["b"]))
    (True, False)
    """
    if {first.dtype.kind, second.dtype.kind} & set("OSU"):  # texts cannot be asked whether they are numbers
        return np.array_equal(first, second)
    return np.array_equal(first, second, equal_nan=True)


def array_of(value: Any) -> np.ndarray:
    """The array of a tensor, without a copy of what is on this host; it must not be written to.

    Args:
        value: an array, or a tensor that has a value.
    """
    if value.ndim == 0 and not isinstance(value, np.ndarray):  # not all scalars of TensorFlow are arrays for numpy
        return np.asarray(value.numpy(), value.dtype.as_numpy_dtype)
    return np.asarray(value)
