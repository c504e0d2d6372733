"""The seconds between which a step is: by what trace and network leave open and what the simulation leaves out."""

from __future__ import annotations

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.facts import Boundaries, InFlight, Schedule, Timeline, Trace
from caramel.prediction import Interval
from caramel.simulator import wire_bytes

MODEL_ERROR = 0.115
"""What the simulation leaves out: standard deviation of the logarithm of measured over predicted steps. It is that of
all published cells, whose records do not tell the parts of the trace and the network from it, so it holds these, too
(`docs/benchmarks/predictions.md`)."""

_MOST_SPREAD = 0.5
"""Largest standard deviation that is simulated, as a fraction: with more, nothing is known."""


def interval_of(
    timeline: Timeline,
    trace: Trace,
    network: Network,
    boundaries: Boundaries,
    schedule: Schedule,
    in_flight: InFlight | None,
) -> Interval:
    """The interval of a prediction.

    The step is simulated with all computation a standard deviation of the trace's steps longer and shorter, and with
    all transfers a standard deviation of the network's measurements longer and shorter. These and what the simulation
    leaves out count as independent.

    Args:
        timeline: the predicted step.
        trace: of the step.
        network: network as planners see it.
        boundaries: boundaries of all gradients.
        schedule: all transfers.
        in_flight: see `simulate_on`.
    """

    def effect(spread: float, is_of_network: bool) -> float:
        """Half the difference of the step between so much more and so much less, as a fraction of it."""
        if spread == 0 or timeline.iteration_s == 0:
            return 0.0
        spread = min(spread, _MOST_SPREAD)
        times_s = []
        for factor in (1 + spread, 1 - spread):
            # With all transfers x times as long, a step takes x times as long as one with computation 1/x as long.
            computation, whole = (1 / factor, factor) if is_of_network else (factor, 1.0)
            times_s.append(
                whole * simulate_on(network, boundaries.scaled(computation), schedule, in_flight).iteration_s
            )
        return abs(times_s[0] - times_s[1]) / 2 / timeline.iteration_s

    of_trace = effect(trace.spread, is_of_network=False)
    of_network = effect(_network_error(network, boundaries, schedule), is_of_network=True)
    return Interval.around(timeline.iteration_s, of_trace, of_network, MODEL_ERROR)


def _network_error(network: Network, boundaries: Boundaries, schedule: Schedule) -> float:
    """The mean error of the curves by which transfers are predicted, each as often as its transfers take time."""
    sizes = [wire_bytes(boundaries, transfer) for transfer in schedule.transfers]
    times_s = [network.time_s(size) for size in sizes]
    if sum(times_s) == 0:
        return 0.0
    return sum(time_s * network.interpolation_error(size) for time_s, size in zip(times_s, sizes)) / sum(times_s)
