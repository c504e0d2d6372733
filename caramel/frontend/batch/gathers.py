"""Ops that look up: rows of a table for each example, or the same rows of all examples."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import FREE, Examples, Free, Statistic, Total, Value, is_number
from caramel.frontend.batch.op import MIXES, Op, Rule, moved


def _gather(op: Op) -> Value:
    """Rows of one tensor, as another says."""
    table, indices, axis, rank = op.inputs[0], op.inputs[1], op.integer(2), op.rank(0)
    batched = op.node.attr["batch_dims"].i
    if axis is None or rank is None:
        return op.unknown("looks up along an axis that is not constant")
    return _looked_up(op, table, indices, axis % rank, batched)


def _resource_gather(op: Op) -> Value:
    return _looked_up(op, FREE, op.inputs[1], None, op.node.attr["batch_dims"].i)


def _looked_up(op: Op, table: Value, indices: Value, axis: int | None, batched: int) -> Value:
    """Rows along an axis: the first that is not batched, unless it is given."""
    own = op.rank(1)
    if own is None:
        return op.unknown("has indices of unknown rank")
    batched += own if batched < 0 else 0
    axis = batched if axis is None else axis
    if isinstance(table, Examples) and isinstance(indices, Examples):
        if table.axis == indices.axis < batched and (table.before, table.after) == (indices.before, indices.after):
            return replace(table, same=False, centred=table.centred or indices.centred)
        return op.unknown("looks up examples by what other examples say")
    if isinstance(indices, Examples) and is_number(table):
        place = indices.axis + (axis - batched) if indices.axis >= batched else indices.axis
        return replace(indices, axis=place, power=Fraction(0))
    if isinstance(table, Examples) and is_number(indices) and axis != table.axis:
        return replace(table, axis=table.axis if table.axis < axis else table.axis + own - batched - 1)
    if isinstance(table, (Total, Free, Statistic)) and is_number(indices):
        return moved(op, table, None)
    return op.unknown(MIXES)


def _gather_nd(op: Op) -> Value:
    table = op.inputs[0] if op.node.op == "GatherNd" else FREE
    indices, rank = op.inputs[1], op.rank(1)
    if is_number(table) and isinstance(indices, Examples) and rank is not None:
        return op.unknown(MIXES) if indices.axis == rank - 1 else replace(indices, power=Fraction(0))
    if isinstance(table, (Total, Free)) and is_number(indices):
        return moved(op, table, None)
    return op.unknown(MIXES)


def _one_hot(op: Op) -> Value:
    indices, rank = op.inputs[0], op.rank(0)
    if not isinstance(indices, Examples) or rank is None or not all(is_number(v) for v in op.inputs[1:]):
        return op.unknown("cannot be followed")
    axis = op.node.attr["axis"].i % (rank + 1)
    return replace(indices, axis=indices.axis + (axis <= indices.axis), power=Fraction(0))


RULES: dict[str, Rule] = {
    "GatherV2": _gather,
    "ResourceGather": _resource_gather,
    "GatherNd": _gather_nd,
    "ResourceGatherNd": _gather_nd,
    "OneHot": _one_hot,
}
