"""Static shapes, which a graph has while a program is captured."""

from __future__ import annotations

from typing import Any

from caramel.graph.graph import Graph, parse_input

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
