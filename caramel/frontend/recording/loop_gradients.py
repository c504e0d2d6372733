"""Loops over micro-batches: gradients that a ``while`` adds up are aggregated once, when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, INDICES_ATTRIBUTE
from caramel.frontend.captured import RawGradient
from caramel.frontend.recording.recorder import MarkedGradient, Recorder
from caramel.frontend.roles.accumulation import Sums
from caramel.graph import ops
from caramel.graph.functions import Body, Library
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input, tensor_name


@dataclass(frozen=True)
class LoopGradients:
    """What loops add up.

    Attributes:
        gradients: results of loops that are sums of gradients; ``call`` counts the loops.
        marks: numbers of the marked gradients that go nowhere else.
    """

    gradients: tuple[RawGradient, ...]
    marks: frozenset[int]


def loop_gradients(graph: Graph, recorder: Recorder, handle_of: Callable[[Any], str | None]) -> LoopGradients:
    """Find the results of loops that are sums of gradients of one variable, over all rounds of the loop.

    Args:
        graph: nodes with the recorder's attributes.
        recorder: what watched the program.
        handle_of: the handle node of a variable object; None for one that the program does not have.
    """
    library = Library(graph)
    found: list[RawGradient] = []
    marks: set[int] = set()
    for call, loop in enumerate(n for n in graph if n.op in ops.LOOPS):
        body = library.body(loop.attr["body"].func.name)
        condition = library.body(loop.attr["cond"].func.name)
        marked = {tensor_name(n.name): n.attr[GRADIENT_ATTRIBUTE].i for n in body.inner if GRADIENT_ATTRIBUTE in n.attr}
        if not marked or any(INDICES_ATTRIBUTE in n.attr for n in body.inner):
            continue
        analysis = _Loop(graph, loop, body, condition, marked, recorder.gradients)
        for position in range(len(body.results)):
            sources = analysis.summed(position)
            if sources:
                seen = recorder.gradients[marked[min(sources)]]
                handle = handle_of(seen.variable)
                if handle is not None:
                    tensor = f"{loop.name}:{position}"
                    passed = any(recorder.gradients[marked[m]].passed for m in sources)
                    found.append(RawGradient(handle, tensor, (), call, seen.location, passed=passed))
                    marks.update(marked[m] for m in sources)
    return LoopGradients(tuple(found), frozenset(marks))


class _Loop:
    def __init__(
        self,
        graph: Graph,
        loop: NodeDef,
        body: Body,
        condition: Body,
        marked: Mapping[str, int],
        gradients: Mapping[int, MarkedGradient],
    ) -> None:
        self._outside = Sums(graph)
        self._sums = Sums(body.graph)
        self._loop = loop
        self._body = body
        self._condition = condition
        self._marked = marked
        self._gradients = gradients

    def summed(self, position: int) -> frozenset[str]:
        """The gradients that a loop variable is the sum of, if that is all that becomes of them."""
        body = self._body
        if not self._outside.is_zero(self._loop.input[position]):
            return frozenset()
        if self._condition.graph.consumers[self._condition.arguments[position]]:
            return frozenset()  # how often it goes round depends on the sum
        found = self._sums.terms(body.results[position], self._marked, lambda t: body.argument_of(t) == position)
        if found is None or found.bases != 1 or not found.gradients:
            return frozenset()
        if len({id(self._gradients[self._marked[m]].variable) for m in found.gradients}) > 1:
            return frozenset()
        used = {*map(node_of, found.gradients), *(found.way), body.arguments[position]}
        results = {node_of(text) for number, text in enumerate(body.results) if number != position}
        for name in used:
            readers = {r for r, p in body.graph.consumers[name] if parse_input(body.graph[r].input[p])[1] >= 0}
            if not readers <= used or name in results:
                return frozenset()
        return found.gradients
