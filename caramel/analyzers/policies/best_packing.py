"""The schedule with the least predicted time: the optimum of the line, unless another one is better on the curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.local_search import LocalSearch
from caramel.analyzers.optimal.measured_buckets import measured_buckets
from caramel.analyzers.optimal.search import optimal_buckets, optimal_packing
from caramel.analyzers.optimal.step_bound import step_bound_s
from caramel.analyzers.policies.batching import paper_batching, single
from caramel.analyzers.policies.packing import backward_only, paper_packing
from caramel.facts import Boundaries, Schedule
from caramel.simulator import check_boundaries
from caramel.util.units import format_ms, format_size

INDIFFERENCE = 0.005
"""Fraction of a step below which two plans count as equal: predictions are far from that exact."""

_EQUAL_MEANS = 0.001
"""Fraction of a mean below which two means count as equal, so that the simpler plan is taken (our choice)."""

_LEAST_EVALUATIONS, _MOST_EVALUATIONS, _ALL_EVALUATIONS = 3_000, 24_000, 1_200_000
"""Number of steps that the local search simulates: the last number over that of gradients, within the first two (our
choice: about a second for any number of gradients)."""

_PROVED = 0.001
"""Fraction of a step by which a plan may be above its lower bound so that no search is made (our choice)."""

_MOST_STARTS = 3
"""Number of schedules from which the local search sets out (our choice)."""

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
    """The optimal packing, compared by simulation with the other policies, and improved by simulation.

    The optimum is one under a line, for computation that takes as long as predicted. Measured times are a curve, and
    steps are not all alike, and each transfer takes processor time; what is optimal may then be another plan. So the
    packings for the fitted line and computation as predicted, shorter and longer, those in fewer transfers, that for
    transfers that do not overlap, those without the forward window, and the paper's own rules are all simulated with
    the times of the network model, and a local search goes on from the best ones. Of all plans that are at most
    `INDIFFERENCE` longer than the shortest, the one with the least mean over computation as predicted, shorter and
    longer is taken; of nearly equal ones the first, which is the simplest.
    """
    return Analyzer("best packing", (Boundaries, Network), Schedule, choose_packing)


def choose_packing(boundaries: Boundaries, network: Network, *, search: bool = True) -> Schedule:
    """The schedule that the analyzer `best_packing` chooses.

    Args:
        boundaries: boundaries of all gradients.
        network: network as planners see it.
        search: whether the best packings are improved by a local search.
    """
    check_boundaries(boundaries)
    local_search = LocalSearch(network, boundaries, _COMPUTATION_SCALES)
    scores = [_Score.of(name, schedule, local_search) for name, schedule in _candidates(boundaries, network)]
    best_bytes = network.cheapest_bytes(sum(g.size_bytes for g in boundaries.gradients))
    for score in sorted(scores, key=lambda score: score.predicted_s)[:_MOST_STARTS]:
        cut = local_search.in_pieces(score.schedule, best_bytes)
        if len(cut.transfers) > len(score.schedule.transfers):
            name = f"{score.name}, in transfers of up to {format_size(best_bytes)}"
            scores.append(_Score.of(name, cut, local_search))
    note = ""
    if search:
        scores += _searched(boundaries, network, local_search, scores)
        note = f"; {local_search.evaluations} steps were simulated"
    best = _chosen(scores)
    cost = best.predicted_s / min(score.predicted_s for score in scores) - 1
    others = "; ".join(f"{s.name} {format_ms(s.predicted_s)} and {format_ms(s.mean_s)}" for s in scores)
    reason = (
        f"{best.name}: of the plans that are at most {INDIFFERENCE:.1%} longer than the shortest, the one with the "
        f"least mean over computation as predicted, {_COMPUTATION_ERROR:.0%} shorter and {_COMPUTATION_ERROR:.0%} "
        f"longer; this costs {cost:.1%} of the step if computation takes as long as predicted. By simulation, as "
        f"predicted and as mean: {others}{note}"
    )
    return replace(best.schedule, reason=reason)


def _searched(
    boundaries: Boundaries, network: Network, local_search: LocalSearch, scores: Sequence[_Score]
) -> list[_Score]:
    """What a local search finds from the best schedules on; nothing where these are proved to be good enough."""
    bounds_s = [step_bound_s(boundaries.scaled(scale), network) for scale in _COMPUTATION_SCALES]
    evaluations = _ALL_EVALUATIONS // max(len(boundaries.gradients), 1)
    evaluations = min(max(evaluations, _LEAST_EVALUATIONS), _MOST_EVALUATIONS)
    found: list[_Score] = []
    if min(score.predicted_s for score in scores) > (1 + _PROVED) * bounds_s[0]:
        for score in sorted(scores, key=lambda score: score.predicted_s)[:_MOST_STARTS]:
            shorter = local_search.improve(score.schedule, evaluations // (2 * _MOST_STARTS))
            found.append(_Score.of(f"{score.name}, improved", shorter, local_search))
    start, limit_s = _chosen([*scores, *found]), _limit_s([*scores, *found])
    if start.mean_s > (1 + _PROVED) * statistics.fmean(bounds_s):
        surer = local_search.improve(start.schedule, evaluations // 2, limit_s)
        found.append(_Score.of(f"{start.name}, improved for other computation", surer, local_search))
    return found


@dataclass(frozen=True)
class _Score:
    """A schedule and what a step takes with it: as predicted, and as mean over all lengths of computation."""

    name: str
    schedule: Schedule
    predicted_s: float
    mean_s: float

    @classmethod
    def of(cls, name: str, schedule: Schedule, search: LocalSearch) -> _Score:
        times_s = search.times_s(schedule)
        return cls(name, schedule, times_s[0], statistics.fmean(times_s))


def _limit_s(scores: Sequence[_Score]) -> float:
    """Seconds up to which a step counts as short as the shortest, with the computation as predicted."""
    return (1 + INDIFFERENCE) * min(score.predicted_s for score in scores)


def _chosen(scores: Sequence[_Score]) -> _Score:
    """Of those that are as short as the shortest the one with the least mean, of equal ones the first."""
    short = [score for score in scores if score.predicted_s <= _limit_s(scores)]
    least_s = min(score.mean_s for score in short)
    return next(score for score in short if score.mean_s <= (1 + _EQUAL_MEANS) * least_s)


def _candidates(boundaries: Boundaries, network: Network) -> Iterator[tuple[str, Schedule]]:
    for scale, what in zip(_COMPUTATION_SCALES, ("", " for shorter computation", " for longer computation")):
        yield f"optimal in both windows{what}", optimal_packing().run(boundaries.scaled(scale), network)
    yield "optimal without cuts", optimal_packing(split=False).run(boundaries, network)
    start_s = network.processor_start_s(sum(g.size_bytes for g in boundaries.gradients))
    for times in _START_MULTIPLES if start_s > 0 else ():
        fewer = optimal_packing(start_s=times * start_s).run(boundaries, network)
        yield f"optimal with {times} times the processor time of a transfer for each", fewer
    if network.has_overlaps:
        yield "optimal without overlaps", optimal_packing().run(boundaries, network.without_overlaps)
    for name, buckets in (
        ("optimal in the backward window", optimal_buckets().run(boundaries, network)),
        ("optimal in the backward window, with measured times", measured_buckets().run(boundaries, network)),
        ("each gradient alone", single().run(boundaries)),
    ):
        yield name, backward_only().run(boundaries, buckets)
    if network.has_threshold:
        buckets = paper_batching().run(boundaries, network)
        yield "the paper's rules", paper_packing().run(boundaries, buckets, network)
