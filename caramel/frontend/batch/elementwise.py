"""Ops that treat every entry by itself, with the entries at the same place in their other inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Independent,
    Note,
    Role,
    Statistic,
    TensorList,
    Total,
    Unknown,
    Value,
    constant,
    is_invariant,
)
from caramel.frontend.batch.op import Op, Rule
from caramel.graph import ops
from caramel.graph.ops import op_names
from caramel.graph.shapes import Shape

Power = Fraction | None
"""Power of the number of examples in a result; None where it has no such power."""

LINEAR = op_names(
    "Identity Cast StopGradient PreventGradient CheckNumerics CheckNumericsV2 EnsureShape Neg Snapshot "
    "Real Imag Conj GuaranteeConst DebugGradientIdentity OptimizationBarrier Copy"
)
"""Ops of one input that are linear: a multiple of the input gives that multiple."""

UNARY = op_names(
    "Abs Acos Acosh Angle Asin Asinh Atan Atanh BesselI0 BesselI0e BesselI1 BesselI1e BesselJ0 BesselJ1 "
    "BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Bucketize Ceil ComplexAbs Cos Cosh Dawsn "
    "Digamma Elu Erf Erfc Erfinv Exp Expint Expm1 FakeQuantWithMinMaxArgs Floor FresnelCos FresnelSin "
    "Inv Invert IsFinite IsInf IsNan LeakyRelu Lgamma Log Log1p LogicalNot Ndtri PopulationCount "
    "FakeQuantWithMinMaxVars Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign Sin Sinh Softplus "
    "Softsign Spence Sqrt Square Tan Tanh "
    "AsString RegexFullMatch RegexReplace StaticRegexFullMatch StaticRegexReplace StringLength StringLower "
    "StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper"
)
"""Ops of one input, or of one input and bounds that do not depend on the batch."""

_HOMOGENEOUS = op_names("Add AddV2 AddN AccumulateNV2 Sub Maximum Minimum Select SelectV2 ClipByValue Complex")
"""Ops of several inputs where a positive multiple of all inputs gives that multiple."""

_PRODUCTS = frozenset({"Mul", "MulNoNan"})
"""Ops that multiply two inputs."""

_QUOTIENTS = frozenset({"RealDiv", "Div", "DivNoNan", "Xdivy"})
"""Ops that divide the first input by the second."""

_SUMS = frozenset({"Add", "AddV2", "AddN", "AccumulateNV2", "Sub"})
"""Ops that are linear in all inputs together."""

_COMPARISONS = frozenset({"Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"})
"""Ops that compare two inputs, with a boolean result."""

NARY = (
    _HOMOGENEOUS
    | _PRODUCTS
    | _QUOTIENTS
    | _COMPARISONS
    | op_names(
        "SquaredDifference Pow FloorDiv FloorMod Mod TruncateDiv TruncateMod Atan2 ApproximateEqual "
        "LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift Xlogy Xlog1py Igamma "
        "Igammac IgammaGradA Betainc Zeta Polygamma NextAfter ReluGrad Relu6Grad LeakyReluGrad EluGrad "
        "SeluGrad SoftplusGrad SoftsignGrad SigmoidGrad TanhGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad"
    )
)
"""Ops of several inputs, which broadcast."""

_CUTS = frozenset({"Slice", "StridedSlice", "GatherV2"})
"""Ops that take some rows of their first input."""

ROWS_OF_A_PART = "has a row of its own for each example of a part, so that all parts would have the same rows"
"""Predicate, for messages, of an op that takes rows of a constant or variable beside a fixed number of examples."""

_UNTOLD_ORDER = "has examples in an order that cannot be told"
"""Predicate, for messages, of an op on entries of which it is not known whose they are."""

_INVERSE_ROLES = {
    Role.NONE: Role.NONE,
    Role.DIVISOR: Role.FACTOR,
    Role.FACTOR: Role.DIVISOR,
    Role.SHIFT: Role.NONE,
}
"""Role of one over a statistic, by the role of the statistic."""

BATCH_NORMALISATION = re.compile(r"(^|/)batchnorm(_\d+)?/")
"""Scope of the ops of `tf.nn.batch_normalization`, which Keras' layer calls where no op does it as a whole."""

_EXPONENTS = {
    "Sqrt": Fraction(1, 2),
    "Rsqrt": Fraction(-1, 2),
    "Square": Fraction(2),
    "Inv": Fraction(-1),
    "Reciprocal": Fraction(-1),
}
"""Exponent to which an op raises its input."""


def _power_of(op: Op, powers: Sequence[Power]) -> Power:
    """The power of the number of examples in a result.

    Args:
        op: the op.
        powers: power of each input.
    """
    known_powers = [p for p in powers if p is not None]
    if len(known_powers) != len(powers):
        return None
    kind = op.node.op
    if op.truncates and any(known_powers):
        return None
    if kind in _PRODUCTS:
        return sum(known_powers, Fraction(0))
    if kind in _QUOTIENTS:
        return known_powers[0] - known_powers[1]
    if kind == "SquaredDifference":
        return 2 * known_powers[0] if known_powers[0] == known_powers[1] else None
    if kind in _EXPONENTS:
        return known_powers[0] * _EXPONENTS[kind]
    if kind == "Sign":
        return Fraction(0)
    if kind in ("Select", "SelectV2"):
        powers_of_branches = {known_powers[p] for p in (1, 2) if not _is_zero(op, p)} or {Fraction(0)}
        return powers_of_branches.pop() if known_powers[0] == 0 and len(powers_of_branches) == 1 else None
    if kind == "Pow" and known_powers[1] == 0 and known_powers[0] != 0:
        exponent = op.constant(1)
        return (
            None if exponent is None or exponent.size != 1 else known_powers[0] * Fraction(float(exponent.ravel()[0]))
        )
    if kind in LINEAR or kind in ("Abs", "Relu", "LeakyRelu", "ComplexAbs"):
        return known_powers[0]
    if kind in _HOMOGENEOUS:
        return known_powers[0] if len(set(known_powers)) == 1 else None
    return Fraction(0) if not any(known_powers) else None


def _is_zero(op: Op, position: int) -> bool:
    """Whether an input is the constant 0, which is 0 times any power of the number of examples."""
    value = op.constant(position)
    return value is not None and value.dtype.kind in "iuf" and not value.any()


def _static_divisor(op: Op, counts: Sequence[int]) -> int:
    """1 where a quotient's divisor is a constant and one of the static numbers of examples, else 0.

    With a static batch the traced program holds that number as a constant; each worker then has a
    batch of that size.
    """
    if op.node.op not in _QUOTIENTS or not counts or op.knows_rows:
        return 0
    value = op.constant(1)
    return int(value is not None and value.size == 1 and float(value.ravel()[0]) in counts)


def elementwise(op: Op) -> Value:
    """The rule of every elementwise op."""
    if any(isinstance(v, TensorList) for v in op.inputs):
        return op.inputs[0] if op.node.op in LINEAR else op.unknown("mixes lists with tensors")
    if any(isinstance(v, Examples) for v in op.inputs):
        return _of_examples(op)
    if all(isinstance(v, Independent) for v in op.inputs):
        return _of_free(op)
    return _of_totals(op)


def _of_free(op: Op) -> Value:
    if op.node.op in _COMPARISONS or op.node.op.startswith("Logical"):
        return INVARIANT if all(is_invariant(v) for v in op.inputs) else Independent(None)
    return Independent(_power_of(op, [v.power if isinstance(v, Independent) else None for v in op.inputs]))


def _of_totals(op: Op) -> Value:
    """The value of an op that is linear in one sum over the examples, or makes a statistic of means."""
    kind, totals = op.node.op, [v for v in op.inputs if isinstance(v, Total)]
    # A zero, added or taken off, is no term that would count N times.
    zeros = [op.node.op in _SUMS and _is_zero(op, position) for position in range(len(op.inputs))]
    rest = [v for v, is_zero in zip(op.inputs, zeros) if isinstance(v, Independent) and not is_zero]
    mixed_by = next((v.mixed_by for v in totals if v.mixed_by), None)
    if len(totals) + len(rest) + sum(zeros) == len(op.inputs):
        linear = _linear(op, totals, rest)
        if linear is not None:
            return replace(linear, mixed_by=mixed_by)
    if _are_statistics(op.inputs) and (kind in UNARY or kind in LINEAR or kind in NARY):
        return Statistic(_role(op))
    if kind in _SUMS and totals and rest:
        return op.unknown(
            "adds a sum over the examples to a term that does not depend on them (a regulariser, say): "
            "with N workers that term would count N times"
        )
    return op.unknown("is not linear in a mean or sum over the batch")


def _linear(op: Op, totals: Sequence[Total], rest: Sequence[Independent]) -> Total | None:
    kind = op.node.op
    channels = all(t.channels for t in totals)
    if op.truncates:
        return None
    if kind in LINEAR:
        return totals[0]
    if kind in _PRODUCTS and len(totals) == 1 and rest[0].power is not None:
        return Total(totals[0].power + rest[0].power, channels)
    if kind in _QUOTIENTS and isinstance(op.inputs[0], Total) and rest and rest[0].power is not None:
        static = _static_divisor(op, totals[0].mean_divisors)
        return Total(totals[0].power - rest[0].power - static, channels)
    if kind in _SUMS:
        powers = {t.power for t in totals}
        if len(powers) == 1 and (not rest or (powers == {-1} and all(v.power == 0 for v in rest))):
            return Total(totals[0].power, channels, () if rest else totals[0].mean_divisors)
    if kind in ("Select", "SelectV2"):
        branches = {v.power for v in op.inputs[1:] if isinstance(v, (Total, Independent))}
        if len(totals) == 2 and len(branches) == 1 and is_invariant(op.inputs[0]):
            return Total(totals[0].power, channels)
    return None


def _are_statistics(values: Sequence[Value]) -> bool:
    """Whether all values are means for each channel, functions of such means, or invariant."""
    return all(
        isinstance(v, Statistic) or is_invariant(v) or (isinstance(v, Total) and v.channels and v.power == -1)
        for v in values
    )


def _role(op: Op) -> Role:
    """The role in a normalisation of a function of statistics."""
    kind = op.node.op
    roles = [v.role if isinstance(v, Statistic) else Role.NONE for v in op.inputs]
    first = roles[0]
    if kind in ("Sqrt", "Rsqrt", "Pow"):
        return _role_of_power(op) if first is Role.NONE else Role.NONE
    if kind in ("Inv", "Reciprocal"):
        return _INVERSE_ROLES[first]
    if kind in LINEAR:
        return first
    if kind in _QUOTIENTS or kind in _PRODUCTS:
        second = _INVERSE_ROLES[roles[1]] if kind in _QUOTIENTS else roles[1]
        if roles[1] is Role.NONE and is_invariant(op.inputs[1]):
            return first
        if first is Role.NONE and is_invariant(op.inputs[0]):
            return second
        factors = {first, second} - {Role.NONE}
        return Role.SHIFT if factors == {Role.FACTOR} and first is not second else Role.NONE
    # A small number beside the root, or the smallest one that it may be; a trained shift.
    varying_roles = {role for role, value in zip(roles, op.inputs) if not is_invariant(value)}
    return (
        varying_roles.pop() if kind in _HOMOGENEOUS and varying_roles in ({Role.DIVISOR}, {Role.SHIFT}) else Role.NONE
    )


def _role_of_power(op: Op) -> Role:
    exponents = {"Sqrt": 0.5, "Rsqrt": -0.5}
    constant = None if op.node.op in exponents else op.constant(1)
    exponent = exponents.get(op.node.op, 0.0) if constant is None or constant.size != 1 else float(constant.ravel()[0])
    return Role.DIVISOR if exponent == 0.5 else Role.FACTOR if exponent == -0.5 else Role.NONE


def _of_examples(op: Op) -> Value:
    place = aligned(op, range(len(op.inputs)))
    if isinstance(place, Unknown):
        return place
    others = [v for v in op.inputs if isinstance(v, (Total, Statistic))]
    if others and not (_are_statistics(others) and op.node.op in NARY):
        return op.unknown("puts a sum or mean over the batch into the values of single examples")
    power = _power_of(op, [v.power if isinstance(v, (Independent, Examples)) else Fraction(0) for v in op.inputs])
    if power is None:
        return op.unknown("is not linear in values that are divided by, or multiplied with, the number of examples")
    shape = op.shape(0)
    first = op.inputs[0]
    if shape is not None and isinstance(first, Examples) and shape[first.axis] is not None:
        power -= _static_divisor(op, (shape[first.axis],))  # type: ignore[arg-type]
    return _after_statistics(op, others, replace(place, power=power))


def _after_statistics(op: Op, others: Sequence[Value], value: Examples) -> Examples:
    """The value of examples after an op that may put statistics of the batch into them."""
    kind = op.node.op
    normalised = value.normalised and kind in LINEAR | _SUMS | _PRODUCTS | _QUOTIENTS
    if not others:
        return replace(value, normalised=normalised)
    roles = {v.role if isinstance(v, Statistic) else Role.NONE for v in others}
    if BATCH_NORMALISATION.search(op.node.name):
        op.notes[op.node.name] = Note.STATISTICS
        if kind in _PRODUCTS and roles == {Role.FACTOR} and not value.mixed_by:
            return replace(value, normalised=True)
        if kind in _SUMS and roles == {Role.SHIFT} and normalised:
            return value
    return replace(value, mixed_by=op.node.name, normalised=False)


def aligned(op: Op, positions: Sequence[int]) -> Examples | Unknown:
    """The examples in the result of an op that broadcasts its inputs; the caller sets their ``power``.

    Args:
        op: the op.
        positions: positions of the inputs that are broadcast.
    """
    rank = None if op.result_shape() is None else len(op.result_shape() or ())
    first = op.inputs[0]
    if None in (rank, op.rank(0)) and len(op.inputs) == 1 and isinstance(first, Examples):
        is_known = not (first.before is None and first.after is None and not first.chosen)
        return replace(first, power=Fraction(0)) if is_known else op.unknown(_UNTOLD_ORDER)
    places, repeated, normalised = set(), True, True
    mixed_by: str | None = None
    for position in positions:
        value = op.inputs[position]
        value_rank = op.rank(position)
        if isinstance(value, Examples):
            if value_rank is None or rank is None:
                return op.unknown("has a tensor of unknown rank")
            if value.before is None and value.after is None and not value.chosen:
                return op.unknown(_UNTOLD_ORDER)
            places.add((value_rank - value.axis, value.arrangement))
            repeated, normalised = repeated and value.repeated, normalised and value.normalised
            mixed_by = mixed_by or value.mixed_by
        else:
            repeated = repeated and isinstance(value, Independent)
    if len(places) != 1:
        return op.unknown("brings different examples together")
    axis_from_end, (before, after, chosen) = places.pop()
    counts = {_size(op.shape(p), axis_from_end) for p in positions if isinstance(op.inputs[p], Examples)}
    for position in positions:
        value, size = op.inputs[position], _size(op.shape(position), axis_from_end)
        if isinstance(value, (Total, Statistic)) and size != 1:
            return op.unknown("brings different examples together")
        if isinstance(value, Independent) and size not in (None, 1, *counts):
            return op.unknown("has the number of examples of a whole batch in it")
        if isinstance(value, Independent) and has_rows(op, op.texts[position], axis_from_end):
            return op.unknown(ROWS_OF_A_PART)
    return Examples((rank or 0) - axis_from_end, Fraction(0), before, after, repeated, mixed_by, normalised, chosen)


def other_rows(op: Op, position: int, axis: int, count: int | None) -> Unknown | None:
    """Nothing is known where an invariant input has a row for each example of a whole batch, or of a part.

    Args:
        op: the op.
        position: position of the input.
        axis: its axis along which the examples are in other inputs.
        count: static number of entries of the examples there; None where it is open.
    """
    shape = op.shape(position)
    if not isinstance(op.inputs[position], Independent) or shape is None or len(shape) <= axis:
        return None
    if shape[axis] not in (None, 1, count):
        return op.unknown("has the number of examples of a whole batch in it")
    return op.unknown(ROWS_OF_A_PART) if has_rows(op, op.texts[position], len(shape) - axis) else None


def has_rows(op: Op, text: str, axis_from_end: int) -> bool:
    """Whether an invariant tensor is rows of a constant or a variable, which differ, beside a fixed number of examples.

    Args:
        op: the op that takes the tensor.
        text: the tensor.
        axis_from_end: axis of the rows, counted from the last, which is 1.
    """
    shape = op.shape_of(text)
    if shape is None or _size(shape, axis_from_end) in (None, 1):
        return False
    known = op.constant_of(text)
    if known is not None:
        rows = np.moveaxis(np.asarray(known), -axis_from_end, 0)
        return not np.array_equal(rows, np.broadcast_to(rows[:1], rows.shape))
    node = op.producer_of(text)
    if node.op in ops.READS or node.op in ops.REFERENCE_VARIABLES:
        return True
    if node.op in NARY:
        followed = [each for each in node.input if not each.startswith("^")]
    else:
        followed = [node.input[0]] if node.op in LINEAR | UNARY | _CUTS else []
    return any(has_rows(op, each, axis_from_end) for each in followed)


def _size(shape: Shape | None, axis_from_end: int) -> int | None:
    """The size of a tensor along an axis to which it is broadcast; None where that is not known."""
    if shape is None:
        return None
    return 1 if len(shape) < axis_from_end else shape[-axis_from_end]


def bound_of(op: Op) -> Value | None:
    """The value of a number that is cut down to a bound, and was raised to no less before: the bound.

    So programs say how many classes there are, whatever the examples have.

    Args:
        op: a Minimum.
    """
    for position in (0, 1):
        bound, other = op.constant(position), op.producer_of(op.texts[1 - position])
        if bound is not None and bound.ndim == 0 and other.op == "Maximum":
            raised = (op.constant_of(text) for text in other.input[:2])
            if any(least is not None and least.ndim == 0 and least >= bound for least in raised):
                return constant(bound.item())
    return None


def _ones_like(op: Op) -> Value:
    value = op.inputs[0]
    if isinstance(value, Examples):
        return replace(value, power=Fraction(0), repeated=True, mixed_by=None, normalised=False)
    return op.unknown("makes a list like another") if isinstance(value, TensorList) else INVARIANT


def _quantized(op: Op) -> Value:
    """Numbers rounded to some steps between two bounds, which are those of the tensor unless they are given."""
    value = op.inputs[0]
    axis = op.node.attr["axis"].i if "axis" in op.node.attr else -1
    if isinstance(value, Examples) and (not op.node.attr["range_given"].b or axis == value.axis):
        return op.unknown("rounds to steps between the least and the largest value of all examples")
    return elementwise(op)


def _bitcast(op: Op) -> Value:
    """The same bits as numbers of another type; with an axis more or less where the types have other sizes."""
    shape = op.result_shape()
    if shape is None or op.rank(0) != len(shape):
        return op.unknown("takes numbers apart")
    return elementwise(op)


def _looked_up(op: Op) -> Value:
    """What a table has for each key."""
    table, keys, default = op.inputs
    if not isinstance(table, Independent) or not is_invariant(default):
        return op.unknown("looks up in a table that depends on the examples")
    if isinstance(keys, Examples) and keys.power != 0:
        return op.unknown("looks up what depends on the number of examples")
    if isinstance(keys, Examples):
        return replace(keys, power=Fraction(0), normalised=False)
    if isinstance(keys, Independent):
        return INVARIANT if is_invariant(keys) else Independent(None)
    return op.unknown("looks up a value of the whole batch")


def _per_input(op: Op) -> Sequence[Value]:
    return op.inputs


RULES: dict[str, Rule] = {
    **dict.fromkeys(LINEAR | UNARY | NARY, elementwise),
    "Bitcast": _bitcast,
    **dict.fromkeys(
        (
            "QuantizeAndDequantize",
            "QuantizeAndDequantizeV2",
            "QuantizeAndDequantizeV3",
            "QuantizeAndDequantizeV4",
        ),
        _quantized,
    ),
    "LookupTableFindV2": _looked_up,
    "OnesLike": _ones_like,
    "ZerosLike": _ones_like,
}

PARTIAL_RULES: dict[str, Rule] = {"IdentityN": _per_input}
"""Rules of ops of which an output may depend on some inputs only."""
