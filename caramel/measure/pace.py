"""When the parts of a step are done: how far all workers are with what the gradients need, over a step's time.

Ops one after the other, in the plan's order, say which part of a step's time is gone when a gradient is ready. Real
steps are behind that: they begin with all ops that wait for nothing, workers run ops that no gradient needs in between,
and a gradient is ready when the last worker has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from caramel.analyzers.step.boundaries import op_sequence
from caramel.facts import Dependencies, UpdateOrder
from caramel.graph.graph import Graph
from caramel.measure.step_stats import Row, TracedStep
from caramel.measure.trace_summary import rows_by_node_of

_POINTS = 51
"""Number of points of a pace: 2 % of a step from each to the next."""


def pace_of(
    graph: Graph, needs: Dependencies, order: UpdateOrder, op_s: Mapping[str, float], steps: Iterable[TracedStep]
) -> tuple[float, ...]:
    """The pace of traced steps; see `caramel.facts.Trace`.

    Args:
        graph: graph of the Model.
        needs: dependencies of the step.
        order: order in which gradients are computed.
        op_s: seconds of each node.
        steps: traced steps without communication, with that order enforced or not.

    Returns:
        The pace; empty where the steps say nothing of what the gradients need.
    """
    from sklearn.isotonic import IsotonicRegression  # takes a second to import

    needed, others = op_sequence(needs, order)
    updating = {node for nodes in needs.updates.values() for node in nodes}
    ended = [_ended(rows_by_node_of(graph, step), updating) for step in steps]
    if not ended:
        return ()
    times_s = np.array([op_s.get(op, 0.0) for op in [*needed, *others]])
    total_s = float(times_s.sum())
    points = [
        (done / total_s, float(np.mean([step[op] for step in ended])), time_s)
        for op, done, time_s in zip(needed, np.cumsum(times_s).tolist(), times_s.tolist())
        if time_s > 0 and all(op in step for step in ended)
    ]
    if not points:
        return ()
    done, reached, weights = np.array([(0.0, 0.0, total_s), *points, (1.0, 1.0, total_s)]).T
    fitted = IsotonicRegression(y_min=0, y_max=1).fit(done, reached, sample_weight=weights)
    return (*map(float, fitted.predict(np.linspace(0, 1, _POINTS)[:-1])), 1.0)


def _ended(rows: Mapping[tuple[int, str], Sequence[Row]], updating: set[str]) -> dict[str, float]:
    """For each node the part of a step's time after which it has run on all workers.

    Time counts from a worker's first op, by its own clock, without updates: these have a time of their own.
    """
    own: dict[int, list[tuple[str, Row]]] = {}
    for (rank, node), of_node in rows.items():
        own.setdefault(rank, []).extend((node, row) for row in of_node)
    ended_s: dict[str, float] = {}
    step_s = 0.0
    for of_rank in own.values():
        first_ns = min(row.start_ns for _, row in of_rank)
        updates = sorted((row.ready_ns, row.time_s) for node, row in of_rank if node in updating)
        ends_ns = np.array([end_ns for end_ns, _ in updates])
        updates_s = np.concatenate([[0.0], np.cumsum([time_s for _, time_s in updates])])
        for node, row in of_rank:
            before_s = updates_s[np.searchsorted(ends_ns, row.ready_ns, side="right")]
            now_s = max((row.ready_ns - first_ns) / 1e9 - float(before_s), 0.0)
            ended_s[node] = max(ended_s.get(node, 0.0), now_s)
            step_s = max(step_s, now_s)
    return {node: now_s / step_s for node, now_s in ended_s.items()} if step_s > 0 else {}
