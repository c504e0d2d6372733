"""TIO: the order of pulls without times in the earlier version of TicTac."""

from __future__ import annotations

from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.tic import timing_independent_order


def tio(problem: PullProblem) -> tuple[str, ...]:
    """The order that TIO finds, in one sequence.

    TIO is TIC (see there) but for two things. With several channels, M is that of the channel that has the most to
    send. And pulls with one M+ have one priority, so that they "run in parallel". Here they follow one another as in
    TIC, which is one of the ways that TIO allows.

    Args:
        problem: one worker's step; its times do not matter.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        Communication Scheduling as a First-Class Citizen in Distributed Machine Learning Systems, section 4.3,
        equation 6 and Algorithm 3.
    """
    return timing_independent_order(problem, by_channel=True)
