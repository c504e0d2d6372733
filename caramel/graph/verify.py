"""The verifier: what must hold for a graph after every modifier.

Each check raises `InvariantError` naming the modifier, the node and the invariant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, format_input


def verify_structure(graph: Graph, modifier: str, verified: Graph | None = None) -> None:
    """Inputs and functions exist, data inputs agree in dtype, control inputs come last, no cycle.

    Args:
        graph: graph to check.
        modifier: name of the modifier that made the graph, for the error.
        verified: another graph, which has passed. Of shared nodes only what may have changed is checked again.

    Raises:
        InvariantError: one of these does not hold.
    """
    verify_nodes(graph, modifier, verified)
    try:
        graph.order  # noqa: B018 - raises on a cycle
    except InvariantError as error:
        raise InvariantError(f"after {modifier}: {error}") from None


def verify_nodes(graph: Graph, modifier: str, verified: Graph | None = None) -> None:
    """All that `verify_structure` checks, but for cycles: these are looked for in all of a graph.

    Args:
        graph: graph to check.
        modifier: name of the modifier that made the graph, for the error.
        verified: another graph, which has passed. Of shared nodes only what may have changed is checked again.

    Raises:
        InvariantError: something does not hold.
    """
    if graph is verified:
        return
    known = {} if verified is None else verified.nodes
    changed = [node for name, node in graph.nodes.items() if known.get(name) is not node]
    # What reads them was verified with another node of their name, or is left without one.
    again = [node for node in changed if node.name in known]
    other = {n.name for n in again if ops.output_types(n) != ops.output_types(known[n.name])}
    other |= known.keys() - graph.nodes.keys()
    nodes = changed
    if other:
        new = {node.name for node in changed}
        nodes = [n for n in graph if n.name in new or not other.isdisjoint(graph.sources(n.name))]
    outputs = _OutputTypes(graph)
    for node in nodes:
        _verify_inputs(node, graph, outputs, modifier)
    same_library = verified is not None and graph.library is verified.library
    _verify_functions(graph, changed if same_library else list(graph), not same_library, modifier)


class _OutputTypes(dict[str, Sequence[int]]):
    """Types of the outputs of a graph's nodes, looked up once."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __missing__(self, name: str) -> Sequence[int]:
        self[name] = ops.output_types(self._graph[name])
        return self[name]


def _verify_functions(graph: Graph, nodes: Iterable[NodeDef], look_inside: bool, modifier: str) -> None:
    """Check that called functions exist; TensorFlow crashes where one is missing."""
    library = () if graph.library is None else graph.library.function
    known_names = {function.signature.name for function in library}
    inside = (
        (n, f" in function {function.signature.name!r}")
        for function in (library if look_inside else ())
        for n in function.node_def
    )
    for node, where in (*((n, "") for n in nodes), *inside):
        if node.op in known_names or not ops.calls_functions(node.op):
            continue
        missing = [name for name in ops.functions_of(node) if name and name not in known_names]
        if missing:
            raise InvariantError(
                f"after {modifier}: node {node.name!r}{where} calls function {missing[0]!r}, which does not exist"
            )


def _verify_inputs(node: NodeDef, graph: Graph, outputs: Mapping[str, Sequence[int]], modifier: str) -> None:
    name = node.name
    expected = ops.input_types(node)
    position = count = 0
    for producer, index in graph.parsed_inputs(name):
        if producer not in graph.nodes:
            raise InvariantError(f"after {modifier}: node {name!r} reads {producer!r}, which does not exist")
        if index < 0:
            position = -1
            continue
        if position < 0:
            text = format_input(producer, index)
            raise InvariantError(f"after {modifier}: node {name!r} has data input {text!r} after a control input")
        if index >= len(outputs[producer]):
            raise InvariantError(
                f"after {modifier}: node {name!r} reads output {index} of {producer!r}, "
                f"which has {len(outputs[producer])}"
            )
        if position >= len(expected):
            raise InvariantError(f"after {modifier}: node {name!r} has more than its {len(expected)} data inputs")
        if outputs[producer][index] != expected[position][1]:
            raise InvariantError(
                f"after {modifier}: node {name!r} wants {ops.dtype_name(expected[position][1])} as input {position}, "
                f"but {format_input(producer, index)!r} is {ops.dtype_name(outputs[producer][index])}"
            )
        position += 1
        count += 1
    if count != len(expected):
        raise InvariantError(f"after {modifier}: node {name!r} has {count} data inputs, its op {len(expected)}")
