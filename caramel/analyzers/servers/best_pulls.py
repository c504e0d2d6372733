"""The order of pulls that takes least in simulation: the best of TicTac's, improved by moving single pulls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from caramel.analyzers.servers.efficiency import busiest_resource_s
from caramel.analyzers.servers.makespan import arrivals_s, makespan_s, ready_s
from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.tac import tac
from caramel.analyzers.servers.tao import tao
from caramel.analyzers.servers.tic import tic
from caramel.analyzers.servers.tio import tio
from caramel.util.intervals import TIME_RESOLUTION_S

MOST_SIMULATED = 500
"""The largest number of steps that are simulated (our choice): 0.2 s for 500 pulls and 4,500 ops."""


def best_pulls(problem: PullProblem) -> tuple[str, ...]:
    """An order whose step is predicted to be no longer than those of TAC, TAO, TIC and TIO.

    TAC by itself can be worse than TIC, and it never weighs a group of pulls: while some pull lets an op run, however
    short, TAC sends it before two that only together let a long op run. Simulation sees both.

    The step ends at its critical arrival plus the time of all work that waits for this arrival or for a later one. A
    move that takes no pull across that arrival changes neither, so it cannot help. The other moves are tried, the
    shortest first, and the first that helps is made.

    Args:
        problem: one worker's step.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        Our own rule, from the orders of TicTac and its earlier version.
    """
    candidates = [rule(problem) for rule in (tac, tao, tic, tio)]
    best = min(candidates, key=lambda order: makespan_s(problem, order))
    least_s, simulated, moves = makespan_s(problem, best), len(candidates), _moves(problem, best)
    enough_s = busiest_resource_s(problem) + TIME_RESOLUTION_S
    while simulated < MOST_SIMULATED and least_s > enough_s:
        order = next(moves, None)
        if order is None:
            break
        simulated += 1
        step_s = makespan_s(problem, order)
        if step_s < least_s - TIME_RESOLUTION_S:
            best, least_s, moves = order, step_s, _moves(problem, order)
    return best


def _moves(problem: PullProblem, order: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The orders with one pull moved past the critical arrival, or moved from or to its place."""
    arrival_s = arrivals_s(problem, order)
    # Channels are parallel, so what arrives before what is not what stands before what.
    names = sorted(order, key=lambda name: (arrival_s[problem.position_of[name]], name))
    critical = _critical(problem, arrival_s, names)
    for distance in range(1, len(names)):
        for first in range(max(0, critical - distance), min(critical, len(names) - 1 - distance) + 1):
            last = first + distance
            before, inside, after = names[:first], names[first : last + 1], names[last + 1 :]
            yield (*before, *inside[1:], inside[0], *after)
            if distance > 1:
                yield (*before, inside[-1], *inside[:-1], *after)


def _critical(problem: PullProblem, arrival_s: np.ndarray, names: Sequence[str]) -> int:
    """Index, by arrival, of the pull whose arrival plus the work that waits for it or for later ones ends last."""
    of_sets_s = ready_s(problem, arrival_s)
    ends_s = []
    for name in names:
        time_s = arrival_s[problem.position_of[name]]
        ends_s.append(time_s + problem.compute_s[of_sets_s >= time_s].sum())
    return max(range(len(names)), key=ends_s.__getitem__, default=0)
