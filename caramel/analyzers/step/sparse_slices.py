"""Sparse gradients of which a program adds up the slices of one row anyway: each worker may do so before it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.facts import Trace
from caramel.graph.graph import node_of, parse_input
from caramel.model import Gradient, Model
from caramel.plan import Transfer

_WORTH = 0.9
"""The part of the slices that may be left; adding up and sending all others would cost more (our choice)."""


def adds_slices(model: Model, gradient: Gradient) -> str | None:
    """The node that finds the different rows of a sparse gradient, if all the program does is to add up their slices.

    That is what `tf.unique` and `tf.math.unsorted_segment_sum` do in optimizers of TensorFlow 1, before they use the
    result. A sum of sums is then what it was, but for rounding, and the rows come in the same order. Where a program
    does anything else with slices (squares them, as Keras' Adam does) or with their places, they stay as they are.

    Args:
        model: the single-device step.
        gradient: of it.

    Returns:
        The ``Unique`` node's name, or None.
    """
    if gradient.indices is None or gradient.sources:
        return None
    graph = model.graph
    sums = gradient.consumers or graph.readers(gradient.tensor)
    finding = graph.readers(gradient.indices)
    if not sums or len(finding) != 1 or graph[finding[0]].op != "Unique":
        return None
    for name in sums:
        is_sum = graph[name].op == "UnsortedSegmentSum" and len(graph[name].input) >= 3
        if not is_sum or [parse_input(text) for text in graph[name].input[:2]] != [
            parse_input(gradient.tensor),
            (finding[0], 1),
        ]:
            return None
    places = f"{finding[0]}:1"
    seen = {model.loss, *(tensor for _, tensor in model.outputs)}
    if seen & {gradient.tensor, gradient.indices, places} or not set(graph.readers(places)) <= set(sums):
        return None
    return finding[0]


def distinct_part(model: Model, gradient: Gradient, trace: Trace, deterministic: bool) -> float:
    """The part of a sparse gradient's slices that is left when each worker adds up its own; 1 if it had better not.

    Args:
        model: the single-device step.
        gradient: of it.
        trace: of it, which knows how many different rows the data have.
        deterministic: whether slices are added in rank order, which a sum of sums is not.
    """
    finding = adds_slices(model, gradient)
    if deterministic or finding is None or gradient.indices is None:
        return 1.0
    all_bytes, left_bytes = (trace.op_bytes.get(name, 0) for name in (node_of(gradient.indices), finding))
    part = left_bytes / all_bytes if all_bytes and left_bytes else 1.0
    return part if part <= _WORTH else 1.0


def with_sums(
    model: Model, transfers: Sequence[Transfer], trace: Trace | None, deterministic: bool
) -> tuple[Transfer, ...]:
    """The transfers, those of sparse gradients with slices added up where that is worth it; see `distinct_part`."""
    if trace is None:
        return tuple(transfers)
    by_name = {g.name: g for g in model.gradients}
    made = []
    for transfer in transfers:
        gradient = by_name[transfer.pieces[0].gradient]
        part = distinct_part(model, gradient, trace, deterministic) if gradient.is_sparse else 1.0
        if part < 1:
            why = f"Each worker adds up its slices of one row first, as the program does: {part:.0%} are left."
            transfer = replace(transfer, adds_slices=True, reason=f"{transfer.reason} {why}")
        made.append(transfer)
    return tuple(made)
