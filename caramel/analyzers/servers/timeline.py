"""A worker's step, op by op: what is received and computed when."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.analyzers.servers.makespan import arrivals_s
from caramel.analyzers.servers.pulls import PullProblem


@dataclass(frozen=True)
class Span:
    """A pull on its channel, or an op on the worker.

    Attributes:
        name: of the pull or op.
        start_s: seconds from the beginning of the step to its own.
        end_s: the same to its end.
    """

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class StepTimeline:
    """What one worker does in a step.

    Attributes:
        pulls: spans of the pulls, in the order in which they are sent.
        ops: spans of the ops, in the order in which they are computed.
    """

    pulls: tuple[Span, ...]
    ops: tuple[Span, ...]

    @property
    def makespan_s(self) -> float:
        """Seconds of the step."""
        return max((span.end_s for span in (*self.pulls, *self.ops)), default=0.0)


def step_timeline(problem: PullProblem, order: Sequence[str]) -> StepTimeline:
    """Schedule a step: the resource takes, whenever it is free, the first of the ops that are ready.

    Args:
        problem: one worker's step.
        order: see `caramel.analyzers.servers.makespan.arrivals_s`.

    Raises:
        InputError: the order does not name each pull once.
    """
    end_s = {pull.name: float(end) for pull, end in zip(problem.pulls, arrivals_s(problem, order))}
    pulls = [problem.pulls[position] for position in problem.positions(order)]
    sent = tuple(Span(pull.name, end_s[pull.name] - pull.time_s, end_s[pull.name]) for pull in pulls)
    waits_for = [len(set(op.inputs)) for op in problem.ops]
    users: dict[str, list[int]] = defaultdict(list)
    for position, op in enumerate(problem.ops):
        for name in dict.fromkeys(op.inputs):
            users[name].append(position)
    ready = [position for position, count in enumerate(waits_for) if count == 0]
    heapq.heapify(ready)

    def finish(name: str) -> None:
        """Something that ops wait for is there."""
        for position in users[name]:
            waits_for[position] -= 1
            if waits_for[position] == 0:
                heapq.heappush(ready, position)

    arriving = sorted(sent, key=lambda span: span.end_s, reverse=True)
    computed: list[Span] = []
    now_s = 0.0
    while ready or arriving:
        while arriving and (not ready or arriving[-1].end_s <= now_s):
            arrived = arriving.pop()
            now_s = max(now_s, arrived.end_s)
            finish(arrived.name)
        if ready:
            op = problem.ops[heapq.heappop(ready)]
            computed.append(Span(op.name, now_s, now_s + op.time_s))
            now_s += op.time_s
            finish(op.name)
    return StepTimeline(sent, tuple(computed))
