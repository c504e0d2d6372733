"""Ops that move entries: the axis of the examples moves, too, or the op takes it apart, which gives `Unknown`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Followed,
    Independent,
    Size,
    Statistic,
    Total,
    Value,
    is_invariant,
)
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule, moved, varying_arguments
from caramel.frontend.batch.reductions import scattered_into
from caramel.frontend.batch.reshape import positive_integer, reshaped
from caramel.frontend.batch.slices import part_taken, sliced_axis


def _reshape(op: Op) -> Value:
    value, target = op.inputs
    if isinstance(value, Examples):
        return reshaped(op, value, target)
    return varying_arguments(op) or moved(op, value, None)


def _expand_dims(op: Op) -> Value:
    value, position, rank = op.inputs[0], op.integer(1), op.rank(0)
    if not isinstance(value, Examples):
        return varying_arguments(op) or moved(op, value, None)
    if position is None or rank is None:
        return op.unknown("adds an axis at a place that is not constant")
    position %= rank + 1
    return replace(value, axis=value.axis + (position <= value.axis))


def _squeeze(op: Op) -> Value:
    value, rank = op.inputs[0], op.rank(0)
    if not isinstance(value, Examples) or rank is None:
        return moved(op, value, None)
    listed = [axis % rank for axis in op.node.attr["squeeze_dims"].list.i]
    axes = listed or [a for a, d in enumerate(op.shape(0) or []) if d == 1]
    if value.axis in axes:
        return op.unknown("removes the axis of the examples")
    if not listed and op.result_shape() is None:
        return op.unknown("removes axes whose size is not known")
    return replace(value, axis=value.axis - sum(1 for axis in axes if axis < value.axis))


def _transpose(op: Op) -> Value:
    value, order = op.inputs[0], op.integers(1)
    if not isinstance(value, Examples):
        return varying_arguments(op) or moved(op, value, None)
    if order is None:
        return op.unknown("has an order that is not constant")
    return moved(op, value, [axis % len(order) for axis in order].index(value.axis))


# -- joining and taking apart ------------------------------------------------------------------


def _joined(op: Op, positions: Sequence[int], axis: int, new_axis: bool) -> Value:
    """Tensors of the same rank beside each other, along an axis that they have or along a new one."""
    values = [op.inputs[p] for p in positions]
    examples = [v for v in values if isinstance(v, Examples)]
    if not examples:
        return _joined_without_examples(op, values)
    if len({(v.axis, v.power) for v in examples}) != 1 or any(
        isinstance(v, Independent) and v.power != examples[0].power for v in values
    ):
        return op.unknown("brings different examples together")
    if any(isinstance(v, (Total, Statistic)) for v in values):
        return op.unknown("puts a sum or mean over the batch beside the values of single examples")
    mixed_by = next((v.mixed_by for v in examples if v.mixed_by), None)
    normalised = all(v.normalised for v in examples)
    if not new_axis and axis == examples[0].axis:
        if isinstance(values[0], Examples) and axis == 0 and all(is_invariant(v) for v in values[1:]) and values[1:]:
            is_counted = None not in (values[0].before, values[0].after) and not values[0].chosen and not mixed_by
            return Followed(values[0]) if is_counted else op.unknown("joins examples with other entries")
        if len(examples) < len(values) or any(
            v.before is None or (v.after, v.chosen) != (examples[0].after, examples[0].chosen) for v in examples
        ):
            return op.unknown("joins examples with other entries")
        before = sum(v.before or 0 for v in examples)
        return replace(examples[0], before=before, repeated=False, mixed_by=mixed_by, normalised=normalised)
    if len({v.arrangement for v in examples}) != 1:
        return op.unknown("brings different examples together")
    if _lengths(op, positions, values, examples[0].axis, False) - _lengths(
        op, positions, values, examples[0].axis, True
    ):
        return op.unknown("has the number of examples of a whole batch in it")
    repeated = all(v.repeated for v in examples) and len(examples) == len(values)
    axis = examples[0].axis + (new_axis and axis <= examples[0].axis)
    return replace(examples[0], axis=axis, repeated=repeated, mixed_by=mixed_by, normalised=normalised)


def _lengths(op: Op, positions: Sequence[int], values: Sequence[Value], axis: int, of_examples: bool) -> set[int]:
    """Known sizes along the axis of the examples: of the tensors that have examples, or of the others."""
    shapes = (op.shape(p) for p, v in zip(positions, values) if isinstance(v, Examples) == of_examples)
    sizes = (shape[axis] for shape in shapes if shape is not None and axis < len(shape))
    return {size for size in sizes if size is not None}


def _joined_without_examples(op: Op, values: Sequence[Value]) -> Value:
    totals = [v for v in values if isinstance(v, Total)]
    powers = {v.power for v in values if isinstance(v, (Total, Independent))}
    if len(totals) == len(values) and len(powers) == 1:
        return Total(totals[0].power, mixed_by=next((t.mixed_by for t in totals if t.mixed_by), None))
    if (
        totals
        and {t.power for t in totals} == {-1}
        and all(isinstance(v, Total) or v == Independent(Fraction(0)) for v in values)
    ):
        return Total(totals[0].power, mixed_by=next((t.mixed_by for t in totals if t.mixed_by), None))
    if all(isinstance(v, Independent) for v in values):
        return Independent(powers.pop() if len(powers) == 1 else None)
    return op.unknown("puts sums over the examples beside terms that are none")


def _concat(op: Op) -> Value:
    last = len(op.inputs) - 1
    axis, rank = op.integer(last), op.rank(0)
    if axis is None or rank is None:
        return op.unknown("joins along an axis that is not constant")
    return _joined(op, range(last), axis % rank, new_axis=False)


def _pack(op: Op) -> Value:
    rank = op.rank(0)
    if rank is None:
        return op.unknown("has a tensor of unknown rank")
    return _joined(op, range(len(op.inputs)), op.node.attr["axis"].i % (rank + 1), new_axis=True)


def _unpack(op: Op) -> Value:
    value, rank = op.inputs[0], op.rank(0)
    if not isinstance(value, Examples) or rank is None:
        return moved(op, value, None)
    axis = op.node.attr["axis"].i % rank
    return moved(op, value, None if axis == value.axis else value.axis - (axis < value.axis))


def _split_op(op: Op, value_at: int, axis_at: int, equal: bool) -> Value:
    value, axis, rank = op.inputs[value_at], op.integer(axis_at), op.rank(value_at)
    if not all(is_invariant(v) for position, v in enumerate(op.inputs) if position != value_at):
        return op.unknown("has arguments that depend on the batch")
    if not isinstance(value, Examples):
        return moved(op, value, None)
    if axis is None or rank is None:
        return op.unknown("splits along an axis that is not constant")
    if axis % rank != value.axis:
        return value
    if equal and value.before and value.before % op.outputs == 0:
        return replace(value, before=value.before // op.outputs)
    return op.unknown(MIXES_EXAMPLES)


def _split_equal(op: Op) -> Value:
    return _split_op(op, 1, 0, equal=True)


def _split_sizes(op: Op) -> Value:
    return _split_op(op, 0, 2, equal=False)


# -- parts and repetitions ---------------------------------------------------------------------


def _strided_slice(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, Examples):
        return varying_arguments(op) or moved(op, value, None)
    if (part := part_taken(op)) is not None:
        return part
    begins, ends, strides = (op.integers(p) for p in (1, 2, 3))
    length = op.shape(1)
    if length is None or length[0] is None or not all(is_invariant(v) for v in op.inputs[1:]):
        return op.unknown("has bounds that are not constant")
    return moved(op, value, sliced_axis(op, value.axis, length[0], (begins, ends, strides)))


def _strided_slice_grad(op: Op) -> Value:
    """The gradient of a part of a tensor, with zeros beside it, as a gradient of the whole tensor."""
    shape, gradient, length = op.inputs[0], op.inputs[4], op.shape(1)
    if not isinstance(gradient, Examples):
        return moved(op, gradient, None) if is_invariant(shape) else op.unknown("has a size that depends on the batch")
    sizes = shape.sizes if isinstance(shape, Independent) and shape.sizes is not None else ()
    of_examples = [axis for axis, size in enumerate(sizes) if size.power != 0]
    count = Size(Fraction((gradient.before or 0) * (gradient.after or 0)), Fraction(1))
    if len(of_examples) != 1 or sizes[of_examples[0]] != count or length is None or length[0] is None:
        return op.unknown(MIXES_EXAMPLES)
    bounds = [op.integers(p) for p in (1, 2, 3)]
    place = sliced_axis(op, of_examples[0], length[0], bounds, len(sizes))
    if place != gradient.axis or gradient.chosen:
        return op.unknown(MIXES_EXAMPLES)
    return replace(gradient, axis=of_examples[0], repeated=False, normalised=False)


def _slice(op: Op) -> Value:
    value = op.inputs[0]
    if not isinstance(value, Examples):
        return varying_arguments(op) or moved(op, value, None)
    if (part := part_taken(op)) is not None:
        return part
    begin, size = op.integers(1), op.inputs[2]
    if begin is None or begin[value.axis] != 0 or not isinstance(size, Independent) or size.sizes is None:
        return op.unknown(MIXES_EXAMPLES)
    taken = size.sizes[value.axis]
    if value.chosen or any(s.power != 0 for axis, s in enumerate(size.sizes) if axis != value.axis):
        return op.unknown("takes as many entries as there are examples")
    count = None if value.before is None or value.after is None else Fraction(value.before * value.after)
    is_whole = taken == Size(Fraction(-1)) or (count is not None and taken == Size(count, Fraction(1)))
    return value if is_whole else op.unknown(MIXES_EXAMPLES)


def _tile(op: Op) -> Value:
    value, multiples = op.inputs
    if not isinstance(multiples, Independent):
        return op.unknown("repeats as often as the examples say")
    if isinstance(value, Examples):
        times = op.integers(1)
        if times is None:
            return op.unknown("repeats the examples")
        if times[value.axis] == 1:
            return value
        if value.before is None or value.chosen or times[value.axis] < 1:
            return op.unknown("repeats the examples")
        return replace(value, before=value.before * times[value.axis])
    spread = _spread(op, value, multiples)
    if isinstance(spread, Examples) and not _is_one_at(op, spread.axis):
        return op.unknown("repeats different entries for the examples")
    return spread


def _spread(op: Op, value: Value, sizes: Independent) -> Value:
    """The value of a tensor that repeats an independent value for each example, as ``sizes`` says."""
    if not isinstance(value, Independent) or value.power is None:
        return op.unknown("repeats a sum or mean over the batch")
    if sizes.power == 0:
        return Independent(value.power)
    if sizes.sizes is None or any(s.power not in (0, 1) for s in sizes.sizes):
        return op.unknown("makes a tensor whose size does not scale with the number of examples")
    axes = [a for a, s in enumerate(sizes.sizes) if s.power == 1]
    if len(axes) != 1:
        return op.unknown("makes a tensor with an entry for each pair of examples")
    coefficient = sizes.sizes[axes[0]].coefficient
    after = None if coefficient is None else positive_integer(coefficient)
    if coefficient is not None and after is None:
        return op.unknown("makes a tensor whose size does not scale with the number of examples")
    return Examples(axes[0], value.power, 1, after, repeated=True)


def _fill(op: Op) -> Value:
    sizes, value = op.inputs
    return (
        _spread(op, value, sizes)
        if isinstance(sizes, Independent)
        else op.unknown("has a size that depends on the examples")
    )


def _empty(op: Op) -> Value:
    """A tensor of zeros, if it asks for that."""
    sizes = op.inputs[0]
    if not op.node.attr["init"].b or not isinstance(sizes, Independent):
        return op.unknown("has no entries yet, or a size that depends on the examples")
    return _spread(op, INVARIANT, sizes)


def _rows_written(op: Op) -> Value:
    """A tensor of which some rows are written or added to, the same rows for all examples."""
    value, indices, rows = op.inputs
    rank, rank_of_rows, shape = op.rank(0), op.rank(2), op.shape(1)
    if not is_invariant(indices) or rank is None or rank_of_rows is None or shape is None or shape[-1] is None:
        return op.unknown(MIXES_EXAMPLES)
    inner = rank - shape[-1]  # axes of a row
    if inner != rank_of_rows - (len(shape) - 1):
        return op.unknown(MIXES_EXAMPLES)
    if isinstance(rows, Examples):
        rows = replace(rows, axis=rows.axis + rank - rank_of_rows)
    if any(isinstance(v, Examples) and v.axis < rank - inner for v in (value, rows)):
        return op.unknown(MIXES_EXAMPLES)
    if not all(isinstance(v, Examples) or is_invariant(v) for v in (value, rows)):
        return op.unknown("is not linear in a mean or sum over the batch")
    return op.joined(value, rows)


def _added_to_rows(op: Op) -> Value:
    """The same for what is added, or what examples add at places of their own."""
    return _rows_written(op) if is_invariant(op.inputs[1]) else scattered_into(op)


def _slice_written(op: Op) -> Value:
    """A tensor of which a part is written, from a place on (`keras.ops.slice_update`)."""
    value, part, _ = op.inputs
    are_rows = isinstance(part, Examples) and part.axis == 0 and is_invariant(value)
    return op.unknown(MIXES_EXAMPLES, unmodelled=not are_rows)


def _broadcast_to(op: Op) -> Value:
    value, sizes = op.inputs
    rank, result_shape = op.rank(0), op.result_shape()
    if not isinstance(sizes, Independent) or rank is None or result_shape is None:
        return op.unknown("broadcasts to a shape that cannot be told")
    if isinstance(value, Examples):
        axis = value.axis + len(result_shape) - rank
        powers = [sizes.power] if sizes.sizes is None else [s.power for a, s in enumerate(sizes.sizes) if a != axis]
        return op.unknown("repeats the examples") if any(p != 0 for p in powers) else replace(value, axis=axis)
    spread = _spread(op, value, sizes)
    if isinstance(spread, Examples) and not _is_one_at(op, spread.axis - len(result_shape) + rank):
        return op.unknown("repeats different entries for the examples")
    return spread


def _is_one_at(op: Op, axis: int) -> bool:
    shape = op.shape(0) or ()
    return axis < 0 or (axis < len(shape) and shape[axis] == 1)


def _pad(op: Op) -> Value:
    value, padding = op.inputs[0], op.constant(1)
    if not all(map(is_invariant, op.inputs[2:])):
        return op.unknown("adds entries that depend on the batch")
    if not isinstance(value, Examples):
        if is_invariant(value) or (isinstance(value, Total) and value.power == -1) or _pads_with_zeros(op):
            return varying_arguments(op) or moved(op, value, None)
        return op.unknown("puts a sum over the examples, or their number, beside a term that does not depend on them")
    if padding is None or padding[value.axis].any():
        return op.unknown("adds entries that are no examples")
    if value.power != 0 and not _pads_with_zeros(op):
        return op.unknown("adds a constant to values that are divided by the number of examples")
    return replace(value, repeated=False)


def _pads_with_zeros(op: Op) -> bool:
    """Whether a pad adds zeros, or copies of entries."""
    if len(op.inputs) < 3:
        return True
    filling = op.constant(2)
    return filling is not None and not filling.any()


def _along(axis_at: int) -> Rule:
    """The rule of an op that mixes the entries along the axes in one of its inputs."""

    def rule(op: Op) -> Value:
        value, axes, rank = op.inputs[0], op.integers(axis_at), op.rank(0)
        if not isinstance(value, Examples):
            linear = isinstance(value, (Total, Independent)) and op.node.op not in ("Cumprod", "CumulativeLogsumexp")
            return (varying_arguments(op) or moved(op, value, None)) if linear else op.unknown("is not linear")
        if axes is None or rank is None:
            return op.unknown("works along an axis that is not constant")
        if value.axis in [a % rank for a in axes] or not all(is_invariant(v) for v in op.inputs[1:]):
            return op.unknown(MIXES_EXAMPLES)
        if value.power != 0 and op.node.op in ("Cumprod", "CumulativeLogsumexp"):
            return op.unknown("is not linear in values that are divided by the number of examples")
        return value

    return rule


def _reverse_sequence(op: Op) -> Value:
    value, lengths = op.inputs
    batch, sequence = op.node.attr["batch_dim"].i, op.node.attr["seq_dim"].i
    if not isinstance(value, Examples) or value.axis != batch or sequence == batch:
        return op.unknown(MIXES_EXAMPLES)
    if isinstance(lengths, (Examples, Independent)):
        return replace(value, repeated=False)
    return op.unknown(MIXES_EXAMPLES)


RULES: dict[str, Rule] = {
    "Reshape": _reshape,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split": _split_equal,
    "StridedSliceGrad": _strided_slice_grad,
    "SplitV": _split_sizes,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Tile": _tile,
    "Fill": _fill,
    "Empty": _empty,
    **dict.fromkeys(("TensorScatterSub", "TensorScatterUpdate"), _rows_written),
    "TensorScatterAdd": _added_to_rows,
    "XlaDynamicUpdateSlice": _slice_written,
    "BroadcastTo": _broadcast_to,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    **dict.fromkeys(("ReverseV2", "Cumprod", "Cumsum", "CumulativeLogsumexp"), _along(1)),
    "Roll": _along(2),
    "ReverseSequence": _reverse_sequence,
}
