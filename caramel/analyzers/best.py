"""The schedule with the least predicted time: the optimum of the line, unless another one is better on the curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.batching import paper_batching
from caramel.analyzers.network import Network
from caramel.analyzers.optimal import optimal_buckets, optimal_packing
from caramel.analyzers.packing import backward_only, paper_packing
from caramel.facts import Boundaries, Schedule
from caramel.simulator import simulate

_NOTHING = 0.005
"""Of a step: predictions are far from that exact."""


def best_packing() -> Analyzer:
    """The optimal packing, compared by simulation with the other policies.

    The optimum is one under a line; measured times are a curve, and what is optimal may then be another
    plan. So the packing for the fitted line, that without the forward window, and the paper's own
    rules are simulated with the times of the network model. One is only taken before those that are named in
    front of it if it is better by more than 0.5 % of the step, which is nothing.
    """
    return Analyzer("best packing", (Boundaries, Network), Schedule, choose_packing)


def choose_packing(boundaries: Boundaries, network: Network) -> Schedule:
    """See `best_packing`."""
    found = [
        (simulate(boundaries, schedule, network.time_s).iteration_s, name, schedule)
        for name, schedule in _candidates(boundaries, network)
    ]
    least_s = min(time_s for time_s, _, _ in found)
    best = next(each for each in found if each[0] <= (1 + _NOTHING) * least_s)
    others = "; ".join(f"{name} {time_s * 1e3:.4g} ms" for time_s, name, _ in found)
    return replace(best[2], reason=f"{best[1]}, by simulation: {others}")


def _candidates(boundaries: Boundaries, network: Network) -> Iterator[tuple[str, Schedule]]:
    yield "optimal in both windows", optimal_packing().run(boundaries, network)
    backward = optimal_buckets().run(boundaries, network)
    yield "optimal in the backward window", backward_only().run(boundaries, backward)
    buckets = paper_batching().run(boundaries, network)
    yield "the paper's rules", paper_packing().run(boundaries, buckets, network)
