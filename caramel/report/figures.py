"""The figures of a step from its lanes: what it computes, sends and waits for, and which transfers it waits for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from caramel.report.step_timeline import STALL, Bar, StepTimeline, busy_s

_Key = TypeVar("_Key")


@dataclass(frozen=True)
class StepFigures:
    """Where the time of a step goes, as means over the workers, in seconds.

    Attributes:
        step_s: seconds of the step.
        compute_s: seconds in which an op runs on the worker.
        communication_s: seconds in which a transfer is under way there.
        exposed_s: seconds in which no op runs there.
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
        step.iteration_s - busy_s((b for b in lanes.computation if b.kind != STALL), step.iteration_s)
        for lanes in step.workers
    )
    communication_s = statistics.fmean(busy_s(lanes.link, step.iteration_s) for lanes in step.workers)
    return StepFigures(step.iteration_s, step.iteration_s - exposed_s, communication_s, exposed_s)


def exposed_by_transfer(step: StepTimeline) -> Mapping[int, float]:
    """Seconds for which the workers wait for each transfer, as means over them; without those that none waits for.

    Args:
        step: a step with at least one worker.
    """
    return dict(sorted(_exposed_by(step, lambda bar: bar.transfer).items()))


def exposed_by_cause(step: StepTimeline) -> Mapping[str, float]:
    """Seconds for which the workers wait for what is on their links, by its name, as means over them.

    Args:
        step: a step with at least one worker.
    """
    return _exposed_by(step, lambda bar: bar.cause)


def _exposed_by(step: StepTimeline, key_of: Callable[[Bar], _Key | None]) -> dict[_Key, float]:
    """Seconds for which the workers wait, as means over them, by what a stall has as its key; None does not count."""
    totals: dict[_Key, float] = {}
    for lanes in step.workers:
        for bar in lanes.computation:
            key = key_of(bar)
            if bar.kind == STALL and key is not None:
                totals[key] = totals.get(key, 0.0) + bar.time_s
    return {key: total_s / len(step.workers) for key, total_s in totals.items()}
