"""Notes of a model: what its user may want to know of a program that was taken as it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from caramel.errors import listed
from caramel.frontend.batch.domain import Note, Statistic, Unknown, Value
from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import node_of
from caramel.graph.shapes import static_shape
from caramel.model import Combination, Gradient


def several_losses(raw: RawProgram, reported: str, gradients: Sequence[RawGradient]) -> list[str]:
    """A note on losses of which the program does not say which one to report.

    Args:
        raw: the captured program.
        reported: the tensor that is reported.
        gradients: those that are aggregated.
    """
    calls = {g.call for g in gradients}
    losses = list(dict.fromkeys(tensor for tensor, call in raw.differentiated if call in calls))
    if raw.loss is not None or len(losses) < 2:
        return []
    return [
        f"several tensors are differentiated ({listed(losses)}), and {reported!r} is reported as the loss: choose with "
        "loss="
    ]


def batch_wide(reductions: Reductions, losses: Sequence[str]) -> list[str]:
    """Notes on values of the whole batch that the losses use, and that each worker makes of its part.

    Args:
        reductions: what the analysis of the losses has found.
        losses: the tensors that are differentiated.
    """
    values = reductions.batch_wide_values(losses)
    means = [name for name, note in values.items() if note is Note.STATISTICS]
    orders = [name for name, note in values.items() if note is Note.ORDER]
    notes = []
    if means:
        notes.append(
            f"the loss uses values over the whole batch ({listed(means, 3)}): each worker computes them over its own "
            "part, as batch normalisation does"
        )
    if orders:
        notes.append(
            f"the loss pairs examples by chance ({listed(orders, 3)}): with several workers each does so among those "
            "of its own part, and an example that is the only one there stays with itself"
        )
    return notes


def summed(raw: RawProgram) -> list[str]:
    """Notes on tensors that are summed or gathered over the workers in the forward pass.

    Args:
        raw: the captured program.
    """
    if not raw.forward_sums:
        return []
    gathered = [s.node for s in raw.forward_sums if s.kind == "gather"]
    added = [s.node for s in raw.forward_sums if s.kind != "gather"]
    notes = []
    for nodes, what in ((added, "summed over the workers"), (gathered, "gathered from all workers")):
        names = list(dict.fromkeys(node_of(raw.graph[name].input[0]) for name in nodes))
        made = [n for n, t in raw.outputs if t != raw.loss and _is_behind(raw, nodes, t)]
        readers = f"; the step returns what is made of that: {listed(made, 3)}" if made else ""
        if names:
            notes.append(
                f"values of the whole batch are needed: {listed(names, 3)} {'is' if len(names) == 1 else 'are'} "
                f"{what} in the forward pass, so that each of them has these values{readers}"
            )
    whole = [i.name for i in raw.inputs if any(node_of(raw.graph[name].input[0]) == i.node for name in gathered)]
    if whole:
        notes.append(
            f"what follows from all rows of {listed(whole, 3)} is computed by every worker for the whole batch, which "
            "several workers do no faster than one (micro-batches are divided if they are equal parts of any batch, or "
            "rows by their numbers of batches of one size)"
        )
    return notes


def own_results(raw: RawProgram, combinations: Sequence[Combination | None], reductions: Reductions) -> list[str]:
    """A note on numbers that a step gives back and that are neither of the whole batch nor a mean or sum of it.

    Args:
        raw: the captured program.
        combinations: how the workers' values of each result give that of one device; None where that cannot be told.
        reductions: what the analysis has found.
    """
    if raw.is_alone:
        return []
    names = [
        name
        for (name, tensor), how in zip(raw.outputs, combinations)
        if how is None and static_shape(raw.graph, tensor) == () and _is_of_part(reductions.value_of(tensor))
    ]
    if not names:
        return []
    return [
        f"each worker has its own value of {listed(names, 3)}, of which it cannot be told how these give that of the "
        "whole batch"
    ]


def _is_of_part(value: Value) -> bool:
    """Whether a number is made of a worker's part in a way that is known, and is no mean or sum."""
    return isinstance(value, Statistic) or (isinstance(value, Unknown) and not value.unmodelled)


def _is_behind(raw: RawProgram, nodes: Collection[str], tensor: str) -> bool:
    """Whether some nodes go into a tensor."""
    return not raw.graph.ancestors([node_of(tensor)], control=False).isdisjoint(nodes)


def own_state(raw: RawProgram, handles: Collection[str]) -> list[str]:
    """A note on variables that are not what one device has.

    Args:
        raw: the captured program.
        handles: handles of variables that each worker writes from its own examples, normalisation apart.
    """
    names = [v.name for v in raw.variables if v.node in handles]
    if not names:
        return []
    return [
        f"each worker keeps its own value of {listed(names)}: it is written from the worker's own examples, and is not "
        "what one device has"
    ]


def without_gradient(raw: RawProgram, gradients: Sequence[Gradient], writes: Collection[str]) -> list[str]:
    """Notes on trainable variables that no gradient reaches, and nothing writes.

    Args:
        raw: the captured program.
        gradients: the model's gradients.
        writes: handles of the variables that the step writes.
    """
    with_gradient = {g.parameter for g in gradients}
    without = [v.name for v in raw.variables if v.trainable and v.name not in with_gradient and v.node not in writes]
    return [f"no gradient reaches {listed(without)}: left as it is"] if without else []
