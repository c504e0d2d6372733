"""Which values differ between workers, by a plain walk over a graph or over the body of a loop."""

from __future__ import annotations

from collections.abc import Collection

from caramel.graph import ops
from caramel.graph.functions import Body, Library
from caramel.graph.graph import Graph, NodeDef, node_of
from caramel.graph.guards import guards_of

SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""Ops of which the result does not depend on the numbers in a tensor."""


def draws(graph: Graph, library: Library) -> dict[str, str]:
    """Nodes that draw random numbers of their own, here or in a function, with what to call that."""
    found: dict[str, str] = {}
    for node in graph:
        if ops.is_seeded_random(node):
            found[node.name] = f"random op {node.name!r}"
        for function, inner in library.inner_nodes(node):
            if ops.is_seeded_random(inner):
                found[node.name] = f"random op {inner.name!r} in function {function!r}"
    return found


class Locality:
    """What tells which nodes of a graph differ between workers.

    Args:
        graph: the nodes, without loops of TensorFlow 1.
        library: the functions that they call.
    """

    def __init__(self, graph: Graph, library: Library) -> None:
        self._graph = graph
        self._drawn = draws(graph, library)
        self._guards = guards_of(graph)

    def differing(
        self, start: Collection[str], equal: Collection[str] = frozenset(), *, by_shape: bool = True
    ) -> set[str]:
        """The nodes whose values differ between workers, or that run on some workers only.

        Args:
            start: nodes that differ by themselves; those that draw random numbers do, too.
            equal: nodes that do not, whatever they come from.
            by_shape: whether what depends on no more than the shapes of differing values counts.
        """
        own = {*start, *self._drawn}
        found: set[str] = set()
        for name in self._graph.order:
            node = self._graph[name]
            if name in equal or (not by_shape and node.op in SHAPES):
                continue
            conditions = [*self._guards.decided[name], *(condition for condition, _ in self._guards.by_node[name])]
            if name in own or not found.isdisjoint([*(p for p, _ in ops.data_inputs(node)), *conditions]):
                found.add(name)
        return found


def differing_in_body(
    body: Body,
    library: Library,
    positions: Collection[int],
    equal: Collection[str] = frozenset(),
    *,
    is_loop: bool,
    by_shape: bool = True,
) -> tuple[set[str], set[int]]:
    """What differs in a function, and which arguments do; those of a loop get the results of the round before.

    Args:
        body: the function.
        library: the functions that it calls.
        positions: of the arguments that differ at first.
        equal: as for `Locality.differing`.
        is_loop: whether results become arguments.
        by_shape: as for `Locality.differing`.
    """
    locality = Locality(body.graph, library)
    known = set(positions)
    while True:
        start = [body.arguments[position] for position in sorted(known)]
        found = locality.differing(start, equal, by_shape=by_shape)
        more = {number for number, text in enumerate(body.results) if node_of(text) in found} if is_loop else set()
        if more <= known:
            return found, known
        known |= more


def rounds_differ(loop: NodeDef, library: Library, positions: Collection[int], *, by_shape: bool = True) -> bool:
    """Whether a ``while`` may go round more often on one worker than on another.

    Args:
        loop: the node.
        library: the functions that it calls.
        positions: of the inputs that differ.
        by_shape: whether the number of rounds may not depend on the shapes of differing values either.
    """
    body = library.body(loop.attr["body"].func.name)
    condition = library.body(loop.attr["cond"].func.name)
    _, known = differing_in_body(body, library, positions, is_loop=True, by_shape=by_shape)
    start = [condition.arguments[position] for position in sorted(known)]
    found = Locality(condition.graph, library).differing(start, by_shape=by_shape)
    return any(node_of(text) in found for text in condition.results)
