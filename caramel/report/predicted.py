"""The predicted step of a plan, as lanes."""

from __future__ import annotations

from caramel.facts import Span
from caramel.plan import Plan
from caramel.report.step_timeline import STALL, TRANSFER, Bar, StepTimeline, WorkerLanes, gaps, in_order, waits

MOST_LANES = 16
"""Largest number of workers of which lanes are shown; the simulator takes all for equal."""


def predicted_timeline(plan: Plan) -> StepTimeline | None:
    """The predicted step of a plan.

    The simulator takes all workers for equal, so all have the same lanes. After its computation a worker waits for the
    transfers that are left; that is a stall, too.

    Args:
        plan: the plan.

    Returns:
        The step; None if nothing was predicted. Of very many workers it has the first `MOST_LANES`.
    """
    if plan.prediction is None:
        return None
    step = plan.prediction.timeline
    link = in_order(_transfer(span) for span in step.spans if span.kind == TRANSFER)
    busy = in_order(
        Bar(span.kind, span.what, span.start_s, span.end_s) for span in step.spans if span.kind not in (TRANSFER, STALL)
    )
    reasons = {(span.start_s, span.end_s): span.what for span in step.spans if span.kind == STALL}
    stalls = [
        Bar(STALL, reasons.get((start_s, end_s), "the end of the step"), first_s, last_s, transfer)
        for start_s, end_s in gaps(busy, 0.0, step.iteration_s)
        for first_s, last_s, transfer in waits(link, start_s, end_s)
    ]
    computation = in_order([*busy, *stalls])
    ranks = range(min(plan.workers, MOST_LANES))
    notes = ["The simulator takes all workers for equal: they have the same lanes."]
    if plan.workers > MOST_LANES:
        notes.append(f"Only the first {MOST_LANES} of {plan.workers} workers are shown.")
    lanes = tuple(WorkerLanes(rank, computation, link) for rank in ranks)
    return StepTimeline("predicted", step.iteration_s, lanes, tuple(notes))


def _transfer(span: Span) -> Bar:
    return Bar(TRANSFER, f"transfer {span.what}", span.start_s, span.end_s, int(span.what))
