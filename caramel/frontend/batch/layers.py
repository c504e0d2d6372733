"""Layers, random numbers, and ops on images and matrices, which treat each example by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Independent,
    Note,
    Statistic,
    Unknown,
    Value,
    is_invariant,
)
from caramel.frontend.batch.elementwise import other_rows
from caramel.frontend.batch.op import Op, Rule
from caramel.frontend.batch.permutations import sorted_by_chance
from caramel.graph.ops import op_names

_LINEAR_OPS = frozenset({"AvgPool", "AvgPool3D", "DepthToSpace", "SpaceToDepth", "MatrixDiag", "MatrixDiagPart"})
"""Ops of this module that are linear, apart from convolutions and Fourier transforms."""

FIRST_AXIS_OPS = {
    **dict.fromkeys(
        op_names(
            "Conv2D Conv3D Conv DepthwiseConv2dNative Dilation2D AvgPool AvgPool3D MaxPool MaxPool3D MaxPoolV2 "
            "LRN FractionalAvgPool FractionalMaxPool MaxPoolWithArgmax DepthToSpace SpaceToDepth "
            "ExtractImagePatches ExtractVolumePatches ResizeArea ResizeBicubic ResizeBilinear "
            "ResizeNearestNeighbor ImageProjectiveTransformV2 ImageProjectiveTransformV3 ScaleAndTranslate "
            "Multinomial SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits "
            "InTopK InTopKV2"
        ),
        0,
    ),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), 2),
    "StatelessMultinomial": 0,
}
"""Position of the input that must have the examples (others may have them, too), by op, for ops that treat the entries
along axis 0 one by one."""

_BY_ROWS = op_names("SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits InTopK InTopKV2")
"""Those among them all of whose inputs have a row for each example, but for one number."""

INNER_AXES_OPS = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopK", "TopKV2", "FFT", "IFFT", "RFFT", "IRFFT", "MatrixDiag"), 1),
    **dict.fromkeys(("HSVToRGB", "RGBToHSV", "MatrixDiagV2", "MatrixDiagV3", "Cross"), 1),
    **dict.fromkeys(
        op_names(
            "FFT2D IFFT2D RFFT2D IRFFT2D MatrixBandPart MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 "
            "MatrixInverse MatrixDeterminant LogMatrixDeterminant Cholesky CholeskyGrad MatrixSolve "
            "MatrixTriangularSolve MatrixSolveLs Qr Svd SelfAdjointEigV2 Eig MatrixSetDiag MatrixSetDiagV2 "
            "MatrixSetDiagV3 MatrixSquareRoot MatrixLogarithm MatrixExponential Lu"
        ),
        2,
    ),
    **dict.fromkeys(("FFT3D", "IFFT3D", "RFFT3D", "IRFFT3D"), 3),
    **dict.fromkeys(("AdjustContrastv2", "AdjustHue", "AdjustSaturation"), 3),
}
"""Number of axes, by op, for ops on the last axes of their inputs."""

RANDOM_OPS = op_names(
    "RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal StatelessRandomNormal "
    "StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt "
    "StatelessRandomUniformIntV2 StatelessTruncatedNormal StatelessTruncatedNormalV2 "
    "StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 ParameterizedTruncatedNormal "
    "RandomPoissonV2 RandomGamma"
)
"""Ops that make a tensor of random numbers; its shape is their first input."""

GENERATOR_OPS = op_names("StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformInt")
"""Ops that make a tensor of random numbers from a generator's state; its shape is their third input."""


def _by_first_axis(op: Op) -> Value | Sequence[Value]:
    needed = FIRST_AXIS_OPS[op.node.op]
    examples = [v for v in op.inputs if isinstance(v, Examples)]
    if not isinstance(op.inputs[needed], Examples):
        return op.unknown("does not work on one example after the other here")
    is_by_rows = op.node.op in _BY_ROWS or op.node.op.startswith("ImageProjective")
    if any(v.axis != 0 for v in examples) or len({v.arrangement for v in examples}) != 1:
        return op.unknown("brings different examples together")
    if len(examples) > 1 and not is_by_rows:
        return op.unknown("has examples in place of what is the same for all")
    if op.node.op in _BY_ROWS:
        shape = op.shape(needed)
        count = None if shape is None else shape[0]
        if unknown := next(filter(None, (other_rows(op, p, 0, count) for p in range(len(op.inputs)))), None):
            return unknown
    if "ksize" in op.node.attr and list(op.node.attr["ksize"].list.i)[:1] not in ([1], []):
        return op.unknown("takes several examples together")
    value = _own(op, examples, linear=op.node.op in _LINEAR_OPS or op.node.op.startswith(("Conv", "Depthwise")))
    if op.node.op.startswith("Fractional"):
        return [value, INVARIANT, INVARIANT]
    if "include_batch_in_index" in op.node.attr and op.node.attr["include_batch_in_index"].b:
        return [value, op.unknown("numbers the entries of all examples")]
    return value


def _own(op: Op, examples: Sequence[Examples], linear: bool) -> Value:
    """The value of a function of each example by itself and of inputs that do not depend on the examples."""
    mixed_by = next((v.mixed_by for v in examples if v.mixed_by), None)
    if any(not isinstance(v, (Examples, Independent)) for v in op.inputs):
        return op.unknown("puts a sum or mean over the batch into the values of single examples")
    scaled = [v.power for v in examples if v.power != 0]
    # Gradients of convolutions have the shape of their result as the first input.
    sized = op.inputs[1:] if "Backprop" in op.node.op else op.inputs
    others = [v for v in sized if isinstance(v, Independent) and v.power != 0]
    if others or (scaled and not (linear and len(examples) == 1)):
        return op.unknown("is not linear in values that are divided by, or multiplied with, the number of examples")
    return replace(examples[0], repeated=False, mixed_by=mixed_by, normalised=False)


def _space_and_batch(op: Op) -> Value:
    """Images of the entries at each place in the blocks of an image, batch after batch; and the inverse."""
    value, blocks = op.inputs[0], op.integers(1)
    if not isinstance(value, Examples) or value.axis != 0 or blocks is None or value.before is None:
        return op.unknown("brings different examples together")
    count = math.prod(blocks)
    if op.node.op == "SpaceToBatchND":
        return replace(value, before=value.before * count, repeated=False)
    if value.before % count != 0:
        return op.unknown("brings different examples together")
    return replace(value, before=value.before // count, repeated=False)


def _by_inner_axes(op: Op) -> Value | Sequence[Value]:
    inner = INNER_AXES_OPS[op.node.op]
    if (permuted := sorted_by_chance(op, RANDOM_OPS | GENERATOR_OPS)) is not None:
        return permuted
    examples = [(p, v) for p, v in enumerate(op.inputs) if isinstance(v, Examples)]
    places = set()
    for position, value in examples:
        rank = op.rank(position)
        if rank is None:
            return op.unknown("has a tensor of unknown rank")
        if position == 0 and value.axis >= rank - inner:
            return op.unknown("compares the examples with each other")
        places.add((value.axis, value.arrangement))
    if not isinstance(op.inputs[0], Examples) or len(places) != 1:
        return op.unknown("brings different examples together")
    return _own(op, [v for _, v in examples], linear=op.node.op in _LINEAR_OPS or "FFT" in op.node.op)


def _batch_norm(op: Op) -> Value | Sequence[Value]:
    training = op.node.attr["is_training"].b
    # In training the others are moving averages: they only go into what becomes of these.
    value, *others = op.inputs[:3] if training else op.inputs
    if unknown := next((v for v in (value, *others) if isinstance(v, Unknown)), None):
        return unknown
    if any(not is_invariant(v) for v in others):
        return op.unknown("has parameters that depend on the batch")
    if all(is_invariant(v) for v in op.inputs):
        return INVARIANT
    if not isinstance(value, Examples) or value.axis != 0 or value.power != 0:
        return op.unknown("normalises values that are not those of single examples")
    if training:
        op.notes[op.node.name] = Note.STATISTICS
    statistic: Value = Statistic() if training else INVARIANT
    if not all(is_invariant(v) for v in op.inputs[3:]):
        statistic = op.unknown("has moving averages that depend on the batch, or differ between workers")
    return [replace(value, repeated=False, normalised=False), *[statistic] * (op.outputs - 1)]


def _random(op: Op) -> Value:
    place = 2 if op.node.op in GENERATOR_OPS else 0
    shape, others = op.inputs[place], [*op.inputs[:place], *op.inputs[place + 1 :]]
    if not isinstance(shape, Independent) or any(not is_invariant(v) for v in others):
        return op.unknown("draws from a distribution that depends on the examples")
    axes = [a for a, s in enumerate(shape.sizes or ()) if s.power != 0]
    if shape.power == 0:
        return INVARIANT
    if shape.sizes is None or len(axes) != 1 or shape.sizes[axes[0]].power != 1:
        return op.unknown("makes a tensor whose size does not scale with the number of examples")
    coefficient = shape.sizes[axes[0]].coefficient
    if coefficient is not None and coefficient.denominator != 1:
        return op.unknown("makes a tensor whose size does not scale with the number of examples")
    return Examples(axes[0], Fraction(0), 1, None if coefficient is None else int(coefficient))


def _advanced(op: Op) -> Value:
    """The state of a generator after it has advanced by the amount to be drawn."""
    return (
        INVARIANT
        if all(isinstance(v, Independent) for v in op.inputs)
        else op.unknown("moves a generator as the examples say")
    )


RULES: dict[str, Rule] = {
    **dict.fromkeys(("RngReadAndSkip", "RngSkip"), _advanced),
    **dict.fromkeys(FIRST_AXIS_OPS, _by_first_axis),
    **dict.fromkeys(INNER_AXES_OPS, _by_inner_axes),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), _space_and_batch),
    **dict.fromkeys(RANDOM_OPS | GENERATOR_OPS, _random),
}

PARTIAL_RULES: dict[str, Rule] = dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm)
"""Rules of ops of which an output may depend on some inputs only."""
