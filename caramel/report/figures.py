"""The figures of a step from its lanes: what it computes, sends and waits for, and which transfers it waits for."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caramel.report.step_timeline import STALL, Bar, StepTimeline, gaps


@dataclass(frozen=True)
class StepFigures:
    """Where the time of a step goes, as means over the workers, in seconds.

    Attributes:
        step_s: all of it.
        compute_s: an op runs on the worker.
        communication_s: a transfer is under way there.
        exposed_s: no op runs there.
    """

    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float


def figures_of(step: StepTimeline) -> StepFigures:
    """The figures of a step.

    Args:
        step: a step with at least one worker.
    """
    exposed_s = statistics.fmean(
        step.iteration_s - _covered_s((b for b in lanes.computation if b.kind != STALL), step.iteration_s)
        for lanes in step.workers
    )
    communication_s = statistics.fmean(_covered_s(lanes.link, step.iteration_s) for lanes in step.workers)
    return StepFigures(step.iteration_s, step.iteration_s - exposed_s, communication_s, exposed_s)


def exposed_by_transfer(step: StepTimeline) -> Mapping[int, float]:
    """Seconds for which the workers wait for each transfer, as means over them; without those that none waits for.

    Args:
        step: a step with at least one worker.
    """
    totals: dict[int, float] = {}
    for lanes in step.workers:
        for bar in lanes.computation:
            if bar.kind == STALL and bar.transfer is not None:
                totals[bar.transfer] = totals.get(bar.transfer, 0.0) + bar.time_s
    return {number: total_s / len(step.workers) for number, total_s in sorted(totals.items())}


def exposed_by_cause(step: StepTimeline) -> Mapping[str, float]:
    """Seconds for which the workers wait for what is on their links, by its name, as means over them.

    Args:
        step: a step with at least one worker.
    """
    totals: dict[str, float] = {}
    for lanes in step.workers:
        for bar in lanes.computation:
            if bar.kind == STALL and bar.cause is not None:
                totals[bar.cause] = totals.get(bar.cause, 0.0) + bar.time_s
    return {name: total_s / len(step.workers) for name, total_s in totals.items()}


def _covered_s(bars: Iterable[Bar], end_s: float) -> float:
    return end_s - sum(stop_s - start_s for start_s, stop_s in gaps(list(bars), 0.0, end_s))
