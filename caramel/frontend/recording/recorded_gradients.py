"""Reading what a Recorder marked, in a graph whose calls have been inlined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, INDICES_ATTRIBUTE, SCOPE_ATTRIBUTE, TARGETS_ATTRIBUTE
from caramel.frontend.captured import RawGradient
from caramel.frontend.recording.loop_gradients import loop_gradients
from caramel.frontend.recording.recorder import Recorder
from caramel.graph.graph import Graph, NodeDef, tensor_name


@dataclass(frozen=True)
class Marks:
    """What was differentiated.

    Attributes:
        gradients: in the order of the graph.
        differentiated: ``(tensor, number of the call)``.
        loop_marks: numbers of the gradients inside loops whose sums are among ``gradients``.
    """

    gradients: tuple[RawGradient, ...]
    differentiated: tuple[tuple[str, int], ...]
    loop_marks: frozenset[int] = frozenset()


def marked(graph: Graph, recorder: Recorder, handle_of: Callable[[Any], str | None]) -> Marks:
    """Gradients and differentiated tensors.

    A function that is called twice differentiates twice: calls are counted anew.

    Args:
        graph: nodes with the recorder's attributes.
        recorder: what watched the program.
        handle_of: the handle node of a variable object; None for one that the program does not have.
    """
    calls: dict[tuple[int, str], int] = {}
    found = []
    indices = {_place(n, INDICES_ATTRIBUTE): n.name for n in graph if INDICES_ATTRIBUTE in n.attr}
    for node in graph:
        if GRADIENT_ATTRIBUTE not in node.attr:
            continue
        seen = recorder.gradients[node.attr[GRADIENT_ATTRIBUTE].i]
        handle = handle_of(seen.variable)
        if handle is None:
            continue
        call = calls.setdefault((seen.call, _scope(node)), len(calls) + 1)
        rows = indices.get(_place(node, GRADIENT_ATTRIBUTE))
        indices_of = None if rows is None else tensor_name(rows)
        found.append(
            RawGradient(handle, tensor_name(node.name), (), call, seen.location, indices_of, passed=seen.passed)
        )
    loops = loop_gradients(graph, recorder, handle_of)
    found += [replace(g, call=len(calls) + 1 + g.call) for g in loops.gradients]
    return Marks(tuple(found), tuple(_targets(graph, calls)), loops.marks)


def _scope(node: NodeDef) -> str:
    """Where a node was inlined, "" where it was not."""
    return node.attr[SCOPE_ATTRIBUTE].s.decode() if SCOPE_ATTRIBUTE in node.attr else ""


def _place(node: NodeDef, attribute: str) -> tuple[int, str]:
    return node.attr[attribute].i, _scope(node)


def _targets(graph: Graph, calls: dict[tuple[int, str], int]) -> list[tuple[str, int]]:
    found = []
    for node in graph:
        if TARGETS_ATTRIBUTE not in node.attr:
            continue
        marks = list(node.attr[TARGETS_ATTRIBUTE].list.i)
        for call, index in zip(marks[::2], marks[1::2]):
            here = [calls[call, _scope(node)]] if (call, _scope(node)) in calls else []
            # A loss may also be differentiated inside a function that was called with it.
            for number in here or [n for (c, _), n in calls.items() if c == call]:
                found.append((f"{node.name}:{index}", number))
    return found
