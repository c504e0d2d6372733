"""What can be reduced, and how wide it is."""

from __future__ import annotations

ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of what TensorFlow's AddV2 adds on a CPU."""

NATIVE_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""What TensorFlow's CollectiveReduceV2 reduces."""

WIRE_DTYPES = ("bfloat16", "float16")
"""What messages may be rounded to."""

NARROWED_DTYPES = ("float32", "float64")
"""Whose messages may be rounded."""

SHARED_BYTES = 64
"""TensorFlow's SplitV and Slice share the buffer instead of copying where pieces begin and end at a multiple of
this (EIGEN_MAX_ALIGN_BYTES)."""
