"""A step under a schedule, with what its transfers take from the computation."""

from __future__ import annotations

from caramel.analyzers.network import Network
from caramel.facts import Boundaries, Schedule, Timeline
from caramel.simulator import simulate, validate_schedule, wire_bytes


def simulate_on(network: Network, boundaries: Boundaries, schedule: Schedule) -> Timeline:
    """One step in steady state with the transfers' times of a network, and with computation as long as beside them.

    Each transfer takes processor time, whatever its size: many small ones more than one large one.

    Args:
        network: as planners see it.
        boundaries: of all gradients; their times are at least those beside one transfer of everything.
        schedule: all transfers.

    Raises:
        InputError: see `caramel.simulator.simulate`.
        PlanError: likewise.
    """
    if not network.takes_processor:
        return simulate(boundaries, schedule, network.time_s, network.lag_s)
    validate_schedule(boundaries, schedule)
    sizes = [wire_bytes(boundaries, transfer) for transfer in schedule.transfers]
    factor = network.compute_factor(_alone_s(boundaries), sizes)
    return simulate(boundaries.scaled(max(factor / boundaries.factor, 1.0)), schedule, network.time_s, network.lag_s)


def at_least(network: Network, boundaries: Boundaries) -> Boundaries:
    """The boundaries with computation as long as beside those transfers that take least from it, for bounds.

    Args:
        network: as planners see it.
        boundaries: of all gradients.
    """
    total_bytes = sum(g.size_bytes for g in boundaries.gradients)
    factor = network.least_compute_factor(_alone_s(boundaries), total_bytes)
    return boundaries.scaled(min(factor / boundaries.factor, 1.0))


def _alone_s(boundaries: Boundaries) -> float:
    """Seconds of computation and updates without transfers."""
    return (boundaries.compute_s + boundaries.updates_s) / boundaries.factor
