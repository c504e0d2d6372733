"""What loops count, and what they gather: rounds, a fixed number or one for each example, and lists that they index."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from caramel.frontend.batch.domain import BATCH_SIZE, Independent
from caramel.frontend.batch.op import Op
from caramel.graph.functions import Body
from caramel.graph.graph import NodeDef, data_texts, node_of

_INDEXED_LIST_OPS = frozenset({"TensorListGetItem", "TensorListSetItem"})
"""Ops that read or write one entry of a list, at an index."""


def counters(condition: Body, body: Body, loop: Op) -> set[int] | None:
    """The loop variables that count the rounds from 0 to the number of examples.

    Args:
        condition: function that says whether the loop goes on.
        body: function that computes one round.
        loop: the loop.

    Returns:
        Positions of the variables; None for a loop that does not have one round for each example.
    """
    positions = set()
    for node in _conditions(condition):
        if node is None:
            return None
        places = [condition.argument_of(text) for text in data_texts(node)]
        if node.op != "Less" or None in places:
            return None
        counter, limit = (place for place in places if place is not None)
        sizes = loop.inputs[limit]
        if (
            not isinstance(sizes, Independent)
            or sizes.sizes != (BATCH_SIZE,)
            or body.argument_of(body.results[limit]) != limit
        ):
            return None
        if loop.integer(counter) != 0 or not _adds_one(body, counter, loop):
            return None
        positions.add(counter)
    return positions or None


def limits(condition: Body, body: Body, loop: Op) -> dict[int, int]:
    """The loop variables that count from zero or more, with constant numbers below which they are in each round.

    Args:
        condition: function that says whether the loop goes on.
        body: function that computes one round.
        loop: the loop.

    Returns:
        The number by the position of the variable.
    """
    found: dict[int, int] = {}
    for node in _conditions(condition):
        if node is None or node.op != "Less":
            continue
        counter, limit = data_texts(node)
        position, place = condition.argument_of(counter), condition.argument_of(limit)
        if position is None or not _adds_one(body, position, loop):
            continue
        if place is None:
            constant = _behind(condition, limit)
            limits_it = constant.op == "Const" and tf.as_dtype(constant.attr["dtype"].type).is_integer
            number = int(tf.make_ndarray(constant.attr["value"].tensor)) if limits_it else None
        else:
            number = loop.integer(place) if body.argument_of(body.results[place]) == place else None
        first = loop.integer(position)
        if number is not None and first is not None and first >= 0:
            found[position] = number
    return found


def rounds(condition: Body, body: Body, loop: Op) -> tuple[int, set[int]] | None:
    """The number of rounds of a loop that counts to a constant, and the loop variables that count them from zero.

    Args:
        condition: function that says whether the loop goes on.
        body: function that computes one round.
        loop: the loop.

    Returns:
        The number, and the positions of the variables; None for any other loop.
    """
    conditions = [node for node in _conditions(condition)]
    found = limits(condition, body, loop)
    starts = {position: loop.integer(position) for position in found}
    if any(node is None or node.op != "Less" for node in conditions) or len(found) != len(conditions):
        return None
    number = min((limit - (starts[position] or 0) for position, limit in found.items()), default=0)
    return max(number, 0), {position for position, first in starts.items() if first == 0}


def appended(body: Body, position: int) -> tuple[str, str] | None:
    """What each round of a loop puts behind a loop variable, as one tensor, and the axis; None where none does.

    Args:
        body: function that computes one round.
        position: position of the loop variable.
    """
    node = _behind(body, body.results[position])
    texts = data_texts(node)
    if node.op != "ConcatV2" or len(texts) != 3 or body.argument_of(texts[0]) != position:
        return None
    return texts[1], texts[2]


def _conditions(condition: Body) -> Iterator[NodeDef | None]:
    """The ops all of which must be true for a loop to go on; None for what follows from no op there."""
    waiting = list(condition.results)
    while waiting:
        text = waiting.pop()
        node = None if condition.argument_of(text) is not None else _behind(condition, text)
        if node is not None and node.op == "LogicalAnd":
            waiting += data_texts(node)
        else:
            yield node


def _adds_one(body: Body, position: int, loop: Op) -> bool:
    node = _behind(body, body.results[position])
    if node.op not in ("Add", "AddV2") or body.argument_of(node.input[0]) != position:
        return False
    place = body.argument_of(node.input[1])
    if place is not None:
        return body.argument_of(body.results[place]) == place and loop.integer(place) == 1
    step = _behind(body, node.input[1])
    return step.op == "Const" and bool(tf.make_ndarray(step.attr["value"].tensor) == 1)


def _behind(body: Body, text: str) -> NodeDef:
    node = body.graph[node_of(text)]
    while node.op == "Identity":
        node = body.graph[node_of(node.input[0])]
    return node


def lists_written(body: Body, positions: set[int]) -> set[int]:
    """The loop variables that are lists into which each round writes one entry.

    Args:
        body: function that computes one round.
        positions: positions of the loop variables that may index the entry.

    Returns:
        Positions of the lists.
    """
    lists = set()
    for place, text in enumerate(body.results):
        node = _behind(body, text)
        own = node.op == "TensorListSetItem" and body.argument_of(node.input[0]) == place
        if own and body.argument_of(node.input[1]) in positions:
            lists.add(place)
    return lists


def reads_and_writes_at(body: Body, positions: set[int]) -> bool:
    """Whether all lists are read and written at the entry of the round.

    Args:
        body: function that computes one round.
        positions: positions of the loop variables that may index the entry.
    """
    return all(body.argument_of(node.input[1]) in positions for node in body.inner if node.op in _INDEXED_LIST_OPS)
