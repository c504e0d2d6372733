"""The optimal packing of transfers into the backward and the forward window, for a network of T = a + b * bytes.

docs/planner.md has the theory. `pack` finds the least exposed time, then the simplest plan that is nearly as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.bounds import checked
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.forward_fill import MOST_RANGES, MOST_SPLITS, Filled, fill
from caramel.analyzers.optimal.problem import TIES, Problem, Task, least_of
from caramel.analyzers.optimal.rounding import cut, waits_s, written
from caramel.analyzers.optimal.thresholds import Least, capacities, cover
from caramel.facts import Boundaries, Buckets, Schedule, Scheduled
from caramel.netmodel.line import Line

_LEAST_TRIES, _MOST_TRIES = 40, 20_000
"""Evaluations of the search among whole gradients; of n gradients, the second number over n (our choice)."""

_WHOLE_RANGES, _HALVINGS = 16, 3
"""Ranges that are followed where nothing may be cut, and how often the exposed time found is halved (our choice)."""

_MOST_PLANS = 2
"""So many sets of thresholds are filled for each exposed time that is tried (our choice)."""


@dataclass(frozen=True)
class Packing:
    """A plan for both windows, under the linear model.

    Attributes:
        transfers: forward ones first, by deadline; then backward ones, as they are ready.
        exposed_s: seconds in which the step only waits, w: it takes compute + updates + w.
        iteration_s: these seconds.
        bound_s: the least w that such a plan can have, as far as is proved.
        is_optimal: whether ``exposed_s`` is proved to be within `TIES` of the least step.
        note: how it was found, what is proved, and how far apart plan and bound are.
    """

    transfers: tuple[Scheduled, ...]
    exposed_s: float
    iteration_s: float
    bound_s: float
    is_optimal: bool
    note: str


def pack(boundaries: Boundaries, line: Line, *, forward: bool = True, split: bool = True) -> Packing:
    """Pack all transfers of a step so that it waits as little as possible.

    Among plans within `TIES` of the best it takes one that postpones nothing; else one with few splits, then few
    postponed bytes, then few transfers.

    Args:
        boundaries: of all gradients.
        line: seconds of a transfer.
        forward: whether gradients may be postponed. Without, these are the optimal buckets of the backward pass.
        split: whether gradients may be cut in two, one piece for each window.

    Returns:
        The plan, and what is proved about it.

    Raises:
        InputError: a number is negative or not finite.

    Source:
        Own; the problem is that of Caramel, section 4.3.
    """
    task = Task.of(checked(boundaries, line), line)
    nothing = np.zeros(len(task.together))
    plain_s = task.least_plain_s()
    if not (forward and any(task.free)):
        return _packing(task, nothing, plain_s, task.plain_bound_s())
    bound_s = min(plain_s, task.simple_bound_s())
    if plain_s <= task.tied_s(bound_s):
        return _packing(task, nothing, task.tied_s(bound_s), bound_s)
    least, problem = least_of(task, bound_s, plain_s)
    bound_s = max(bound_s, least.bound_s)
    allowed_s = task.tied_s(least.late_s)
    if plain_s <= allowed_s:
        return _packing(task, nothing, allowed_s, bound_s)
    return _packing(task, *_chosen(task, problem, least, allowed_s, plain_s, split), bound_s)


def _packing(task: Task, postponed_s: np.ndarray, allowed_s: float, bound_s: float) -> Packing:
    """The plan with so much of each gradient postponed, and at best so much exposed time."""
    compute_s = task.boundaries.compute_s
    order = sorted(range(len(task.together)), key=lambda i: (task.back_s[i], task.fore_s[i], task.together[i].name))
    gradients = [task.together[i] for i in order]
    parts, room_s = (postponed_s / task.time_s)[order].tolist(), task.back_s[order].tolist()
    transfers, late_s = tuple[Scheduled, ...](), math.inf
    for upwards in (False, True):
        placed = [replace(p, room_s=r) for p, r in zip(cut(gradients, parts, upwards), room_s)]
        tried = written(task.boundaries, task.line, placed, task.alone, allowed_s)
        tried_s, stalled_s = waits_s(task.boundaries, task.line, tried)
        if not transfers or (tried_s < late_s and stalled_s <= len(gradients) * task.slack_s):
            transfers, late_s = tried, tried_s
        if all(part in (0.0, 1.0) for part in parts):
            break
    base_s = compute_s + task.boundaries.updates_s
    gap = (late_s - bound_s) / (base_s + bound_s) if base_s + bound_s > 0 else 0.0
    is_optimal = gap <= TIES
    proved = f"within {TIES:.1%} of it" if is_optimal else f"{gap:.1%} of the step above it, so not proved to be best"
    note = f"{late_s * 1e3:.4g} ms exposed; no such plan has less than {bound_s * 1e3:.4g} ms: {proved}"
    return Packing(transfers, late_s, base_s + late_s, bound_s, is_optimal, note)


def _chosen(
    task: Task, problem: Problem, least: Least, allowed_s: float, plain_s: float, split: bool
) -> tuple[np.ndarray, float]:
    """What to postpone, in seconds of the channel, and the exposed time to aim at."""
    cuttable = [split and task.cuttable[i] for i in problem.order]
    whole_free = [f and not c for f, c in zip(problem.chain.free, cuttable)]
    filled = _best_fill(problem, cuttable, least, [least.late_s, allowed_s], allowed_s)
    limit_s = allowed_s
    if filled is None:
        limit_s, filled = _relaxed_fill(problem, cuttable, least, allowed_s, plain_s)
    postponed = np.zeros(len(task.together))
    if filled is not None:
        postponed[list(problem.order)] = filled.postponed_s
    if limit_s > allowed_s and any(whole_free):
        postponed = _searched(task, postponed)
        limit_s = min(limit_s, max(allowed_s, task.late_s(postponed)))
    return postponed, limit_s


def _relaxed_fill(
    problem: Problem, cuttable: list[bool], least: Least, allowed_s: float, plain_s: float
) -> tuple[float, Filled | None]:
    """What can be filled where gradients are too large for the least exposed time; and with which exposed time."""
    low_s, high_s, found = allowed_s, plain_s, None
    step_s = allowed_s - least.late_s
    while step_s > 0 and low_s + step_s < high_s:
        limit_s = low_s + step_s
        filled = _best_fill(problem, cuttable, least, [least.late_s, limit_s], limit_s)
        if filled is not None:
            found, high_s = filled, limit_s
            break
        low_s, step_s = limit_s, 2 * step_s
    for _ in range(_HALVINGS if found else 0):
        limit_s = (low_s + high_s) / 2
        filled = _best_fill(problem, cuttable, least, [least.late_s, limit_s], limit_s)
        if filled is None:
            low_s = limit_s
        else:
            found, high_s = filled, limit_s
    return high_s, found


def _best_fill(
    problem: Problem, cuttable: list[bool], least: Least, tried_s: list[float], limit_s: float
) -> Filled | None:
    """Of the thresholds found for some exposed times, the best that can be filled with the last of them."""
    chain, plans = problem.chain, dict.fromkeys([least.plan] if least.plan else [])
    for late_s in tried_s:
        plans.update(dict.fromkeys(cover(chain, late_s + chain.slack_s, further=1).plans[:_MOST_PLANS]))
    tries = range(MOST_SPLITS + 1) if any(cuttable) else (0,)
    width = MOST_RANGES if any(cuttable) else _WHOLE_RANGES
    for splits in tries:
        filled = list[tuple[float, int, Filled]]()
        for plan in plans:
            back, fore = capacities(chain, plan, limit_s)
            one = fill(chain.time_s, chain.free, cuttable, back, fore, chain.slack_s, splits, width)
            if one is not None:
                filled.append((sum(one.postponed_s), len(plan.back) + len(plan.fore), one))
        if filled:
            return min(filled, key=lambda each: each[:2])[2]
    return None


def _searched(task: Task, postponed: np.ndarray) -> np.ndarray:
    """Move whole gradients between the windows, or exchange two, as long as the step gets shorter."""
    late_s, left = task.late_s(postponed), max(_LEAST_TRIES, _MOST_TRIES // (1 + len(task.together)))
    improved = True
    while improved:
        improved = False
        for moved in _neighbours(task, postponed):
            if left == 0:
                return postponed
            left -= 1
            new_s = task.late_s(moved)
            if new_s < late_s - task.precision_s:
                postponed, late_s, improved = moved, new_s, True
                break
    return postponed


def _neighbours(task: Task, postponed: np.ndarray) -> Iterator[np.ndarray]:
    """Choices that differ in one whole gradient, the largest first; then in two, one of each window."""
    by_size = sorted(np.flatnonzero(task.free).tolist(), key=lambda i: (-task.time_s[i], task.together[i].name))
    whole = [i for i in by_size if postponed[i] in (0.0, task.time_s[i])]
    for i in whole:
        yield _exchanged(task, postponed, i)
    for i in whole:
        for j in whole:
            if postponed[i] == 0.0 < postponed[j]:
                yield _exchanged(task, postponed, i, j)


def _exchanged(task: Task, postponed: np.ndarray, *which: int) -> np.ndarray:
    moved = postponed.copy()
    for i in which:
        moved[i] = task.time_s[i] - postponed[i]
    return moved


def optimal_packing(*, forward: bool = True, split: bool = True, start_s: float = 0.0) -> Analyzer:
    """The policy: `pack`, for the network's line.

    Args:
        forward: whether gradients may be postponed.
        split: whether gradients may be cut in two.
        start_s: seconds that each transfer costs besides its own time.
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
