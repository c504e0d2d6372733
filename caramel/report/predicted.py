"""The predicted step of a plan, as lanes."""

from __future__ import annotations

from caramel.facts import Span
from caramel.plan import Plan
from caramel.report.step_timeline import (
    COMPUTE,
    PULL,
    PUSH,
    STALL,
    TRANSFER,
    UPDATE,
    Bar,
    Lanes,
    StepTimeline,
    gaps,
    in_order,
    stalls,
)
from caramel.server_plan import ParameterServers, ServedSpan

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
    if plan.servers is not None:
        return _served(plan.servers, plan.workers)
    if plan.prediction is None:
        return None
    step = plan.prediction.timeline
    link = in_order(_transfer(span) for span in step.spans if span.kind == TRANSFER)
    busy = in_order(
        Bar(span.kind, span.what, span.start_s, span.end_s) for span in step.spans if span.kind not in (TRANSFER, STALL)
    )
    reasons = {(span.start_s, span.end_s): span.what for span in step.spans if span.kind == STALL}
    waiting = [
        stall
        for start_s, end_s in gaps(busy, 0.0, step.iteration_s)
        for stall in stalls(reasons.get((start_s, end_s), _AT_THE_END), link, start_s, end_s)
    ]
    return _of_equal_workers(plan.workers, step.iteration_s, in_order([*busy, *waiting]), link)


_AT_THE_END = "the end of the step"
"""Name of a stall of which nothing else is known."""


def _of_equal_workers(
    workers: int,
    step_s: float,
    computation: tuple[Bar, ...],
    link: tuple[Bar, ...],
    servers: tuple[Lanes, ...] = (),
) -> StepTimeline:
    notes = ["The simulator takes all workers for equal: they have the same lanes."]
    if workers > MOST_LANES:
        notes.append(f"Only the first {MOST_LANES} of {workers} workers are shown.")
    lanes = tuple(Lanes(rank, computation, link) for rank in range(min(workers, MOST_LANES)))
    return StepTimeline("predicted", step_s, lanes, tuple(notes), servers=servers)


def _served(servers: ParameterServers, workers: int) -> StepTimeline | None:
    """The predicted step with parameter servers; None if nothing was predicted."""
    step = servers.prediction
    if step is None or not step.spans:
        return None
    link = in_order(_on_link(span) for span in step.spans if span.kind in (PULL, PUSH))
    busy = in_order(Bar(COMPUTE, "", span.start_s, span.end_s) for span in step.spans if span.kind == COMPUTE)
    waiting = [
        stall for start_s, end_s in gaps(busy, 0.0, step.step_s) for stall in stalls(_AT_THE_END, link, start_s, end_s)
    ]
    lanes = []
    for number in range(len(servers.devices)):
        updates = (s for s in step.spans if s.kind == UPDATE and s.server == number and s.end_s > s.start_s)
        lanes.append(Lanes(number, in_order(Bar(UPDATE, s.what, s.start_s, s.end_s) for s in updates), ()))
    return _of_equal_workers(workers, step.step_s, in_order([*busy, *waiting]), link, tuple(lanes))


def _on_link(span: ServedSpan) -> Bar:
    way = "from" if span.kind == PULL else "to"
    return Bar(span.kind, f"{span.kind} of {span.what} {way} server {span.server}", span.start_s, span.end_s)


def _transfer(span: Span) -> Bar:
    return Bar(TRANSFER, f"transfer {span.what}", span.start_s, span.end_s, int(span.what))
