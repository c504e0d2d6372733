"""Predict a step with parameter servers, by simulation."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from caramel.analyzers.servers.lower_bound import step_bound_s
from caramel.analyzers.servers.pull_orders import random_pulls
from caramel.analyzers.servers.timeline import Span, step_timeline
from caramel.analyzers.servers.worker_step import WorkerStep
from caramel.netmodel.messages import MessageCost
from caramel.server_plan import ServedSpan, ServedStep

_RANDOM_ORDERS = 16
"""Number of orders that are simulated where none is enforced (our choice)."""


def predict_served_step(
    step: WorkerStep,
    parameters: Sequence[str],
    workers: int,
    message_s: Callable[[float], float],
    cost: MessageCost,
    update_s: Mapping[str, float],
) -> ServedStep:
    """The predicted step of workers that do the same at the same time.

    A server sends to all workers at once, so that each gets its part of the server's link; what it receives of them
    comes likewise. Each channel is serial; pulls and pushes are on links of their own. A gradient is pushed as soon as
    it is there, and updated when those of all workers have been added up.

    Args:
        step: one worker's part.
        parameters: names of the parameters in the order in which they are sent; empty for no order.
        workers: number of workers.
        message_s: function from the bytes of a message to its seconds on its channel; see `channel_s`.
        cost: cost of a message.
        update_s: seconds of the update of each gradient, by its name.
    """
    names = step.pulls(parameters)
    orders = [names] if parameters else [random_pulls(step.problem, seed) for seed in range(_RANDOM_ORDERS)]
    bound_s = step_bound_s(step, lambda push: message_s(push.size_bytes))
    results = [_one(step, order, workers, message_s, cost, update_s, bound_s) for order in orders]
    middle = statistics.median_low(result.step_s for result in results)
    return next(result for result in results if result.step_s == middle)


def channel_s(size_bytes: float, workers: int, servers: int, cost: MessageCost, workers_on_host: int = 1) -> float:
    """Seconds in which all workers get a message of a server, while they get others of the other servers.

    Args:
        size_bytes: bytes of the message.
        workers: number of workers, between which the server's link is divided.
        servers: number of servers, between which a worker's link is divided.
        cost: cost of a message.
        workers_on_host: number of workers that share a link.
    """
    on_a_link = max(workers, servers * min(workers_on_host, workers))
    return workers * cost.alpha_s + on_a_link * cost.beta_s_per_byte * size_bytes


def _one(
    step: WorkerStep,
    order: Sequence[str],
    workers: int,
    message_s: Callable[[float], float],
    cost: MessageCost,
    update_s: Mapping[str, float],
    bound_s: float,
) -> ServedStep:
    timeline = step_timeline(step.problem, order)
    end_s = {span.name: span.end_s for span in timeline.ops}
    free_s: dict[int, float] = defaultdict(float)
    updated_s: dict[int, float] = defaultdict(float)
    channel_load_s: dict[int, float] = defaultdict(float)
    spans = [ServedSpan("compute", "", None, start_s, stop_s) for start_s, stop_s in _without_gaps(timeline.ops)]
    channels = {pull.name: pull.channel for pull in step.problem.pulls}
    for span in timeline.pulls:
        name = step.parameter_of[span.name]
        spans.append(ServedSpan("pull", name, channels[span.name], span.start_s, span.end_s))
    ready = [(max(end_s[name] for name in push.after), push) for push in step.pushes]
    for ready_s, push in sorted(ready, key=lambda each: each[0]):
        time_s = message_s(push.size_bytes)
        server, start_s = push.channel, max(ready_s, free_s[push.channel])
        free_s[server] = start_s + time_s
        channel_load_s[server] += time_s
        spans.append(ServedSpan("push", push.gradient, server, start_s, free_s[server]))
        added_s = (workers - 1) * cost.gamma_s_per_byte * push.size_bytes + update_s.get(push.gradient, 0.0)
        start_s = max(free_s[server], updated_s[server])
        updated_s[server] = start_s + added_s
        spans.append(ServedSpan("update", push.gradient, server, start_s, updated_s[server]))
    compute_s = sum(op.time_s for op in step.problem.ops)
    pulled_s: dict[int, float] = defaultdict(float)
    for pull in step.problem.pulls:
        pulled_s[pull.channel] += pull.time_s
    return ServedStep(
        step_s=max([timeline.makespan_s, *updated_s.values()]),
        compute_s=compute_s,
        pull_s=max(pulled_s.values(), default=0.0),
        push_s=max(channel_load_s.values(), default=0.0),
        lower_bound_s=bound_s,
        basis=cost.basis,
        spans=tuple(sorted(spans, key=lambda span: (span.start_s, span.end_s))),
    )


def _without_gaps(ops: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """The times in which ops are computed without a pause, as (start, end) in seconds; ops in the order of time."""
    start_s = end_s = 0.0
    for op in ops:
        if op.start_s > end_s:
            if end_s > start_s:
                yield start_s, end_s
            start_s = op.start_s
        end_s = op.end_s
    if end_s > start_s:
        yield start_s, end_s
