"""How long a worker's step takes with an order of its pulls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from caramel.analyzers.servers.pulls import PullProblem


def arrivals_s(problem: PullProblem, order: Sequence[str]) -> np.ndarray:
    """When each pull has been received.

    Args:
        problem: one worker's step.
        order: names of all pulls, first the one that is sent first; each channel sends its own in this order, one after
            the other, from the beginning of the step.

    Returns:
        (pulls,) seconds since the beginning of the step, in the order of the problem.

    Raises:
        InputError: the order does not name each pull once.
    """
    free_s: dict[int, float] = defaultdict(float)
    arrival_s = np.zeros(len(problem.pulls))
    for position in problem.positions(order):
        pull = problem.pulls[position]
        free_s[pull.channel] += pull.time_s
        arrival_s[position] = free_s[pull.channel]
    return arrival_s


def ready_s(problem: PullProblem, arrival_s: np.ndarray) -> np.ndarray:
    """When all pulls have been received that the ops of each set wait for.

    Args:
        problem: one worker's step.
        arrival_s: see `arrivals_s`.
    """
    return np.where(problem.sets.members, arrival_s, 0.0).max(axis=1, initial=0.0)


def makespan_s(problem: PullProblem, order: Sequence[str]) -> float:
    """Seconds of a step whose resource computes whenever an op is ready.

    It does not matter which of the ready ops is computed first: what an op waits for is received no later than what
    the op itself waits for, so the resource is idle only while all ops whose pulls have been received are done. After
    the last idle time the resource computes all that waits for the arrival at its end, or for a later one, in a row.
    After any other arrival it takes no less, so the step ends at the latest of these sums of an arrival and what
    waits for it or for a later one. `caramel.analyzers.servers.timeline` goes through the step op by op.

    Args:
        problem: one worker's step.
        order: see `arrivals_s`.

    Raises:
        InputError: the order does not name each pull once.

    Source:
        TicTac, section 3.2: makespan is the total time taken by the schedule.
    """
    arrival_s = arrivals_s(problem, order)
    of_sets_s = ready_s(problem, arrival_s)
    by_time = np.argsort(of_sets_s, kind="stable")
    still_to_compute_s = problem.compute_s[by_time][::-1].cumsum()[::-1]
    ends_s = of_sets_s[by_time] + still_to_compute_s
    return float(max(ends_s.max(initial=0.0), arrival_s.max(initial=0.0)))
