"""What is in the lookup tables of this process that a step captures, for copies on the workers."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.lookup_ops import LookupInterface

from caramel.errors import CaptureError, in_one_line

_NAME = re.compile(r'ResourceHandle\(name="([^"]*)"')
"""The name of a handle in TensorFlow's text of it, the only place where Python can read it."""


@dataclass(frozen=True)
class TableContent:
    """The keys and values of a lookup table.

    Attributes:
        key_dtype: TensorFlow's name of the element type of keys.
        value_dtype: that of values.
        keys: the keys.
        values: the value of each.
    """

    key_dtype: str
    value_dtype: str
    keys: np.ndarray
    values: np.ndarray


def table_behind(handle: Any) -> TableContent | None:
    """What a lookup table has in it; None where an eager handle is of something else, or of a table of tensors.

    TensorFlow ends the process where a table is read with other element types than its own, which only the object
    that made it knows. To find that takes a tenth of a second.

    Args:
        handle: a captured resource.
    """
    name = _name_of(handle)
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), LookupInterface):
            continue
        known = getattr(candidate, "resource_handle", None)
        if known is handle or (known is not None and name is not None and _name_of(known) == name):
            try:
                with tf.init_scope():
                    keys, values = candidate.export()
            except tf.errors.OpError as error:
                raise CaptureError(
                    f"a lookup table of the step has nothing in it ({in_one_line(error)}): a layer such as "
                    "StringLookup or TextVectorization has no vocabulary. Call its adapt(data) first, or give it "
                    "vocabulary="
                ) from error
            if values.shape.rank != 1:
                return None
            return TableContent(keys.dtype.name, values.dtype.name, keys.numpy(), values.numpy())
    return None


def _name_of(handle: Any) -> str | None:
    found = _NAME.search(repr(handle))
    return None if found is None else found[1]
