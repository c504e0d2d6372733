"""Calls in the old way, where a node's op is the name of a function, as calls of that function.

TensorFlow has such calls in the functions of its CTC loss. All stages after this one know ops of TensorFlow only.
"""

from __future__ import annotations

from typing import Any

from caramel.graph.graph import Graph, NodeDef

_CALL = "PartitionedCall"


def with_calls_of_functions(graph: Graph) -> Graph:
    """The graph with functions in whose bodies all such calls are of the op that calls functions.

    Args:
        graph: nodes, with the library of the functions that they call.
    """
    signatures = {f.signature.name: f.signature for f in graph.library.function}
    if not any(node.op in signatures for f in graph.library.function for node in f.node_def):
        return graph
    library = type(graph.library)()
    library.CopyFrom(graph.library)
    for function in library.function:
        _rewrite(function, signatures)
    return Graph(graph.nodes.values(), library, graph.versions)


def _rewrite(function: Any, signatures: Any) -> None:
    """Change the calls in a body, and how their results are named: by position, not by name."""
    results: dict[str, str] = {}
    for node in function.node_def:
        signature = signatures.get(node.op)
        if signature is not None:
            for position, result in enumerate(signature.output_arg):
                results[f"{node.name}:{result.name}:0"] = f"{node.name}:output:{position}"
            _as_call(node, signature)
    for node in function.node_def:
        for position, text in enumerate(node.input):
            node.input[position] = results.get(text, text)
    for name, text in list(function.ret.items()):
        function.ret[name] = results.get(text, text)


def _as_call(node: NodeDef, signature: Any) -> None:
    node.op = _CALL
    node.attr.clear()
    node.attr["f"].func.name = signature.name
    node.attr["Tin"].list.SetInParent()
    node.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
    node.attr["Tout"].list.SetInParent()
    node.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)
