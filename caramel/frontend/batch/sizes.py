"""Arithmetic with sizes: shapes, their entries, products and quotients, as exactly as possible."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from caramel.frontend.batch.domain import (
    INVARIANT,
    ChosenShape,
    Examples,
    Independent,
    Size,
    Total,
    Value,
    constant,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.layers import RANDOM_OPS
from caramel.frontend.batch.op import Op, Rule
from caramel.graph.shapes import Shape

MAX_ENTRIES = 16
"""Number of entries of the longest vector that is followed; shapes are shorter."""

_UNIT = Size(Fraction(1))
"""The size 1."""

_COUNTS_CHOSEN = "counts examples that were chosen"
"""Predicate, for messages, of an op that reads the number of chosen examples beside other sizes."""


def of_constant(value: np.ndarray) -> Value:
    """The abstract value of a constant."""
    if value.ndim > 1 or value.size > MAX_ENTRIES or value.dtype.kind not in "iuf" or not np.all(np.isfinite(value)):
        return INVARIANT
    return constant(*value.ravel().tolist())


def _sizes_of(shape: Shape, value: Value) -> tuple[Size, ...]:
    """The sizes of a tensor."""
    sizes = [Size(None if d is None else Fraction(d)) for d in shape]
    if isinstance(value, Examples):
        is_counted = value.before is not None and value.after is not None
        count = Fraction(value.before * value.after) if is_counted else None  # type: ignore[operator]
        sizes[value.axis] = Size(count, Fraction(1))
    return tuple(sizes)


def _shape(op: Op) -> Value | list[Value]:
    shapes: list[Value] = []
    for position, value in enumerate(op.inputs):
        shape = op.shape(position)
        if shape is None:
            shapes.append(op.unknown("has an input of unknown rank"))
        elif isinstance(value, Examples) and value.chosen:
            shapes.append(ChosenShape(value, _sizes_of(shape, value)))
        else:
            shapes.append(of_sizes(_sizes_of(shape, value)))
    return shapes


def of_chosen_shape(op: Op) -> Value:
    """The value of an op that reads the shape of a tensor of some of the examples.

    It may make a tensor of that shape, or take a size out of it.
    """
    kind, place = op.node.op, 1 if op.node.op == "BroadcastTo" else 0
    value = op.inputs[place]
    others = [v for position, v in enumerate(op.inputs) if position != place]
    if not isinstance(value, ChosenShape) or not all(map(is_invariant, others)):
        return op.unknown(_COUNTS_CHOSEN)
    if kind in RANDOM_OPS:
        return Examples(value.examples.axis, Fraction(0), *value.examples.arrangement[:2], chosen=value.examples.chosen)
    if kind == "Fill" or (kind == "BroadcastTo" and op.rank(0) == 0):
        return replace(value.examples, power=Fraction(0), repeated=True, mixed_by=None, normalised=False)
    if op.keeps_numbers:
        return value
    axis = _entry_taken(op)
    if axis is None:
        return op.unknown(_COUNTS_CHOSEN)
    axis %= len(value.sizes)
    return Total() if axis == value.examples.axis else of_sizes((value.sizes[axis],))


def _entry_taken(op: Op) -> int | None:
    """Which entry of a vector an op takes as a scalar; None if it does something else."""
    if op.node.op == "GatherV2":
        return op.integer(1) if op.rank(1) == 0 else None
    if op.node.op != "StridedSlice" or op.node.attr["shrink_axis_mask"].i != 1:
        return None
    return None if op.node.attr["new_axis_mask"].i or op.node.attr["ellipsis_mask"].i else op.integer(1)


def _size(op: Op) -> Value:
    shape = op.shape(0)
    if shape is None:
        return op.unknown("has an input of unknown rank")
    value = op.inputs[0]
    if isinstance(value, Examples) and value.chosen:
        return Total()
    count: Size | None = _UNIT
    for size in _sizes_of(shape, op.inputs[0]):
        count = count and count.times(size)
    return op.unknown("counts entries in a way that cannot be followed") if count is None else of_sizes((count,))


def _rank(op: Op) -> Value:
    rank = op.rank(0)
    return INVARIANT if rank is None else constant(rank)


def _known(op: Op) -> list[tuple[Size, ...]] | None:
    """The sizes of all inputs; None unless all inputs are made of sizes."""
    sizes = [v.sizes if isinstance(v, Independent) else None for v in op.inputs]
    return None if any(s is None for s in sizes) else [s for s in sizes if s is not None]


def _pack(op: Op) -> Value | None:
    sizes = _known(op)
    if sizes is None or any(op.rank(p) != 0 for p in range(len(op.inputs))) or len(sizes) > MAX_ENTRIES:
        return None
    return of_sizes(tuple(s[0] for s in sizes))


def _concat(op: Op) -> Value | None:
    sizes = _known(op)
    if sizes is None or any(op.rank(p) != 1 for p in range(len(op.inputs) - 1)):
        return None
    return of_sizes(tuple(s for vector in sizes[:-1] for s in vector))


def _selected(op: Op, positions: Callable[[int], list[int]]) -> Value | None:
    value = op.inputs[0]
    if not isinstance(value, Independent) or value.sizes is None or op.rank(0) != 1:
        return None
    try:
        return of_sizes(tuple(value.sizes[p] for p in positions(len(value.sizes))))
    except IndexError:
        return None


def _strided_slice(op: Op) -> Value | None:
    bounds = [op.integers(p) for p in (1, 2, 3)]
    masks = {name: op.node.attr[name].i for name in ("begin_mask", "end_mask", "shrink_axis_mask")}
    if any(op.node.attr[name].i for name in ("ellipsis_mask", "new_axis_mask")):
        return None
    if any(b is None or len(b) != 1 for b in bounds):
        return None
    begin, end, stride = (b[0] for b in bounds if b is not None)
    if masks["shrink_axis_mask"]:
        return _selected(op, lambda length: [begin])
    part = slice(None if masks["begin_mask"] else begin, None if masks["end_mask"] else end, stride)
    return _selected(op, lambda length: list(range(length))[part])


def _slice(op: Op) -> Value | None:
    begin, size = op.integers(1), op.integers(2)
    if begin is None or size is None or len(begin) != 1:
        return None
    return _selected(op, lambda length: list(range(begin[0], length if size[0] < 0 else begin[0] + size[0])))


def _gather(op: Op) -> Value | None:
    indices = op.integers(1)
    return None if indices is None or op.rank(1) not in (0, 1) else _selected(op, lambda length: indices)


def _unpacked(op: Op) -> list[Value] | None:
    value = op.inputs[0]
    if not isinstance(value, Independent) or value.sizes is None or op.rank(0) != 1:
        return None
    return [of_sizes((size,)) for size in value.sizes]


def _split(op: Op) -> list[Value] | None:
    value = op.inputs[1]
    if not isinstance(value, Independent) or value.sizes is None or op.rank(1) != 1:
        return None
    length = len(value.sizes) // op.outputs
    return [of_sizes(value.sizes[length * part : length * (part + 1)]) for part in range(op.outputs)]


def _range(op: Op) -> Value | None:
    bounds = [op.integer(p) for p in range(3)]
    if any(b is None for b in bounds) or bounds[2] == 0:
        return None
    numbers = range(*[b for b in bounds if b is not None])
    return constant(*numbers) if len(numbers) <= MAX_ENTRIES else INVARIANT


def _stitched(op: Op) -> Value | None:
    """A vector stitched from entries of others, as the gradient of a sum makes its shape."""
    half = len(op.inputs) // 2
    places = [op.integers(p) for p in range(half)]
    vectors = [v.sizes if isinstance(v, Independent) else None for v in op.inputs[half:]]
    size_at: dict[int, Size] = {}
    for places_of, sizes in zip(places, vectors):
        if places_of is None or sizes is None or len(places_of) != len(sizes):
            return None
        size_at.update(zip(places_of, sizes))
    return (
        of_sizes(tuple(size_at[p] for p in sorted(size_at))) if sorted(size_at) == list(range(len(size_at))) else None
    )


def _fill(op: Op) -> Value | None:
    length, value = op.integers(0), op.inputs[1]
    if length is None or not isinstance(value, Independent) or value.sizes is None:
        return None
    if len(length) > 1 or math.prod(length) > MAX_ENTRIES:
        return Independent(value.power) if value.power is not None else None
    return of_sizes(value.sizes * math.prod(length))


def _folded(combine: Callable[[Size, Size], Size | None]) -> Callable[[Op], Value | None]:
    """The rule of a reduction of a vector to a scalar."""

    def rule(op: Op) -> Value | None:
        value = op.inputs[0]
        if not isinstance(value, Independent) or value.sizes is None:
            return None
        if op.integers(1) == [] or not value.sizes:
            return value if value.sizes else None
        folded: Size | None = value.sizes[0]
        for size in value.sizes[1:]:
            folded = None if folded is None else combine(folded, size)
        return None if folded is None else of_sizes((folded,))

    return rule


def _pairwise(combine: Callable[[Size, Size], Size | None]) -> Callable[[Op], Value | None]:
    def rule(op: Op) -> Value | None:
        sizes = _known(op)
        if sizes is None or len(sizes) != 2:
            return None
        first, second = sizes
        if len(first) != len(second) and 1 not in (len(first), len(second)):
            return None
        length = max(len(first), len(second)) if first and second else 0
        pairs = zip(first * (length // len(first)) if first else (), second * (length // len(second)) if second else ())
        combined = [combine(a, b) for a, b in pairs]
        return None if any(s is None for s in combined) else of_sizes(tuple(s for s in combined if s is not None))

    return rule


def _added(first: Size, second: Size, sign: int = 1) -> Size | None:
    if second.coefficient == 0:
        return first
    if first.coefficient == 0 and (sign == 1 or second.coefficient is not None):
        return second if sign == 1 else Size(-second.coefficient, second.power)  # type: ignore[operator]
    if first.power != second.power:
        return None
    if first.coefficient is None or second.coefficient is None:
        counts = all(s.is_whole and (s.coefficient is None or s.coefficient > 0) for s in (first, second))
        return Size(None, first.power) if sign == 1 and counts else None
    total = first.coefficient + sign * second.coefficient
    return Size(total, first.power if total else Fraction(0))


def _quotient(first: Size, second: Size) -> Size | None:
    if first.coefficient is None or not second.coefficient:
        return None
    return Size(first.coefficient / second.coefficient, first.power - second.power)


def _whole_quotient(rounded: Callable[[Fraction], int]) -> Callable[[Size, Size], Size | None]:
    """A division that drops the remainder; exact only where there is no remainder, or no power of B in the quotient."""

    def combine(first: Size, second: Size) -> Size | None:
        quotient = _quotient(first, second)
        if quotient is None or quotient.coefficient is None:
            return None
        if first.power == second.power:
            return Size(Fraction(rounded(quotient.coefficient)))
        return quotient if quotient.is_whole else None

    return combine


def _div(op: Op) -> Value | None:
    return _pairwise(_whole_quotient(math.trunc) if op.truncates else _quotient)(op)


def _extreme(choose: Callable[..., Fraction]) -> Callable[[Size, Size], Size | None]:
    def combine(first: Size, second: Size) -> Size | None:
        if first.coefficient is None or second.coefficient is None:
            return first if first == second else None
        if first.power == second.power:
            return Size(choose(first.coefficient, second.coefficient), first.power)
        large, small = (first, second) if first.power > second.power else (second, first)
        if choose is max and small.power == 0 and small.coefficient <= large.coefficient:  # type: ignore[operator]
            return large  # there is at least one example
        return None

    return combine


def _negative(op: Op) -> Value | None:
    value = op.inputs[0]
    if not isinstance(value, Independent) or value.sizes is None or any(s.coefficient is None for s in value.sizes):
        return None
    return of_sizes(tuple(Size(-s.coefficient, s.power) for s in value.sizes))  # type: ignore[operator]


def _as_it_is(op: Op) -> Value | None:
    value, rank = op.inputs[0], op.result_shape()
    return (
        value
        if isinstance(value, Independent) and value.sizes is not None and rank is not None and len(rank) < 2
        else None
    )


def _cast(op: Op) -> Value | None:
    """The value of a cast, also from floats to integers where all sizes are integers, so that nothing is lost."""
    value = _as_it_is(op)
    if not isinstance(value, Independent) or value.sizes is None:
        return None
    if op.truncates and (op.casts_to_bool or not all(s.is_whole for s in value.sizes)):
        return None
    return value


def _broadcast_axes(op: Op) -> list[Value] | None:
    """The axes over which the gradients of two broadcast tensors are summed: those where a tensor has one entry."""
    sizes = _known(op)
    if sizes is None:
        return None
    rank = max(map(len, sizes))
    padded = [(_UNIT,) * (rank - len(s)) + s for s in sizes]
    return [constant(*(axis for axis in range(rank) if own[axis] == _UNIT)) for own in padded]


SHAPE_RULES: dict[str, Rule] = {"Shape": _shape, "ShapeN": _shape, "Size": _size, "Rank": _rank}
"""Rules of the ops that ask for the shape of a tensor of any value."""

SIZE_RULES: dict[str, Callable[[Op], Value | list[Value] | None]] = {
    "Pack": _pack,
    "ConcatV2": _concat,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "GatherV2": _gather,
    "Range": _range,
    "DynamicStitch": _stitched,
    "Unpack": _unpacked,
    "Split": _split,
    "Fill": _fill,
    "Prod": _folded(Size.times),
    "Sum": _folded(_added),
    "Max": _folded(_extreme(max)),
    "Min": _folded(_extreme(min)),
    "Mul": _pairwise(Size.times),
    "Add": _pairwise(_added),
    "AddV2": _pairwise(_added),
    "Sub": _pairwise(lambda a, b: _added(a, b, -1)),
    "RealDiv": _pairwise(_quotient),
    "Div": _div,
    "DivNoNan": _pairwise(_quotient),
    "FloorDiv": _pairwise(_whole_quotient(math.floor)),
    "TruncateDiv": _pairwise(_whole_quotient(math.trunc)),
    "Maximum": _pairwise(_extreme(max)),
    "Minimum": _pairwise(_extreme(min)),
    "Neg": _negative,
    "Cast": _cast,
    "BroadcastGradientArgs": _broadcast_axes,
    **dict.fromkeys(("Identity", "Squeeze", "ExpandDims", "Reshape", "Snapshot", "StopGradient"), _as_it_is),
}
"""Rules of arithmetic on sizes; a rule returns None where its result cannot be told as sizes."""
