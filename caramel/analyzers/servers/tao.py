"""TAO: the timing-aware order of pulls in the earlier version of TicTac."""

from __future__ import annotations

from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.tac import timing_aware_order


def tao(problem: PullProblem) -> tuple[str, ...]:
    """The order that TAO finds.

    TAO is TAC (see there, also for the comparator, which its paper misprints in the same way) but for several channels:
    M of an op is the time of the channel that has the most to send for it, as channels are parallel, where TAC adds up
    all of them. With one channel both give the same order.

    Args:
        problem: one worker's step.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        Communication Scheduling as a First-Class Citizen in Distributed Machine Learning Systems, section 4.1
        "Communication Time", section 4.2, equation 5 and Algorithm 2.
    """
    return timing_aware_order(problem, by_channel=True)
