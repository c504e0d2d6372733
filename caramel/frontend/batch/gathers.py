"""Ops that look up: rows of a table for each example, or the same rows of all examples."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Independent,
    Statistic,
    Total,
    Value,
    is_invariant,
)
from caramel.frontend.batch.elementwise import other_rows
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule, moved

_PLACES_OF_THE_NUMBER = "looks up at places that depend on the number of examples"
"""Why nothing is known of what is looked up there."""


def _gather(op: Op) -> Value:
    """Rows of one tensor, at the indices of another."""
    table, indices, axis, rank = op.inputs[0], op.inputs[1], op.integer(2), op.rank(0)
    batched = op.node.attr["batch_dims"].i
    if axis is None or rank is None:
        return op.unknown("looks up along an axis that is not constant")
    return _looked_up(op, table, indices, axis % rank, batched)


def _resource_gather(op: Op) -> Value:
    return _looked_up(op, INVARIANT, op.inputs[1], None, op.node.attr["batch_dims"].i)


def _looked_up(op: Op, table: Value, indices: Value, axis: int | None, batched: int) -> Value:
    """Rows along an axis; without one along the first axis that is not batched."""
    index_rank = op.rank(1)
    if index_rank is None:
        return op.unknown("has indices of unknown rank")
    batched += index_rank if batched < 0 else 0
    axis = batched if axis is None else axis
    if isinstance(table, Examples) and isinstance(indices, Examples):
        if table.axis == indices.axis < batched and table.arrangement == indices.arrangement:
            return replace(table, repeated=False, mixed_by=table.mixed_by or indices.mixed_by)
        return op.unknown("looks up examples by what other examples say")
    if isinstance(indices, Examples) and indices.power != 0:
        return op.unknown(_PLACES_OF_THE_NUMBER)
    if isinstance(indices, Examples) and is_invariant(table):
        place = indices.axis + (axis - batched) if indices.axis >= batched else indices.axis
        return replace(indices, axis=place, power=Fraction(0))
    if isinstance(table, Examples) and is_invariant(indices) and axis != table.axis:
        shape = op.shape(0)
        if table.axis < batched and (
            unknown := other_rows(op, 1, table.axis, None if shape is None else shape[table.axis])
        ):
            return unknown
        return replace(table, axis=table.axis if table.axis < axis else table.axis + index_rank - batched - 1)
    if isinstance(table, (Total, Independent, Statistic)) and is_invariant(indices):
        return moved(op, table, None)
    return op.unknown(MIXES_EXAMPLES)


def _gather_nd(op: Op) -> Value:
    table = op.inputs[0] if op.node.op == "GatherNd" else INVARIANT
    indices, rank = op.inputs[1], op.rank(1)
    if isinstance(indices, Examples) and indices.power != 0:
        return op.unknown(_PLACES_OF_THE_NUMBER)
    if is_invariant(table) and isinstance(indices, Examples) and rank is not None:
        return op.unknown(MIXES_EXAMPLES) if indices.axis == rank - 1 else replace(indices, power=Fraction(0))
    if isinstance(table, (Total, Independent)) and is_invariant(indices):
        return moved(op, table, None)
    return op.unknown(MIXES_EXAMPLES)


def _one_hot(op: Op) -> Value:
    indices, rank = op.inputs[0], op.rank(0)
    if not isinstance(indices, Examples) or rank is None or not all(is_invariant(v) for v in op.inputs[1:]):
        return op.unknown("cannot be followed")
    if indices.power != 0:
        return op.unknown(_PLACES_OF_THE_NUMBER)
    axis = op.node.attr["axis"].i % (rank + 1)
    return replace(indices, axis=indices.axis + (axis <= indices.axis), power=Fraction(0))


RULES: dict[str, Rule] = {
    "GatherV2": _gather,
    "ResourceGather": _resource_gather,
    "GatherNd": _gather_nd,
    "ResourceGatherNd": _gather_nd,
    "OneHot": _one_hot,
}
