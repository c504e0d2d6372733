"""Constants that stand for the number of examples, in a step that was traced for a fixed number of them.

Where shapes are static, TensorFlow puts the number of examples into a graph as an ordinary constant. A worker's part
has fewer examples than the batch, so that such a constant is another number there than on one device. Which ones they
are, and what they are there, is seen by tracing the step for the whole batch as well: they are those that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import zip_longest

import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.frontend.attributes import PART_ATTRIBUTE
from caramel.frontend.batch.domain import Examples, Independent, Size, Value, of_sizes
from caramel.frontend.batch.sizes import MAX_ENTRIES
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, copied
from caramel.graph.nodes import settings_of

_POWERS = (1, 2, -1, -2)
"""Powers of the number of examples that are looked for."""

_DENOMINATOR = 10**6
"""Largest denominator of a coefficient; a constant has it only rounded."""


def row_constants(graph: Graph, whole: Graph, rows: int, parts: int) -> Mapping[tuple[str, str], Value]:
    """The abstract values of the constants that follow from the number of examples.

    Args:
        graph: the step, traced for the examples of a part.
        whole: the same step, traced for those of all parts.
        rows: number of examples of a part.
        parts: number of parts.

    Returns:
        The value by (name of the function, name of the node); "" for the graph itself.

    Raises:
        CaptureError: the traces have other ops, so nothing can be told.
    """
    found: dict[tuple[str, str], Value] = {}
    libraries = Library(graph), Library(whole)
    seen: set[tuple[str, str]] = set()
    waiting: list[tuple[str, Iterable[NodeDef], Iterable[NodeDef]]] = [("", graph, whole)]
    while waiting:
        function, nodes, others = waiting.pop()
        for node, twin in zip_longest(nodes, others):  # in the order in which they were made: names may be counted on
            if node is None or twin is None:
                raise _other_step((node or twin).name)
            if twin.op != node.op or settings_of(node) != settings_of(twin):
                raise _other_step(node.name)
            if node.op == "Const" and (value := _value(node, twin, rows, parts)) is not None:
                found[function, node.name] = value
            for pair in zip(_functions(node), _functions(twin), strict=True):
                if pair not in seen and all(name in library for name, library in zip(pair, libraries)):
                    seen.add(pair)
                    first, second = (library.body(name).graph for name, library in zip(pair, libraries))
                    waiting.append((pair[0], first, second))
    return found


def _other_step(name: str) -> CaptureError:
    return CaptureError(
        f"op {name!r} is there, or is as it is, for one number of examples and not for another: the parts of several "
        "workers have other numbers than the batch of one device"
    )


def _functions(node: NodeDef) -> list[str]:
    return [
        function.name
        for _, value in sorted(node.attr.items())
        for function in ([value.func] if value.HasField("func") else value.list.func)
    ]


def of_part(graph: Graph, whole: Graph, found: Mapping[tuple[str, str], Value]) -> Graph:
    """The graph in which nodes say that they follow from the number of a part's examples.

    Args:
        graph: the step, traced for the examples of a part.
        whole: the same step, traced for those of all parts.
        found: constants that follow from the number, as in `row_constants`.
    """
    library = Library(graph)
    functions = {function for function, _ in found if function}
    changed: dict[str, NodeDef] = {}
    for node, twin in zip(graph, whole, strict=True):
        if ("", node.name) in found:
            changed[node.name] = copied(node)
            changed[node.name].attr[PART_ATTRIBUTE].CopyFrom(twin.attr["value"])
        elif functions and not functions.isdisjoint(library.all_called(node)):
            changed[node.name] = copied(node)
            changed[node.name].attr[PART_ATTRIBUTE].b = True
    return graph.replaced(changed)


def _value(node: NodeDef, twin: NodeDef, rows: int, parts: int) -> Value | None:
    """The abstract value of a constant that differs; None where it does not."""
    first, second = (tf.make_ndarray(each.attr["value"].tensor) for each in (node, twin))
    if first.shape == second.shape and first.dtype == second.dtype and _are_equal(first, second):
        return None
    if _are_the_same_for_each(first, second, rows, parts):
        return Examples(0, repeated=True)
    if first.shape != second.shape or first.ndim > 1 or first.size > MAX_ENTRIES or first.dtype.kind not in "iuf":
        return Independent(None)
    sizes = [_size(float(a), float(b), rows, parts) for a, b in zip(first.ravel(), second.ravel())]
    return Independent(None) if None in sizes else of_sizes(tuple(size for size in sizes if size is not None))


def _are_the_same_for_each(first: np.ndarray, second: np.ndarray, rows: int, parts: int) -> bool:
    """Whether a constant has the same entries for each example, such as zeros."""
    if (
        0 in (first.ndim, second.ndim)
        or first.shape[1:] != second.shape[1:]
        or (len(first), len(second)) != (rows, parts * rows)
    ):
        return False
    return bool((first == first[:1]).all() and (second == first[:1]).all())


def _are_equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first.tobytes() == second.tobytes() if first.dtype.kind != "O" else bool(np.array_equal(first, second))


def _size(first: float, second: float, rows: int, parts: int) -> Size | None:
    """A number by two of its values, as a multiple of a power of the number of examples."""
    if first == second:
        return Size(_fraction(first)) if math.isfinite(first) else None
    for power in _POWERS:
        if first and math.isclose(second, first * parts**power, rel_tol=1e-6):
            return Size(_fraction(first * float(rows) ** -power), Fraction(power))
    return None


def _fraction(number: float) -> Fraction:
    return Fraction(number).limit_denominator(_DENOMINATOR)
