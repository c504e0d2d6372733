"""The schedule with the least predicted time: the optimum of the line, unless another one is better on the curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.search import optimal_buckets, optimal_packing
from caramel.analyzers.policies.batching import paper_batching
from caramel.analyzers.policies.packing import backward_only, paper_packing
from caramel.facts import Boundaries, Schedule

INDIFFERENCE = 0.005
"""Fraction of a step below which two plans count as equal: predictions are far from that exact."""

_COMPUTATION_ERROR = 0.15
"""Fraction by which the computation may be longer or shorter than predicted, against the transfers (our choice). On 4
hosts that were also used by others, steps without communication were measured with up to 12 % difference an hour
apart."""

_START_MULTIPLES = (1, 3)
"""Multiples of the processor time of a transfer that a packing counts as the start of each transfer. Each transfer
delays the others and the computation; how much of that makes a step longer, simulation shows."""

_COMPUTATION_SCALES = (1.0, 1 / (1 + _COMPUTATION_ERROR), 1 + _COMPUTATION_ERROR)
"""Factors on the predicted computation: as predicted, shorter and longer."""


def best_packing() -> Analyzer:
    """The optimal packing, compared by simulation with the other policies.

    The optimum is one under a line, for computation that takes as long as predicted. Measured times are a curve, and
    steps are not all alike, and each transfer takes processor time; what is optimal may then be another plan. So the
    packings for the fitted line and computation as predicted, shorter and longer, those in fewer transfers, that for
    transfers that do not overlap, that without the forward window, and the paper's own rules are all simulated with the
    times of the network model, each with all three computations, and the least mean decides. One is only taken before
    those that are named in front of it if it is better by more than 0.5 % of the step (`INDIFFERENCE`).
    """
    return Analyzer("best packing", (Boundaries, Network), Schedule, choose_packing)


def choose_packing(boundaries: Boundaries, network: Network) -> Schedule:
    """The schedule that the analyzer `best_packing` chooses.

    Args:
        boundaries: boundaries of all gradients.
        network: network as planners see it.
    """
    variants = [boundaries.scaled(length) for length in _COMPUTATION_SCALES]
    scores = []
    for name, schedule in _candidates(boundaries, variants, network):
        times_s = [simulate_on(network, variant, schedule).iteration_s for variant in variants]
        scores.append((statistics.fmean(times_s), times_s[0], name, schedule))
    least_s = min(mean_s for mean_s, _, _, _ in scores)
    best = next(score for score in scores if score[0] <= (1 + INDIFFERENCE) * least_s)
    others = "; ".join(f"{name} {time_s * 1e3:.4g} and {mean_s * 1e3:.4g} ms" for mean_s, time_s, name, _ in scores)
    how = f"by simulation as predicted and as mean with computation {_COMPUTATION_ERROR:.0%} shorter and longer"
    return replace(best[3], reason=f"{best[2]}, {how}: {others}")


def _candidates(boundaries: Boundaries, variants: list[Boundaries], network: Network) -> Iterator[tuple[str, Schedule]]:
    for variant, what in zip(variants, ("", " for shorter computation", " for longer computation")):
        yield f"optimal in both windows{what}", optimal_packing().run(variant, network)
    start_s = network.processor_start_s(sum(g.size_bytes for g in boundaries.gradients))
    for times in _START_MULTIPLES if start_s > 0 else ():
        fewer = optimal_packing(start_s=times * start_s).run(boundaries, network)
        yield f"optimal with {times} times the processor time of a transfer for each", fewer
    if network.has_overlaps:
        yield "optimal without overlaps", optimal_packing().run(boundaries, network.without_overlaps)
    backward = optimal_buckets().run(boundaries, network)
    yield "optimal in the backward window", backward_only().run(boundaries, backward)
    buckets = paper_batching().run(boundaries, network)
    yield "the paper's rules", paper_packing().run(boundaries, buckets, network)
