"""Attributes that capture gives to nodes, of use only until the roles of the program are known."""

from __future__ import annotations

from caramel.graph.graph import Graph, NodeDef, copied
from caramel.graph.shapes import SHAPES_ATTRIBUTE

GRADIENT_ATTRIBUTE = "_caramel_gradient"
"""Attribute of the Identity that carries a gradient out of the differentiation: its number."""

INDICES_ATTRIBUTE = "_caramel_indices"
"""The same for the indices of a sparse gradient."""

TARGETS_ATTRIBUTE = "_caramel_targets"
"""Attribute of an op that is differentiated: (number of the call, index of the output), one after the other."""

SOURCE_ATTRIBUTE = "_caramel_source"
"""Attribute of an Identity of a tensor, no variable, by which was differentiated: the number of the result."""

RESULT_ATTRIBUTE = "_caramel_result"
"""Attribute of the Identity that carries such a gradient: its number and ``file:line`` of the call."""

SCOPE_ATTRIBUTE = "_caramel_scope"
"""Attribute of a node that came out of a function: the prefix of its name."""

_OWN = (
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SCOPE_ATTRIBUTE,
)


def bare(graph: Graph) -> Graph:
    """A graph for all that comes after capture: without these attributes, and without static shapes."""
    nodes = []
    for node in graph:
        copy = copied(node)
        strip(copy)
        copy.attr.pop(SHAPES_ATTRIBUTE, None)
        nodes.append(copy)
    return Graph(nodes, graph.library, graph.versions)


def strip(node: NodeDef) -> None:
    """Take all of them away from a node, which is changed."""
    if GRADIENT_ATTRIBUTE in node.attr:
        node.attr.pop("_gradient_op_type", None)  # how the Identity tells that it is differentiated
    for name in _OWN:
        node.attr.pop(name, None)
