"""Sparse gradients of which a program adds up the slices of one row anyway: each worker may do so before it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from caramel.facts import Trace
from caramel.graph.graph import node_of, parse_input
from caramel.model import Gradient, Model
from caramel.plan import Transfer

_MOST_DISTINCT_PART = 0.9
"""Largest fraction of the slices that may be left after adding up; with more, adding up costs more than it saves (our
choice)."""


def distinct_rows_node(model: Model, gradient: Gradient) -> str | None:
    """The node that finds the different rows of a sparse gradient, if all the program does is to add up their slices.

    That is what `tf.unique` and `tf.math.unsorted_segment_sum` do in optimizers of TensorFlow 1, before they use the
    result. A sum of sums is then what it was, but for rounding, and the rows come in the same order. Where a program
    does anything else with slices (squares them, as Keras' Adam does) or with their places, they stay as they are.

    Args:
        model: the single-device step.
        gradient: gradient of the step.

    Returns:
        Name of the ``Unique`` node, or None.
    """
    if gradient.indices is None or gradient.sources or gradient.shared_rows:
        return None
    graph = model.graph
    sum_nodes = gradient.consumers or graph.readers(gradient.tensor)
    unique_nodes = graph.readers(gradient.indices)
    if not sum_nodes or len(unique_nodes) != 1 or graph[unique_nodes[0]].op != "Unique":
        return None
    for name in sum_nodes:
        is_sum = graph[name].op == "UnsortedSegmentSum" and len(graph[name].input) >= 3
        if not is_sum or [parse_input(text) for text in graph[name].input[:2]] != [
            parse_input(gradient.tensor),
            (unique_nodes[0], 1),
        ]:
            return None
    positions = f"{unique_nodes[0]}:1"
    seen = {model.loss, *(tensor for _, tensor in model.outputs)}
    if seen & {gradient.tensor, gradient.indices, positions} or not set(graph.readers(positions)) <= set(sum_nodes):
        return None
    return unique_nodes[0]


def are_distinct(model: Model, gradient: Gradient) -> bool:
    """Whether a program looks up each row once, so that no two slices of a sparse gradient are of one row.

    The slices of all workers may be: they have to be added up, row by row, to be what one device has.

    Args:
        model: the single-device step.
        gradient: gradient of the step.
    """
    if gradient.indices is None or gradient.sources or gradient.shared_rows:
        return False
    name, index = parse_input(gradient.indices)
    while model.graph[name].op in ("Cast", "Identity", "Reshape"):
        name, index = parse_input(model.graph[name].input[0])
    return model.graph[name].op in ("Unique", "UniqueV2") and index == 0


def distinct_part(model: Model, gradient: Gradient, trace: Trace, deterministic: bool) -> float:
    """The fraction of a sparse gradient's slices that is left when each worker adds up its own; 1 if it should not.

    Args:
        model: the single-device step.
        gradient: gradient of the step.
        trace: trace of the step, which knows how many different rows the data have.
        deterministic: whether slices are added in rank order, which a sum of sums is not.
    """
    part = 1.0 if deterministic else different_part(model, gradient, trace)
    return part if part <= _MOST_DISTINCT_PART else 1.0


def different_part(model: Model, gradient: Gradient, trace: Trace) -> float:
    """The number of different rows of a sparse gradient over that of its slices; 1 if the trace does not say.

    Args:
        model: the single-device step.
        gradient: gradient of the step.
        trace: trace of the step.
    """
    unique_node = distinct_rows_node(model, gradient)
    if unique_node is None or gradient.indices is None:
        return 1.0
    all_bytes, left_bytes = (trace.op_bytes.get(name, 0) for name in (node_of(gradient.indices), unique_node))
    return left_bytes / all_bytes if all_bytes and left_bytes else 1.0


def with_added_slices(
    model: Model, transfers: Sequence[Transfer], trace: Trace | None, deterministic: bool
) -> tuple[Transfer, ...]:
    """The transfers; those of sparse gradients add up slices where that is worth it, see `distinct_part`."""
    if trace is None:
        return tuple(transfers)
    by_name = {g.name: g for g in model.gradients}
    updated = []
    for transfer in transfers:
        gradient = by_name[transfer.pieces[0].gradient]
        part = distinct_part(model, gradient, trace, deterministic) if gradient.is_sparse else 1.0
        if part < 1:
            why = f"Each worker adds up its slices of one row first, as the program does: {part:.0%} are left."
            transfer = replace(transfer, adds_slices=True, reason=f"{transfer.reason} {why}")
        updated.append(transfer)
    return tuple(updated)
