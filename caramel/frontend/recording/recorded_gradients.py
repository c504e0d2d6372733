"""Reading the marks of a Recorder, in a graph whose calls have been inlined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from caramel.frontend.attributes import (
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    SCOPE_ATTRIBUTE,
    SEED_ATTRIBUTE,
    targets_at,
)
from caramel.frontend.captured import RawGradient
from caramel.frontend.recording.loop_gradients import loop_gradients
from caramel.frontend.recording.recorder import Recorder
from caramel.graph.graph import Graph, NodeDef, tensor_name


@dataclass(frozen=True)
class Differentiation:
    """The differentiations of a program.

    Attributes:
        gradients: gradients of variables, in the order of the graph.
        differentiated: pairs (differentiated tensor, number of the call).
        loop_gradient_numbers: numbers of the gradients inside loops whose sums are among ``gradients``.
    """

    gradients: tuple[RawGradient, ...]
    differentiated: tuple[tuple[str, int], ...]
    loop_gradient_numbers: frozenset[int] = frozenset()
    seeds: tuple[tuple[str, int], ...] = ()


def read_differentiation(graph: Graph, recorder: Recorder, handle_of: Callable[[Any], str | None]) -> Differentiation:
    """Read the gradients and differentiated tensors of a graph.

    A function that is called twice differentiates twice: calls are counted anew.

    Args:
        graph: nodes with the recorder's attributes.
        recorder: recorder that watched the program.
        handle_of: function from a variable object to its handle node; None for a variable that the program lacks.
    """
    calls: dict[tuple[int, str], int] = {}
    gradients = []
    indices = {_place(n, INDICES_ATTRIBUTE): n.name for n in graph if INDICES_ATTRIBUTE in n.attr}
    for node in graph:
        if GRADIENT_ATTRIBUTE not in node.attr:
            continue
        marked_gradient = recorder.gradients[node.attr[GRADIENT_ATTRIBUTE].i]
        handle = handle_of(marked_gradient.variable)
        if handle is None:
            continue
        call = calls.setdefault((marked_gradient.call, _scope(node)), len(calls) + 1)
        rows = indices.get(_place(node, GRADIENT_ATTRIBUTE))
        indices_of = None if rows is None else tensor_name(rows)
        gradients.append(
            RawGradient(
                handle,
                tensor_name(node.name),
                (),
                call,
                marked_gradient.location,
                indices_of,
                differentiated_again=marked_gradient.differentiated_again,
            )
        )
    loops = loop_gradients(graph, recorder, handle_of)
    gradients += [replace(g, call=len(calls) + 1 + g.call) for g in loops.gradients]
    seeds = [(tensor_name(n.name), calls.get(_place(n, SEED_ATTRIBUTE), 0)) for n in graph if SEED_ATTRIBUTE in n.attr]
    return Differentiation(tuple(gradients), tuple(_targets(graph, calls)), loops.numbers, tuple(seeds))


def _scope(node: NodeDef) -> str:
    """The prefix of a node that was inlined; "" for any other node."""
    return node.attr[SCOPE_ATTRIBUTE].s.decode() if SCOPE_ATTRIBUTE in node.attr else ""


def _place(node: NodeDef, attribute: str) -> tuple[int, str]:
    return node.attr[attribute].i, _scope(node)


def _targets(graph: Graph, calls: dict[tuple[int, str], int]) -> list[tuple[str, int]]:
    targets = []
    for node in graph:
        for call, tensor in targets_at(node):
            scope_calls = [calls[call, _scope(node)]] if (call, _scope(node)) in calls else []
            # A loss may also be differentiated inside a function that was called with it.
            for number in scope_calls or [n for (c, _), n in calls.items() if c == call]:
                targets.append((tensor, number))
    return targets
