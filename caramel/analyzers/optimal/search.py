"""The optimal packing of transfers into the backward and the forward window, for a network of T = a + b * bytes.

docs/explanation/two-windows.md has the theory. `pack` finds the least exposed time, then the simplest plan that is
nearly as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.bounds import checked_boundaries
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.forward_fill import MOST_RANGES, MOST_SPLITS, ForwardFill, fill_forward_window
from caramel.analyzers.optimal.problem import TIE_TOLERANCE, OrderedProblem, PackingProblem, least_exposed_in_both
from caramel.analyzers.optimal.rounding import cut_gradients, exposed_and_stalled_s, scheduled_transfers
from caramel.analyzers.optimal.thresholds import LeastExposed, capacities, cover
from caramel.facts import Boundaries, Buckets, Schedule, Scheduled
from caramel.netmodel.line import Line
from caramel.util.units import format_ms

_LEAST_EVALUATIONS, _MOST_EVALUATIONS = 40, 20_000
"""Number of evaluations of the local search among whole gradients: the second number over that of gradients, but at
least the first (our choice)."""

_RANGES_WITHOUT_CUTS, _LIMIT_HALVINGS = 16, 3
"""Number of ranges that are followed where nothing may be cut, and number of halvings between the exposed times of the
last failure and the first success (our choice)."""

_MOST_THRESHOLD_SETS = 2
"""Number of sets of thresholds that are filled for each exposed time that is tried (our choice)."""


@dataclass(frozen=True)
class Packing:
    """A plan for both windows, under the linear model.

    Attributes:
        transfers: transfers of the forward window by deadline; then those of the backward window, as they are ready.
        exposed_s: seconds w in which the step only waits: it takes compute + updates + w.
        iteration_s: seconds of the step, compute + updates + w.
        bound_s: proved lower bound of w in seconds.
        is_optimal: whether ``exposed_s`` is proved to be within `TIE_TOLERANCE` of the least step.
        note: text about how the plan was found, what is proved, and how far apart plan and bound are.
    """

    transfers: tuple[Scheduled, ...]
    exposed_s: float
    iteration_s: float
    bound_s: float
    is_optimal: bool
    note: str


def pack(boundaries: Boundaries, line: Line, *, forward: bool = True, split: bool = True) -> Packing:
    """Pack all transfers of a step so that it waits as little as possible.

    Among plans within `TIE_TOLERANCE` of the best it takes one that postpones nothing; else one with few splits, then
    few postponed bytes, then few transfers.

    Args:
        boundaries: boundaries of all gradients.
        line: line of the seconds of a transfer.
        forward: whether gradients may be postponed; if not, these are the optimal buckets of the backward pass.
        split: whether gradients may be cut in two, one piece for each window.

    Returns:
        The plan, and what is proved about it.

    Raises:
        InputError: a number is negative or not finite.

    Source:
        Own; the problem is that of Caramel, section 4.3.
    """
    problem = PackingProblem.of(checked_boundaries(boundaries, line), line)
    nothing_s = np.zeros(len(problem.together))
    backward_only_s = problem.least_backward_only_s()
    if not (forward and any(problem.free)):
        return _packing(problem, nothing_s, backward_only_s, problem.backward_only_bound_s())
    bound_s = min(backward_only_s, problem.simple_bound_s())
    if backward_only_s <= problem.tied_s(bound_s):
        return _packing(problem, nothing_s, problem.tied_s(bound_s), bound_s)
    least, ordered = least_exposed_in_both(problem, bound_s, backward_only_s)
    bound_s = max(bound_s, least.bound_s)
    allowed_s = problem.tied_s(least.late_s)
    if backward_only_s <= allowed_s:
        return _packing(problem, nothing_s, allowed_s, bound_s)
    return _packing(problem, *_choose_postponed(problem, ordered, least, allowed_s, backward_only_s, split), bound_s)


def exposed_bound_s(boundaries: Boundaries, line: Line) -> float:
    """Seconds for which every plan waits in which the forward pass never does; the bound of `pack`, without a plan.

    Args:
        boundaries: boundaries of all gradients.
        line: line of the seconds of a transfer.

    Raises:
        InputError: a number is negative or not finite.
    """
    problem = PackingProblem.of(checked_boundaries(boundaries, line), line)
    if not any(problem.free):
        return problem.backward_only_bound_s()
    backward_only_s = problem.least_backward_only_s()
    bound_s = min(backward_only_s, problem.simple_bound_s())
    if backward_only_s <= bound_s:
        return bound_s
    return max(bound_s, least_exposed_in_both(problem, bound_s, backward_only_s)[0].bound_s)


def _packing(problem: PackingProblem, postponed_s: np.ndarray, allowed_s: float, bound_s: float) -> Packing:
    """The plan with so much of each gradient postponed, and at best so much exposed time."""
    compute_s = problem.boundaries.compute_s
    order = sorted(
        range(len(problem.together)), key=lambda i: (problem.back_s[i], problem.fore_s[i], problem.together[i].name)
    )
    gradients = [problem.together[i] for i in order]
    parts, room_s = (postponed_s / problem.time_s)[order].tolist(), problem.back_s[order].tolist()
    transfers, late_s = tuple[Scheduled, ...](), math.inf
    for upwards in (False, True):
        placed = [replace(p, room_s=r) for p, r in zip(cut_gradients(gradients, parts, upwards), room_s)]
        candidate = scheduled_transfers(problem.boundaries, problem.line, placed, problem.alone, allowed_s)
        candidate_s, stalled_s = exposed_and_stalled_s(problem.boundaries, problem.line, candidate)
        if not transfers or (candidate_s < late_s and stalled_s <= len(gradients) * problem.slack_s):
            transfers, late_s = candidate, candidate_s
        if all(part in (0.0, 1.0) for part in parts):
            break
    base_s = compute_s + problem.boundaries.updates_s
    gap = (late_s - bound_s) / (base_s + bound_s) if base_s + bound_s > 0 else 0.0
    is_optimal = gap <= TIE_TOLERANCE
    proved = (
        f"within {TIE_TOLERANCE:.1%} of it"
        if is_optimal
        else f"{gap:.1%} of the step above it, so not proved to be best"
    )
    note = f"{format_ms(late_s)} exposed; no such plan has less than {format_ms(bound_s)}: {proved}"
    return Packing(transfers, late_s, base_s + late_s, bound_s, is_optimal, note)


def _choose_postponed(
    problem: PackingProblem,
    ordered: OrderedProblem,
    least: LeastExposed,
    allowed_s: float,
    backward_only_s: float,
    split: bool,
) -> tuple[np.ndarray, float]:
    """The seconds of the channel to postpone for each gradient, and the exposed time to aim at."""
    cuttable = [split and problem.cuttable[i] for i in ordered.order]
    whole_free = [f and not c for f, c in zip(ordered.chain.free, cuttable)]
    filled = _best_fill(ordered, cuttable, least, [least.late_s, allowed_s], allowed_s)
    limit_s = allowed_s
    if filled is None:
        limit_s, filled = _relaxed_fill(ordered, cuttable, least, allowed_s, backward_only_s)
    postponed = np.zeros(len(problem.together))
    if filled is not None:
        postponed[list(ordered.order)] = filled.postponed_s
    if limit_s > allowed_s and any(whole_free):
        postponed = _local_search(problem, postponed)
        limit_s = min(limit_s, max(allowed_s, problem.late_s(postponed)))
    return postponed, limit_s


def _relaxed_fill(
    ordered: OrderedProblem, cuttable: list[bool], least: LeastExposed, allowed_s: float, backward_only_s: float
) -> tuple[float, ForwardFill | None]:
    """The exposed time from which on gradients that are too large for the least one fit, and what is then postponed."""
    low_s, high_s, best = allowed_s, backward_only_s, None
    step_s = allowed_s - least.late_s
    while step_s > 0 and low_s + step_s < high_s:
        limit_s = low_s + step_s
        filled = _best_fill(ordered, cuttable, least, [least.late_s, limit_s], limit_s)
        if filled is not None:
            best, high_s = filled, limit_s
            break
        low_s, step_s = limit_s, 2 * step_s
    for _ in range(_LIMIT_HALVINGS if best else 0):
        limit_s = (low_s + high_s) / 2
        filled = _best_fill(ordered, cuttable, least, [least.late_s, limit_s], limit_s)
        if filled is None:
            low_s = limit_s
        else:
            best, high_s = filled, limit_s
    return high_s, best


def _best_fill(
    ordered: OrderedProblem, cuttable: list[bool], least: LeastExposed, tried_s: list[float], limit_s: float
) -> ForwardFill | None:
    """Of the thresholds found for some exposed times, the best that can be filled with the last of them."""
    chain, plans = ordered.chain, dict.fromkeys([least.plan] if least.plan else [])
    for late_s in tried_s:
        plans.update(dict.fromkeys(cover(chain, late_s + chain.slack_s, further=1).plans[:_MOST_THRESHOLD_SETS]))
    tries = range(MOST_SPLITS + 1) if any(cuttable) else (0,)
    width = MOST_RANGES if any(cuttable) else _RANGES_WITHOUT_CUTS
    for splits in tries:
        choices = list[tuple[float, int, ForwardFill]]()
        for plan in plans:
            back, fore = capacities(chain, plan, limit_s)
            filled = fill_forward_window(chain.time_s, chain.free, cuttable, back, fore, chain.slack_s, splits, width)
            if filled is not None:
                choices.append((sum(filled.postponed_s), len(plan.back) + len(plan.fore), filled))
        if choices:
            return min(choices, key=lambda choice: choice[:2])[2]
    return None


def _local_search(problem: PackingProblem, postponed: np.ndarray) -> np.ndarray:
    """Move whole gradients between the windows, or exchange two, as long as the step gets shorter."""
    late_s, evaluations_left = (
        problem.late_s(postponed),
        max(_LEAST_EVALUATIONS, _MOST_EVALUATIONS // (1 + len(problem.together))),
    )
    improved = True
    while improved:
        improved = False
        for neighbour in _neighbours(problem, postponed):
            if evaluations_left == 0:
                return postponed
            evaluations_left -= 1
            new_s = problem.late_s(neighbour)
            if new_s < late_s - problem.precision_s:
                postponed, late_s, improved = neighbour, new_s, True
                break
    return postponed


def _neighbours(problem: PackingProblem, postponed: np.ndarray) -> Iterator[np.ndarray]:
    """Choices that differ in one whole gradient, the largest first; then in two, one of each window."""
    by_size = sorted(
        np.flatnonzero(problem.free).tolist(), key=lambda i: (-problem.time_s[i], problem.together[i].name)
    )
    whole = [i for i in by_size if postponed[i] in (0.0, problem.time_s[i])]
    for i in whole:
        yield _exchanged(problem, postponed, i)
    for i in whole:
        for j in whole:
            if postponed[i] == 0.0 < postponed[j]:
                yield _exchanged(problem, postponed, i, j)


def _exchanged(problem: PackingProblem, postponed: np.ndarray, *indices: int) -> np.ndarray:
    exchanged = postponed.copy()
    for i in indices:
        exchanged[i] = problem.time_s[i] - postponed[i]
    return exchanged


def optimal_packing(*, forward: bool = True, split: bool = True, start_s: float = 0.0) -> Analyzer:
    """The policy: `pack`, for the network's line.

    Args:
        forward: whether gradients may be postponed.
        split: whether gradients may be cut in two.
        start_s: seconds that each transfer costs, besides its own time.
    """

    def run(boundaries: Boundaries, network: Network) -> Schedule:
        line = _line(boundaries, network)
        line = Line(line.a_s + start_s, line.b_s_per_byte)
        packing = pack(boundaries, line, forward=forward, split=split)
        return Schedule(packing.transfers, f"optimal packing: {packing.note}")

    return Analyzer("optimal packing", (Boundaries, Network), Schedule, run)


def optimal_buckets() -> Analyzer:
    """The policy: the buckets with which a step whose transfers all are in the backward window waits least."""

    def run(boundaries: Boundaries, network: Network) -> Buckets:
        packing = pack(boundaries, _line(boundaries, network), forward=False)
        names = tuple(tuple(p.gradient for p in t.pieces) for t in packing.transfers)
        return Buckets(names, tuple(t.reason for t in packing.transfers))

    return Analyzer("optimal buckets", (Boundaries, Network), Buckets, run)


def _line(boundaries: Boundaries, network: Network) -> Line:
    network.must_be_known("optimal packing")
    return network.line(sum(g.size_bytes for g in boundaries.gradients))
