"""What loops count: the rounds to a number that is known before the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import tensorflow as tf

from caramel.graph.functions import Body
from caramel.graph.graph import NodeDef, data_texts, node_of

Integer = Callable[[int], "int | None"]
"""Function from the position of a loop variable to the number with which it begins; None where that is not constant."""


_FLIPPED = {"Greater": "Less", "GreaterEqual": "LessEqual"}
"""Comparisons, with those of the same numbers below zero."""


@dataclass(frozen=True)
class Counter:
    """A loop variable that changes by a constant in each round, as long as it is below or above another.

    Attributes:
        first: the number with which it begins.
        step: by how much it changes: what is below grows, and what is above falls.
        limit: number below which, or above which, it is in each round.
    """

    first: int
    step: int
    limit: int

    @property
    def rounds(self) -> int:
        """How many rounds it counts."""
        return max(-((self.first - self.limit) // self.step), 0)


def counters(condition: Body, body: Body, integer: Integer) -> dict[int, Counter]:
    """The loop variables that count to a constant, by their positions.

    Args:
        condition: function that says whether the loop goes on.
        body: function that computes one round.
        integer: with which numbers the loop variables begin.
    """
    found: dict[int, Counter] = {}
    for node in conditions(condition):
        if node is None or node.op not in ("Less", "LessEqual", *_FLIPPED):
            continue
        text, limit = data_texts(node)
        position = condition.argument_of(text)
        step = None if position is None else step_of(body, position, integer)
        sign = -1 if node.op in _FLIPPED else 1
        if position is None or step is None or step * sign < 1:
            continue
        place = condition.argument_of(limit)
        number = _constant(condition, limit) if place is None else _unchanged(body, place, integer)
        first = integer(position)
        if number is not None and first is not None:
            is_inclusive = _FLIPPED.get(node.op, node.op) == "LessEqual"
            found[position] = Counter(first, step, number + sign if is_inclusive else number)
    return found


def rounds(condition: Body, body: Body, integer: Integer) -> int | None:
    """The number of rounds of a loop that only counts to constants; None for any other loop.

    Args:
        condition: function that says whether the loop goes on.
        body: function that computes one round.
        integer: with which numbers the loop variables begin.
    """
    found = counters(condition, body, integer)
    is_all = sum(1 for _ in conditions(condition)) == len(found)
    return min(counter.rounds for counter in found.values()) if found and is_all else None


def conditions(condition: Body) -> Iterator[NodeDef | None]:
    """The ops all of which must be true for a loop to go on; None for what follows from no op there.

    Args:
        condition: function that says whether the loop goes on.
    """
    waiting = list(condition.results)
    while waiting:
        text = waiting.pop()
        node = None if condition.argument_of(text) is not None else behind(condition, text)
        if node is not None and node.op == "LogicalAnd":
            waiting += data_texts(node)
        else:
            yield node


def step_of(body: Body, position: int, integer: Integer) -> int | None:
    """By how much a loop variable changes in each round; None where that is no constant.

    Args:
        body: function that computes one round.
        position: position of the loop variable.
        integer: with which numbers the loop variables begin.
    """
    node = behind(body, body.results[position])
    sign = {"Add": 1, "AddV2": 1, "Sub": -1}.get(node.op)
    if sign is None or body.argument_of(node.input[0]) != position:
        return None
    place = body.argument_of(node.input[1])
    step = _constant(body, node.input[1]) if place is None else _unchanged(body, place, integer)
    return None if step is None else sign * step


def behind(body: Body, text: str) -> NodeDef:
    """The node that makes a tensor which Identities pass on.

    Args:
        body: a function.
        text: the tensor in it.
    """
    node = body.graph[node_of(text)]
    while node.op == "Identity":
        node = body.graph[node_of(node.input[0])]
    return node


def _constant(body: Body, text: str) -> int | None:
    node = behind(body, text)
    if node.op != "Const" or not tf.as_dtype(node.attr["dtype"].type).is_integer:
        return None
    value = tf.make_ndarray(node.attr["value"].tensor)
    return int(value) if value.size == 1 else None


def _unchanged(body: Body, place: int, integer: Integer) -> int | None:
    """The number that a loop variable is in each round."""
    return integer(place) if body.argument_of(body.results[place]) == place else None
