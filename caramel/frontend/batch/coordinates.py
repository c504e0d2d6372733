"""Coordinates that begin with the number of the example: how programs look up one entry of each, as for actions."""

from __future__ import annotations

from dataclasses import replace

from caramel.frontend.batch.domain import Coordinates, Examples, Order, Value, is_invariant
from caramel.frontend.batch.layout import sliced_axis
from caramel.frontend.batch.op import KEEPS_NUMBERS, MIXES_EXAMPLES, Op

_COUNTS_ANEW = "numbers the examples: each worker would begin to count anew"


def of_numbers(op: Op) -> Value:
    """The value of an op that puts the numbers of the examples in front of what each has, or gets them ready for it."""
    first = op.inputs[0]
    if op.node.op in ("Pack", "ConcatV2"):
        return _beside(op)
    if not isinstance(first, Order):
        return op.unknown(_COUNTS_ANEW)
    if op.node.op in KEEPS_NUMBERS and not op.casts_to_bool:
        return first
    return first if _is_made_a_column(op) else op.unknown(_COUNTS_ANEW)


def of_coordinates(op: Op) -> Value:
    """The value of an op that reads coordinates."""
    first = op.inputs[0]
    if isinstance(first, Coordinates):
        return first if op.node.op in KEEPS_NUMBERS and not op.casts_to_bool else op.unknown(_COUNTS_ANEW)
    places = op.inputs[1] if len(op.inputs) > 1 else None
    if op.node.op != "GatherNd" or not isinstance(places, Coordinates) or not isinstance(first, Examples):
        return op.unknown(MIXES_EXAMPLES)
    if first.axis != 0 or first.arrangement != (1, 1, ""):
        return op.unknown(MIXES_EXAMPLES)
    return replace(first, repeated=False, mixed_by=first.mixed_by or places.mixed_by)


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
        is_of_examples = isinstance(other, Examples) and other.axis == 0 and other.arrangement == (1, 1, "")
        if not is_of_examples and not is_invariant(other):
            return op.unknown(_COUNTS_ANEW)
        mixed_by = mixed_by or (other.mixed_by if isinstance(other, Examples) else None)
    return Coordinates(mixed_by)


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
