"""Row lookups: ops that look up rows of a table."""

from __future__ import annotations

from caramel.graph.graph import Graph, NodeDef, node_of
from caramel.model import Model

GATHERS = frozenset({"GatherV2", "ResourceGather"})
"""Ops that may look up rows: of a value, or of a variable by its handle."""


def gathers_rows(graph: Graph, node: NodeDef) -> bool:
    """Whether an op looks up entries along the first axis of all of a table.

    Args:
        graph: the graph with the op.
        node: the op.
    """
    if node.op not in GATHERS or node.attr["batch_dims"].i != 0:
        return False
    return node.op == "ResourceGather" or _is_zero(graph[node_of(node.input[2])])


def might_be_at_once(model: Model, read: str, lookup: str) -> bool:
    """Whether nothing is written between a read of a whole table and a lookup in what was read.

    Then rows may be looked up in the table itself, where the lookup comes before whatever is written after the read.

    Args:
        model: the single-device step.
        read: name of the op that reads the table.
        lookup: name of the op that looks rows up.
    """
    between = model.graph.ancestors([lookup]) - model.graph.ancestors([read])
    return between.isdisjoint(writer for _, writers in model.updates for writer in writers)


def _is_zero(node: NodeDef) -> bool:
    """Whether an op is the constant 0."""
    tensor = node.attr["value"].tensor if node.op == "Const" else None
    if tensor is None:
        return False
    return not (any(tensor.int_val) or any(tensor.int64_val) or any(tensor.tensor_content))
