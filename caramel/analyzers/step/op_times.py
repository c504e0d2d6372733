"""Times of ops: a trace that was given, or equal times where there is none."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.analyzer import Analyzer
from caramel.facts import Trace
from caramel.graph import ops
from caramel.model import Model


def unmeasured() -> Analyzer:
    """Every op that computes something takes as long as every other: good for an order, not for times."""
    return Analyzer("unmeasured", (Model,), Trace, _equal_times)


def given_trace(trace: Trace, *, least: bool = False) -> Analyzer:
    """A trace that was measured before.

    Args:
        trace: trace that `caramel.trace` made; it has been checked to be of the Model.
        least: whether each op takes its least time over all runs, where the trace has it.

    Source:
        Caramel, section 4.1, for the least time.
    """
    if not least:
        return Analyzer("trace", (), Trace, lambda: trace)
    least_trace = trace
    if trace.op_least_s:
        description = f"{trace.description}; of each op the least"
        least_trace = replace(trace, op_s=trace.op_least_s, description=description)
    return Analyzer("trace (least times)", (), Trace, lambda: least_trace)


def _equal_times(model: Model) -> Trace:
    op_s = {node.name: 0.0 if node.op in ops.ZERO_COST_OPS else 1e-6 for node in model.graph}
    total_s = sum(op_s.values())
    return Trace(model.digest, op_s, {}, total_s, total_s, 0, 1, None, "nothing was measured, all ops count the same")
