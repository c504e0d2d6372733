"""A step under a schedule, with the processor time that its transfers take from the computation."""

from __future__ import annotations

from caramel.analyzers.cost.in_flight import usual_in_flight
from caramel.analyzers.cost.network import Network
from caramel.facts import BACKWARD, FORWARD, Boundaries, InFlight, Schedule, Timeline
from caramel.simulator import simulate, validate_schedule, wire_bytes


def simulate_on(
    network: Network, boundaries: Boundaries, schedule: Schedule, in_flight: InFlight | None = None
) -> Timeline:
    """One step in steady state with the transfers' times of a network, and with computation as long as beside them.

    Each transfer takes processor time, whatever its size: many small ones more than one large one.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients; their times are at least those beside one transfer of everything.
        schedule: all transfers.
        in_flight: how much of each window may be under way at once; default: see `usual_in_flight`.

    Raises:
        InputError: see `caramel.simulator.simulate`.
        PlanError: likewise.
    """
    limits = in_flight or usual_in_flight(schedule)
    if network.takes_processor:
        validate_schedule(boundaries, schedule)
        factor = _factor(network, boundaries, schedule, limits)
        boundaries = boundaries.scaled(max(factor / boundaries.factor, 1.0))
    return simulate(boundaries, schedule, network.channel_s, network.lag_s, limits)


def _factor(network: Network, boundaries: Boundaries, schedule: Schedule, limits: InFlight) -> float:
    """The factor by which computation takes longer beside these transfers."""
    under_way_s = taken_s = 0.0
    for window in (FORWARD, BACKWARD):
        sizes = [wire_bytes(boundaries, t) for t in schedule.transfers if t.window == window]
        under_way_s += network.under_way_s(sizes, limits.most(window), limits.credit_bytes)
        taken_s += sum(map(network.processor_s, sizes))
    return network.compute_factor(_alone_s(boundaries), under_way_s, taken_s)


def with_least_contention(network: Network, boundaries: Boundaries) -> Boundaries:
    """The boundaries with computation as long as beside those transfers that take least from it, for bounds.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients.
    """
    total_bytes = sum(g.size_bytes for g in boundaries.gradients)
    factor = network.least_compute_factor(_alone_s(boundaries), total_bytes)
    return boundaries.scaled(min(factor / boundaries.factor, 1.0))


def _alone_s(boundaries: Boundaries) -> float:
    """Seconds of computation and updates without transfers."""
    return (boundaries.compute_s + boundaries.updates_s) / boundaries.factor
