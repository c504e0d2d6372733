"""Entries that are divided between the parts of a table, looked up there, and put together again in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.batch import permutations
from caramel.frontend.batch.coordinates import of_numbers
from caramel.frontend.batch.domain import Examples, Independent, Order, Positions, Size, Value, of_sizes
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule


def _partition(op: Op) -> Value | Sequence[Value]:
    """The entries, or their places, of each number that the entries of another tensor have."""
    data, numbers = op.inputs
    if not isinstance(numbers, Examples) or numbers.axis != 0 or numbers.chosen or numbers.mixed_by or op.rank(1) != 1:
        return op.unknown(MIXES_EXAMPLES)
    chosen = [f"{op.expression_of(op.texts[1])} is {number}" for number in range(op.outputs)]
    if isinstance(data, Order) and op.rank(0) == 1 and data.count == (numbers.before or 0) * (numbers.after or 0):
        return [Positions(numbers, 1, each, op.outputs) for each in chosen]
    if isinstance(data, Examples) and data.axis == 0 and data.arrangement == numbers.arrangement:
        return [of_chosen(data, numbers, each) for each in chosen]
    return op.unknown(MIXES_EXAMPLES)


def of_chosen(table: Examples, mask: Examples, chosen: str) -> Examples:
    """The entries that examples have at the places where a mask says so.

    Args:
        table: the entries of all examples.
        mask: the mask.
        chosen: see `Examples`.
    """
    # Of several batches the entries of each would follow those of the one before.
    before = 1 if mask.before == 1 else None
    return replace(table, before=before, after=1, repeated=False, normalised=False, chosen=chosen)


def stitched(op: Op) -> Value:
    """The entries of all numbers, each at its place."""
    half = len(op.inputs) // 2
    places, parts = op.inputs[:half], op.inputs[half:]
    first = places[0]
    if not isinstance(first, Positions):
        return op.unknown(MIXES_EXAMPLES)
    powers = set()
    for place, part in zip(places, parts):
        if not isinstance(place, Positions) or not isinstance(part, Examples) or part.mixed_by:
            return op.unknown(MIXES_EXAMPLES)
        if (
            place.mask != first.mask
            or part.axis != 0
            or part.arrangement != of_chosen(part, place.mask, place.chosen).arrangement
        ):
            return op.unknown(MIXES_EXAMPLES)
        powers.add(part.power)
    is_all = len(powers) == 1 and first.parts == half == len({p.chosen for p in places if isinstance(p, Positions)})
    mask = first.mask
    return Examples(0, powers.pop(), mask.before, mask.after) if is_all else op.unknown(MIXES_EXAMPLES)


def of_order(op: Op) -> Value | Sequence[Value]:
    """The value of an op that reads the numbers of the entries."""
    if op.node.op == "DynamicPartition":
        return _partition(op)
    if op.node.op in permutations.RULES:
        return permutations.of_shuffled_order(op)
    first = op.inputs[0]
    if op.node.op in ("Shape", "Size") and isinstance(first, Order) and op.rank(0) == 1:
        return of_sizes((Size(first.count, Fraction(1)),))
    return of_numbers(op)


def _numbered(op: Op) -> Value:
    """The numbers from 0 on of all entries that the examples have along an axis; else nothing is known."""
    start, limit, step = (v.sizes[0] if isinstance(v, Independent) and v.sizes else None for v in op.inputs)
    if start is None or limit is None or step is None or limit.coefficient is None or limit.power != 1:
        return op.unknown("is not known to treat each example by itself", unmodelled=True)
    is_all = start.coefficient == 0 and step == Size(Fraction(1))
    return Order(limit.coefficient) if is_all else op.unknown("numbers some of the examples")


RULES: dict[str, Rule] = {"DynamicPartition": _partition, "Range": _numbered}
