"""Serialization: the control edges that leave a step one order in which to compute its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import networkx as nx

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.order import computing_ops
from caramel.analyzers.step.boundaries import find_boundaries
from caramel.errors import InputError
from caramel.facts import BACKWARD, Boundaries, ControlEdges, Dependencies, Trace, UpdateOrder
from caramel.graph import ops
from caramel.graph.graph import Graph, node_of
from caramel.graph.guards import guards_of
from caramel.model import Model
from caramel.plan import Transfers

ORDER_KINDS = ("total", "updates")
"""Kinds of order that edges can enforce, see `enforced_order`."""

LEAST_GAIN = 0.01
"""Fraction of a step by which an order of updates alone must be shorter than a total one to be taken (our choice: less
is noise, and windows are more certain under a total order)."""


def serialization() -> Analyzer:
    """The order that makes the shorter step, by what the trace has measured; the total one if it has not."""

    def run(model: Model, dependencies: Dependencies, order: UpdateOrder, trace: Trace) -> ControlEdges:
        measured = trace.ordered_step_s
        known = all(kind in measured for kind in ("none", *ORDER_KINDS))
        kind = "updates" if known and measured["updates"] < (1 - LEAST_GAIN) * measured["total"] else "total"
        edges = control_edges(model, dependencies, order, kind)
        if not known:
            return edges
        costs = ", ".join(f"{name} {measured[name] / measured['none'] - 1:+.1%}" for name in ORDER_KINDS)
        return replace(edges, reason=f"{edges.reason}; measured cost of an order: {costs} of a step")

    return Analyzer("serialization", (Model, Dependencies, UpdateOrder, Trace), ControlEdges, run)


def without_needless_order(facts: Mapping[type, Any]) -> Mapping[type, Any]:
    """Facts without an order that has no use.

    Where all gradients travel in one transfer, that starts after the last of them, and where all travel in the next
    step's forward pass, they are all there at its beginning.

    Args:
        facts: facts of the analyzers by type, with those of a plan.
    """
    edges: ControlEdges = facts[ControlEdges]
    transfers: Transfers = facts[Transfers]
    is_next = all(transfer.window != BACKWARD for transfer in transfers.transfers)
    if not edges.edges or not (is_next or len(transfers.transfers) == 1):
        return facts
    why = "in the next step's forward pass" if is_next else "together, after the last of them"
    none = ControlEdges((), "none", f"nothing, since all gradients travel {why}")
    apart = (facts[Boundaries].sharded, facts[Boundaries].divided) if Boundaries in facts else ()
    boundaries = find_boundaries(
        facts[Model], facts[Dependencies], facts[Trace], facts[UpdateOrder], none, facts[Network], *apart
    )
    return {**facts, ControlEdges: none, Boundaries: boundaries}


def enforced_order(kind: str) -> Analyzer:
    """An order of one kind, whatever it costs.

    Args:
        kind: ``"total"``: an op that only later gradients need waits for the gradient before; ``"updates"``: only
            what makes a gradient waits for what makes the one before it, so branches still run side by side.

    Raises:
        InputError: no such kind.
    """
    if kind not in ORDER_KINDS:
        raise InputError(f"the order can be {' or '.join(map(repr, ORDER_KINDS))}, got {kind!r}")

    def run(model: Model, dependencies: Dependencies, order: UpdateOrder) -> ControlEdges:
        return control_edges(model, dependencies, order, kind)

    return Analyzer(f"serialization ({kind})", (Model, Dependencies, UpdateOrder), ControlEdges, run)


def no_serialization() -> Analyzer:
    """No order is enforced."""
    return Analyzer("no serialization", (), ControlEdges, lambda: ControlEdges((), "none", "switched off"))


def control_edges(model: Model, found: Dependencies, order: UpdateOrder, kind: str) -> ControlEdges:
    """The fewest edges that enforce an order.

    Args:
        model: the single-device step.
        found: dependencies of the step.
        order: order of the gradients.
        kind: ``"total"`` or ``"updates"``.

    Returns:
        From the end set of each gradient (the ops that make it) to the free set of the next (those of its ops
        that could run at once); none that follows from the others. Edges start and end at ops that compute
        something, since others may be removed. Between branches there are none.

    Source:
        Caramel, section 4.1, stage 2.
    """
    graph = model.graph
    computing_by_gradient = {name: computing_ops(graph, found.producers[name]) for name in order.gradients}
    reach = _Reach(graph, found.ops, [a for name in order.gradients for a in computing_by_gradient[name]])
    guards = guards_of(graph).by_node
    edges: dict[tuple[str, str], None] = {}
    ends: list[str] = []
    computing = {a for of in computing_by_gradient.values() for a in of}
    for name, stage in zip(order.gradients, order.stages):
        # What TensorFlow joins is in one stage, so nothing comes between.
        free = _free(graph, stage) if kind == "total" else [op for op in stage if op in computing]
        if free:
            new = [(e, f) for f in free for e in ends if not reach.has(e, f) and guards[e] <= guards[f]]
            edges.update(dict.fromkeys(new))
            ends = []
        # Where a gradient has no ops of its own it is ready with the one before it.
        ends = _last(reach, [*ends, *computing_by_gradient[name]])
    fewest = _without_implied(graph, tuple(edges))
    count = len(fewest)
    what = (
        "each op that only later gradients need waits for the earlier ones"
        if kind == "total"
        else "the last op of each gradient waits for that of the one before"
    )
    return ControlEdges(fewest, kind, f"{count} control edges on each worker; {what}")


def _without_implied(graph: Graph, edges: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The edges without those that follow from the graph and the other edges.

    In a graph without cycles these are the edges of its transitive reduction. Only paths between ends of edges are
    asked for, which is linear where networkx's `transitive_reduction` is not. A Merge waits for one of its inputs, so
    it follows only from what all of them follow from.
    """
    digraph = graph.digraph.copy()
    digraph.add_edges_from(edges)
    bits = {name: 1 << number for number, name in enumerate(dict.fromkeys(before for before, _ in edges))}
    follows_from: dict[str, int] = {}
    for name in nx.topological_sort(digraph):
        masks = [follows_from[producer] | bits.get(producer, 0) for producer in digraph.pred[name]]
        union = 0
        for mask in masks:
            union |= mask
        if graph[name].op in ("Merge", "RefMerge"):
            for mask in masks:
                union &= mask
        follows_from[name] = union
    return tuple(
        (before, after)
        for before, after in edges
        if not any(follows_from[other] & bits[before] for other in digraph.pred[after] if other != before)
    )


def _free(graph: Graph, stage: Sequence[str]) -> list[str]:
    """The ops of a stage that compute something and need no other such op of it."""
    inside = set(stage)
    waits: dict[str, bool] = {}  # whether an op needs another one that computes something
    free = []
    for op in stage:
        producers = [p for p in (node_of(text) for text in graph[op].input) if p in inside]
        waits[op] = any(waits[p] or graph[p].op not in ops.ZERO_COST_OPS for p in producers)
        if not waits[op] and graph[op].op not in ops.ZERO_COST_OPS:
            free.append(op)
    return free


def _last(reach: _Reach, ends: Sequence[str]) -> list[str]:
    """The ends without those that come before others of them anyway."""
    unique = list(dict.fromkeys(ends))
    return [e for e in unique if not any(reach.has(e, other) for other in unique if other != e)]


class _Reach:
    """The ops, of some that matter, from which each op follows anyway."""

    def __init__(self, graph: Graph, order: Sequence[str], of: Sequence[str]) -> None:
        self._bits = {name: 1 << number for number, name in enumerate(dict.fromkeys(of))}
        self._before: dict[str, int] = {}
        for name in order:
            mask = 0
            for text in graph[name].input:
                producer = node_of(text)
                mask |= self._before[producer] | self._bits.get(producer, 0)
            self._before[name] = mask

    def has(self, before: str, after: str) -> bool:
        """Whether one op follows from another."""
        return bool(self._before[after] & self._bits[before])
