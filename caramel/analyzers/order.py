"""The order in which gradients are computed: the paper's greedy one, or the one in which the graph lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.facts import Dependencies, Trace, UpdateOrder
from caramel.graph import ops
from caramel.graph.fusion import companions, joined_ops
from caramel.graph.graph import Graph, node_of
from caramel.model import Model

LIGHT = frozenset(
    {
        *("Const", "Identity", "IdentityN", "NoOp", "PreventGradient", "Snapshot", "StopGradient", "ReadVariableOp"),
        *("Shape", "ShapeN", "Size", "Rank", "Reshape", "ExpandDims", "Squeeze", "FloorMod", "Range"),
        *("BroadcastGradientArgs", "ConcatOffset"),
        ops.VARIABLE,
        *ops.PLACEHOLDERS,
    }
)
"""Ops that take no time; TensorFlow's graph optimizers remove many of them, together with their control edges."""

_TICK_S = 1e-9
"""Times are added up as whole nanoseconds, so that what has been taken off is exactly gone."""


def greedy_order() -> Analyzer:
    """Always the gradient that needs the least computation that has not been done yet."""
    return Analyzer("greedy order", (Model, Dependencies, Trace), UpdateOrder, _greedy)


def graph_order() -> Analyzer:
    """The same rule, with all ops taken for equally long: what can be said without a trace."""
    return Analyzer("graph order", (Model, Dependencies), UpdateOrder, _untraced)


def _greedy(model: Model, found: Dependencies, trace: Trace) -> UpdateOrder:
    return order_by_cost(model, found, trace.op_s, "least remaining computation first, by the trace")


def _untraced(model: Model, found: Dependencies) -> UpdateOrder:
    times = dict.fromkeys(found.ops, 1e-06)
    return order_by_cost(model, found, times, "least remaining ops first, as there is no trace")


def order_by_cost(model: Model, found: Dependencies, op_s: Mapping[str, float], reason: str) -> UpdateOrder:
    """The greedy order.

    Args:
        model: the single-device step.
        found: its dependencies.
        op_s: seconds of each op; 0 where it is not there.
        reason: for the result.

    Returns:
        The order: again and again the gradient whose ops that are still to be done take the least time; of
        equal ones that with the fewest ops, then the first of the Model. Gradients that TensorFlow computes
        by one op follow each other.

    Source:
        Caramel, section 4.1, stage 1.
    """
    costs = np.array([round(op_s.get(op, 0.0) / _TICK_S) for op in found.ops], dtype=np.int64)
    needs = found.needs
    remaining = needs @ costs
    counts = needs.sum(axis=1)
    waiting = np.ones(len(found.gradients), dtype=bool)
    done = np.zeros(len(found.ops), dtype=bool)
    gradients: list[str] = []
    stages, together = [], []
    groups = _groups(model.graph, found)
    depths = _depths(model.graph, found.ops)
    levels = np.array([found.levels[name] for name in found.gradients], dtype=np.int64)
    for _ in found.gradients:
        candidates = np.flatnonzero(waiting)
        group = groups.get(gradients[-1]) if gradients else None
        partners = [n for n in candidates if group is not None and groups.get(found.gradients[n]) == group]
        together.append(bool(partners))
        best = min(partners or candidates, key=lambda n: (levels[n], remaining[n], counts[n], n))
        new = needs[best] & ~done
        positions = np.flatnonzero(new)
        gradients.append(found.gradients[best])
        stages.append(_in_order(model.graph, [found.ops[p] for p in positions], depths, found, gradients[-1]))
        remaining -= needs[:, positions] @ costs[positions]
        counts -= needs[:, positions].sum(axis=1)
        done |= new
        waiting[best] = False
    return UpdateOrder(tuple(gradients), tuple(stages), reason, tuple(together) if any(together) else ())


def _groups(graph: Graph, found: Dependencies) -> Mapping[str, int]:
    """For gradients that TensorFlow computes by one op with others the number of their group."""
    makers = {name: anchors(graph, producers) for name, producers in found.producers.items()}
    joined = companions(graph, [op for made_by in makers.values() for op in made_by])
    return {name: joined[of[0]] for name, of in makers.items() if len(of) == 1 and of[0] in joined}


def makers(model: Model, found: Dependencies) -> Mapping[str, tuple[str, ...]]:
    """For each gradient the ops that compute it, and those that TensorFlow makes one op of with these.

    Args:
        model: the single-device step.
        found: its dependencies.
    """
    group = {name: names for names in joined_ops(model.graph) for name in names}
    return {
        gradient: tuple(dict.fromkeys(o for op in anchors(model.graph, of) for o in group.get(op, (op,))))
        for gradient, of in found.producers.items()
    }


def anchors(graph: Graph, producers: Iterable[str]) -> list[str]:
    """The ops that compute a gradient, behind those that only pass it on.

    Args:
        graph: of the Model.
        producers: see `Dependencies.producers`.
    """
    found: dict[str, None] = {}
    for name in producers:
        while graph[name].op in LIGHT and any(not text.startswith("^") for text in graph[name].input):
            name = node_of(graph[name].input[0])
        found[name] = None
    return list(found)


def _depths(graph: Graph, order: Sequence[str]) -> Mapping[str, int]:
    """The number of nodes on the longest way to each."""
    depths: dict[str, int] = {}
    for op in order:
        depths[op] = 1 + max((depths[node_of(text)] for text in graph[op].input), default=0)
    return depths


def _in_order(
    graph: Graph, stage: Sequence[str], depths: Mapping[str, int], found: Dependencies, gradient: str
) -> tuple[str, ...]:
    """The ops of a stage, each right before it is needed: what is read is read when something uses it."""
    inside, seen, order = set(stage), set[str](), list[str]()
    for root in found.producers[gradient]:
        stack = [(root, False)]
        while stack:
            op, is_done = stack.pop()
            if is_done:
                order.append(op)
            elif op in inside and op not in seen:
                seen.add(op)
                stack.append((op, True))
                # The last one of the stack comes first: the longest way before the short ones.
                producers = sorted({node_of(text) for text in graph[op].input}, key=lambda p: (depths[p], p))
                stack += [(producer, False) for producer in producers]
    return tuple(order)
