"""Ops that TensorFlow fuses, whatever control edges there are between them and other ops."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx

from caramel.errors import InvariantError
from caramel.graph.graph import Graph, NodeDef, behind_identities, node_of

_OUTPUT_GRADIENT_POSITIONS = {
    "Conv2DBackpropFilter": 2,
    "Conv3DBackpropFilterV2": 2,
    "DepthwiseConv2dNativeBackpropFilter": 2,
    "BiasAddGrad": 0,
}
"""Position of the gradient of a convolution's output among the inputs of an op, by op type."""

_FUSED_PRODUCERS = {"BiasAdd": ("Conv2D",), "Conv2D": ("Pad",)}
"""Types of the op with whose producer of the first input it is fused if nothing else reads it, by op type."""


def fused_groups(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Groups of ops that TensorFlow fuses on CPUs, also without its graph optimizers, whatever edges there are.

    oneDNN's pass fuses the gradients of a convolution's filter and bias, a convolution and the bias that alone
    reads it, and a padding and the convolution that alone reads it. A step in which one op of a group waits for
    another by way of a third op would never end (seen with TensorFlow 2.21).

    Args:
        graph: graph of a step.

    Returns:
        Node names of each group.
    """
    group_of_op: dict[str, list[str]] = {}  # group of each op; its members share one list
    for first, second in _pairs(graph):
        own_group, other = (group_of_op.setdefault(name, [name]) for name in (first, second))
        if own_group is not other:
            own_group += other
            group_of_op.update(dict.fromkeys(other, own_group))
    return tuple({names[0]: tuple(names) for names in group_of_op.values()}.values())


def _pairs(graph: Graph) -> Iterator[tuple[str, str]]:
    """Pairs of ops that TensorFlow fuses."""
    gradients: dict[str, str] = {}  # for each op the first op that reads a gradient of its output
    for node in graph:
        if node.op in _FUSED_PRODUCERS:
            producer = _read_alone(graph, node)
            if graph[producer].op in _FUSED_PRODUCERS[node.op]:
                yield producer, node.name
        position = _OUTPUT_GRADIENT_POSITIONS.get(node.op)
        if position is not None:
            # oneDNN's pass does not compare which output of an op the two gradients belong to.
            first = gradients.setdefault(node_of(behind_identities(graph, node.input[position])), node.name)
            if first != node.name:
                yield first, node.name


def _read_alone(graph: Graph, node: NodeDef) -> str:
    """The producer of an op's first input if nothing else reads it; otherwise the op itself."""
    name = node.name
    while True:
        producer = node_of(graph[name].input[0])
        readers = [r for r, position in graph.consumers[producer] if not graph[r].input[position].startswith("^")]
        if readers != [name]:
            return node.name
        if graph[producer].op != "Identity":
            return producer
        name = producer


def verify_fusible(graph: Graph, edges: Collection[tuple[str, str]], modifier: str) -> None:
    """Check that a graph with some more control edges has no cycle after TensorFlow has fused ops.

    Args:
        graph: graph of a step.
        edges: control edges to add, each (node before, node after).
        modifier: name of the modifier that adds the edges, for the error.

    Raises:
        InvariantError: there is a cycle.
    """
    groups = fused_groups(graph)
    stands_for = {name: names[0] for names in groups for name in names}
    joined = nx.DiGraph()
    pairs = ((node_of(text), node.name) for node in graph for text in node.input)
    for before, after in (*pairs, *edges):
        first, second = (stands_for.get(name, name) for name in (before, after))
        if first != second or (before, after) in edges:  # a fused op does not wait for its own parts
            joined.add_edge(first, second)
    cycles = (cycle for cycle in nx.strongly_connected_components(joined) if len(cycle) > 1)
    stuck = {name for cycle in cycles for name in cycle} | set(nx.nodes_with_selfloops(joined))
    stuck_groups = [names for names in groups if names[0] in stuck]
    if stuck_groups:
        raise InvariantError(
            f"after {modifier}: TensorFlow makes one op of {' and '.join(map(repr, stuck_groups[0]))}, "
            "one of which would wait for the other: order nothing between them"
        )
