"""TIC: the order of pulls that needs no times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caramel.analyzers.servers.outstanding import OutstandingPulls
from caramel.analyzers.servers.pulls import PullProblem


def tic(problem: PullProblem) -> tuple[str, ...]:
    """The order that TIC finds: by M+, where each pull takes 1.

    The paper leaves the order of pulls with one M+ open, and these are many: its own Figure 1a has 2 for both pulls.
    Here the one goes first of which an op needs fewer pulls in all (itself counted), then the name decides. The
    paper's M+ passes over ops that need one pull only: a pull that only such ops need comes last.

    Args:
        problem: one worker's step; its times do not matter.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        TicTac, section 4.2, equation 5 and Algorithm 2. With several channels M adds up all of them, see `tio`.
    """
    return timing_independent_order(problem, by_channel=False)


def timing_independent_order(problem: PullProblem, by_channel: bool) -> tuple[str, ...]:
    """TIC, or TIO in one sequence.

    Args:
        problem: one worker's step.
        by_channel: see `OutstandingPulls`.
    """
    outstanding = OutstandingPulls(with_general_times(problem), by_channel)
    impending, least = outstanding.impending(), outstanding.impending(fewest=1)
    position_of: Mapping[str, int] = problem.position_of
    return tuple(sorted(position_of, key=lambda name: (impending[n := position_of[name]], least[n], name)))


def with_general_times(problem: PullProblem) -> PullProblem:
    """The same step by the papers' general time oracle: a pull takes 1, and computation nothing.

    Args:
        problem: one worker's step.

    Source:
        TicTac, equation 5; equation 6 of its earlier version.
    """
    ops = tuple(replace(op, time_s=0.0) for op in problem.ops)
    return PullProblem(ops, tuple(replace(pull, time_s=1.0) for pull in problem.pulls))
