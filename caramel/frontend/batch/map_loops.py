"""Loops with one round for each example, as `tf.map_fn` makes them: their counters, and what they index."""

from __future__ import annotations

from fractions import Fraction

import tensorflow as tf

from caramel.frontend.batch.domain import Free, Size
from caramel.frontend.batch.op import Op
from caramel.graph.functions import Body
from caramel.graph.graph import NodeDef, data_texts, node_of

_EACH = (Size(Fraction(1), Fraction(1)),)
_INDEXED = frozenset({"TensorListGetItem", "TensorListSetItem"})


def counters(condition: Body, body: Body, loop: Op) -> set[int] | None:
    """Which variables of a loop count its rounds from 0 to the number of examples.

    Args:
        condition: the function that says whether it goes on.
        body: what a round does.
        loop: the loop.

    Returns:
        Their positions; None for a loop that has other rounds.
    """
    found = set()
    for node in condition.inner:
        if node.op in ("LogicalAnd", "Identity", "Const"):
            continue
        places = [condition.argument_of(text) for text in data_texts(node)]
        if node.op != "Less" or None in places:
            return None
        counter, limit = (place for place in places if place is not None)
        sizes = loop.inputs[limit]
        if not isinstance(sizes, Free) or sizes.sizes != _EACH or body.argument_of(body.results[limit]) != limit:
            return None
        if loop.integer(counter) != 0 or not _adds_one(body, counter):
            return None
        found.add(counter)
    return found or None


def _adds_one(body: Body, position: int) -> bool:
    node = _behind(body, body.results[position])
    if node.op not in ("Add", "AddV2"):
        return False
    step = _behind(body, node.input[1])
    return (
        body.argument_of(node.input[0]) == position
        and step.op == "Const"
        and bool(tf.make_ndarray(step.attr["value"].tensor) == 1)
    )


def _behind(body: Body, text: str) -> NodeDef:
    node = body.graph[node_of(text)]
    while node.op == "Identity":
        node = body.graph[node_of(node.input[0])]
    return node


def written(body: Body, positions: set[int]) -> set[int]:
    """Which variables of a loop are lists that get one entry in each round, at one of these positions."""
    found = set()
    for place, text in enumerate(body.results):
        node = _behind(body, text)
        own = node.op == "TensorListSetItem" and body.argument_of(node.input[0]) == place
        if own and body.argument_of(node.input[1]) in positions:
            found.add(place)
    return found


def reads_and_writes_at(body: Body, positions: set[int]) -> bool:
    """Whether all lists are read and written at the entry of the round."""
    return all(body.argument_of(node.input[1]) in positions for node in body.inner if node.op in _INDEXED)
