"""The properties of TicTac's Algorithm 1 in seconds, for any set of outstanding pulls, as `OutstandingPulls` has them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from caramel.analyzers.servers.outstanding import NEVER, OutstandingPulls
from caramel.util.intervals import TIME_RESOLUTION_S


@dataclass(frozen=True)
class OpProperties:
    """The properties, in seconds.

    Attributes:
        communication_s: M of each op and pull: the time of the outstanding transfers that an op waits for; that of a
            pull is the time of its own, and 0 if it has been received.
        compute_load_s: P of each outstanding pull: the time of the ops that wait for it and for no other.
        impending_s: M+ of each outstanding pull: the least M of an op that waits for it and for others; infinite if
            there is none.
    """

    communication_s: Mapping[str, float]
    compute_load_s: Mapping[str, float]
    impending_s: Mapping[str, float]


def op_properties(problem, outstanding=None, by_channel=False):
    """The properties of all ops and pulls; `outstanding` names the pulls that have not been received, None all."""
    wanted = set(problem.position_of if outstanding is None else outstanding)
    state = OutstandingPulls(problem, by_channel)
    for name, position in problem.position_of.items():
        if name not in wanted:
            state.take(position)
    of_sets, impending = state.communication(), state.impending()
    left = {name: position for name, position in problem.position_of.items() if name in wanted}
    of_ops = {op.name: _seconds(of_sets[row]) for op, row in zip(problem.ops, problem.sets.set_of)}
    of_pulls = {name: _seconds(state.pull_ticks[n]) if name in left else 0.0 for name, n in problem.position_of.items()}
    return OpProperties(
        of_ops | of_pulls,
        {name: _seconds(state.compute_load[position]) for name, position in left.items()},
        {name: _seconds(impending[position]) for name, position in left.items()},
    )


def _seconds(ticks):
    return math.inf if ticks == NEVER else float(ticks * TIME_RESOLUTION_S)
