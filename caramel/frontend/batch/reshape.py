"""Reshapes: the axis of the examples is recognised by its size, an exact multiple of their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import Examples, Independent, Size, Unknown, Value
from caramel.frontend.batch.op import Op
from caramel.graph.shapes import Shape

_CANNOT_FOLLOW = "reshapes examples in a way that cannot be followed"
"""Predicate, for messages, of a reshape whose axis of the examples cannot be told."""


def reshaped(op: Op, value: Examples, target: Value) -> Examples | Unknown:
    """The value of examples after a reshape.

    Args:
        op: the reshape; its first input has the examples.
        value: abstract value of the examples.
        target: abstract value of the target shape.
    """
    shape = op.shape(0)
    if not isinstance(target, Independent) or shape is None:
        return op.unknown("reshapes to a shape that depends on the examples")
    sizes = _target_sizes(op, target)
    if value.chosen and any(s is not None and s.power != 0 for s in sizes):
        return op.unknown(_CANNOT_FOLLOW)
    return _reshaped(op, value, shape, sizes)


def _target_sizes(op: Op, target: Independent) -> list[Size | None]:
    """The sizes of the result; None for a size that is to be inferred, or cannot be told."""
    static_sizes = op.result_shape()
    if target.sizes is None:
        return [None if d is None else Size(Fraction(d)) for d in static_sizes or []]
    sizes = [None if s.coefficient is not None and s.coefficient < 0 else s for s in target.sizes]
    if op.knows_rows and all(s is None or s.power == 0 for s in sizes):
        return sizes  # no other size is that of the batch, whatever numbers they are
    for axis, (size, static) in enumerate(zip(sizes, static_sizes or sizes)):
        if size is None and isinstance(static, int):
            sizes[axis] = Size(Fraction(static))
    return sizes


def _reshaped(op: Op, value: Examples, shape: Shape, sizes: Sequence[Size | None]) -> Examples | Unknown:
    axis = _axis_of_examples(value, shape, sizes)
    if axis is None:
        return op.unknown(_CANNOT_FOLLOW)
    leading, trailing = shape[: value.axis], shape[value.axis + 1 :]
    before = _split([value.before, *leading], [_static(s) for s in sizes[:axis]])
    after = _split([value.after, *trailing], [_static(s) for s in sizes[axis + 1 :]])
    exact = sizes[axis]
    if exact is not None and exact.power == 1 and exact.coefficient is not None:
        # The axis has that many entries for each example: what is in front of it and behind it fits.
        if before is None and after is None:
            return op.unknown(_CANNOT_FOLLOW)
        before = before if before is not None else positive_integer(exact.coefficient / after)  # type: ignore[operator]
        after = after if after is not None else positive_integer(exact.coefficient / before) if before else None
        if before is None or after is None:
            return op.unknown(_CANNOT_FOLLOW)
    elif (before is None and axis > 0) or (after is None and not _ends_alike(trailing, sizes[axis + 1 :])):
        return op.unknown(_CANNOT_FOLLOW)
    is_as_before = (before, after) == (value.before, value.after)
    return replace(value, axis=axis, before=before, after=after, repeated=value.repeated and is_as_before)


def _static(size: Size | None) -> int | None:
    """The number that a size is; None where it is not a known number."""
    if size is None or size.power != 0 or size.coefficient is None:
        return None
    return int(size.coefficient)


def positive_integer(number: Fraction) -> int | None:
    """The number as a positive integer; None if it is not one."""
    return int(number) if number.denominator == 1 and number >= 1 else None


def _split(sizes: Sequence[int | None], own_axes: Sequence[int | None]) -> int | None:
    """The quotient of a product of sizes by those with axes of their own; None where it is unknown or no integer."""
    if any(n is None for n in (*sizes, *own_axes)):
        return None
    divisor = math.prod(n for n in own_axes if n is not None)
    return None if divisor == 0 else positive_integer(Fraction(math.prod(n for n in sizes if n is not None), divisor))


def _ends_alike(trailing: Sequence[int | None], sizes: Sequence[Size | None]) -> bool:
    """Whether the result's axes behind the examples are the last axes of the input, with the others merged."""
    kept = [_static(s) for s in sizes]
    if len(kept) > len(trailing) or any(k is None for k in kept):
        return False
    return kept == list(trailing[len(trailing) - len(kept) :])


def _axis_of_examples(value: Examples, shape: Shape, sizes: Sequence[Size | None]) -> int | None:
    """The axis of the result that has the examples: the axis with the batch's size, or the one to be inferred."""
    with_batch = [a for a, s in enumerate(sizes) if s is not None and s.power == 1]
    if any(s is not None and s.power not in (0, 1) for s in sizes):
        return None
    if with_batch:
        return with_batch[0] if len(with_batch) == 1 else None
    inferred = [a for a, s in enumerate(sizes) if s is None]
    if inferred:
        return inferred[0] if len(inferred) == 1 else None
    if shape[value.axis] is None:
        return None
    return _static_axis(value, shape, [_static(s) or 0 for s in sizes])


def _static_axis(value: Examples, shape: Shape, sizes: Sequence[int]) -> int | None:
    """The axis of the examples in the result where all sizes are static, the batch's too.

    The sizes in front of the axis and behind it must divide those of the input.
    """
    if any(d is None for d in shape) or value.before is None or value.after is None:
        return None
    static_sizes = [d for d in shape if d is not None]
    in_front = value.before * math.prod(static_sizes[: value.axis])
    behind = value.after * math.prod(static_sizes[value.axis + 1 :])
    examples = math.prod(static_sizes) // max(in_front * behind, 1)
    for axis, size in enumerate(sizes):
        own_front, own_behind = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :])
        fits = own_front and own_behind and in_front % own_front == 0 and behind % own_behind == 0
        if fits and size == examples * (in_front // own_front) * (behind // own_behind):
            return axis
    return None
