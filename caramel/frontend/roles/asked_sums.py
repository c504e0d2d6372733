"""Sums and gathers over the workers that are in a program as it is traced, and whether they can be as they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction

from caramel.frontend.attributes import (
    ASKED_ATTRIBUTE,
    GATHERED_ATTRIBUTE,
    OVER_WORKERS_ATTRIBUTE,
    TOTAL_ATTRIBUTE,
)
from caramel.frontend.batch.domain import Examples, Independent, Total, Value
from caramel.frontend.captured import RawProgram
from caramel.frontend.roles.entries import is_any_differentiated_again
from caramel.frontend.roles.summed_graph import with_entries
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph, NodeDef, copied, node_of, tensor_name
from caramel.model import ForwardSum


def with_asked_sums(raw: RawProgram) -> RawProgram:
    """The program with the sums for which it asks itself, by an all-reduce over the replicas."""
    raw = _without_sums_of_gradients(raw)
    known = {s.node for s in raw.forward_sums}
    asked = [n for n in raw.graph if (ASKED_ATTRIBUTE in n.attr or _is_gathered(n)) and n.name not in known]
    for each in asked:
        if ASKED_ATTRIBUTE in each.attr:
            forward_sum = ForwardSum(each.name, each.attr[ASKED_ATTRIBUTE].s.decode())
        else:
            axis, batches = each.attr[GATHERED_ATTRIBUTE].list.i
            forward_sum = ForwardSum(each.name, "gather", axis=axis, batches=batches)
        raw = with_entries(raw, forward_sum, raw.entries.get(each.name, ()))
    return raw


def _without_sums_of_gradients(raw: RawProgram) -> RawProgram:
    """The program that asks for no all-reduce of its gradients: they are those of the whole batch without it.

    With the one replica that a program has on one device, sum and mean leave a gradient as it is.
    """
    graph, gradients = raw.graph, {node_of(g.tensor) for g in raw.gradients}
    changed = {}
    for each in graph:
        if ASKED_ATTRIBUTE in each.attr and _is_passed_on(graph, each, gradients):
            changed[each.name] = copied(each)
            for attribute in (ASKED_ATTRIBUTE, OVER_WORKERS_ATTRIBUTE):
                changed[each.name].attr.pop(attribute, None)
    return replace(raw, graph=graph.replaced(changed)) if changed else raw


def _is_passed_on(graph: Graph, each: NodeDef, names: Collection[str]) -> bool:
    """Whether a node has what one of some other nodes gives, passed on by Identities alone."""
    while each.op == "Identity" and each.name not in names:
        each = graph[node_of(each.input[0])]
    return each.name in names


def _is_gathered(op: NodeDef) -> bool:
    """Whether the program was traced with this op for the examples of all workers."""
    return GATHERED_ATTRIBUTE in op.attr and TOTAL_ATTRIBUTE in op.attr


def is_settled(raw: RawProgram, reductions: Reductions, kind: str) -> bool:
    """Whether all that goes on with values of the whole batch may: the loss is told, and so are these.

    Args:
        raw: the captured program.
        reductions: analysis of how its tensors reduce over the batch.
        kind: reduction of the gradients, ``"mean"`` or ``"sum"``.
    """
    weighs = any(s.kind == "mean" for s in raw.forward_sums)  # by shares of the examples, which sums have not
    return not (kind == "sum" and weighs) and all(
        is_plain(reductions.value_of(t)) for t in gathered_parts(raw) if reductions.has(t)
    )


def gathered_parts(raw: RawProgram) -> list[str]:
    """The tensors of which the workers' parts are gathered."""
    return [tensor_name(n.input[0]) for n in raw.graph if _is_gathered(n)]


def is_plain(value: Value) -> bool:
    """Whether a tensor has entries of single examples, as one device has them."""
    return isinstance(value, Examples) and value.power == 0 and not value.mixed_by and value.before is not None


def unmet_sums(raw: RawProgram, reductions: Reductions) -> tuple[str, ...]:
    """The all-reduces and all-gathers for which a program asks that would not have the value that one device has.

    Args:
        raw: the captured program.
        reductions: analysis of how its tensors reduce over the batch.
    """
    unmet = [
        inner.name
        for n in raw.graph
        for _, inner in raw.library.inner_nodes(n)
        if ASKED_ATTRIBUTE in inner.attr or GATHERED_ATTRIBUTE in inner.attr
    ]
    for each in raw.graph:
        if ASKED_ATTRIBUTE in each.attr:
            kind, value = each.attr[ASKED_ATTRIBUTE].s.decode(), reductions.value_of(each.input[0])
            power = Fraction(0) if kind == "sum" else Fraction(-1)
            is_total = isinstance(value, Total) and value.power == power and not value.mixed_by
            is_size = isinstance(value, Independent) and value.power == power + 1
            if not (is_total or is_size) or not _is_entered_once(raw, each.name):
                unmet.append(each.name)
        elif _is_gathered(each):
            value, axis = reductions.value_of(each.input[0]), each.attr[GATHERED_ATTRIBUTE].list.i[0]
            are_examples = isinstance(value, Examples) and value.axis == axis
            if not are_examples or not is_plain(value) or not _is_entered_once(raw, each.name):
                unmet.append(each.name)
    return (*raw.out_of_reach, *dict.fromkeys(name.rpartition("/")[0] or name for name in unmet))


def _is_entered_once(raw: RawProgram, name: str) -> bool:
    """Whether it is known where gradients enter an op, and none of them is differentiated once more."""
    return name in raw.entries and not is_any_differentiated_again(raw, name)
