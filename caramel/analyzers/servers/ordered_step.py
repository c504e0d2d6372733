"""The order of pulls of a step by a rule, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

from caramel.analyzers.servers.pull_orders import NO_ORDER, pull_order
from caramel.analyzers.servers.served_step import channel_s, predict_served_step
from caramel.analyzers.servers.worker_step import worker_step
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.model import Model
from caramel.netmodel.messages import MessageCost
from caramel.server_plan import Home, ServedStep

_TIMED = ("tac", "tao", "best", "reverse")
"""Orderings that go by times."""


@dataclass(frozen=True)
class OrderedStep:
    """A step whose pulls are in an order.

    Attributes:
        ordering: name of the rule.
        pulls: names of the parameters in the order in which they are sent; empty for no order.
        prediction: predicted step; None without a trace or costs.
    """

    ordering: str
    pulls: tuple[str, ...]
    prediction: ServedStep | None = None


def ordered_step(
    model: Model,
    homes: Collection[Home],
    workers: int,
    servers: int,
    cost: MessageCost | None,
    trace: Trace | None,
    ordering: str | None = None,
    workers_on_host: int = 1,
) -> OrderedStep:
    """Put the pulls of a step in an order, and predict the step where that is possible.

    Args:
        model: the single-device step.
        homes: servers of its variables.
        workers: number of workers.
        servers: number of servers.
        cost: cost of a message; None if nothing is known of the network.
        trace: measured times of the program's ops; None without any.
        ordering: name of the rule; None for the best one that the given times allow.
        workers_on_host: number of workers that share a link.

    Raises:
        InputError: the rule goes by times that are not known.
    """
    is_timed = trace is not None and cost is not None
    ordering = ordering or ("best" if is_timed else "tic")
    if ordering in _TIMED and not is_timed:
        missing = [name for name, given in (("trace=", trace), ("network=", cost)) if given is None]
        raise InputError(
            f"ordering={ordering!r} goes by the times of ops and transfers: give {' and '.join(missing)}, or take "
            "'tic', which goes by the graph alone"
        )
    pull_s = (
        (lambda size_bytes: size_bytes * 1e-9)  # only how they compare matters then
        if cost is None
        else partial(channel_s, workers=workers, servers=servers, cost=cost, workers_on_host=workers_on_host)
    )
    op_s = {} if trace is None else _scaled(trace)
    step = worker_step(model, homes, op_s, pull_s)
    pulls = () if ordering == NO_ORDER else step.parameters(pull_order(ordering, step.problem))
    if cost is None or trace is None:
        return OrderedStep(ordering, pulls)
    updates = find_dependencies(model).updates
    update_s = {name: sum(op_s.get(op, 0.0) for op in names) for name, names in updates.items()}
    return OrderedStep(ordering, pulls, predict_served_step(step, pulls, workers, pull_s, cost, update_s))


def _scaled(trace: Trace) -> Mapping[str, float]:
    """Seconds of each op, so that all together take the step that was measured."""
    total_s = sum(trace.op_s.values())
    scale = trace.step_s / total_s if total_s > 0 else 1.0
    return {name: scale * time_s for name, time_s in trace.op_s.items()}
