"""Static shapes, which a graph has while a program is captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caramel.graph.graph import Graph, copied, parse_input

SHAPES = "_output_shapes"
"""Attribute with the shapes of a node's outputs, as TensorFlow writes it."""

Shape = tuple[int | None, ...]
"""Sizes, None for those that are not known."""


def static_shape(graph: Graph, tensor: str) -> Shape | None:
    """The shape of a tensor; None where not even its rank is known."""
    name, index = parse_input(tensor)
    shapes = graph[name].attr[SHAPES].list.shape
    return sizes(shapes[index]) if index < len(shapes) else None


def sizes(shape: Any) -> Shape | None:
    """The sizes in a TensorShapeProto; None for an unknown rank."""
    if shape.unknown_rank:
        return None
    return tuple(d.size if d.size >= 0 else None for d in shape.dim)


def with_inferred_shapes(
    graph: Graph, arguments: Mapping[str, Shape | None] | None = None, keep: bool = False
) -> Graph:
    """The graph with the static shapes that TensorFlow infers.

    Args:
        graph: nodes and the library of the functions that they call.
        arguments: for a function's graph the shapes of its arguments. Its nodes may have shapes that cannot be
            inferred (of what is in a list, say); those of other graphs are forgotten.
        keep: whether nodes keep what they say of their shapes and cannot be inferred, as the program said it
            itself.
    """
    import tensorflow as tf

    bare = graph.to_graph_def()
    for node in bare.node:
        if arguments is None:
            node.attr.pop(SHAPES, None)
        elif node.name in arguments:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(arguments[node.name]).as_proto())
    with tf.Graph().as_default() as inferred:
        tf.import_graph_def(bare, name="")
    known = {n.name: n.attr[SHAPES] for n in inferred.as_graph_def(add_shapes=True).node if SHAPES in n.attr}
    changed = {}
    for node in graph:
        if node.name in known:
            changed[node.name] = copied(node)
            changed[node.name].attr[SHAPES].CopyFrom(known[node.name])
            if keep and SHAPES in node.attr:
                _keep_known(changed[node.name].attr[SHAPES].list.shape, node.attr[SHAPES].list.shape)
    return graph.replaced(changed)


def _keep_known(inferred: Any, said: Any) -> None:
    """Put sizes that a program says itself where they cannot be inferred."""
    import tensorflow as tf

    for mine, its in zip(inferred, said):
        first, second = tf.TensorShape(mine), tf.TensorShape(its)
        if first.is_compatible_with(second):
            mine.CopyFrom(first.merge_with(second).as_proto())
