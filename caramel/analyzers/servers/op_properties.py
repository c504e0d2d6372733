"""Algorithm 1 of TicTac: the properties of ops and pulls for a set of outstanding pulls."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from caramel.analyzers.servers.outstanding import NEVER, TIME_RESOLUTION_S, OutstandingPulls
from caramel.analyzers.servers.pulls import PullProblem
from caramel.errors import InputError, listed


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


def op_properties(
    problem: PullProblem, outstanding: Collection[str] | None = None, by_channel: bool = False
) -> OpProperties:
    """The properties of all ops and pulls.

    Args:
        problem: one worker's step.
        outstanding: names of the pulls that have not been received; None for all of them.
        by_channel: whether M of an op is the time of its most loaded channel (as in TAO), or of all of them (TAC).

    Raises:
        InputError: there is no such pull.

    Source:
        TicTac, section 4.1, Algorithm 1, and the same of its earlier version, which alone says that M "is
        computed independently for each channel and the max time is chosen". A pull counts as a dependency of itself:
        else Algorithm 1 would not give it the M that the text does.
    """
    wanted = set(problem.position_of if outstanding is None else outstanding)
    unknown = sorted(wanted - problem.position_of.keys())
    if unknown:
        raise InputError(f"there are no such pulls: {listed(unknown)}")
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


def with_general_times(problem: PullProblem) -> PullProblem:
    """The same step by the papers' general time oracle: a pull takes 1, and computation nothing.

    Args:
        problem: one worker's step.

    Source:
        TicTac, equation 5; equation 6 of its earlier version.
    """
    ops = tuple(replace(op, time_s=0.0) for op in problem.ops)
    return PullProblem(ops, tuple(replace(pull, time_s=1.0) for pull in problem.pulls))


def _seconds(ticks: int) -> float:
    """Ticks in seconds."""
    return math.inf if ticks == NEVER else float(ticks * TIME_RESOLUTION_S)
