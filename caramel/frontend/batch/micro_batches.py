"""Batches that a step cuts into equal micro-batches, one after the other.

A worker's part of such a batch is its part of each micro-batch, so that it can cut that as the step does; see
`caramel.dealing`. In the analysis an example is then one row of each micro-batch, and B their number in one: the
batch has K batches of B entries along its axis (`Examples`, whose ``before`` is K), of which the step takes some. Where
B is what K leaves of any number of rows (``n // K``), a remainder stays that no micro-batch has.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import tensorflow as tf

from caramel.dealing import Dealing
from caramel.frontend.batch.domain import (
    BATCH_SIZE,
    Examples,
    Facet,
    Independent,
    MicroBatches,
    Size,
    Value,
    of_sizes,
)
from caramel.frontend.batch.op import MIXES_EXAMPLES, Op
from caramel.frontend.batch.slices import micro_batches_taken
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, behind_identities, data_texts, node_of

_LENGTH_DIVISIONS = ops.op_names("FloorDiv TruncateDiv RealDiv Div")
"""Ops by which a step gets the number of rows of a micro-batch."""

_SHAPES = ops.op_names("Shape ShapeN Size")

_ON_SIZES = ops.op_names("Identity Cast StridedSlice GatherV2 Squeeze Reshape Pack Unpack")
"""Ops between a shape and a size out of it."""

_NUMBER_TYPES = ("float", "int", "uint")
"""Beginnings of the names of the dtypes in which a number of micro-batches may stand."""

_MOST_BETWEEN = 8
"""Number of ops between a shape and a size out of it."""

_MOST_COUNTS = 5
"""How many numbers of micro-batches are tried."""

_MOST_MICRO_BATCHES = 4096
"""The largest number of micro-batches."""


# -- how many there are ------------------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """A number of micro-batches into which a step may cut its batch.

    Attributes:
        number: the number.
        must_divide: whether an op cuts the batch that fails, on one device too, where the number leaves a remainder;
            else the step may divide the length of the batch by it.
    """

    number: int
    must_divide: bool


def possible_counts(
    graph: Graph, library: Library, row_constants: Mapping[tuple[str, str], Value] | None
) -> list[Count]:
    """The numbers of micro-batches into which a step may cut its batch, the likeliest first.

    Args:
        graph: the step.
        library: functions that it calls.
        row_constants: see `caramel.frontend.captured.RawProgram`.
    """
    functions = sorted({name for node in graph for name in library.all_called(node) if name in library})
    found = [c for nodes in (graph, *(library.body(name).graph for name in functions)) for c in _counts_in(nodes)]
    for value in (row_constants or {}).values():
        sizes = value.sizes if isinstance(value, Independent) and value.sizes is not None else ()
        found += [_Found(s.coefficient.denominator, _Way.LENGTH) for s in sizes if s.coefficient and s.power == 1]
    times = Counter(each.number for each in found)
    numbers = [n for n in sorted(times, key=lambda n: (-times[n], n)) if 2 <= n <= _MOST_MICRO_BATCHES]
    together = lcm(*numbers)
    rest = [together] if len(numbers) > 1 and together <= _MOST_MICRO_BATCHES and together not in numbers else []
    return [Count(number, _must_divide(number, found)) for number in (*numbers[: _MOST_COUNTS - len(rest)], *rest)]


class _Way(enum.Enum):
    """How a step may use a number of micro-batches."""

    LENGTH = enum.auto()
    """It divides a length by it."""
    INPUT = enum.auto()
    """It cuts an input into so many parts of one size."""
    OTHER = enum.auto()
    """It cuts something else so."""


@dataclass(frozen=True)
class _Found:
    """A number and how it is used."""

    number: int
    way: _Way


def _must_divide(number: int, found: Sequence[_Found]) -> bool:
    of_length = {each.number for each in found if each.way is _Way.LENGTH and each.number > 1}
    is_of_length = any(number % each == 0 for each in of_length)
    return not is_of_length or any(each.way is _Way.INPUT and each.number % number == 0 for each in found)


def _counts_in(nodes: Graph) -> Iterator[_Found]:
    for node in nodes:
        texts = data_texts(node)
        if node.op in _LENGTH_DIVISIONS and _is_of_a_shape(nodes, texts[0]):
            for number in _numbers(nodes, texts[1]):
                yield _Found(number, _Way.LENGTH)
        elif node.op == "Split" and [*_numbers(nodes, texts[0])] == [0] and not _is_fixed(nodes, texts[1]):
            yield _Found(node.attr["num_split"].i, _way(nodes, texts[1]))
        elif node.op == "Reshape" and not _is_fixed(nodes, texts[0]):
            for number in _leading(nodes, texts[1]):
                yield _Found(number, _way(nodes, texts[0]))


def _is_fixed(nodes: Graph, text: str) -> bool:
    """Whether a tensor is a constant or the value of a variable, which have no rows of a batch."""
    return _behind(nodes, text).op in ("Const", "ReadVariableOp")


def _leading(nodes: Graph, text: str) -> Sequence[int]:
    """The first number of a vector, where it is constant."""
    node = _behind(nodes, text)
    while node.op in ("Pack", "ConcatV2"):
        node = _behind(nodes, text := data_texts(node)[0])
    return [*_numbers(nodes, text)][:1]


def _way(nodes: Graph, text: str) -> _Way:
    node = _behind(nodes, text)
    while node.op == "Cast":
        node = _behind(nodes, data_texts(node)[0])
    return _Way.INPUT if node.op in ops.PLACEHOLDERS else _Way.OTHER


def _is_of_a_shape(nodes: Graph, text: str) -> bool:
    """Whether a number may be the length of a tensor: it comes from a shape, or from outside of the function."""
    node = _behind(nodes, text)
    for _ in range(_MOST_BETWEEN):
        if node.op in _SHAPES:
            return True
        if node.op in ops.PLACEHOLDERS:
            return ops.dtype_name(node.attr["dtype"].type) in ("int32", "int64")
        if node.op not in _ON_SIZES:
            return False
        node = _behind(nodes, data_texts(node)[0])
    return False


def _numbers(nodes: Graph, text: str) -> Iterator[int]:
    """The whole numbers in a constant."""
    node = _behind(nodes, text)
    if node.op == "Cast":
        node = _behind(nodes, data_texts(node)[0])
    if node.op == "Const" and ops.dtype_name(node.attr["dtype"].type).startswith(_NUMBER_TYPES):
        numbers = tf.make_ndarray(node.attr["value"].tensor).ravel().tolist()
        yield from (int(n) for n in numbers if abs(n) <= _MOST_MICRO_BATCHES and n == int(n))


def _behind(nodes: Graph, text: str) -> NodeDef:
    return nodes[node_of(behind_identities(nodes, text))]


def of_batch(dealing: Dealing) -> Value:
    """The value of an input with the rows of a batch.

    Args:
        dealing: how they are dealt to the workers.
    """
    return (
        MicroBatches(dealing.micro_batches) if dealing.leaves_remainder else Examples(0, before=dealing.micro_batches)
    )


def with_micro_batches(
    row_constants: Mapping[tuple[str, str], Value] | None, dealing: Dealing
) -> Mapping[tuple[str, str], Value] | None:
    """Constants that follow from the number of rows, as they follow from that of the rows of a micro-batch.

    Args:
        row_constants: see `caramel.frontend.captured.RawProgram`.
        dealing: how the rows are dealt to the workers.
    """
    if row_constants is None or dealing.micro_batches == 1:
        return row_constants

    def changed(value: Value) -> Value:
        if isinstance(value, Examples):
            return replace(value, before=dealing.micro_batches)
        if not isinstance(value, Independent) or value.sizes is None:
            return value
        sizes = value.sizes
        if any(s.power.denominator != 1 for s in sizes):
            return Independent(None)
        return of_sizes(
            tuple(
                s
                if s.coefficient is None
                else replace(s, coefficient=s.coefficient * dealing.micro_batches ** int(s.power))
                for s in sizes
            )
        )

    return {key: changed(value) for key, value in row_constants.items()}


# -- what a step does with them ----------------------------------------------------------------


def of_micro_batches(op: Op) -> Value:
    """The value of an op that reads a batch of micro-batches and a remainder, or its shape or length."""
    value = op.inputs[0]
    if not isinstance(value, MicroBatches) or any(isinstance(v, MicroBatches) for v in op.inputs[1:]):
        return op.unknown(MIXES_EXAMPLES)
    kind = op.node.op
    if op.keeps_numbers and (value.facet is Facet.VALUES or not op.makes_fractions):
        return value
    if value.facet is Facet.VALUES:
        if kind == "Shape":
            sizes = tuple(Size(None if d is None else Fraction(d)) for d in op.shape(0) or ())
            return replace(value, facet=Facet.SHAPE, sizes=sizes)
        taken = micro_batches_taken(op, value.count, has_remainder=True)
        return op.unknown(MIXES_EXAMPLES) if taken is None else taken
    if value.facet is Facet.SHAPE:
        return _size_out_of(op, value)
    if kind in ("FloorDiv", "TruncateDiv") and op.integer(1) == value.count:
        return of_sizes((BATCH_SIZE,))
    return op.unknown(MIXES_EXAMPLES)


def _size_out_of(op: Op, value: MicroBatches) -> Value:
    """The value of an op that takes sizes out of the shape of such a batch."""
    places: list[int] | None = None
    if op.node.op == "GatherV2" and op.rank(1) in (0, 1):
        places = op.integers(1)
    elif op.node.op == "StridedSlice" and not any(op.node.attr[f"{mask}_mask"].i for mask in ("ellipsis", "new_axis")):
        begin, end, step = (op.integers(p) for p in (1, 2, 3))
        if None not in (begin, end, step) and begin and end and step:
            first = None if op.node.attr["begin_mask"].i else begin[0]
            last = None if op.node.attr["end_mask"].i else end[0]
            every = range(len(value.sizes))
            places = begin[:1] if op.node.attr["shrink_axis_mask"].i else [*every[first : last : step[0]]]
    if places is None:
        return op.unknown(MIXES_EXAMPLES)
    places = [p % len(value.sizes) for p in places]
    if 0 not in places:
        return of_sizes(tuple(value.sizes[p] for p in places))
    is_length = len(places) == 1 and op.result_shape() == ()
    return replace(value, facet=Facet.LENGTH, sizes=()) if is_length else op.unknown(MIXES_EXAMPLES)
