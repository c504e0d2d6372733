"""A session's graph that has the nodes which runs so far needed.

For each kind of run, TensorFlow's graph optimizers work on all that a session has, not on what the run needs. With all
of a large graph there, each small run about variables or data, of which there are a dozen before the first step, would
take as long as a step to get ready for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from caramel.errors import CaptureError
from caramel.graph.bare_import import import_bare, op_of
from caramel.graph.graph import node_of
from caramel.graph.nodes import colocated

_OF_A_SHAPE = "for '{{node "
"""Part of what TensorFlow says of a node whose inputs have shapes that do not fit."""


def _scope(name: str) -> str:
    """The innermost scope that a name is in; "" for none."""
    return name.rpartition("/")[0]


class GrowingGraph:
    """A tf.Graph, and the nodes that may be added to it.

    Args:
        graph_def: GraphDef with the nodes.

    Attributes:
        graph: the tf.Graph. Of its nodes, those that somebody has asked for are objects of Python, too.
    """

    def __init__(self, graph_def: Any) -> None:
        self.graph = tf.Graph()
        self._outside: dict[str, Any] = {}
        self._inside: dict[str, Any] = {}  # TensorFlow's own ops
        self._versions = graph_def.versions
        self.add(graph_def)

    def add(self, graph_def: Any) -> None:
        """Add nodes that later runs may need.

        Args:
            graph_def: GraphDef with nodes that read each other, or nodes that were there before.
        """
        self._outside.update((node.name, node) for node in graph_def.node)
        if graph_def.library.function:
            functions = tf.compat.v1.GraphDef(library=graph_def.library, versions=self._versions)
            import_bare(self.graph, functions)

    def take_in(self, names: Iterable[str]) -> None:
        """Have nodes, and all that they need, in the graph.

        Args:
            names: names of tensors and ops; what does not exist is left to TensorFlow.

        Raises:
            CaptureError: TensorFlow finds shapes that do not fit: the program has a number of examples in it.
        """
        asked = [node_of(name) for name in names]
        wanted = set(self._closure(asked))
        if wanted:
            nodes = [node for name, node in self._outside.items() if name in wanted]
            piece = tf.compat.v1.GraphDef(node=nodes, versions=self._versions)
            try:
                self._inside.update(import_bare(self.graph, piece, self._inside))
            except ValueError as error:
                if _OF_A_SHAPE not in str(error):
                    raise
                raise CaptureError(
                    f"what several workers run of the step does not fit together: {error}. A step that makes arrays of "
                    "a fixed number of examples has others on each worker: make them by ops, from tf.shape(x)[0]"
                ) from error
            for name in wanted:
                del self._outside[name]
        for name in asked:
            if name in self._inside:
                op_of(self.graph, self._inside[name])

    def _closure(self, names: Iterable[str]) -> Iterator[str]:
        """The nodes that are not in the graph yet."""
        found: set[str] = set()
        scopes: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found or name not in self._outside:
                continue
            found.add(name)
            node = self._outside[name]
            waiting += [*map(node_of, node.input), *colocated(node)]
            # TensorFlow refuses a node that is named like a scope in which there is something before it comes.
            scope = _scope(name)
            while scope and scope not in scopes:
                scopes.add(scope)
                waiting.append(scope)
                scope = _scope(scope)
            yield name
