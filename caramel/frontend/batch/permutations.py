"""Examples that a step brings into an order of chance: each worker does so with its own.

A loss that pairs each example with one that chance has chosen (mixup, negatives from the batch) is one draw of many,
as it is with dropout; several workers draw each from their own part of the batch.
"""

from __future__ import annotations

from fractions import Fraction

from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    Examples,
    Note,
    Order,
    Permutation,
    Size,
    Value,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule
from caramel.graph.ops import op_names

_SHUFFLES = op_names("RandomShuffle StatelessShuffle")
"""Ops that bring the entries along the first axis into an order of chance."""

_KEEPS_CHANCE = op_names("Identity Neg Cast Mul Add AddV2 Sub StopGradient")
"""Ops that leave random numbers random, where all else is the same for all examples."""

_MOST_STEPS = 10
"""Ops between random numbers and what is sorted, at the most."""


def _shuffled(op: Op) -> Value:
    """The examples, or their numbers, in an order of chance."""
    value = op.inputs[0]
    if not all(is_invariant(v) for v in op.inputs[1:]):
        return op.unknown(MIXES_EXAMPLES)
    if _is_one_each(op, value):
        op.notes[op.node.name] = Note.ORDER
        return value
    return op.unknown(MIXES_EXAMPLES)


def of_shuffled_order(op: Op) -> Value:
    """The numbers of the examples in an order of chance."""
    number = op.inputs[0]
    if isinstance(number, Order) and number.count == 1 and op.rank(0) == 1 and all(map(is_invariant, op.inputs[1:])):
        op.notes[op.node.name] = Note.ORDER
        return Permutation()
    return op.unknown(MIXES_EXAMPLES)


def sorted_by_chance(op: Op, random_ops: frozenset[str]) -> list[Value] | None:
    """The values of a TopKV2 that sorts one random number for each example, as `tf.argsort` does; None for any other.

    Args:
        op: the op.
        random_ops: ops that draw.
    """
    is_all = op.node.op == "TopKV2" and op.inputs[1] == of_sizes((BATCH_SIZE,)) and op.rank(0) == 1
    if not is_all or not _is_one_each(op, op.inputs[0]) or not _is_chance(op, op.texts[0], random_ops):
        return None
    op.notes[op.node.name] = Note.ORDER
    return [op.unknown("sorts random numbers"), Permutation()]


def of_permutation(op: Op) -> Value:
    """The value of an op that reads the numbers of the examples in an order of chance."""
    kind, first = op.node.op, op.inputs[0]
    if kind == "GatherV2" and isinstance(op.inputs[1], Permutation) and op.rank(1) == 1:
        is_by_rows = op.integer(2) == 0 and not op.node.attr["batch_dims"].i
        if is_by_rows and isinstance(first, Order) and first.count == 1:
            return op.inputs[1]
        return first if is_by_rows and _is_one_each(op, first) else op.unknown(MIXES_EXAMPLES)
    if not isinstance(first, Permutation):
        return op.unknown(MIXES_EXAMPLES)
    if kind in ("Shape", "Size"):
        return of_sizes((Size(Fraction(1), Fraction(1)),))
    return first if op.keeps_numbers or kind in (*_SHUFFLES, "InvertPermutation") else op.unknown(MIXES_EXAMPLES)


def _is_one_each(op: Op, value: Value) -> bool:
    """Whether a tensor has one entry for each example along its first axis."""
    return isinstance(value, Examples) and value.is_plain and not value.mixed_by


def _is_chance(op: Op, text: str, random_ops: frozenset[str], steps: int = _MOST_STEPS) -> bool:
    """Whether a tensor has random numbers, of which no example knows."""
    made = op.producer_of(text)
    if made.op in random_ops:
        return True
    if made.op not in _KEEPS_CHANCE or steps == 0:
        return False
    texts = [t for t in made.input if not t.startswith("^")]
    varying = [t for t in texts if not is_invariant(op.value_of(t))]
    return len(varying) == 1 and _is_chance(op, varying[0], random_ops, steps - 1)


RULES: dict[str, Rule] = dict.fromkeys(_SHUFFLES, _shuffled)
