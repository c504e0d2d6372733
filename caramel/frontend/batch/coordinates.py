"""Coordinates that begin with the number of the example: how programs look up one entry of each, as for actions."""

from __future__ import annotations

from dataclasses import replace

from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    Coordinates,
    Examples,
    Independent,
    Offsets,
    Order,
    Value,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op
from caramel.frontend.batch.slices import sliced_axis

_COUNTS_ANEW = "numbers the examples: each worker would begin to count anew"


def of_numbers(op: Op) -> Value:
    """The value of an op that puts the numbers of the examples in front of what each has, or gets them ready for it."""
    first = op.inputs[0]
    if op.node.op in ("Pack", "ConcatV2"):
        return _beside(op)
    if op.node.op == "Mul":
        return _offsets(op)
    if op.node.op == "GatherV2":
        return _all_rows(op)
    if op.node.op == "SelectV2":
        return _numbers_or_zero(op)
    if not isinstance(first, Order):
        return op.unknown(_COUNTS_ANEW)
    if op.keeps_numbers:
        return first
    return first if _is_made_a_column(op) else op.unknown(_COUNTS_ANEW)


def of_coordinates(op: Op) -> Value:
    """The value of an op that reads coordinates."""
    first = op.inputs[0]
    if op.node.op == "ScatterNd":
        return _scattered(op)
    if isinstance(first, Coordinates):
        return first if op.keeps_numbers else op.unknown(_COUNTS_ANEW)
    places = op.inputs[1] if len(op.inputs) > 1 else None
    if op.node.op != "GatherNd" or not isinstance(places, Coordinates):
        return op.unknown(MIXES_EXAMPLES)
    if not isinstance(first, Examples) or not first.is_plain:
        return op.unknown(MIXES_EXAMPLES)
    return replace(first, repeated=False, mixed_by=first.mixed_by or places.mixed_by)


def of_offsets(op: Op) -> Value:
    """The value of an op that reads offsets, to add them to places or to get them ready for that."""
    first = op.inputs[0]
    if op.node.op in ("Add", "AddV2"):
        return _with_offsets(op)
    is_kept = isinstance(first, Offsets) and (op.keeps_numbers or _gets_an_axis_inside(op))
    return first if is_kept else op.unknown(_COUNTS_ANEW)


def _beside(op: Op) -> Value:
    """The numbers of the examples as the first column, and further columns of the examples."""
    is_pack = op.node.op == "Pack"
    columns = op.inputs if is_pack else op.inputs[:-1]
    axis = op.node.attr["axis"].i if is_pack else op.integer(len(columns))
    ranks = {op.rank(position) for position in range(len(columns))}
    first, *others = columns
    if axis not in (1, -1) or ranks != {1 if is_pack else 2} or not isinstance(first, Order) or first.count != 1:
        return op.unknown(_COUNTS_ANEW)
    mixed_by = None
    for other in others:
        is_of_examples = isinstance(other, Examples) and other.is_plain and other.power == 0
        if not is_of_examples and not is_invariant(other):
            return op.unknown(_COUNTS_ANEW)
        mixed_by = mixed_by or (other.mixed_by if isinstance(other, Examples) else None)
    return Coordinates(mixed_by)


def _all_rows(op: Op) -> Value:
    """The rows of all examples, looked up one after the other."""
    rows, numbers = op.inputs[:2]
    is_one_each = isinstance(numbers, Order) and numbers.count == 1 and op.rank(1) == 1
    is_by_rows = op.integer(2) == 0 and not op.node.attr["batch_dims"].i
    is_all = is_one_each and is_by_rows and isinstance(rows, Examples) and rows.is_plain
    return rows if is_all else op.unknown(_COUNTS_ANEW)


def _numbers_or_zero(op: Op) -> Value:
    """The numbers of several examples, or a zero for a single one: the same, and what `tf.vectorized_map` makes."""
    numbers, condition = op.inputs[1], op.producer_of(op.texts[0])
    is_zero = op.integer(2) == 0 and op.rank(2) == 0 and op.rank(0) == 0
    if not isinstance(numbers, Order) or numbers.count != 1 or not is_zero or condition.op != "Greater":
        return op.unknown(_COUNTS_ANEW)
    count, least = condition.input[:2]
    is_count = op.value_of(count) == of_sizes((BATCH_SIZE,)) and op.constant_of(least) == 1
    return numbers if is_count else op.unknown(_COUNTS_ANEW)


def _offsets(op: Op) -> Value:
    """The numbers of the examples in a column, times a one and zeros: the number, and zeros beside it."""
    at = next(position for position, value in enumerate(op.inputs) if isinstance(value, Order))
    number, factors, shape = op.inputs[at], op.integers(1 - at), op.shape(at)
    is_column = isinstance(number, Order) and number.count == 1 and shape is not None and shape[1:] == (1,)
    if not is_column or op.rank(1 - at) != 1 or factors is None or len(factors) < 2:
        return op.unknown(_COUNTS_ANEW)  # one factor would give a column that is added to every coordinate
    return Offsets() if factors == [1, *[0] * (len(factors) - 1)] else op.unknown(_COUNTS_ANEW)


def _gets_an_axis_inside(op: Op) -> bool:
    """Whether an op only puts axes between that of the examples and that of the coordinates."""
    rank, shape = op.rank(0), op.result_shape()
    if rank is None or shape is None:
        return False
    if op.node.op == "ExpandDims":
        position = op.integer(1)
        return position is not None and 0 < position % (rank + 1) < rank
    entries = op.shape(1) if op.node.op == "StridedSlice" else None
    if entries is None or entries[0] is None:
        return False
    bounds = [op.integers(position) for position in (1, 2, 3)]
    # Every axis is whole where each is found behind the slice.
    places = [sliced_axis(op, axis, entries[0], bounds) for axis in range(rank)]
    return None not in places and places[0] == 0 and places[-1] == len(shape) - 1


def _with_offsets(op: Op) -> Value:
    """The numbers of the examples, added to places of which the first coordinate is zero."""
    at = next(position for position, value in enumerate(op.inputs) if isinstance(value, Offsets))
    places, shape, other = op.inputs[1 - at], op.shape(at), op.shape(1 - at)
    if shape is None or other is None or len(shape) != len(other) or shape[-1] != other[-1]:
        return op.unknown(_COUNTS_ANEW)
    is_of_examples = isinstance(places, Examples) and places.is_plain and places.power == 0
    is_the_same = is_invariant(places) and other[0] == 1
    if not is_of_examples and not is_the_same:
        return op.unknown(_COUNTS_ANEW)
    if not _first_coordinate_is_zero(op, op.texts[1 - at]):
        return op.unknown(_COUNTS_ANEW)
    return Coordinates(places.mixed_by if isinstance(places, Examples) else None)


def _first_coordinate_is_zero(op: Op, text: str) -> bool:
    """Whether places, made of their coordinates and repeated for the examples, begin with a zero."""
    node = op.producer_of(text)
    while node.op in ("Identity", "Tile", "ExpandDims"):
        shape = op.shape_of(node.input[0])
        if node.op == "ExpandDims":
            position = op.constant_of(node.input[1])
            if shape is None or position is None or int(position) % (len(shape) + 1) == len(shape):
                return False
        node = op.producer_of(node.input[0])
    shape = op.shape_of(node.name)
    if node.op != "Pack" or shape is None or node.attr["axis"].i not in (-1, len(shape) - 1):
        return False
    first = op.constant_of(node.input[0])
    return op.producer_of(node.input[0]).op == "ZerosLike" if first is None else not first.any()


def _scattered(op: Op) -> Value:
    """Entries of the examples, each put into, or added to, what is the same example's in a tensor of zeros."""
    places, entries, shape = op.inputs
    sizes = shape.sizes if isinstance(shape, Independent) else None
    if not isinstance(places, Coordinates) or not isinstance(entries, Examples) or sizes is None:
        return op.unknown(MIXES_EXAMPLES)
    is_for_all = sizes[0] == BATCH_SIZE and all(size.power == 0 for size in sizes[1:])
    if not entries.is_plain or not is_for_all:
        return op.unknown(MIXES_EXAMPLES)
    return replace(entries, repeated=False, normalised=False, mixed_by=entries.mixed_by or places.mixed_by)


def _is_made_a_column(op: Op) -> bool:
    """Whether the op makes a column of the numbers in a vector."""
    if op.rank(0) != 1:
        return False
    if op.node.op == "ExpandDims":
        return op.integer(1) in (1, -1)
    if op.node.op == "Reshape":
        return op.integers(1) == [-1, 1]
    shape, entries = op.result_shape(), op.shape(1) if len(op.inputs) > 1 else None
    if op.node.op != "StridedSlice" or shape is None or len(shape) != 2 or shape[1] != 1:
        return False
    if entries is None or entries[0] is None:
        return False
    return sliced_axis(op, 0, entries[0], [op.integers(position) for position in (1, 2, 3)]) == 0
