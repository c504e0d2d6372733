"""Values of tensors that are made of constants only."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any

import tensorflow as tf

from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, data_texts, node_of

_MAX_NODES = 64
"""Largest number of nodes behind a tensor that is folded to a constant; the constants that matter are shapes and orders
of axes."""

_MOST_KEPT_BYTES = 1 << 16
"""Bytes of the largest graph whose value is kept for the next time."""

_CHOICES = frozenset({"Switch", "RefSwitch", "Merge", "RefMerge"})
"""Ops of which only what runs tells what they give: constants of two branches are no constant."""


def folded(graph: Graph, tensor: str, library: Library, given: Collection[str] = frozenset()) -> Any:
    """The value of a tensor that is made of constants only, as an array; None for any other tensor.

    Args:
        graph: the nodes.
        tensor: name of the tensor.
        library: functions that the nodes call.
        given: names of nodes of which nothing is known.
    """
    behind = graph.ancestors([node_of(tensor)], control=False)
    if len(behind) > _MAX_NODES or not behind.isdisjoint(given):
        return None
    nodes = Graph((n for n in graph if n.name in behind), None, graph.versions)
    if any(n.op in library or ops.functions_of(n) for n in nodes):
        return None
    if any(n.op in ops.PLACEHOLDERS or n.op in _CHOICES or ops.is_stateful(n) for n in nodes):
        return None
    proto = _data_only(nodes).SerializeToString(deterministic=True)
    return (_value_in if len(proto) <= _MOST_KEPT_BYTES else _value_in.__wrapped__)(proto, tensor)


@lru_cache(maxsize=1024)
def _value_in(graph: bytes, tensor: str) -> Any:
    """The value of a tensor of a graph of constants; bodies of functions are looked at many times."""
    with tf.Graph().as_default():
        (output,) = tf.import_graph_def(tf.compat.v1.GraphDef.FromString(graph), return_elements=[tensor], name="")
        with tf.compat.v1.Session() as session:
            return session.run(output)


def _data_only(nodes: Graph) -> Any:
    """The nodes without their ties to others: control inputs and colocation."""
    graph_def = nodes.to_graph_def()
    for node in graph_def.node:
        node.attr.pop("_class", None)
        node.input[:] = data_texts(node)
    return graph_def
