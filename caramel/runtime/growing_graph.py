"""A session's graph that has the nodes which runs so far needed.

For each kind of run, TensorFlow's graph optimizers work on all that a session has, not on what the run needs. With all
of a large graph there, each small run about variables or data, of which there are a dozen before the first step, would
take as long as a step to get ready for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from caramel.graph.graph import node_of
from caramel.graph.nodes import colocated

_COLOCATION = "_class"
"""Attribute of a node with the names of those on whose device it is to be."""


def _scopes(name: str) -> list[str]:
    """The scopes that a name is in.

    TensorFlow gives another name to a node that is named like a scope in which there is something before it comes.

    >>> _scopes("a/b/c")
    ['a', 'a/b']
    """
    return [name[:position] for position, letter in enumerate(name) if letter == "/"]


class GrowingGraph:
    """A tf.Graph, and the nodes that may be added to it.

    Args:
        graph_def: GraphDef with the nodes.

    Attributes:
        graph: the tf.Graph.
    """

    def __init__(self, graph_def: Any) -> None:
        self.graph = tf.Graph()
        self._outside: dict[str, Any] = {}
        self._piece = type(graph_def)()  # what each piece of the graph begins as
        self._piece.versions.CopyFrom(graph_def.versions)
        self.add(graph_def)

    def add(self, graph_def: Any) -> None:
        """Add nodes that later runs may need.

        Args:
            graph_def: GraphDef with nodes that read each other, or nodes that were there before.
        """
        self._outside.update((node.name, node) for node in graph_def.node)
        if graph_def.library.function:
            functions = type(graph_def)()
            functions.CopyFrom(self._piece)
            functions.library.CopyFrom(graph_def.library)
            with self.graph.as_default():
                tf.import_graph_def(functions, name="")

    def take_in(self, names: Iterable[str]) -> None:
        """Have nodes, and all that they need, in the graph.

        Args:
            names: names of tensors and ops; what does not exist is left to TensorFlow.
        """
        wanted = {node.name: node for node in self._closure(names)}
        if not wanted:
            return
        piece = type(self._piece)()
        piece.CopyFrom(self._piece)
        read: dict[str, Any] = {}
        waits: dict[str, list[str]] = {}  # ops that were there before, by the node that waits for them
        places: dict[str, Any] = {}  # the attribute with what a node is colocated with, by the node
        for name in [name for name in self._outside if name in wanted]:
            node = piece.node.add()
            node.CopyFrom(self._outside.pop(name))
            there = [text for text in node.input if node_of(text) not in wanted]
            read.update((text, self._tensor(text)) for text in there if not text.startswith("^"))
            if found := [text for text in there if text.startswith("^")]:
                waits[name] = [node_of(text) for text in found]
                kept = [text for text in node.input if text not in found]
                del node.input[:]
                node.input.extend(kept)
            if not wanted.keys() >= {*colocated(node)}:
                places[name] = tf.compat.v1.AttrValue()
                places[name].CopyFrom(node.attr[_COLOCATION])
                del node.attr[_COLOCATION]
        with self.graph.as_default():
            tf.import_graph_def(piece, name="", input_map=read)
        # What TensorFlow does not import about nodes that were there before:
        for name, ops in waits.items():
            own = self.graph.get_operation_by_name(name)
            own._add_control_inputs([self.graph.get_operation_by_name(op) for op in ops])
        for name, place in places.items():
            self.graph.get_operation_by_name(name)._set_attr(_COLOCATION, place)

    def _closure(self, names: Iterable[str]) -> Iterator[Any]:
        """The nodes that are not in the graph yet."""
        found: set[str] = set()
        waiting = [node_of(name) for name in names]
        while waiting:
            name = waiting.pop()
            if name in found or name not in self._outside:
                continue
            found.add(name)
            node = self._outside[name]
            waiting += [*map(node_of, node.input), *colocated(node), *_scopes(name)]
            yield node

    def _tensor(self, text: str) -> Any:
        return self.graph.get_tensor_by_name(text if ":" in text else f"{text}:0")
