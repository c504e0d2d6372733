"""Handles of variables, taken straight from the variable.

A branch of TensorFlow 1 gets the handles that it uses through a Switch each, which hides from every analysis which
variable is read or written. The handle is the same in all branches: what matters is only that nothing runs in one that
is not taken.
"""

from __future__ import annotations

from tensorflow.core.framework import attr_value_pb2

from caramel.frontend.rewrites.aliases import Tensor
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, copied, format_input, parse_input
from caramel.graph.nodes import dtype_attribute, node, shape_attribute
from caramel.graph.shapes import SHAPES_ATTRIBUTE

_SCALAR_SHAPES = attr_value_pb2.AttrValue.ListValue(shape=[shape_attribute(()).shape])
"""Output shapes of a node whose only output is a scalar."""

_FORWARDING_OPS = frozenset({"Identity", "Switch", "Merge"})
"""Ops through which a handle reaches an op in a branch."""


def direct_handles(graph: Graph) -> Graph:
    """Let every op that takes a variable's handle through Switch, Merge or Identity take it from the variable.

    Such an op waits for what the handle went through, and so runs in the same branch only. A Merge of different
    variables stays as it is.

    Args:
        graph: nodes of the program.
    """
    variables = _variables(graph)
    changed: dict[str, NodeDef] = {}
    added: dict[str, NodeDef] = {}
    for current in graph:
        if current.op in _FORWARDING_OPS and (current.name, 0) in variables:
            continue
        inputs: list[str] = []
        waits: dict[str, None] = {}
        for text in current.input:
            tensor = parse_input(text)
            variable = variables.get(tensor, tensor[0])
            if variable != tensor[0]:
                text = variable
                waits["^" + _guard(graph, tensor, added)] = None
            inputs.append(text)
        if waits:
            changed[current.name] = copied(current, [*inputs, *(text for text in waits if text not in inputs)])
    return graph.replaced(changed, list(added.values()))


def _variables(graph: Graph) -> dict[Tensor, str]:
    """The variable behind each handle."""
    variables: dict[Tensor, str] = {}
    if not any(n.op == "Switch" and n.attr["T"].type == ops.DT_RESOURCE for n in graph):
        return variables
    for current in graph.loop_order():
        if current.op == ops.VARIABLE:
            variables[current.name, 0] = current.name
        elif current.op in _FORWARDING_OPS and current.attr["T"].type == ops.DT_RESOURCE:
            sources = {
                variables.get(tensor) for tensor in ops.data_inputs(current)[: None if current.op == "Merge" else 1]
            }
            variable = sources.pop()
            if variable is not None and not sources:
                for index in range(2 if current.op == "Switch" else 1):
                    variables[current.name, index] = variable
    return variables


def _guard(graph: Graph, tensor: Tensor, added: dict[str, NodeDef]) -> str:
    """The node that runs only where a handle arrives."""
    name, index = tensor
    if graph[name].op != "Switch":
        return name
    pivot = f"{name}/caramel_handle_{index}"
    if pivot not in added:
        added[pivot] = node(
            pivot,
            "Identity",
            [format_input(name, index)],
            graph[name].device,
            T=dtype_attribute("resource"),
            **{SHAPES_ATTRIBUTE: attr_value_pb2.AttrValue(list=_SCALAR_SHAPES)},
        )
    return pivot
