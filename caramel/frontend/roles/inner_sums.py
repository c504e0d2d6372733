"""Gradients inside losses that are no linear functions of them: they are summed over the workers in the forward pass.

On one device such a gradient (of a step that meta-learning differentiates through, or in a loss of the norms of
gradients) is that of the whole batch. If each worker goes on with the sum of all workers' gradients, its loss is that
of one device, and what enters the gradient from the later differentiation is summed like what enters any other sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from caramel.frontend.captured import RawGradient, RawProgram
from caramel.frontend.roles.entries import is_any_differentiated_again
from caramel.frontend.roles.needs import kind_of_sum
from caramel.frontend.roles.nested_gradients import gradients_inside
from caramel.frontend.roles.summed_graph import name_over_workers, with_sum
from caramel.frontend.roles.tensor_reductions import Reductions, reductions_of
from caramel.graph.graph import node_of, tensor_name
from caramel.model import Input, VariableClass


def with_inner_sums(raw: RawProgram, inputs: Sequence[Input], kinds: Mapping[str, VariableClass]) -> RawProgram | None:
    """The program whose gradients inside losses are those of the whole batch on each worker.

    Args:
        raw: the captured program.
        inputs: inputs that the step needs.
        kinds: class of each variable, by its handle node.

    Returns:
        The program; None where that cannot be told to be exact.
    """

    summed = raw
    while True:
        reductions = reductions_of(summed, (), (), inputs, kinds)
        by_tensors = _with_gradients_by_tensors(summed, reductions)
        if by_tensors is not summed:
            summed = by_tensors
            continue
        inside = gradients_inside(summed)
        if not inside:
            return None if summed is raw else summed
        call = inside[0].call  # later ones may be functions of it
        kind = _kind_of(summed, reductions, call)
        for gradient in (g for g in inside if g.call == call):
            if kind is None or not _can_be_summed(summed, gradient):
                return None
            node = node_of(gradient.tensor)
            entries = [(node, entry) for entry in summed.entries[node]]
            others = tuple(g for g in summed.gradients if g != gradient)
            summed = replace(with_sum(summed, gradient.tensor, kind, None, entries), gradients=others)


def _kind_of(raw: RawProgram, reductions: Reductions, call: int) -> str | None:
    """How the workers' gradients of a call give those of the whole batch, ``"sum"`` or ``"mean"``; None for neither."""
    kinds = {kind_of_sum(reductions.value_of(target)) for target in raw.targets_of(call)}
    return kinds.pop() if len(kinds) == 1 else None


def _with_gradients_by_tensors(raw: RawProgram, reductions: Reductions) -> RawProgram:
    """The program that sums gradients by tensors that all workers have, as far as a later loss goes through them."""
    summed = raw
    for name in reductions.tensor_gradients:
        kind = kind_of_sum(reductions.value_of(tensor_name(name)))
        entries = [(name, entry) for entry in summed.entries.get(name, ())]
        if entries and kind is not None and not is_any_differentiated_again(summed, name):
            summed = with_sum(summed, tensor_name(name), kind, None, entries)
    return summed


def _can_be_summed(raw: RawProgram, gradient: RawGradient) -> bool:
    """Whether a gradient is dense, has readers that are all of one kind, and where it is entered can be told."""
    node = node_of(gradient.tensor)
    is_told = node in raw.entries and not is_any_differentiated_again(raw, node)
    is_new = name_over_workers(gradient.tensor) not in raw.graph
    return gradient.indices is None and not gradient.consumers and is_told and is_new
