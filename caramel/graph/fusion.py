"""Ops that TensorFlow makes one op of, whatever control edges there are between them and others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.errors import InvariantError
from caramel.graph.graph import Graph, behind_identities, node_of

_FILTERS = frozenset({"Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"})
_OUTPUT_GRADIENT = 2
"""Position of the gradient of a convolution's output among the inputs of these."""


def joined_ops(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Groups of ops that TensorFlow joins on CPUs, also without its graph optimizers.

    oneDNN's pass makes one op of the gradients of a convolution's filter and bias. A step in which one of
    them waits for the other would never end (seen with TensorFlow 2.21; its other fusions are of an op with
    its only reader, which no edge of ours comes between).

    Args:
        graph: of a step.
    """
    found: dict[str, list[str]] = {}
    for node in graph:
        if node.op in _FILTERS and len(node.input) > _OUTPUT_GRADIENT:
            found.setdefault(behind_identities(graph, node.input[_OUTPUT_GRADIENT]), []).append(node.name)
        elif node.op == "BiasAddGrad":
            found.setdefault(behind_identities(graph, node.input[0]), []).append(node.name)
    return tuple(tuple(names) for names in found.values() if len(names) > 1)


def verify_joinable(graph: Graph, edges: Iterable[tuple[str, str]], modifier: str) -> None:
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
    producers: dict[str, set[str]] = {}
    pairs: list[tuple[str, str]] = [(node_of(text), node.name) for node in graph for text in node.input]
    for before, after in [*pairs, *edges]:
        first, second = (stands_for.get(name, name) for name in (before, after))
        producers.setdefault(first, set())
        producers.setdefault(second, set()).add(first)
    stuck = _stuck(producers)
    waiting = [names for names in groups if names[0] in stuck]
    if waiting:
        raise InvariantError(
            f"after {modifier}: TensorFlow makes one op of {' and '.join(map(repr, waiting[0]))}, "
            "one of which would wait for the other: order nothing between them"
        )


def _stuck(producers: dict[str, set[str]]) -> set[str]:
    """The nodes on cycles, or behind them."""
    readers: dict[str, list[str]] = {name: [] for name in producers}
    for name, before in producers.items():
        for producer in before:
            readers[producer].append(name)
    waiting = {name: len(before) for name, before in producers.items()}
    ready: list[str] = [name for name, count in waiting.items() if count == 0]
    for name in ready:  # grows on the way
        for reader in readers[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    return {name for name, count in waiting.items() if count > 0}


def companions(graph: Graph, ops: Sequence[str]) -> dict[str, int]:
    """For those of some ops that TensorFlow joins with others the number of their group."""
    wanted = set(ops)
    return {name: number for number, names in enumerate(joined_ops(graph)) for name in names if name in wanted}
