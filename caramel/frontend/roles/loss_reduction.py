"""How a loss reduces over the batch: it is a mean over the examples, or a sum.

`caramel.frontend.batch` follows the examples from the inputs to the loss. A tensor that it cannot follow
is `Unknown`, with the op that made it so, and then the caller has to give the reduction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from caramel.errors import CaptureError
from caramel.frontend.attributes import ENTERING_ATTRIBUTE, GATHERED_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE
from caramel.frontend.batch.domain import (
    INVARIANT,
    Examples,
    Independent,
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
from caramel.frontend.batch.tensor_gradients import unscaled_gradients
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.graph import ops
from caramel.graph.graph import Graph, node_of
from caramel.model import Input, Reduction, VariableClass

_GRADIENT_VALUES: Mapping[str, Value] = {"equal": INVARIANT, "mean": Total(Fraction(-1)), "sum": Total()}
"""How a gradient depends on the examples, by the reduction that `Reductions.assume` gets."""

_NOT_FOLLOWED = "it is computed inside a loop, or the program gave the gradient to start from (grad_ys)"
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
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Input],
        local: Mapping[str, str] | None = None,
        row_constants: Mapping[tuple[str, str], Value] | None = None,
    ) -> None:
        self._graph = graph
        given: dict[str, Value] = {i.node: Examples(0) for i in inputs if i.split}
        self._summed = {n.name for n in graph if OVER_WORKERS_ATTRIBUTE in n.attr}
        for node in graph:
            if node.name in self._summed:
                given[node.name] = Whole() if GATHERED_ATTRIBUTE in node.attr else INVARIANT
            elif ENTERING_ATTRIBUTE in node.attr:
                given[node.name] = Unknown("a gradient enters what a worker has a part of", unmodelled=True)
        self._own = {handle: _own_value(graph, handle, name) for handle, name in (local or {}).items()}
        given.update(self._own)
        self._analysis = Analysis(graph, FunctionBodies(graph, row_constants), given)

    def assume(self, gradient: str, kind: str) -> None:
        """Assume a reduction for a gradient, in place of the analysis' own result.

        Args:
            gradient: name of the gradient's tensor.
            kind: ``"mean"`` or ``"sum"`` over the batch, or ``"equal"`` for a value that is the same on all workers.
        """
        if len(ops.output_types(self._graph[node_of(gradient)])) == 1:
            self._analysis.assume(node_of(gradient), _GRADIENT_VALUES[kind])

    def has(self, tensor: str) -> bool:
        """Whether a tensor is one of what is analysed; the program may have more that no step needs."""
        return node_of(tensor) in self._graph

    def value_of(self, tensor: str) -> Value:
        """The abstract value of a tensor: how it depends on the examples."""
        return self._analysis.value_of(tensor)

    @property
    def tensor_gradients(self) -> Collection[str]:
        """Names of the nodes that carry gradients with respect to tensors."""
        return self._analysis.tensor_gradients

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
            loop: name of a result of the loop.
            loss: name of the tensor in the body.
        """
        self._analysis.value_of(loop)
        value = self._analysis.differentiated.get((node_of(loop), loss))
        return (None, _NOT_FOLLOWED) if value is None else _reduction_of(value, loss)

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

    def batch_wide_values(self, losses: Sequence[str]) -> tuple[str, ...]:
        """Ops on the way to losses that put a value of the whole batch into the values of single examples.

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


def reduce_program(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inside: Mapping[str, int],
    inputs: Sequence[Input],
    kinds: Mapping[str, VariableClass],
) -> tuple[Reduction, Reductions]:
    """Find how a program's gradients are reduced.

    Args:
        raw: the captured program.
        used: gradients to aggregate.
        inside: number of the call, by tensor, of the gradients that stay as they are inside a later loss.
        inputs: inputs that the step needs.
        kinds: class of each variable, by its handle node.

    Returns:
        The reduction of the gradients, and the analysis, for other tensors of the program.

    Raises:
        CaptureError: the reduction cannot be told, or the caller's does not hold.
    """
    given = raw.reduction
    if given not in (None, "mean", "sum"):
        raise CaptureError(f"loss_reduction must be 'mean' or 'sum', got {given!r}")
    reductions = reductions_of(raw, used, inside, inputs, kinds)
    inner_calls = set(inside.values())
    reasons: dict[str, str] = {}
    alike: list[str] = []  # losses that are the same on all workers, so that any mean of their gradients is theirs
    for call in sorted(inner_calls if given else {g.call for g in used} | inner_calls):
        losses = raw.targets_of(call)
        for loss in losses:
            kind, reason = reductions.reduction_of(loss)
            kind = kind or given
            if kind is None and call not in inner_calls and reductions.is_the_same(loss):
                alike.append(loss)
                continue
            if kind is None:
                is_of_a_part = reductions.is_of_a_part(loss)
                raise _untold(reason, is_of_a_part=is_of_a_part, is_graph=raw.is_graph)
            reasons[kind] = reason
            for tensor, number in inside.items():
                if number == call:
                    reductions.assume(tensor, kind)
        if given is None and not losses:
            reasons |= _reasons_inside(reductions, [g for g in used if g.call == call])
    if given is not None:
        if reasons.keys() - {given}:
            raise CaptureError(f"loss_reduction={given!r} does not hold inside the loss: {'; '.join(reasons.values())}")
        losses = [tensor for call in {g.call: None for g in used} for tensor in raw.targets_of(call)]
        return Reduction(given, _given_reason(given, reductions, losses)), reductions
    if alike and reasons.keys() != {"mean"}:
        raise _untold(reductions.reduction_of(alike[0])[1], is_of_a_part=True, is_graph=raw.is_graph)
    if not reasons:
        raise _untold(_NOT_FOLLOWED)
    if len(reasons) != 1:
        raise CaptureError(
            "some losses are means over the batch and some are sums "
            f"({'; '.join(reasons.values())}): say loss_reduction='mean' or 'sum'"
        )
    ((kind, reason),) = reasons.items()
    return Reduction(kind, reason), reductions


def _reasons_inside(reductions: Reductions, gradients: Sequence[RawGradient]) -> Mapping[str, str]:
    """How the losses reduce whose gradients a loop adds up, as reason by kind.

    Raises:
        CaptureError: that cannot be told.
    """
    reasons: dict[str, str] = {}
    for gradient in gradients:
        for loss in gradient.losses_inside or [""]:
            kind, reason = reductions.reduction_inside(gradient.tensor, loss)
            if kind is None:
                raise _untold(reason)
            reasons[kind] = reason
    return reasons


def _given_reason(given: str, reductions: Reductions, losses: Sequence[str]) -> str:
    """What the caller said, and what follows where that is not what the program says by itself."""
    others = [reason for kind, reason in map(reductions.reduction_of, losses) if kind != given]
    if not others:
        return "given by loss_reduction="
    return f"given by loss_reduction=, so that each worker's gradients are those of its own part, though {others[0]}"


def reductions_of(
    raw: RawProgram,
    used: Sequence[RawGradient],
    inside: Collection[str],
    inputs: Sequence[Input],
    kinds: Mapping[str, VariableClass],
) -> Reductions:
    """The analysis of a program's tensors; see `reduce_program`."""
    # A generator's state differs, too, but what is drawn counts as the same noise wherever it is drawn.
    local = {v.node: v.name for v in raw.variables if kinds[v.node] in _PER_WORKER_CLASSES}
    reductions = Reductions(raw.graph, inputs, local, raw.row_constants)
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


def _untold(reason: str, *, is_of_a_part: bool = False, is_graph: bool = False) -> CaptureError:
    advice = (
        "With loss_reduction='mean' each worker trains on the loss of its own part of the batch, which is another, "
        "unless each example counts by itself"
        if is_of_a_part
        else "Where each example counts by itself, say loss_reduction='mean' (gradients are averaged over the workers) "
        "or 'sum' (they are added)"
    )
    if is_of_a_part and is_graph:
        advice += ". If the loss compares examples, write it as a step function, which can be traced with all of them"
    error = CaptureError(f"cannot tell whether the loss is a mean or a sum over the batch: {reason}. {advice}")
    error.wants_reduction = True
    return error
