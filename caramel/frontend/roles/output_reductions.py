"""How the workers' values of a tensor combine into the value that one device has for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caramel.frontend.batch.domain import Examples, Independent, Unknown, is_invariant
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph import ops
from caramel.graph.graph import Graph, data_texts, node_of, tensor_name
from caramel.graph.shapes import static_shape
from caramel.model import Combination

EXTREMES = {
    "Max": Combination.MAX,
    "Any": Combination.MAX,
    "Min": Combination.MIN,
    "All": Combination.MIN,
}
"""What is the largest or smallest value of all examples, by the op that finds that of some."""

_KEEPS_ORDER = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient"})
"""Ops behind which the largest value is still the largest; of the Casts, those to numbers of `_WIDE` dtypes."""

_WIDE = ("float", "bfloat", "int32", "int64")
"""Beginnings of the dtypes in which no number begins anew behind the largest, as in those of one byte."""


@dataclass(frozen=True)
class ReportedTensors:
    """Analysis of the tensors of a step that are reported.

    Attributes:
        graph: nodes with ``_output_shapes`` attributes.
        origins: source, by node of the step, of the node's difference between workers; None where it does not differ.
        reductions: analysis of how tensors reduce over the batch.
    """

    graph: Graph
    origins: Mapping[str, str | None]
    reductions: Reductions

    def reduction_of(self, loss: str) -> str | None:
        """``"mean"`` or ``"sum"``, as a reported loss is one over the batch; None where it cannot be told.

        The reported loss need not be the differentiated one: a program may report a sum and differentiate the mean.

        Args:
            loss: name of the reported tensor.
        """
        if self._is_equal(loss):
            return "mean"
        return self.reductions.reduction_of(loss)[0]

    def combination_of(self, tensor: str) -> Combination | None:
        """The combination of a tensor's values on the workers; None where it cannot be told."""
        if self._is_equal(tensor):
            return Combination.SAME
        value = self.reductions.value_of(tensor)
        if isinstance(value, Examples):
            apart = value.axis == 0 and value.before == 1 and value.power == 0 and not value.mixed_by
            return Combination.EXAMPLES if apart else None
        if isinstance(value, Unknown):
            if value.unmodelled:
                return Combination.EXAMPLES if self._looks_like_examples(tensor) else None
            return self._extreme_of(tensor)
        if isinstance(value, Independent):
            return _of_sizes(value)
        kind = self.reduction_of(tensor)
        return None if kind is None else Combination(kind)

    def _extreme_of(self, tensor: str) -> Combination | None:
        """The combination of the largest or smallest of values that each example has for itself; None for others."""
        while self.graph[node_of(tensor)].op in _KEEPS_ORDER:
            made = self.graph[node_of(tensor)]
            if made.op == "Cast" and not ops.dtype_name(made.attr["DstT"].type).startswith(_WIDE):
                return None
            tensor = tensor_name(data_texts(made)[0])
        extreme = self.graph[node_of(tensor)]
        of_examples = self.reductions.value_of(data_texts(extreme)[0]) if extreme.op in EXTREMES else None
        is_of_own = isinstance(of_examples, Examples) and of_examples.power == 0 and not of_examples.mixed_by
        is_fixed = is_of_own and is_invariant(self.reductions.value_of(data_texts(extreme)[1]))
        return EXTREMES[extreme.op] if is_fixed else None

    def _looks_like_examples(self, tensor: str) -> bool:
        """Whether the length of a tensor's first axis is not static, as it is where each example has an entry.

        A user who trains with an unknown op has said that the op treats each example by itself.
        """
        shape = static_shape(self.graph, tensor)
        return shape is not None and shape[:1] == (None,)

    def _is_equal(self, tensor: str) -> bool:
        """Whether every worker has the value of one device.

        In a step that is traced for the examples of a part, what follows from their number is the same on all workers,
        and another one than of the whole batch.
        """
        value = self.reductions.value_of(tensor)
        follows_size = isinstance(value, Independent) and value.power != 0
        return self.origins.get(node_of(tensor), "") is None and not follows_size


def _of_sizes(value: Independent) -> Combination | None:
    """The combination of a value that depends on no example but may differ between workers: it may be random."""
    if value.power == 1:
        return Combination.SUM
    return Combination.SAME if is_invariant(value) and value.sizes is not None else None


def unknown_reduction_notes(loss: str, reported: str | None, kind: str) -> list[str]:
    """Notes on a reported loss whose reduction cannot be told.

    Args:
        loss: name of the reported tensor.
        reported: reduction of the reported loss; None where it cannot be told.
        kind: reduction of the differentiated loss, ``"mean"`` or ``"sum"``.
    """
    if reported is not None:
        return []
    return [
        f"the reported loss {loss!r} is not what is differentiated, and whether it is a mean or a sum over the batch "
        f"cannot be told: the workers' values are combined by {kind}, as the gradients are"
    ]
