"""A time below which no order of pulls brings a step with parameter servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.worker_step import Push, WorkerStep


def step_bound_s(step: WorkerStep, push_s: Callable[[Push], float]) -> float:
    """Seconds that a step takes at least, with whatever orders of pulls, ops and pushes.

    What an op needs has to come through its channels, so it begins no sooner than all its pulls of one channel take.
    From a given time on a worker has to compute at least all ops that begin no sooner; so a gradient is there no sooner
    than the largest sum of such a time and these ops. And a channel has to carry all pushes that are there no sooner.
    This is the least makespan of one machine with release dates, for the worker and then for each channel.

    Args:
        step: one worker's part.
        push_s: function from a push to its seconds on its channel.
    """
    problem = step.problem
    release_s = _release_s(problem)
    time_s = np.array([op.time_s for op in problem.ops])
    channels: dict[int, list[tuple[float, float]]] = defaultdict(list)
    before = _ops_before(problem, {push.after for push in step.pushes})
    ready_s = {after: _makespan_s(zip(release_s[ops], time_s[ops])) for after, ops in before.items()}
    for push in step.pushes:
        channels[push.channel].append((ready_s[push.after], push_s(push)))
    pulled_s: dict[int, float] = defaultdict(float)
    for pull in problem.pulls:
        pulled_s[pull.channel] += pull.time_s
    computed_s = _makespan_s(zip(release_s, time_s))
    return max([computed_s, *pulled_s.values(), *map(_makespan_s, channels.values())])


def _release_s(problem: PullProblem) -> np.ndarray:
    """The seconds before which each op cannot begin: those of its pulls on the channel that has most to send."""
    sets = problem.sets
    loads_s = np.zeros((len(sets.members), 1 + max((pull.channel for pull in problem.pulls), default=0)))
    for position, pull in enumerate(problem.pulls):
        loads_s[sets.members[:, position], pull.channel] += pull.time_s
    return loads_s.max(axis=1)[sets.set_of]


def _ops_before(problem: PullProblem, groups: Iterable[tuple[str, ...]]) -> Mapping[tuple[str, ...], np.ndarray]:
    """The positions of the ops that some ops wait for, and of these themselves, for each group of names."""
    masks: dict[str, int] = {pull.name: 0 for pull in problem.pulls}
    for position, op in enumerate(problem.ops):
        mask = 1 << position
        for name in op.inputs:
            mask |= masks[name]
        masks[op.name] = mask
    width = (len(problem.ops) + 7) // 8
    found = {}
    for group in groups:
        mask = 0
        for name in group:
            mask |= masks[name]
        bits = np.frombuffer(mask.to_bytes(width, "little"), dtype=np.uint8)
        found[group] = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    return found


def _makespan_s(jobs: Iterable[tuple[float, float]]) -> float:
    """When one machine has done jobs that are released at some times and take some time each, at the earliest."""
    end_s = 0.0
    for release_s, time_s in sorted(jobs):
        end_s = max(end_s, release_s) + time_s
    return end_s
