"""How good a step's schedule is, between the worst and the best that could be."""

from __future__ import annotations

from collections import defaultdict

from caramel.analyzers.servers.pulls import PullProblem


def upper_bound_s(problem: PullProblem) -> float:
    """Seconds of a step in which only one resource is used at a time; an order can be better, but not worse.

    Args:
        problem: one worker's step.

    Source:
        TicTac, equation 1.
    """
    return sum(op.time_s for op in problem.ops) + sum(pull.time_s for pull in problem.pulls)


def busiest_resource_s(problem: PullProblem) -> float:
    """Seconds of the most loaded resource, the worker or a channel; an order can be worse, but not better.

    Args:
        problem: one worker's step.

    Source:
        TicTac, equation 2.
    """
    channels_s: dict[int, float] = defaultdict(float)
    for pull in problem.pulls:
        channels_s[pull.channel] += pull.time_s
    return max([sum(op.time_s for op in problem.ops), *channels_s.values()])


def efficiency(problem: PullProblem, step_s: float) -> float:
    """Scheduling efficiency E of a step: 1 at the lower bound, 0 at the upper one.

    Neither bound looks at dependencies, so the best order may have less than 1 and the worst one more than 0.

    Args:
        problem: one worker's step.
        step_s: seconds that it took, measured or predicted.

    Returns:
        E; 1 where both bounds are the same, as there is nothing to overlap.

    Source:
        TicTac, equation 3.
    """
    upper_s, lower_s = upper_bound_s(problem), busiest_resource_s(problem)
    return 1.0 if upper_s == lower_s else (upper_s - step_s) / (upper_s - lower_s)


def speedup(problem: PullProblem) -> float:
    """The most S that scheduling can bring: 0 is nothing, 1 is twice as many steps per second.

    Args:
        problem: one worker's step.

    Returns:
        S; 0 for a step that takes no time.

    Source:
        TicTac, equation 4.
    """
    upper_s, lower_s = upper_bound_s(problem), busiest_resource_s(problem)
    return (upper_s - lower_s) / lower_s if lower_s > 0 else 0.0
