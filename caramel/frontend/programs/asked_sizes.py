"""Steps that ask in Python for the number of examples, which is not known where it is left open.

One device traces a step for batches of a fixed number. Left open, Python gets None for that number, of which most
programs make what they make of the number itself, but not all: ``table[:None]`` is the whole table.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from caramel.errors import CaptureError
from caramel.frontend.batch.row_constants import numbers_of
from caramel.graph import ops
from caramel.graph.graph import Graph, NodeDef, data_texts, node_of

_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})

_GRADIENTS = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")
"""Scopes of gradient functions: TensorFlow itself makes other ops there where sizes are known."""


def check_is_the_same(opened: Graph, fixed: Graph, examples: int) -> None:
    """Check that a step for any number of examples is that for a fixed number, but for the sizes themselves.

    Args:
        opened: the step, traced with the number left open.
        fixed: the step, traced for the number that the batches of one device have.
        examples: that number.

    Raises:
        CaptureError: it is not.
    """
    twins = _Twins(opened, fixed)
    if twins.are_alike():
        return
    refusal = CaptureError(
        f"the step asks in Python for the number of examples and makes other ops where it is not known than for "
        f"{examples}: use tf.shape(x)[0]"
    )
    refusal.may_pass_later = True
    raise refusal


class _Twins:
    """Two traces of one step, compared op by op.

    Args:
        opened: the one with the number of examples left open.
        fixed: the other.
    """

    def __init__(self, opened: Graph, fixed: Graph) -> None:
        self._graphs = opened, fixed
        self._sizes = _made_of(opened, _SHAPE_OPS), _made_of(fixed, _SHAPE_OPS)
        self._constants = _made_of(opened, frozenset())
        self._compared: dict[tuple[str, str], bool] = {}

    def are_alike(self) -> bool:
        """Whether both have the same ops, sizes and gradient functions apart."""
        kept = [
            [node for node in graph if node.name not in sizes and not _GRADIENTS.search(node.name)]
            for graph, sizes in zip(self._graphs, self._sizes)
        ]
        return len(kept[0]) == len(kept[1]) and all(map(self._do_the_same, *kept))

    def _do_the_same(self, first: NodeDef, second: NodeDef) -> bool:
        """Whether two ops do the same, where what is made of sizes may be a constant in one of them only."""
        if first.op != second.op or numbers_of(first) != numbers_of(second):
            return False
        if first.op == "Const":
            return bool(first.attr["value"] == second.attr["value"])
        texts = data_texts(first), data_texts(second)
        pairs = [(node_of(one), node_of(other)) for one, other in zip(*texts)]
        return len(texts[0]) == len(texts[1]) and all(
            self._are_the_same(*pair) for pair in pairs if pair[0] in self._constants
        )

    def _are_the_same(self, one: str, other: str) -> bool:
        """Whether what the first trace makes of constants is what the other makes in its place."""
        if (one, other) not in self._compared:
            opened, fixed = self._graphs
            self._compared[one, other] = self._do_the_same(opened[one], fixed[other])
        return self._compared[one, other]


def _made_of(graph: Graph, sources: Collection[str]) -> set[str]:
    """The nodes that are made of constants, and of ops of the given types."""
    found: set[str] = set()
    for name in graph.order:
        node = graph[name]
        is_plain = not ops.is_stateful(node) and node.op not in (*ops.PLACEHOLDERS, *_SHAPE_OPS)
        is_made = is_plain and not ops.functions_of(node) and all(node_of(text) in found for text in data_texts(node))
        if node.op in sources or is_made:
            found.add(name)
    return found
