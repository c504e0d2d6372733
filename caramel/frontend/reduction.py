"""How a loss reduces over the batch: is it a mean over the examples, or a sum?

`caramel.frontend.batch` follows the examples from the inputs to the loss. What it does not know how
to follow is unknown, with the op that made it so, and then the caller has to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from caramel.frontend.batch.analysis import Analysis
from caramel.frontend.batch.values import FREE, Examples, Free, Statistic, Total, Unknown, Value
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, node_of
from caramel.model import Input

_KNOWN: Mapping[str, Value] = {"equal": FREE, "mean": Total(Fraction(-1)), "sum": Total()}


def reduction_of(
    graph: Graph, tensor: str, inputs: Sequence[Input], known: Mapping[str, str] | None = None
) -> tuple[str | None, str]:
    """Whether a tensor is a mean or a sum over the examples of the batch.

    Args:
        graph: nodes with ``_output_shapes`` attributes.
        tensor: the tensor that is differentiated.
        inputs: the program's inputs; the split ones carry the batch along axis 0.
        known: of some tensors whether they are a ``"mean"`` or a ``"sum"`` over the batch, or ``"equal"`` whatever
            examples a worker has (gradients, aggregated or not).

    Returns:
        ``("mean" | "sum" | None, reason)``; None where it cannot be told.
    """
    value = _analysis(graph, inputs, known).value_of(tensor)
    if isinstance(value, Unknown):
        return None, value.why
    if isinstance(value, Free) or (isinstance(value, Examples) and value.same):
        return None, f"the loss {tensor!r} does not depend on any input that is split over the workers"
    if isinstance(value, (Examples, Total)) and value.centred:
        return None, (
            f"{value.centred!r} puts a mean over the batch into the values of single examples of the loss {tensor!r}, "
            "and each worker would take the mean of its own part"
        )
    if isinstance(value, Total) and value.power == -1:
        return "mean", f"the loss {tensor!r} averages over the batch"
    if isinstance(value, Total) and value.power == 0:
        return "sum", f"the loss {tensor!r} adds up the examples of the batch without dividing by their number"
    if isinstance(value, Examples) and value.power == 0:
        return "sum", f"the loss {tensor!r} has one value for each example; differentiation adds them"
    if isinstance(value, Examples) and value.power == -1:
        return "mean", f"the loss {tensor!r} has one value for each example, divided by their number"
    what = "is not linear in" if isinstance(value, Statistic) else "is neither"
    return None, f"the loss {tensor!r} {what} a mean nor a sum over the batch".replace(
        "linear in a mean nor", "linear in a mean or"
    )


def batch_wide_values(
    graph: Graph, tensor: str, inputs: Sequence[Input], known: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Ops that put a value over the whole batch into the values of single examples.

    Batch normalisation's mean and variance are such. Each worker computes them over its own part.
    """
    analysis = _analysis(graph, inputs, known)
    analysis.value_of(tensor)
    return tuple(analysis.notes)


def _analysis(graph: Graph, inputs: Sequence[Input], known: Mapping[str, str] | None) -> Analysis:
    given: dict[str, Value] = {i.node: Examples(0) for i in inputs if i.split}
    for tensor, kind in (known or {}).items():
        if len(ops.output_types(graph[node_of(tensor)])) == 1:
            given[node_of(tensor)] = _KNOWN[kind]
    return Analysis(graph, Library(graph), given)
