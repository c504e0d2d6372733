"""How the workers' values of a tensor combine into what one device has for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.frontend.reduction import Reductions
from caramel.graph.graph import Graph, node_of
from caramel.graph.shapes import static_shape
from caramel.model import Combination, Input

_PASSES_ON = frozenset({"Identity", "Cast", "StridedSlice", "Squeeze", "Reshape", "ExpandDims", "StopGradient"})


@dataclass(frozen=True)
class Reports:
    """What is known about the tensors of a step that are reported.

    Attributes:
        graph: nodes with ``_output_shapes`` attributes.
        inputs: the step's inputs; the split ones carry the batch along axis 0.
        origins: for each node of the step where its difference between workers comes from, or None.
        reductions: how tensors reduce over the batch.
    """

    graph: Graph
    inputs: Sequence[Input]
    origins: Mapping[str, str | None]
    reductions: Reductions

    def reduction_of(self, loss: str) -> str | None:
        """Whether a reported loss is a mean or a sum over the batch; None where it cannot be told.

        It need not be what is differentiated: a sum may be reported where the mean is differentiated.
        """
        if self._is_equal(loss):
            return "mean"
        return self.reductions.of(loss)[0]

    def combination_of(self, tensor: str) -> Combination | None:
        """How the values of a tensor on the workers combine; None where it cannot be told."""
        if self._is_equal(tensor):
            return Combination.SAME
        shape = static_shape(self.graph, tensor)
        if shape is None:
            return None
        if shape and shape[0] is None:
            return Combination.EXAMPLES
        split = [i for i in self.inputs if i.split]
        if None in shape or (shape and not all(i.shape and i.shape[0] is None for i in split)):
            return None  # it may have an entry for each example, along some axis
        if self._counts_examples(tensor, {i.node for i in split}):
            return Combination.SUM
        kind = self.reduction_of(tensor)
        return None if kind is None else Combination(kind)

    def _is_equal(self, tensor: str) -> bool:
        """Whether every worker has the same value."""
        return self.origins.get(node_of(tensor), "") is None

    def _counts_examples(self, tensor: str, split: set[str]) -> bool:
        """Whether a tensor is the number of examples, taken from the shape of an input."""
        name = node_of(tensor)
        while self.graph[name].op in _PASSES_ON and (self.graph[name].op != "StridedSlice" or self._is_first(name)):
            name = node_of(self.graph[name].input[0])
        if self.graph[name].op != "Shape" or static_shape(self.graph, tensor) != ():
            return False
        return node_of(self.graph[name].input[0]) in split

    def _is_first(self, name: str) -> bool:
        """Whether a slice takes the first element of what it is given."""
        begin = self.graph[node_of(self.graph[name].input[1])]
        is_zero = begin.op == "Const" and list(begin.attr["value"].tensor.int_val) == [0]
        return is_zero and bool(self.graph[name].attr["shrink_axis_mask"].i == 1)


def untold(loss: str, reported: str | None, kind: str) -> list[str]:
    """What to say of a reported loss of which it cannot be told how it is reduced."""
    if reported is not None:
        return []
    return [
        f"the reported loss {loss!r} is not what is differentiated, and whether it is a mean or a sum over the batch "
        f"cannot be told: the workers' values are combined by {kind}, as the gradients are"
    ]
