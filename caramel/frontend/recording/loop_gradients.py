"""Loops over micro-batches: gradients that a ``while`` adds up are aggregated once, when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from caramel.frontend.attributes import GRADIENT_ATTRIBUTE, INDICES_ATTRIBUTE, targets_at
from caramel.frontend.captured import RawGradient
from caramel.frontend.recording.recorder import MarkedGradient, Recorder
from caramel.frontend.roles.accumulation import Sums, Terms
from caramel.graph import ops
from caramel.graph.functions import Body, Library
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input, tensor_name


@dataclass(frozen=True)
class LoopGradients:
    """Gradients that loops add up.

    Attributes:
        gradients: results of loops that are sums of gradients; ``call`` counts the loops.
        numbers: numbers of the marked gradients that go into these sums only.
    """

    gradients: tuple[RawGradient, ...]
    numbers: frozenset[int]


def loop_gradients(graph: Graph, recorder: Recorder, handle_of: Callable[[Any], str | None]) -> LoopGradients:
    """Find the results of loops that are sums of gradients of one variable, over all rounds of the loop.

    Args:
        graph: nodes with the recorder's attributes.
        recorder: recorder that watched the program.
        handle_of: function from a variable object to its handle node; None for a variable that the program lacks.
    """
    library = Library(graph)
    gradients: list[RawGradient] = []
    marks: set[int] = set()
    for call, loop in enumerate(n for n in graph if n.op in ops.LOOPS):
        body = library.body(loop.attr["body"].func.name)
        condition = library.body(loop.attr["cond"].func.name)
        marked = {tensor_name(n.name): n.attr[GRADIENT_ATTRIBUTE].i for n in body.inner if GRADIENT_ATTRIBUTE in n.attr}
        if not marked or any(INDICES_ATTRIBUTE in n.attr for n in body.inner):
            continue
        analysis = _Loop(graph, loop, body, condition, marked, recorder.gradients)
        for position in range(len(body.results)):
            terms = analysis.summed(position)
            if terms is not None:
                sources = terms.gradients
                marked_gradient = recorder.gradients[marked[min(sources)]]
                handle = handle_of(marked_gradient.variable)
                if handle is not None:
                    tensor = f"{loop.name}:{position}"
                    those = [recorder.gradients[marked[m]] for m in sources]
                    gradients.append(
                        RawGradient(
                            handle,
                            tensor,
                            (),
                            call,
                            marked_gradient.location,
                            differentiated_again=any(each.differentiated_again for each in those),
                            losses_inside=_losses(body, {each.call for each in those}),
                            scales_inside=frozenset((loop.attr["body"].func.name, name) for name in terms.scales),
                        )
                    )
                    marks.update(marked[m] for m in sources)
    return LoopGradients(tuple(gradients), frozenset(marks))


def _losses(body: Body, calls: Collection[int]) -> tuple[str, ...]:
    """What some differentiations in the body of a loop differentiate; empty where one of them is not found there."""
    found = {(call, tensor) for node in body.inner for call, tensor in targets_at(node) if call in calls}
    return tuple(sorted({tensor for _, tensor in found})) if {call for call, _ in found} == set(calls) else ()


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

    def summed(self, position: int) -> Terms | None:
        """The gradients whose sum a loop variable is; None if a gradient or the sum has any other use in the loop."""
        body = self._body
        if not self._outside.is_zero(self._loop.input[position]):
            return None
        if self._condition.graph.consumers[self._condition.arguments[position]]:
            return None  # how often it goes round depends on the sum
        terms = self._sums.terms(body.results[position], self._marked, lambda t: body.argument_of(t) == position)
        if terms is None or terms.base_count != 1 or not terms.gradients:
            return None
        if len({id(self._gradients[self._marked[m]].variable) for m in terms.gradients}) > 1:
            return None
        used = {*map(node_of, terms.gradients), *(terms.path), body.arguments[position]}
        results = {node_of(text) for number, text in enumerate(body.results) if number != position}
        for name in used:
            readers = {r for r, p in body.graph.consumers[name] if parse_input(body.graph[r].input[p])[1] >= 0}
            if not readers <= used or name in results:
                return None
        return terms
