"""Tensors with as many entries of each example as it has words, say: split texts, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    Examples,
    Independent,
    Kind,
    Tokens,
    Total,
    Value,
    is_invariant,
    of_sizes,
)
from caramel.frontend.batch.elementwise import LINEAR, NARY, UNARY
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op, Rule
from caramel.graph.ops import op_names

_LONGEST = "fills up to the longest of its examples, and the part of a worker may have no such one: give a length"
"""Predicate, for messages, of an op that makes a tensor of texts as long as the longest."""

_EXAMPLES = of_sizes((BATCH_SIZE,))
"""The number of examples."""

_OF_NUMBERS = op_names("Size Shape Max Range Pack StridedSlice Reshape ConcatV2 ExpandDims") | LINEAR | NARY
"""Ops that make further numbers of entries of such numbers."""


def _split(op: Op) -> Value | Sequence[Value]:
    """The words of each text, with the number of the text and the place in it; and how many there are."""
    if not _is_a_list(op, 0) or not all(map(is_invariant, op.inputs[1:])):
        return op.unknown(MIXES_EXAMPLES)
    return [Tokens(Kind.COORDINATES), Tokens(Kind.VALUES), Tokens(Kind.SHAPE)]


def _decoded(op: Op) -> Value | Sequence[Value]:
    """Where the characters of each text end, and the characters."""
    if not _is_a_list(op, 0):
        return op.unknown(MIXES_EXAMPLES)
    return [Tokens(Kind.ENDS), Tokens(Kind.VALUES), *[Tokens(Kind.VALUES)] * (op.outputs - 2)]


def _is_a_list(op: Op, position: int) -> bool:
    """Whether an input has one entry for each example, and no other axis."""
    value = op.inputs[position]
    return isinstance(value, Examples) and value.is_plain and value.power == 0 and op.rank(position) == 1


def of_tokens(op: Op) -> Value | Sequence[Value]:
    """The value of an op that reads entries of which each example has its own number."""
    rule = _READERS.get(op.node.op)
    if rule is not None:
        return rule(op)
    kinds = [value.kind if isinstance(value, Tokens) else None for value in op.inputs]
    if Kind.NUMBER in kinds and op.node.op in _OF_NUMBERS and _are_numbers(op):
        return Tokens(Kind.NUMBER)
    first = op.inputs[0]
    if op.node.op in ("Size", "Shape", "Max") and all(map(is_invariant, op.inputs[1:])):
        return Tokens(Kind.NUMBER)
    if op.node.op == "StridedSlice" and isinstance(first, Tokens):
        return _column(op, first)
    if isinstance(first, Tokens) and first.kind in (Kind.ROWS, Kind.ENDS, Kind.LENGTHS):
        return _of_rows(op, first)
    return _of_values(op, kinds)


def _are_numbers(op: Op) -> bool:
    return all(
        isinstance(value, Independent) or (isinstance(value, Tokens) and value.kind is Kind.NUMBER)
        for value in op.inputs
    )


def _column(op: Op, tokens: Tokens) -> Value:
    """The number of each entry's example, or its place there; of the shape of all the number of examples."""
    begin, end, strides = (op.integers(position) for position in (1, 2, 3))
    if begin is None or end is None or strides is None or any(stride != 1 for stride in strides):
        return op.unknown(MIXES_EXAMPLES)
    shrinks, is_open = op.node.attr["shrink_axis_mask"].i, op.node.attr["begin_mask"].i & op.node.attr["end_mask"].i
    if tokens.kind is Kind.SHAPE and len(begin) == 1 and shrinks == 1:
        return _EXAMPLES if begin[0] == 0 else Tokens(Kind.NUMBER)
    if tokens.kind is Kind.COORDINATES and len(begin) == 2 and shrinks == 2 and is_open & 1:
        return Tokens(Kind.ROWS if begin[1] == 0 else Kind.VALUES)
    return op.unknown(MIXES_EXAMPLES)


def _of_rows(op: Op, tokens: Tokens) -> Value:
    """What says which entries are whose, in one form or another."""
    kind = op.node.op
    if kind in ("Identity", "Cast") and not op.casts_to_bool:
        return tokens
    if tokens.kind is Kind.ROWS and kind == "Reshape" and op.integers(1) == [-1]:
        return tokens
    if tokens.kind is Kind.LENGTHS and kind == "Cumsum" and op.integer(1) == 0:
        is_plain = not op.node.attr["exclusive"].b and not op.node.attr["reverse"].b
        return Tokens(Kind.ENDS) if is_plain else op.unknown(MIXES_EXAMPLES)
    return op.unknown(MIXES_EXAMPLES)


def _joined(op: Op) -> Value:
    """A zero in front of where the entries of each example end: where they begin."""
    first, *others, axis = op.inputs
    is_ends = len(others) == 1 and isinstance(others[0], Tokens) and others[0].kind is Kind.ENDS
    if is_ends and op.integers(0) == [0] and op.integer(2) == 0:
        return Tokens(Kind.ENDS)
    numbers = all(isinstance(v, Independent) or v == Tokens(Kind.NUMBER) for v in (first, *others, axis))
    return Tokens(Kind.NUMBER) if numbers else op.unknown(MIXES_EXAMPLES)


def _counted(op: Op) -> Value:
    """How many entries each example has, where each entry says whose it is."""
    rows, size, weights = op.inputs
    is_rows = isinstance(rows, Tokens) and rows.kind is Kind.ROWS
    is_size = isinstance(size, (Independent, Tokens))
    return Tokens(Kind.LENGTHS) if is_rows and is_size and is_invariant(weights) else op.unknown(MIXES_EXAMPLES)


def _counted_values(op: Op) -> Value:
    """How often each example has each of some numbers."""
    ends, values, size, weights = op.inputs
    shape = op.result_shape()
    is_told = isinstance(ends, Tokens) and ends.kind is Kind.ENDS and isinstance(size, (Independent, Tokens))
    is_of_values = isinstance(values, Tokens) and values.kind is Kind.VALUES and is_invariant(weights)
    if not is_told or not is_of_values:
        return op.unknown(MIXES_EXAMPLES)
    return Examples(0) if shape is not None and len(shape) == 2 and shape[1] is not None else op.unknown(_LONGEST)


def _grams(op: Op) -> Value | Sequence[Value]:
    """Neighbouring entries of each example, joined, and where those of each end."""
    values, ends = op.inputs
    if values == Tokens(Kind.VALUES) and ends == Tokens(Kind.ENDS):
        return [Tokens(Kind.VALUES), Tokens(Kind.ENDS)]
    return op.unknown(MIXES_EXAMPLES)


def _to_tensor(op: Op) -> Value:
    """A tensor with the entries of each example, filled up."""
    _, values, default, *partition = op.inputs
    types = [text.decode() for text in op.node.attr["row_partition_types"].list.s]
    told = {
        ("FIRST_DIM_SIZE", "VALUE_ROWIDS"): [_EXAMPLES, Tokens(Kind.ROWS)],
        ("ROW_SPLITS",): [Tokens(Kind.ENDS)],
    }.get(tuple(types))
    if values != Tokens(Kind.VALUES) or not is_invariant(default) or told is None or told != partition:
        return op.unknown(MIXES_EXAMPLES)
    shape = op.result_shape()
    is_fixed = shape is not None and len(shape) > 1 and None not in shape[1:]
    return Examples(0) if is_fixed else op.unknown(_LONGEST)


def _of_values(op: Op, kinds: Sequence[Kind | None]) -> Value:
    """What an op makes of each entry by itself."""
    if op.node.op == "UnicodeEncode":
        is_of_one = kinds[0] is Kind.VALUES and isinstance(op.inputs[1], Tokens) and kinds[1] is Kind.NUMBER
        return Tokens(Kind.VALUES) if is_of_one else op.unknown(MIXES_EXAMPLES)
    if op.node.op in ("ExpandDims", "Reshape") and kinds[0] is Kind.VALUES:
        is_kept = isinstance(op.inputs[1], Independent) or kinds[1] is Kind.NUMBER
        return Tokens(Kind.VALUES) if is_kept else op.unknown(MIXES_EXAMPLES)
    is_of_each = op.node.op in _OF_EACH and all(
        kind is Kind.VALUES or (is_invariant(value) and op.rank(position) == 0)
        for position, (kind, value) in enumerate(zip(kinds, op.inputs))
    )
    return Tokens(Kind.VALUES) if is_of_each else op.unknown(MIXES_EXAMPLES)


_OF_EACH: frozenset[str] = LINEAR | UNARY | NARY | {"LookupTableFindV2"}

_READERS: dict[str, Rule] = {
    "ConcatV2": _joined,
    "DenseBincount": _counted,
    "RaggedBincount": _counted_values,
    "StringNGrams": _grams,
    "RaggedTensorToTensor": _to_tensor,
}


def _counts(op: Op) -> Value:
    """How often each example has each of some numbers, where all have as many; or how often all examples have them."""
    values, size, weights = op.inputs
    if not isinstance(values, Examples) or values.axis != 0 or values.power != 0 or not is_invariant(size):
        return op.unknown(MIXES_EXAMPLES)
    if op.rank(0) == 1 and not values.repeated and not op.node.attr["binary_output"].b:
        if isinstance(weights, Examples) and (weights.axis, weights.arrangement) == (0, values.arrangement):
            return Total(weights.power, mixed_by=values.mixed_by or weights.mixed_by)
        return Total(Fraction(0), mixed_by=values.mixed_by) if op.shape(2) == (0,) else op.unknown(MIXES_EXAMPLES)
    if op.rank(0) != 2 or not is_invariant(weights):
        return op.unknown(MIXES_EXAMPLES)
    return Examples(0, before=values.before, after=values.after, mixed_by=values.mixed_by, chosen=values.chosen)


RULES: dict[str, Rule] = {
    "DenseBincount": _counts,
    "StringSplitV2": _split,
    "UnicodeDecode": _decoded,
    "UnicodeDecodeWithOffsets": _decoded,
}
