"""Attributes that capture gives to nodes, of use only until the roles of the program are known."""

from __future__ import annotations

from caramel.graph.graph import Graph, NodeDef, copied
from caramel.graph.shapes import SHAPES_ATTRIBUTE

GRADIENT_ATTRIBUTE = "_caramel_gradient"
"""Attribute of the Identity that carries a gradient out of the differentiation; its value is the gradient's number."""

INDICES_ATTRIBUTE = "_caramel_indices"
"""Attribute of the Identity that carries the indices of a sparse gradient; its value is the gradient's number."""

SEED_ATTRIBUTE = "_caramel_seed"
"""Attribute of an Identity of the ones with which a differentiation begins; its value is the number of the call."""

TARGETS_ATTRIBUTE = "_caramel_targets"
"""Attribute of an op that is differentiated; its value is a flat list of pairs (number of the call, output index)."""

SOURCE_ATTRIBUTE = "_caramel_source"
"""Attribute of an Identity of a tensor, not a variable, with respect to which the program differentiates; its value is
the number of the resulting gradient."""

RESULT_ATTRIBUTE = "_caramel_result"
"""Attribute of the Identity that carries a gradient with respect to a tensor; its value is the gradient's number, the
number of the call, whether it is the Jacobian of each example, and the ``file:line`` of the call."""

SCOPE_ATTRIBUTE = "_caramel_scope"
"""Attribute of a node that was inlined from a function; its value is the prefix of the node's name."""

TOTAL_ATTRIBUTE = "_caramel_total"
"""Attribute of an op that may add up examples; its value is the op's number."""

ENTRY_ATTRIBUTE = "_caramel_entry"
"""Attribute of the Identity through which a gradient enters the gradient function of such an op; its value is the op's
number."""

FORWARD_ATTRIBUTE = "_caramel_forward"
"""Attribute of the Identity of such an op's output, for which the gradient that enters waits within a function."""

SINGLE_ATTRIBUTE = "_caramel_single_examples"
"""Attribute of an Identity of gradients by a variable of which each example has its own, or of what is made of them."""

CUSTOM_ATTRIBUTE = "_caramel_custom"
"""Attribute of an Identity of what the program's own gradient function gives (`tf.custom_gradient`); its value is the
number of the call of the function that it is for."""

UPSTREAM_ATTRIBUTE = "_caramel_upstream"
"""Attribute of an Identity through which a gradient enters such a gradient function; its value is that number, and the
place among the results of the call of the one whose gradient it is."""

OWN_RESULTS_ATTRIBUTE = "_caramel_own_results"
"""Attribute of an op with results of such calls; its value is a flat list of triples (number of the call, place among
its results, output index)."""

ASKED_ATTRIBUTE = "_caramel_all_reduce"
"""Attribute of an Identity in place of an all-reduce that the program asks for; its value is "sum" or "mean"."""

MADE_ATTRIBUTE = "_caramel_made"
"""Attribute of an op of a traced step; its value is its type, and how many of it were made before."""

GATHERED_ATTRIBUTE = "_caramel_gathered"
"""Attribute of an Identity whose value is to be that of all workers, one after the other; its value is the axis of the
examples, and the number of batches along it."""

SIZED_ATTRIBUTE = "_caramel_sized"
"""Attribute of an Identity of sizes that are to be those of all workers."""

PART_ATTRIBUTE = "_caramel_of_part"
"""Attribute of a node that follows from the number of examples of a worker's part, where a step was traced for it: of a
constant, which has its value for the whole batch there, or of a call of a function with such constants."""

ENTERING_ATTRIBUTE = "_caramel_entering"
"""Attribute of an Identity through which a gradient enters what a worker's part is made of."""

OVER_WORKERS_ATTRIBUTE = "_caramel_over_workers"
"""Attribute of an Identity whose value is that of the whole batch, the same on all workers."""

_ARGUMENT_ATTRIBUTE = "_user_specified_name"
"""Attribute in which TensorFlow keeps what a function calls its argument, which is the placeholder's name anyway."""

_CAPTURE_ATTRIBUTES = (
    GRADIENT_ATTRIBUTE,
    INDICES_ATTRIBUTE,
    SEED_ATTRIBUTE,
    TARGETS_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    RESULT_ATTRIBUTE,
    SCOPE_ATTRIBUTE,
    TOTAL_ATTRIBUTE,
    ENTRY_ATTRIBUTE,
    FORWARD_ATTRIBUTE,
    SINGLE_ATTRIBUTE,
    CUSTOM_ATTRIBUTE,
    UPSTREAM_ATTRIBUTE,
    OWN_RESULTS_ATTRIBUTE,
    OVER_WORKERS_ATTRIBUTE,
    ENTERING_ATTRIBUTE,
    ASKED_ATTRIBUTE,
    MADE_ATTRIBUTE,
    GATHERED_ATTRIBUTE,
    SIZED_ATTRIBUTE,
    PART_ATTRIBUTE,
)


def is_capture_attribute(name: str) -> bool:
    """Whether capture gives nodes an attribute of this name."""
    return name in _CAPTURE_ATTRIBUTES


def without_capture_attributes(graph: Graph) -> Graph:
    """A copy of the graph for all stages after capture: without these attributes, static shapes and argument names."""
    nodes = []
    for node in graph:
        copy = copied(node)
        remove_capture_attributes(copy)
        for name in (SHAPES_ATTRIBUTE, _ARGUMENT_ATTRIBUTE):
            copy.attr.pop(name, None)
        nodes.append(copy)
    return Graph(nodes, graph.library, graph.versions)


def remove_capture_attributes(node: NodeDef) -> None:
    """Remove all of these attributes from a node, in place."""
    if GRADIENT_ATTRIBUTE in node.attr or TOTAL_ATTRIBUTE in node.attr:
        node.attr.pop("_gradient_op_type", None)  # how the op tells that it is differentiated
    if node.op == "PlaceholderWithDefault" and (GATHERED_ATTRIBUTE in node.attr or SIZED_ATTRIBUTE in node.attr):
        node.op = "Identity"
        node.attr["T"].CopyFrom(node.attr.pop("dtype"))
        node.attr.pop("shape")
    for name in _CAPTURE_ATTRIBUTES:
        node.attr.pop(name, None)


def targets_at(node: NodeDef) -> list[tuple[int, str]]:
    """The outputs of a node that are differentiated, each with the number of the call."""
    marks = list(node.attr[TARGETS_ATTRIBUTE].list.i) if TARGETS_ATTRIBUTE in node.attr else []
    return [(call, f"{node.name}:{index}") for call, index in zip(marks[::2], marks[1::2])]


def own_results_at(node: NodeDef) -> list[tuple[int, int, str]]:
    """The outputs of a node that functions with a gradient function of their own return.

    Args:
        node: the node.

    Returns:
        For each the number of the call, its place among the results of the call, and its tensor.
    """
    marks = list(node.attr[OWN_RESULTS_ATTRIBUTE].list.i) if OWN_RESULTS_ATTRIBUTE in node.attr else []
    return [(call, place, f"{node.name}:{at}") for call, place, at in zip(marks[::3], marks[1::3], marks[2::3])]


def scope_of(node: NodeDef) -> str:
    """Prefix of the name of a node that was inlined from a function, which tells apart several calls; "" for others."""
    return node.attr[SCOPE_ATTRIBUTE].s.decode() if SCOPE_ATTRIBUTE in node.attr else ""
