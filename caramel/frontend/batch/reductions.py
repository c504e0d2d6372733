"""Ops that add or average along axes, and products of matrices, which add along the axis they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import Examples, Independent, Statistic, Total, Value, is_invariant
from caramel.frontend.batch.elementwise import ROWS_OF_A_PART, has_rows, other_rows
from caramel.frontend.batch.op import Op, Rule

_NOT_CHOSEN = "adds up examples in places that they do not choose"
"""Why nothing is known of a sum of segments."""


def _axes(op: Op) -> list[int] | None:
    """The axes of a reduction: all axes where the result is a scalar; None where they are not constant."""
    rank = op.rank(0)
    if rank is None:
        return None
    axes = op.integers(1)
    if axes is None:
        return list(range(rank)) if op.result_shape() == () else None
    return sorted({axis % rank for axis in axes}) if rank else []


def _reduction(op: Op) -> Value:
    value = op.inputs[0]
    if not is_invariant(op.inputs[1]):
        return op.unknown("reduces over axes that depend on the batch")
    if op.truncates and not (isinstance(value, Examples) and value.power == 0 and value.axis not in (_axes(op) or [])):
        return op.unknown("drops what is left over when whole numbers are divided")
    if isinstance(value, Examples):
        return _over_examples(op, value)
    if isinstance(value, Total) and op.node.op in ("Mean", "Sum"):
        return replace(value, channels=value.channels and op.result_shape() != (), mean_divisors=())
    if isinstance(value, Statistic) and op.result_shape() != ():
        return value
    if isinstance(value, Independent) and (value.power == 0 or (op.node.op != "Prod" and value.power is not None)):
        return Independent(value.power)
    return op.unknown("is not linear in a mean or sum over the batch")


def _over_examples(op: Op, value: Examples) -> Value:
    axes, kind = _axes(op), op.node.op
    if axes is None:
        return op.unknown("reduces over axes that are not constant")
    if value.axis not in axes:
        if kind not in ("Mean", "Sum", "Max", "Min", "EuclideanNorm") and value.power != 0:
            return op.unknown("is not linear in values that are divided by the number of examples")
        if op.node.attr["keep_dims"].b:
            return value
        return replace(value, axis=value.axis - sum(1 for axis in axes if axis < value.axis))
    if kind not in ("Mean", "Sum"):
        return op.unknown("takes one value from all examples in a way that is neither a mean nor a sum")
    if value.repeated and (kind == "Mean" or not value.chosen):
        return Independent(value.power + (1 if kind == "Sum" else 0))
    if kind == "Mean" and value.chosen:
        return op.unknown(
            "is a mean over chosen examples (those of a tf.boolean_mask, say), of which each worker has another number"
        )
    if kind == "Mean":
        channels = len(op.shape(0) or ()) > len(axes)
        return Total(value.power - 1, channels, (), value.mixed_by)
    return Total(value.power, False, _counts(op, value, axes), value.mixed_by)


def _counts(op: Op, value: Examples, axes: Sequence[int]) -> tuple[int, ...]:
    """Static numbers by which a division would make a sum over these axes a mean."""
    shape = op.shape(0) or ()
    examples = shape[value.axis]
    if examples is None or value.chosen:
        return ()
    return (examples, math.prod(shape[axis] or 0 for axis in axes))


def _l2_loss(op: Op) -> Value:
    value = op.inputs[0]
    if isinstance(value, Examples) and value.power == 0 and not value.repeated:
        return Total(Fraction(0), mixed_by=value.mixed_by)
    if isinstance(value, Independent) and value.power is not None:
        return Independent(2 * value.power)
    return op.unknown("is not linear in a mean or sum over the batch")


def _arg_reduction(op: Op) -> Value:
    value, axis = op.inputs[0], op.integer(1)
    if not isinstance(value, Examples):
        return op.unknown("is not linear in a mean or sum over the batch")
    if axis is None or op.rank(0) is None:
        return op.unknown("reduces over an axis that is not constant")
    axis %= op.rank(0) or 1
    if axis == value.axis:
        return op.unknown("compares the examples with each other")
    return replace(value, axis=value.axis - (axis < value.axis), power=Fraction(0))


_COMPARISONS = (
    *("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff"),
    *("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd"),
    *("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"),
    *("NonMaxSuppression", "NonMaxSuppressionV2", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5"),
)
"""Ops that look at all rows of their inputs together."""


def _comparison(op: Op) -> Value:
    """What follows from all rows together, such as the different ones among them."""
    rows = [value for value in op.inputs if not is_invariant(value)]
    if all(isinstance(value, Examples) and value.axis == 0 for value in rows):
        return op.unknown("compares the examples with each other")
    return op.unknown("is not linear in a mean or sum over the batch")


def _segment_sum(op: Op) -> Value:
    """Examples, or the same for each of them, added up by segments that each example chooses."""
    return _added_up(op, 0, 1) if is_invariant(op.inputs[2]) else op.unknown(_NOT_CHOSEN)


def _scattered(op: Op) -> Value:
    """Examples, or the same for each of them, added up in places that each example chooses: a confusion matrix, say."""
    return _added_up(op, 1, 0) if is_invariant(op.inputs[2]) else op.unknown(_NOT_CHOSEN)


def scattered_into(op: Op) -> Value:
    """The same where the tensor to which they are added is given, and is zero.

    Args:
        op: the op.
    """
    into = op.constant(0)
    return _added_up(op, 2, 1) if into is not None and not into.any() else op.unknown(_NOT_CHOSEN)


def _added_up(op: Op, of_data: int, of_places: int) -> Value:
    """The sum of an input by the places that another one has, of so many positions."""
    data, places = op.inputs[of_data], op.inputs[of_places]
    if isinstance(places, Examples) and not places.repeated:
        of_examples = places.axis, places.arrangement
        if isinstance(data, Examples) and (data.axis, data.arrangement) == of_examples:
            return Total(data.power, mixed_by=data.mixed_by or places.mixed_by)
        if isinstance(data, Independent) and data.power is not None:
            shape = op.shape(of_places)
            count = None if shape is None else shape[places.axis]
            return other_rows(op, of_data, places.axis, count) or Total(data.power, mixed_by=places.mixed_by)
    return op.unknown(_NOT_CHOSEN)


def _histogram(op: Op) -> Value:
    """How many numbers of all examples are in each of some ranges."""
    value, limits, bins = op.inputs
    if not is_invariant(limits) or not is_invariant(bins):
        return op.unknown("counts what is in ranges that depend on the batch")
    if not isinstance(value, Examples) or value.repeated or value.power != 0:
        return op.unknown("counts values that are not those of single examples")
    return Total(Fraction(0), mixed_by=value.mixed_by)


# -- products ----------------------------------------------------------------------------------


def _product(op: Op, letters: Sequence[str], result_letters: str) -> Value:
    """The value of a sum of products, given as Einstein's summation with one letter for each axis.

    Args:
        op: the op; its first inputs are the factors.
        letters: letters of the axes of each factor.
        result_letters: letters of the axes of the result.
    """
    values = op.inputs[: len(letters)]
    examples = [(v, axes[v.axis]) for v, axes in zip(values, letters) if isinstance(v, Examples)]
    powers = [v.power for v in values if isinstance(v, (Examples, Independent, Total))]
    if any(p is None for p in powers):
        return op.unknown("does not scale with the number of examples")
    power = sum((p for p in powers if p is not None), Fraction(0))
    totals = [v for v in values if isinstance(v, (Total, Statistic))]
    if not examples:
        if not totals:
            return Independent(power)
        if len(totals) == 1 and isinstance(totals[0], Total):
            return Total(power, mixed_by=totals[0].mixed_by)
        return op.unknown("is not linear in a mean or sum over the batch")
    if totals:
        return op.unknown("puts a sum or mean over the batch into the values of single examples")
    if len({letter for _, letter in examples}) != 1 or len({v.arrangement for v, _ in examples}) != 1:
        return op.unknown("brings different examples together")
    first, letter = examples[0]
    sizes = [(p, axes.index(letter)) for p, axes in enumerate(letters) if letter in axes]
    counts = {_size_at(op, p, axis) for p, axis in sizes if isinstance(values[p], Examples)}
    for position, axis in sizes:
        if isinstance(values[position], Independent):
            if _size_at(op, position, axis) not in (None, 1, *counts):
                return op.unknown("has the number of examples of a whole batch in it")
            if has_rows(op, op.texts[position], len(letters[position]) - axis):
                return op.unknown(ROWS_OF_A_PART)
    mixed_by = next((v.mixed_by for v, _ in examples if v.mixed_by), None)
    repeated = all(v.repeated for v, _ in examples)
    if letter in result_letters:
        return replace(
            first,
            axis=result_letters.index(letter),
            power=power,
            repeated=repeated,
            mixed_by=mixed_by,
            normalised=False,
        )
    return Independent(power + 1) if repeated and not first.chosen else Total(power, mixed_by=mixed_by)


def _size_at(op: Op, position: int, axis: int) -> int | None:
    shape = op.shape(position)
    return None if shape is None else shape[axis]


def _matmul(op: Op) -> Value:
    first = "ki" if op.node.attr["transpose_a"].b else "ik"
    second = "jk" if op.node.attr["transpose_b"].b else "kj"
    return _product(op, (first, second), "ij")


def _batch_matmul(op: Op) -> Value:
    """The value of a product of matrices in the last two axes; the other axes are broadcast."""
    ranks = [op.rank(0), op.rank(1)]
    if any(r is None for r in ranks):
        return op.unknown("has a tensor of unknown rank")
    known_ranks = [r for r in ranks if r is not None]
    most = max(known_ranks) - 2
    outer = "".join(chr(ord("A") + axis) for axis in range(most))
    adjoint = [op.node.attr["adj_x"].b, op.node.attr["adj_y"].b]
    first, second = "ki" if adjoint[0] else "ik", "jk" if adjoint[1] else "kj"
    letters = [outer[most - (rank - 2) :] + inner for rank, inner in zip(known_ranks, (first, second))]
    return _product(op, letters, outer + "ij")


def _einsum(op: Op) -> Value:
    equation = op.node.attr["equation"].s.decode().replace(" ", "")
    left, arrow, result_letters = equation.partition("->")
    letters = left.split(",")
    ranks = [op.rank(p) for p in range(len(letters))]
    if not arrow or any(r is None for r in ranks):
        return op.unknown("has a tensor of unknown rank")
    spare = [(rank or 0) - len(axes.replace("...", "")) for rank, axes in zip(ranks, letters)]
    most = max([s for s, axes in zip(spare, letters) if "..." in axes], default=0)
    # Letters for what the dots stand for, none of which an equation has.
    dots = "".join(chr(0x100 + axis) for axis in range(most))
    letters = [axes.replace("...", dots[most - spare_axes :]) for axes, spare_axes in zip(letters, spare)]
    if any(len(set(axes)) != len(axes) for axes in letters):
        return op.unknown("takes a diagonal")
    return _product(op, letters, result_letters.replace("...", dots))


def _bias(op: Op) -> Value:
    value = op.inputs[0]
    rank = op.rank(0)
    if not isinstance(value, Examples) or not isinstance(op.inputs[1], Independent) or rank is None:
        return op.unknown("is not linear in a mean or sum over the batch")
    channel = 1 if op.node.attr["data_format"].s == b"NCHW" else rank - 1
    if channel == value.axis or value.power != 0 or op.inputs[1].power != 0:
        return op.unknown("is not linear in values that are divided by, or multiplied with, the number of examples")
    return replace(value, repeated=False)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm"), _reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduction),
    "L2Loss": _l2_loss,
    **dict.fromkeys(_COMPARISONS, _comparison),
    "UnsortedSegmentSum": _segment_sum,
    "ScatterNd": _scattered,
    "HistogramFixedWidth": _histogram,
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    "Einsum": _einsum,
    "BiasAdd": _bias,
}
