"""What the rules have in common for ops that move entries."""

from __future__ import annotations

from dataclasses import replace

from caramel.frontend.batch.domain import Examples, Free, Statistic, Total, Unknown, Value, is_number
from caramel.frontend.batch.op import Op

MIXES = "takes some of the examples, or brings them into another order"
"""What is wrong with an op that takes the examples apart."""


def moved(op: Op, value: Value, axis: int | None) -> Value:
    """The value with its examples along another axis; without examples as it is."""
    if isinstance(value, Examples):
        return op.unknown(MIXES) if axis is None else replace(value, axis=axis)
    if isinstance(value, (Total, Statistic)):
        return value
    if isinstance(value, Free) and value.power is not None:
        return Free(value.power)
    return op.unknown("is not followed here")


def only_first(op: Op) -> Unknown | None:
    """What is wrong where anything but the first input depends on the batch, or on its size."""
    if all(is_number(v) for v in op.inputs[1:]):
        return None
    return op.unknown("has arguments that depend on the batch")
