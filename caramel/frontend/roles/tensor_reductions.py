"""How the tensors of a program reduce over the batch: as means over the examples, as sums, or otherwise.

`caramel.frontend.batch` follows the examples from the inputs to each tensor. One that it cannot follow is `Unknown`,
with the op that made it so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from fractions import Fraction

from caramel.dealing import WHOLE, Dealing
from caramel.frontend.attributes import ENTERING_ATTRIBUTE, GATHERED_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE
from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Independent,
    Note,
    Statistic,
    Total,
    Unknown,
    Value,
    Whole,
    is_everywhere,
    is_invariant,
)
from caramel.frontend.batch.interpreter import Analysis, FunctionBodies
from caramel.frontend.batch.layers import GENERATOR_OPS, RANDOM_OPS
from caramel.frontend.batch.micro_batches import of_batch, with_micro_batches
from caramel.frontend.batch.tensor_gradients import unscaled_gradients
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.graph import ops
from caramel.graph.graph import Graph, behind_identities, node_of
from caramel.model import Input, VariableClass

_GRADIENT_VALUES: Mapping[str, Value] = {"equal": INVARIANT, "mean": Total(Fraction(-1)), "sum": Total()}
"""How a gradient depends on the examples, by the reduction that `Reductions.assume` gets."""

NOT_FOLLOWED = "it is computed inside a loop, or the program gave the gradient to start from (grad_ys)"
"""Reason why nothing is known of a loss."""

_PER_WORKER_CLASSES = (VariableClass.STATISTICS, VariableClass.ACCUMULATOR)  # totals are told from these later
"""Classes of the variables that have a value of their own on each worker."""


class Reductions:
    """Analysis of how the tensors of a program reduce over the batch.

    Args:
        graph: nodes with ``_output_shapes`` attributes.
        inputs: inputs of the program; the split ones carry the batch along axis 0.
        local: names of the variables that have a value of their own on each worker, by their handle nodes.
        row_constants: constants that follow from the number of examples; see `RawProgram`.
        dealing: how the rows of a batch are dealt to the workers.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Input],
        local: Mapping[str, str] | None = None,
        row_constants: Mapping[tuple[str, str], Value] | None = None,
        dealing: Dealing = WHOLE,
    ) -> None:
        self._graph = graph
        given: dict[str, Value] = {i.node: of_batch(dealing) for i in inputs if i.split}
        self._summed = {n.name for n in graph if OVER_WORKERS_ATTRIBUTE in n.attr}
        for node in graph:
            if node.name in self._summed:
                given[node.name] = Whole() if GATHERED_ATTRIBUTE in node.attr else INVARIANT
            elif ENTERING_ATTRIBUTE in node.attr:
                given[node.name] = Unknown("a gradient enters what a worker has a part of", unmodelled=True)
        self._own = {handle: _own_value(graph, handle, name) for handle, name in (local or {}).items()}
        given.update(self._own)
        bodies = FunctionBodies(graph, with_micro_batches(row_constants, dealing), dealing.leaves_remainder)
        self._analysis = Analysis(graph, bodies, given)

    def assume(self, gradient: str, kind: str) -> None:
        """Assume a reduction for a gradient, in place of the analysis' own result.

        Args:
            gradient: name of the gradient's tensor.
            kind: ``"mean"`` or ``"sum"`` over the batch, or ``"equal"`` for a value that is the same on all workers.
        """
        if len(ops.output_types(self._graph[node_of(gradient)])) == 1:
            self._analysis.assume(node_of(gradient), _GRADIENT_VALUES[kind])

    def assuming(self, values: Mapping[str, Value]) -> Reductions:
        """Another analysis of the same program, with these values for some nodes.

        Args:
            values: abstract value of the outputs of nodes, by name.
        """
        other = copy(self)
        other._analysis = self._analysis.assuming(values)
        return other

    def has(self, tensor: str) -> bool:
        """Whether a tensor is one of what is analysed; the program may have more that no step needs."""
        return node_of(tensor) in self._graph

    def knows(self, graph: Graph, names: Iterable[str]) -> bool:
        """Whether some nodes of a program are what they were when it was analysed.

        Args:
            graph: the program, which may have been changed since.
            names: names of the nodes.
        """
        return all(name in self._graph and self._graph[name].input == graph[name].input for name in names)

    def value_of(self, tensor: str) -> Value:
        """The abstract value of a tensor: how it depends on the examples."""
        return self._analysis.value_of(tensor)

    @property
    def tensor_gradients(self) -> Collection[str]:
        """Names of the nodes that carry gradients with respect to tensors."""
        return self._analysis.tensor_gradients

    def remainder_readers(self) -> Sequence[str]:
        """Names of the nodes that read something of the rows that no micro-batch has, or of their number."""
        return self._analysis.remainder_readers()

    def unscaled_gradients(self, tensors: Sequence[str]) -> list[str]:
        """The gradients with respect to tensors that have put a power of the number of examples into some tensors."""
        return unscaled_gradients(self._graph, tensors, self.value_of, self._analysis.tensor_gradients)

    def is_of_a_part(self, loss: str) -> bool:
        """Whether it is certain that each worker would have another loss than one device, and not only untold."""
        value = self.value_of(loss)
        return not isinstance(value, Unknown) or not value.unmodelled or value in self._own.values()

    def reduction_of(self, loss: str) -> tuple[str | None, str]:
        """``("mean" | "sum" | None, reason)`` for a differentiated tensor; None where the reduction cannot be told."""
        value = self._analysis.value_of(loss)
        if is_everywhere(value) and self._is_over_workers(loss):
            return "mean", f"the loss {loss!r} is computed from values of the whole batch, summed over the workers"
        return _reduction_of(value, loss)

    def reduction_inside(self, loop: str, loss: str) -> tuple[str | None, str]:
        """The same for a tensor that is differentiated in the body of a loop.

        Args:
            loop: name of a result of the loop, or of an Identity of one.
            loss: name of the tensor in the body.
        """
        result = behind_identities(self._graph, loop)
        self._analysis.value_of(result)
        value = self._analysis.differentiated.get((node_of(result), loss))
        return (None, NOT_FOLLOWED) if value is None else _reduction_of(value, loss)

    def is_the_same(self, loss: str) -> bool:
        """Whether a loss depends on nothing that differs between workers, such as a regulariser that is by itself."""
        if not is_invariant(self.value_of(loss)):
            return False
        behind = self._graph.ancestors([node_of(loss)], control=False)
        return not any(
            ops.is_seeded_random(node) or node.op in RANDOM_OPS | GENERATOR_OPS
            for name in behind
            for node in (self._graph[name], *self._analysis.inner_nodes(self._graph[name]))
        )

    def _is_over_workers(self, tensor: str) -> bool:
        """Whether values of the whole batch go into a tensor."""
        return bool(self._summed) and not self._graph.ancestors([node_of(tensor)], control=False).isdisjoint(
            self._summed
        )

    def batch_wide_values(self, losses: Sequence[str]) -> Mapping[str, Note]:
        """What of the whole batch ops on the way to losses put into the values of single examples, by their names.

        Batch normalisation's mean and variance are such values. Each worker computes them over its own part.
        """
        return self._analysis.notes_behind(losses)


def _reduction_of(value: Value, loss: str) -> tuple[str | None, str]:
    """See `Reductions.reduction_of`."""
    if isinstance(value, Unknown):
        return None, value.why
    if isinstance(value, Independent) or (isinstance(value, Examples) and value.repeated):
        return None, f"the loss {loss!r} does not depend on any input that is split over the workers"
    if isinstance(value, (Examples, Total)) and value.mixed_by:
        return None, (
            f"{value.mixed_by!r} puts a mean over the batch into the values of single examples of the loss "
            f"{loss!r}, and each worker would take the mean of its own part"
        )
    if isinstance(value, Total) and value.power == -1:
        return "mean", f"the loss {loss!r} averages over the batch"
    if isinstance(value, Total) and value.power == 0:
        return "sum", f"the loss {loss!r} adds up the examples of the batch without dividing by their number"
    if isinstance(value, Examples) and value.power == 0:
        return "sum", f"the loss {loss!r} has one value for each example; differentiation adds them"
    if isinstance(value, Examples) and value.power == -1:
        return "mean", f"the loss {loss!r} has one value for each example, divided by their number"
    if isinstance(value, Statistic):
        return None, f"the loss {loss!r} is not linear in a mean or a sum over the batch"
    return None, f"the loss {loss!r} is neither a mean nor a sum over the batch"


def reductions_of(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inside: Collection[str],
    inputs: Sequence[Input],
    kinds: Mapping[str, VariableClass],
) -> Reductions:
    """The analysis of a program's tensors.

    Args:
        raw: the captured program.
        used: gradients to aggregate.
        inside: tensors of the gradients that stay as they are inside a later loss.
        inputs: inputs that the step needs.
        kinds: class of each variable, by its handle node.
    """
    # A generator's state differs, too, but what is drawn counts as the same noise wherever it is drawn.
    local = {v.node: v.name for v in raw.variables if kinds[v.node] in _PER_WORKER_CLASSES}
    reductions = Reductions(raw.graph, inputs, local, raw.row_constants, raw.dealing)
    for gradient in used:  # those that are aggregated before they get into a loss
        for tensor in (gradient.tensor, gradient.indices):
            if tensor is not None and gradient.tensor not in inside:
                reductions.assume(tensor, "equal")
    return reductions


def _own_value(graph: Graph, handle: str, name: str) -> Unknown:
    """The value of a variable that each worker has for itself."""
    writers = [n for n in graph.data_readers(handle) if graph[n].op.startswith(("Assign", "Resource"))]
    by = next((f" (op {n!r} writes it)" for n in writers if graph[n].op != "ResourceGather"), "")
    return Unknown(f"variable {name!r} has a value of its own on each worker{by}", unmodelled=True)
