"""What loops put together: lists that they index, also with one round for each example, as `tf.map_fn` makes them."""

from __future__ import annotations

from caramel.frontend.batch.domain import BATCH_SIZE, Independent
from caramel.frontend.batch.op import Op
from caramel.graph import loops
from caramel.graph.functions import Body
from caramel.graph.graph import data_texts

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
    for node in loops.conditions(condition):
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
        if loop.integer(counter) != 0 or loops.step_of(body, counter, loop.integer) != 1:
            return None
        positions.add(counter)
    return positions or None


def appended(body: Body, position: int) -> tuple[str, str] | None:
    """What each round of a loop puts behind a loop variable, as one tensor, and the axis; None where none does.

    Args:
        body: function that computes one round.
        position: position of the loop variable.
    """
    node = loops.behind(body, body.results[position])
    texts = data_texts(node)
    if node.op != "ConcatV2" or len(texts) != 3 or body.argument_of(texts[0]) != position:
        return None
    return texts[1], texts[2]


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
        node = loops.behind(body, text)
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
