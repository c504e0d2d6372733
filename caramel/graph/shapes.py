"""Static shapes, which a graph has while a program is captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caramel.graph.bare_import import import_bare, output_shapes
from caramel.graph.graph import Graph, copied, parse_input

SHAPES_ATTRIBUTE = "_output_shapes"
"""Name of the attribute with the shapes of a node's outputs, as TensorFlow writes it."""

Shape = tuple[int | None, ...]
"""Size of each dimension, None where it is not known."""


def static_shape(graph: Graph, tensor: str) -> Shape | None:
    """The shape of a tensor; None where not even its rank is known."""
    name, index = parse_input(tensor)
    attributes = graph[name].attr  # a key that is looked up in it, and is not there, would be added
    shapes = attributes[SHAPES_ATTRIBUTE].list.shape if SHAPES_ATTRIBUTE in attributes else ()
    return sizes(shapes[index]) if index < len(shapes) else None


def static_size(graph: Graph, tensor: str) -> int | None:
    """The number of elements of a tensor; None where that is not known."""
    shape = static_shape(graph, tensor)
    if shape is None:
        return None
    product = 1  # of a scalar
    for size in shape:
        if size is None:
            return None
        product *= size
    return product


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
        arguments: shapes of the arguments of a function's graph, by name; None for another graph. The nodes of a
            function may have shapes that cannot be inferred (of the elements of a list, say); those of other graphs
            are dropped.
        keep: whether nodes keep those sizes in their attributes that cannot be inferred, because the program itself
            has stated them.
    """
    import tensorflow as tf

    bare = graph.to_graph_def()
    for node in bare.node:
        node.attr.pop("_class", None)  # what it should be beside may be in another function
        if arguments is None:
            node.attr.pop(SHAPES_ATTRIBUTE, None)
        elif node.name in arguments:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(arguments[node.name]).as_proto())
    imported = tf.Graph()
    ops = import_bare(imported, bare)
    changed = {}
    for node in graph:
        shapes = output_shapes(imported, ops[node.name])
        if not shapes:
            continue
        known = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(shape=shapes))
        has_some = SHAPES_ATTRIBUTE in node.attr
        if keep and has_some:
            _keep_known(known.list.shape, node.attr[SHAPES_ATTRIBUTE].list.shape)
        if not has_some or node.attr[SHAPES_ATTRIBUTE] != known:
            changed[node.name] = copied(node)
            changed[node.name].attr[SHAPES_ATTRIBUTE].CopyFrom(known)
    return graph.replaced(changed)


def _keep_known(inferred: Any, stated: Any) -> None:
    """Fill in the sizes that a program states itself where they cannot be inferred."""
    import tensorflow as tf

    for shape, stated_shape in zip(inferred, stated):
        if shape == stated_shape:
            continue
        first, second = tf.TensorShape(shape), tf.TensorShape(stated_shape)
        if first.is_compatible_with(second):
            shape.CopyFrom(first.merge_with(second).as_proto())
