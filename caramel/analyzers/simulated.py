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
        return simulate(boundaries, schedule, network.time_s)
    validate_schedule(boundaries, schedule)
    sizes = [wire_bytes(boundaries, transfer) for transfer in schedule.transfers]
    alone_s = (boundaries.compute_s + boundaries.updates_s) / boundaries.factor
    factor = network.compute_factor(alone_s, sizes)
    return simulate(boundaries.scaled(max(factor / boundaries.factor, 1.0)), schedule, network.time_s)
