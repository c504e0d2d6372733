"""Places of the entries that some of the examples have, and what is looked up there."""

from __future__ import annotations

from fractions import Fraction

from caramel.frontend.batch.domain import ChosenShape, Examples, Positions, Size, Total, Value
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule
from caramel.frontend.batch.partitions import of_chosen, stitched
from caramel.frontend.batch.slices import sliced_axis


def _where(op: Op) -> Value:
    """The places of the entries of a mask."""
    mask, rank = op.inputs[0], op.rank(0)
    if not isinstance(mask, Examples) or mask.axis != 0 or mask.chosen or mask.mixed_by or rank is None:
        return op.unknown("finds entries in a way that cannot be followed")
    return Positions(mask, rank, op.expression_of(op.texts[0]))


def of_positions(op: Op) -> Value:
    """The value of an op that reads places. A worker counts them from its own first example, so few ops may."""
    kind, first = op.node.op, op.inputs[0]
    if kind in ("DynamicStitch", "ParallelDynamicStitch"):
        return stitched(op)
    if kind in ("GatherV2", "GatherNd") and isinstance(op.inputs[1], Positions):
        return _looked_up(op, first, op.inputs[1])
    if not isinstance(first, Positions):
        return op.unknown(MIXES_EXAMPLES)
    if kind == "Size":
        return Total()
    shape = op.shape(0)
    if kind == "Shape" and shape is not None:
        of_places = of_chosen(Examples(0), first.mask, first.chosen)
        return ChosenShape(of_places, tuple(Size(None if size is None else Fraction(size)) for size in shape))
    is_vector = op.keeps_numbers or (first.rank == 1 and _is_made_a_vector(op))
    return first if is_vector else op.unknown("reads places, which each worker counts anew")


def _is_made_a_vector(op: Op) -> bool:
    """Whether the op makes a vector of the places in a mask with one axis, and leaves them what they are."""
    if op.node.op != "StridedSlice":
        return op.node.op == "Squeeze" or (op.node.op == "Reshape" and op.integers(1) == [-1])
    entries, shape = op.shape(1), op.result_shape()
    if entries is None or entries[0] is None or shape is None or len(shape) != 1:
        return False
    return sliced_axis(op, 0, entries[0], [op.integers(p) for p in (1, 2, 3)]) == 0


def _looked_up(op: Op, table: Value, places: Positions) -> Value:
    """The entries of a tensor at some places, of which each example has as many as it has chosen."""
    rank = op.rank(1)
    if op.node.op == "GatherV2":
        is_by_entries = places.rank == rank == 1 and op.integer(2) == 0 and not op.node.attr["batch_dims"].i
    else:
        shape = op.shape(1)
        is_by_entries = rank == 2 and shape is not None and shape[1] == places.rank
    if not is_by_entries or not isinstance(table, Examples):
        return op.unknown(MIXES_EXAMPLES)
    if table.axis != 0 or table.arrangement != places.mask.arrangement:
        return op.unknown(MIXES_EXAMPLES)
    return of_chosen(table, places.mask, places.chosen)


RULES: dict[str, Rule] = {"Where": _where}
