"""How the workers' values of a tensor combine into what one device has for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caramel.frontend.batch.domain import Examples, Free, Unknown, is_number
from caramel.frontend.roles.loss_reduction import Reductions
from caramel.graph.graph import Graph, node_of
from caramel.graph.shapes import static_shape
from caramel.model import Combination


@dataclass(frozen=True)
class Reports:
    """What is known about the tensors of a step that are reported.

    Attributes:
        graph: nodes with ``_output_shapes`` attributes.
        origins: for each node of the step where its difference between workers comes from, or None.
        reductions: how tensors reduce over the batch.
    """

    graph: Graph
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
        value = self.reductions.value_of(tensor)
        if isinstance(value, Examples):
            apart = value.axis == 0 and value.before == 1 and value.power == 0 and not value.centred
            return Combination.EXAMPLES if apart else None
        if isinstance(value, Unknown):
            return Combination.EXAMPLES if value.unheard and self._looks_like_examples(tensor) else None
        if isinstance(value, Free):
            return _of_sizes(value)
        kind = self.reduction_of(tensor)
        return None if kind is None else Combination(kind)

    def _looks_like_examples(self, tensor: str) -> bool:
        """Whether a tensor has as many entries as it happens to get, whatever the ops behind it do.

        Who trains with an op that is not known has said that it treats each example by itself.
        """
        shape = static_shape(self.graph, tensor)
        return shape is not None and shape[:1] == (None,)

    def _is_equal(self, tensor: str) -> bool:
        """Whether every worker has the same value."""
        return self.origins.get(node_of(tensor), "") is None


def _of_sizes(value: Free) -> Combination | None:
    """How what depends on no example combines, but is not known to be the same on all workers: it may be random."""
    if value.power == 1:
        return Combination.SUM
    return Combination.SAME if is_number(value) and value.sizes is not None else None


def untold(loss: str, reported: str | None, kind: str) -> list[str]:
    """What to say of a reported loss of which it cannot be told how it is reduced."""
    if reported is not None:
        return []
    return [
        f"the reported loss {loss!r} is not what is differentiated, and whether it is a mean or a sum over the batch "
        f"cannot be told: the workers' values are combined by {kind}, as the gradients are"
    ]
