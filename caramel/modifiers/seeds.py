"""Seeds: each worker draws random numbers of its own, inside functions, too."""

from __future__ import annotations

from typing import Any

from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef
from caramel.graph.nodes import offset_seed

GOLDEN_RATIO_32 = 0x9E3779B9
"""2**32 divided by the golden ratio, odd: multiples of it are far apart modulo 2**32."""


def offset_seed_of_rank(node: NodeDef, rank: int) -> None:
    """Give each rank another stream.

    Args:
        node: a random op; it is changed.
        rank: rank of the worker; the first draws what one device draws.
    """
    offset_seed(node, rank * GOLDEN_RATIO_32)


class DrawingFunctions:
    """The functions of a graph that draw random numbers.

    Every worker but the first has copies of these, with seeds of its own. Workers share all other functions.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._library = Library(graph)
        self._names = frozenset(name for name in self._library.names if self._draws(name))

    def _draws(self, name: str) -> bool:
        inner = self._library.body(name).inner
        nested = (called for node in inner for called in self._library.all_called(node))
        everything = [*inner, *(n for called in nested for n in self._library.body(called).inner)]
        return any(ops.is_seeded_random(n) for n in everything if n.op not in self._library)

    def renamed(self, node: NodeDef, rank: int) -> NodeDef:
        """Let a worker's node, which is changed, call that worker's functions."""
        if rank > 0 and self._names:
            for reference in ops.function_references(node):
                if reference.name in self._names:
                    reference.name = _copy_name(reference.name, rank)
            if node.op in self._names:
                node.op = _copy_name(node.op, rank)
        return node

    def library(self, workers: int) -> Any:
        """The graph's functions, and the copies."""
        if not self._names:
            return self._graph.library
        library = type(self._graph.library)()
        library.CopyFrom(self._graph.library)
        for rank in range(1, workers):
            for name in self._library.names:
                if name in self._names:
                    library.function.append(self._copied(name, rank))
        return library

    def _copied(self, name: str, rank: int) -> Any:
        original = self._library.definition(name)
        copy = type(original)()
        copy.CopyFrom(original)
        copy.signature.name = _copy_name(name, rank)
        for node in copy.node_def:
            if node.op not in self._library and ops.is_seeded_random(node):
                offset_seed_of_rank(node, rank)
            self.renamed(node, rank)
        return copy


def _copy_name(name: str, rank: int) -> str:
    return f"{name}_worker_{rank}"
