"""TAC: the timing-aware order of pulls."""

from __future__ import annotations

import numpy as np

from caramel.analyzers.servers.outstanding import NEVER, OutstandingPulls
from caramel.analyzers.servers.pulls import PullProblem


def tac(problem: PullProblem) -> tuple[str, ...]:
    """The order that TAC finds: again and again the pull that comes first by equation 6, then by M+.

    Equation 6: A before B if min(P_B, M_A) < min(P_A, M_B). Algorithm 3 prints the opposite comparison: it sets
    A to min(P_A, M_B), B to min(P_B, M_A) and puts A first if A < B, which in the paper's own Figure 1a sends recv2
    first, the order that the paper calls bad. Equation 6 follows from the makespans above it, and is used here.

    The paper says that the comparator is transitive. It is not: equation 6 ties a pull with M = P = 1 with all that
    have M and P of at least 1, whichever of those is before the other, and M+ then decides. Here equation 6 alone says
    which pulls no other one precedes, the least M+ decides between those, then the name. This is the comparator's
    minimum wherever it has one (whatever ties with it by equation 6 has no lesser M+), and it goes on where the
    comparator runs in a circle: equation 6 alone never does, as it is Johnson's rule for two machines in a row, which
    has an order that agrees with it.

    Args:
        problem: one worker's step.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        TicTac, section 4.3, equation 6 and Algorithm 3. M of an op adds up all channels; see `tao`.
        S. M. Johnson, Optimal two- and three-stage production schedules with setup times included, 1954.
    """
    return timing_aware_order(problem, by_channel=False)


def timing_aware_order(problem: PullProblem, by_channel: bool) -> tuple[str, ...]:
    """TAC, or TAO, which differs in M of several channels.

    Args:
        problem: one worker's step.
        by_channel: see `OutstandingPulls`.
    """
    by_name = sorted(problem.position_of)
    rank = np.argsort([problem.position_of[name] for name in by_name])
    outstanding = OutstandingPulls(problem, by_channel)
    order = []
    for _ in by_name:
        first = np.flatnonzero(outstanding.with_least_impending(unpreceded(outstanding)))
        pull = int(first[rank[first].argmin()])
        order.append(problem.pulls[pull].name)
        outstanding.take(pull)
    return tuple(order)


def unpreceded(pulls: OutstandingPulls) -> np.ndarray:
    """The outstanding pulls that no other one precedes by equation 6.

    A minimum is less than another one if one of its parts is less than both of the other's. So B precedes A in one
    of two ways: P_A < P_B and P_A < M_A, or M_B < P_B and M_B < M_A. Both can be said of A without comparing pairs.

    Args:
        pulls: the outstanding pulls; at least one.

    Returns:
        (pulls,) whether it is one of them; some are.
    """
    left, transfer, compute = pulls.is_outstanding, pulls.pull_ticks, pulls.compute_load
    most_compute = compute[left].max()
    least_transfer = transfer[left & (transfer < compute)].min(initial=NEVER)
    return left & ((compute >= transfer) | (compute == most_compute)) & (transfer <= least_transfer)
