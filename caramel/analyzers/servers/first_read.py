"""The order in which a worker's ops first read what is pulled."""

from __future__ import annotations

import math

from caramel.analyzers.servers.pulls import PullProblem


def first_read(problem: PullProblem) -> tuple[str, ...]:
    """First what the first op needs, in the order of the ops; what no op needs comes last, and ties go by name.

    Where ops run one after the other that is the order of layers.

    Args:
        problem: one worker's step.

    Returns:
        Names of all pulls, first the one to send first.

    Source:
        ByteScheduler, section 3.2: the priority of a tensor is that of the layer that needs it first.
    """
    first: dict[str, float] = {}
    for position, op in enumerate(problem.ops):
        for name in op.inputs:
            first.setdefault(name, position)
    return tuple(sorted(problem.position_of, key=lambda name: (first.get(name, math.inf), name)))
