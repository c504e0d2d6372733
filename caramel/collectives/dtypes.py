"""Element types that can be reduced, and their bytes."""

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
"""Bytes per element of each element type that TensorFlow's AddV2 adds on a CPU."""

NATIVE_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Element types that TensorFlow's CollectiveReduceV2 reduces."""

WIRE_DTYPES = ("bfloat16", "float16")
"""Element types to which messages may be rounded."""

NARROWABLE_DTYPES = ("float32", "float64")
"""Element types of the tensors whose messages may be rounded."""

BUFFER_ALIGNMENT_BYTES = 64
"""Bytes of the alignment at which TensorFlow's SplitV and Slice share the buffer instead of copying: where pieces begin
and end at a multiple of this (EIGEN_MAX_ALIGN_BYTES)."""
