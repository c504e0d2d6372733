"""Candidate samplers, which draw classes for a batch, and sparse entries of single examples: hits, crossed features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    INVARIANT,
    Entries,
    Examples,
    Followed,
    Independent,
    Size,
    Value,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule
from caramel.graph.ops import op_names

_SAMPLERS = op_names(
    "LogUniformCandidateSampler UniformCandidateSampler LearnedUnigramCandidateSampler "
    "FixedUnigramCandidateSampler ThreadUnsafeUnigramCandidateSampler AllCandidateSampler"
)
"""Ops that draw classes, whatever the true classes of the examples are: the same noise wherever it is drawn."""

_MOVES = op_names("Identity Cast Reshape Squeeze ExpandDims")
"""Ops that leave each entry what it is."""


def _sampler(op: Op) -> Value | Sequence[Value]:
    """The drawn classes, the expected count of each true class, and that of each drawn class."""
    true_classes = op.inputs[0]
    if isinstance(true_classes, Examples) and true_classes.axis == 0 and true_classes.power == 0:
        return [
            INVARIANT,
            Examples(0, Fraction(0), *true_classes.arrangement[:2], chosen=true_classes.chosen),
            INVARIANT,
        ]
    return [INVARIANT] * 3 if is_invariant(true_classes) else op.unknown(MIXES_EXAMPLES)


def _accidental_hits(op: Op) -> Value:
    """The places of drawn classes among the true classes of the examples."""
    true_classes, drawn = op.inputs
    is_plain = isinstance(true_classes, Examples) and true_classes.is_plain and true_classes.power == 0
    return Entries() if is_plain and is_invariant(drawn) else op.unknown(MIXES_EXAMPLES)


def _crossed(op: Op) -> Value | Sequence[Value]:
    """Combinations of what each example has in several columns: their places, their values, and the shape of it all."""
    columns, widths = op.inputs, [op.shape(position) for position in range(len(op.inputs))]
    is_dense = op.node.attr["N"].i == 0
    examples = [value for value in columns if isinstance(value, Examples) and value.is_plain and value.power == 0]
    if not is_dense or len(examples) != len(columns) or any(v.mixed_by for v in examples):
        return op.unknown(MIXES_EXAMPLES)
    width = math.prod((shape or (None, None))[1] or 0 for shape in widths)  # 0 for one that is not static
    return [Entries(), Entries(), of_sizes((BATCH_SIZE, Size(Fraction(width) if width else None)))]


def _to_dense(op: Op) -> Value:
    """A tensor with some entries of each example, and one number everywhere else."""
    places, sizes, values, default = op.inputs
    if not isinstance(places, Entries) or not isinstance(values, Entries) or not is_invariant(default):
        return op.unknown(MIXES_EXAMPLES)
    powers = [s.power for s in sizes.sizes] if isinstance(sizes, Independent) and sizes.sizes else []
    return Examples(0) if powers[:1] == [1] and not any(powers[1:]) else op.unknown(MIXES_EXAMPLES)


def of_entries(op: Op) -> Value:
    """The value of an op of which an input has entries of single examples."""
    if op.node.op == "SparseToDense":
        return _to_dense(op)
    first, *others = op.inputs
    if op.node.op in _MOVES and isinstance(first, Entries) and all(is_invariant(v) for v in others):
        return first
    if op.node.op == "ConcatV2" and all(isinstance(v, Entries) for v in op.inputs[:-1]) and is_invariant(op.inputs[-1]):
        return first
    return op.unknown(MIXES_EXAMPLES)


def of_followed(op: Op) -> Value:
    """The value of an op of which an input has examples and other entries behind them."""
    kind, first = op.node.op, op.inputs[0]
    if kind == "ResourceGather" or (kind == "GatherV2" and isinstance(op.inputs[1], Followed)):
        is_by_rows = kind == "ResourceGather" or (is_invariant(first) and op.integer(2) == 0)
        places = op.inputs[1]
        if is_by_rows and isinstance(places, Followed) and not op.node.attr["batch_dims"].i:
            return Followed(replace(places.examples, power=Fraction(0), repeated=False, normalised=False))
    if kind in ("Identity", "Cast") and isinstance(first, Followed):
        return first
    if kind == "Slice" and isinstance(first, Followed):
        return _part(op, first.examples)
    return op.unknown(MIXES_EXAMPLES)


def _part(op: Op, examples: Examples) -> Value:
    """The examples in front, or what is behind them."""
    begin, size = op.inputs[1:]
    if not isinstance(begin, Independent) or not isinstance(size, Independent) or not begin.sizes or not size.sizes:
        return op.unknown(MIXES_EXAMPLES)
    count = Size(Fraction((examples.before or 0) * (examples.after or 0)), Fraction(1))
    if all(s.power == 0 for s in (*begin.sizes[1:], *size.sizes[1:])):
        if begin.sizes[0] == Size(Fraction(0)) and size.sizes[0] == count:
            return examples
        if begin.sizes[0] == count and size.sizes[0].power == 0:
            return INVARIANT
    return op.unknown(MIXES_EXAMPLES)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAMPLERS, _sampler),
    "ComputeAccidentalHits": _accidental_hits,
    "SparseCross": _crossed,
}
