"""The order in which gradients are computed: the paper's greedy one, or one that is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.errors import InputError, listed
from caramel.facts import Dependencies, Trace, UpdateOrder
from caramel.graph import ops
from caramel.graph.fusion import fused_groups
from caramel.graph.graph import Graph, node_of
from caramel.model import Model
from caramel.util.intervals import TIME_RESOLUTION_S

Rule = Callable[[int, int], Sequence[float]]
"""Function (position of a gradient, remaining ticks of its computation) -> score; the next gradient has the least."""


def greedy_order() -> Analyzer:
    """Always the gradient that needs the least computation that has not been done yet."""
    return Analyzer("greedy order", (Model, Dependencies, Trace), UpdateOrder, _greedy)


def _greedy(model: Model, dependencies: Dependencies, trace: Trace) -> UpdateOrder:
    how = "least remaining computation first, by the trace"
    return order_by_cost(
        model, dependencies, trace.op_s, how if trace.runs > 0 else "least remaining ops first, as there is no trace"
    )


def order_by_cost(model: Model, found: Dependencies, op_s: Mapping[str, float], reason: str) -> UpdateOrder:
    """The greedy order.

    Args:
        model: the single-device step.
        found: dependencies of the step.
        op_s: seconds of each op; 0 where it is not there.
        reason: reason that the result gives.

    Returns:
        The order: again and again the gradient whose ops that are still to be done take the least time; of
        equal ones that with the fewest ops, then the first of the Model.

    Source:
        Caramel, section 4.1, stage 1.
    """
    return order_by_rule(model, found, op_s, lambda _, remaining: (remaining,), reason)


def order_by_rule(model: Model, found: Dependencies, op_s: Mapping[str, float], rule: Rule, reason: str) -> UpdateOrder:
    """An order that takes the best gradient again and again, given what has been done for those before.

    Args:
        model: the single-device step.
        found: dependencies of the step.
        op_s: seconds of each op; 0 where it is not there.
        rule: score of a gradient, of which the least is best; of equal ones it is that with the fewest ops left to do,
            then the first of the Model.
        reason: reason that the result gives.
    """
    costs = np.array([round(op_s.get(op, 0.0) / TIME_RESOLUTION_S) for op in found.ops], dtype=np.int64)
    needs = found.needs
    remaining = needs @ costs
    counts = needs.sum(axis=1)
    waiting = np.ones(len(found.gradients), dtype=bool)
    done = np.zeros(len(found.ops), dtype=bool)
    gradients: list[str] = []
    levels = np.array([found.levels[name] for name in found.gradients], dtype=np.int64)

    def remaining_ops(number: int) -> tuple[np.ndarray, np.ndarray]:
        """The ops that a gradient still needs, and how many of them each gradient does."""
        positions = np.flatnonzero(needs[number] & ~done)
        return positions, needs[:, positions].sum(axis=1)

    for _ in found.gradients:
        best = min(np.flatnonzero(waiting), key=lambda n: (levels[n], *rule(int(n), int(remaining[n])), counts[n], n))
        positions, shared = remaining_ops(int(best))
        # What is done on the way to it comes first.
        on_the_way = np.flatnonzero(waiting & (levels == levels[best]) & (shared == counts) & (counts < counts[best]))
        if on_the_way.size:
            best = min(on_the_way, key=lambda n: (remaining[n], counts[n], n))
            positions, shared = remaining_ops(int(best))
        gradients.append(found.gradients[best])
        remaining -= needs[:, positions] @ costs[positions]
        counts -= shared
        done[positions] = True
        waiting[best] = False
    return order_of(model, found, gradients, reason)


def order_of(model: Model, found: Dependencies, gradients: Sequence[str], reason: str) -> UpdateOrder:
    """An order with its stages, for analyzers that choose one by a rule of their own.

    Args:
        model: the single-device step.
        found: dependencies of the step.
        gradients: names of all gradients, in the order.
        reason: reason that the result gives.

    Raises:
        InputError: a gradient is not there, there twice, or there is no such one.
    """
    rows = {name: row for row, name in enumerate(found.gradients)}
    if sorted(gradients) != sorted(rows):
        wrong = sorted((Counter(gradients) - Counter(rows)) + (Counter(rows) - Counter(gradients)))
        raise InputError(f"an order names each gradient once, and no others; not so {listed(wrong, 4)}")
    depths = _depths(model.graph, found.ops)
    joined = {name for names in fused_groups(model.graph) for name in names}
    done = np.zeros(len(found.ops), dtype=bool)
    stages = []
    for gradient in gradients:
        stage = [found.ops[p] for p in np.flatnonzero(found.needs[rows[gradient]] & ~done)]
        roots = [*(op for op in stage if op in joined), *found.producers[gradient]]
        stages.append(_in_order(model.graph, stage, depths, roots))
        done |= found.needs[rows[gradient]]
    return UpdateOrder(tuple(gradients), tuple(stages), reason)


def computing_ops_with_fused(model: Model, found: Dependencies) -> Mapping[str, tuple[str, ...]]:
    """The ops that compute each gradient, and those that TensorFlow fuses with these, by the gradient's name.

    Args:
        model: the single-device step.
        found: dependencies of the step.
    """
    fused = {name: names for names in fused_groups(model.graph) for name in names}
    return {
        gradient: tuple(dict.fromkeys(o for op in computing_ops(model.graph, of) for o in fused.get(op, (op,))))
        for gradient, of in found.producers.items()
    }


_PASSING = ops.ZERO_COST_OPS - {"ReadVariableOp"}
"""Ops that cost no time and pass on what their input is; behind a read there is no op, but a handle that all share."""


def computing_ops(graph: Graph, producers: Iterable[str]) -> list[str]:
    """The ops that compute a gradient, behind those that only pass it on; of a variable's value the op that reads it.

    Args:
        graph: graph of the Model.
        producers: names of the ops that give the gradient, see `Dependencies.producers`.
    """
    computing: dict[str, None] = {}
    for name in producers:
        while graph[name].op in _PASSING and any(not text.startswith("^") for text in graph[name].input):
            name = node_of(graph[name].input[0])
        computing[name] = None
    return list(computing)


def _depths(graph: Graph, order: Sequence[str]) -> Mapping[str, int]:
    """The number of nodes on the longest path to each op."""
    depths: dict[str, int] = {}
    for op in order:
        depths[op] = 1 + max((depths[node_of(text)] for text in graph[op].input), default=0)
    return depths


def _in_order(graph: Graph, stage: Sequence[str], depths: Mapping[str, int], roots: Sequence[str]) -> tuple[str, ...]:
    """The ops of a stage, each right before it is needed: what is read is read when something uses it."""
    inside, seen, order = set(stage), set[str](), list[str]()
    for root in roots:
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
