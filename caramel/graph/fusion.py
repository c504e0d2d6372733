"""Ops that TensorFlow makes one op of, whatever control edges there are between them and others."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx

from caramel.errors import InvariantError
from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of

_OUTPUT_GRADIENT = {
    "Conv2DBackpropFilter": 2,
    "Conv3DBackpropFilterV2": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
    "BiasAddGrad": 0,
}
"""Position of the gradient of a convolution's output among the inputs of these."""

_ALONE_WITH = {"BiasAdd": ("Conv2D",), "Conv2D": ("Pad",)}
"""Ops that are joined with what makes their first input, if nothing else reads that."""


def joined_ops(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Groups of ops that TensorFlow joins on CPUs, also without its graph optimizers, whatever edges there are.

    oneDNN's pass makes one op of the gradients of a convolution's filter and bias, of a convolution and the bias
    that alone reads it, and of a padding and the convolution that alone reads it. A step in which one of them
    waits for the other by way of a third would never end (seen with TensorFlow 2.21).

    Args:
        graph: of a step.
    """
    group: dict[str, list[str]] = {}  # the one of each op; its members share it
    for first, second in _pairs(graph):
        mine, other = (group.setdefault(name, [name]) for name in (first, second))
        if mine is not other:
            mine += other
            group.update(dict.fromkeys(other, mine))
    return tuple({names[0]: tuple(names) for names in group.values()}.values())


def _pairs(graph: Graph) -> Iterator[tuple[str, str]]:
    """Ops that are joined."""
    gradients: dict[str, str] = {}  # the first one that has a gradient of each op
    for node in graph:
        if node.op in _ALONE_WITH:
            producer = _read_alone(graph, node)
            if graph[producer].op in _ALONE_WITH[node.op]:
                yield producer, node.name
        position = _OUTPUT_GRADIENT.get(node.op)
        if position is not None:
            # It does not look at which output of an op both have a gradient of.
            first = gradients.setdefault(node_of(behind_identities(graph, node.input[position])), node.name)
            if first != node.name:
                yield first, node.name


def _read_alone(graph: Graph, node: NodeDef) -> str:
    """What makes the first input of an op and is read by nothing else; otherwise the op itself."""
    name = node.name
    while True:
        producer = node_of(graph[name].input[0])
        readers = [r for r, position in graph.consumers[producer] if not graph[r].input[position].startswith("^")]
        if readers != [name]:
            return node.name
        if graph[producer].op != "Identity":
            return producer
        name = producer


def verify_joinable(graph: Graph, edges: Collection[tuple[str, str]], modifier: str) -> None:
    """Check that a graph with some more control edges has no cycle after TensorFlow has joined ops.

    Args:
        graph: of a step.
        edges: (before, after).
        modifier: whose edges they are, for the error.

    Raises:
        InvariantError: it has one.
    """
    groups = joined_ops(graph)
    stands_for = {name: names[0] for names in groups for name in names}
    joined = nx.DiGraph()
    pairs = ((node_of(text), node.name) for node in graph for text in node.input)
    for before, after in (*pairs, *edges):
        first, second = (stands_for.get(name, name) for name in (before, after))
        if first != second or (before, after) in edges:  # what is joined no longer waits for its own parts
            joined.add_edge(first, second)
    circles = (circle for circle in nx.strongly_connected_components(joined) if len(circle) > 1)
    stuck = {name for circle in circles for name in circle} | set(nx.nodes_with_selfloops(joined))
    waiting = [names for names in groups if names[0] in stuck]
    if waiting:
        raise InvariantError(
            f"after {modifier}: TensorFlow makes one op of {' and '.join(map(repr, waiting[0]))}, "
            "one of which would wait for the other: order nothing between them"
        )
