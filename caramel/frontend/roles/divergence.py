"""Which values differ between workers, by a plain walk over a graph or over the body of a loop."""

from __future__ import annotations

from collections.abc import Collection

from caramel.frontend.attributes import OVER_WORKERS_ATTRIBUTE, PART_ATTRIBUTE
from caramel.graph import ops
from caramel.graph.functions import Body, Library
from caramel.graph.graph import Graph, NodeDef, node_of
from caramel.graph.guards import guards_of

SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""Ops whose result depends on the shape of a tensor only, not on its entries."""


def random_draws(graph: Graph, library: Library) -> dict[str, str]:
    """The nodes that draw random numbers of their own, in the graph or in a function, with a noun for the random op.

    Args:
        graph: nodes of a step.
        library: functions that the nodes call.

    Returns:
        Noun for messages, such as "random op 'dropout'", by the node's name.
    """
    draws: dict[str, str] = {}
    for node in graph:
        if ops.is_seeded_random(node):
            draws[node.name] = f"random op {node.name!r}"
        for function, inner in library.inner_nodes(node):
            if ops.is_seeded_random(inner):
                draws[node.name] = f"random op {inner.name!r} in function {function!r}"
    return draws


class Locality:
    """Analysis that tells which nodes of a graph differ between workers.

    Args:
        graph: nodes, without loops of TensorFlow 1.
        library: functions that the nodes call.
    """

    def __init__(self, graph: Graph, library: Library) -> None:
        self._graph = graph
        self._drawn = random_draws(graph, library)
        self._guards = guards_of(graph)

    def differing(
        self, start: Collection[str], equal: Collection[str] = frozenset(), *, by_shape: bool = True
    ) -> set[str]:
        """The nodes whose values differ between workers, or that run on some workers only.

        Args:
            start: names of nodes that differ by themselves; nodes that draw random numbers do, too.
            equal: names of nodes that do not differ, whatever they come from.
            by_shape: whether a node differs that depends on no more than the shapes of differing values, or on the
                number of examples in a worker's part.

        Returns:
            The names of the nodes.
        """
        differing_sources = {*start, *self._drawn}
        differing: set[str] = set()
        for name in self._graph.order:
            node = self._graph[name]
            if name in equal or (not by_shape and node.op in SHAPE_OPS) or OVER_WORKERS_ATTRIBUTE in node.attr:
                continue
            conditions = [*self._guards.decided[name], *(condition for condition, _ in self._guards.by_node[name])]
            if (
                name in differing_sources
                or (by_shape and PART_ATTRIBUTE in node.attr)
                or not differing.isdisjoint([*(p for p, _ in ops.data_inputs(node)), *conditions])
            ):
                differing.add(name)
        return differing


def differing_in_body(
    body: Body,
    library: Library,
    positions: Collection[int],
    equal: Collection[str] = frozenset(),
    *,
    is_loop: bool,
    by_shape: bool = True,
) -> tuple[set[str], set[int]]:
    """The nodes of a function that differ between workers, and its arguments that do.

    The arguments of a loop get the results of the round before.

    Args:
        body: the function.
        library: functions that it calls.
        positions: positions of the arguments that differ at first.
        equal: names of nodes that do not differ; see `Locality.differing`.
        is_loop: whether results become arguments.
        by_shape: see `Locality.differing`.

    Returns:
        Names of the nodes, and positions of the arguments.
    """
    locality = Locality(body.graph, library)
    differing_positions = set(positions)
    while True:
        start = [body.arguments[position] for position in sorted(differing_positions)]
        differing = locality.differing(start, equal, by_shape=by_shape)
        differing_results = (
            {number for number, text in enumerate(body.results) if node_of(text) in differing} if is_loop else set()
        )
        if differing_results <= differing_positions:
            return differing, differing_positions
        differing_positions |= differing_results


def rounds_differ(loop: NodeDef, library: Library, positions: Collection[int], *, by_shape: bool = True) -> bool:
    """Whether a ``while`` may go round more often on one worker than on another.

    Args:
        loop: node of the loop.
        library: functions that the loop calls.
        positions: positions of the inputs that differ.
        by_shape: whether a number of rounds that depends on the shapes of differing values differs, too.
    """
    body = library.body(loop.attr["body"].func.name)
    condition = library.body(loop.attr["cond"].func.name)
    _, differing_positions = differing_in_body(body, library, positions, is_loop=True, by_shape=by_shape)
    start = [condition.arguments[position] for position in sorted(differing_positions)]
    differing = Locality(condition.graph, library).differing(start, by_shape=by_shape)
    return any(node_of(text) in differing for text in condition.results)
