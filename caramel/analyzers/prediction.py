"""Prediction: what a step will take under a schedule, and what each transfer would cost in its other window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caramel.analyzers.bounds import lower_bounds
from caramel.analyzers.network import Network
from caramel.errors import PlanError
from caramel.facts import BACKWARD, FORWARD, Boundaries, Schedule, Trace
from caramel.plan import Prediction
from caramel.simulator import simulate, validate_schedule


def predict(facts: Mapping[type, Any]) -> Prediction | None:
    """The prediction that facts allow.

    Args:
        facts: of the analyzers; `Boundaries`, `Schedule`, `Trace` and `Network` are used.

    Returns:
        None if times were not measured, or the network is not known.
    """
    trace: Trace | None = facts.get(Trace)
    network: Network = facts[Network]
    if trace is None or trace.runs == 0 or not network.is_known or not {Boundaries, Schedule} <= facts.keys():
        return None
    boundaries: Boundaries = facts[Boundaries]
    schedule: Schedule = facts[Schedule]
    validate_schedule(boundaries, schedule)
    timeline = simulate(boundaries, schedule, network.time_s)
    line = network.line_below(sum(g.size_bytes for g in boundaries.gradients))
    bound_s = lower_bounds(boundaries, line).lb2_s
    return Prediction(timeline, bound_s, boundaries.basis, _alternatives(boundaries, schedule, network))


def _alternatives(boundaries: Boundaries, schedule: Schedule, network: Network) -> tuple[float | None, ...]:
    """For each transfer the step's time with it at the best place of the other window."""
    return tuple(_moved_s(boundaries, schedule, network, number) for number in range(len(schedule.transfers)))


def _moved_s(boundaries: Boundaries, schedule: Schedule, network: Network, number: int) -> float | None:
    found = schedule.transfers[number]
    others = [t for n, t in enumerate(schedule.transfers) if n != number]
    window = FORWARD if found.window == BACKWARD else BACKWARD
    moved = replace(found, window=window)
    firsts = sum(t.window == FORWARD for t in others)
    places = range(firsts + 1) if window == FORWARD else range(firsts, len(others) + 1)
    times = []
    for place in places:
        candidate = Schedule((*others[:place], moved, *others[place:]), schedule.reason)
        try:
            validate_schedule(boundaries, candidate)
        except PlanError:
            return None
        times.append(simulate(boundaries, candidate, network.time_s).iteration_s)
    return min(times)
