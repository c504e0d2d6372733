"""The order of pulls of a step by a rule, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from caramel.analyzers.servers.placement import place, variable_groups
from caramel.analyzers.servers.pull_orders import NO_ORDER, pull_order
from caramel.analyzers.servers.served_step import channel_s, predict_served_step
from caramel.analyzers.servers.worker_step import worker_step
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.model import Model
from caramel.netmodel.messages import MessageCost, message_cost
from caramel.netmodel.model import NetworkModel
from caramel.server_plan import Home, ServedStep

TIMED = ("tac", "tao", "best", "reverse")
"""Orderings that go by times."""


@dataclass(frozen=True)
class ServedProblem:
    """A step with parameter servers, whose pulls are to be put in an order.

    Attributes:
        model: the single-device step.
        workers: number of workers.
        servers: number of servers.
        cost: cost of a message; None if nothing is known of the network.
        trace: measured times of the program's ops; None without any.
        network: the model of the network from which ``cost`` was taken.
        exact_bits: whether no variable is divided whose parts might have other bits than the whole.
    """

    model: Model
    workers: int
    servers: int
    cost: MessageCost | None = None
    trace: Trace | None = None
    network: NetworkModel | None = None
    exact_bits: bool = False

    @classmethod
    def on(cls, network: NetworkModel | None, model: Model, workers: int, servers: int, **more: Any) -> ServedProblem:
        """A step on a network, with the cost of a message there.

        Args:
            network: network model; None if nothing is known.
            model: see the attributes.
            workers: see the attributes.
            servers: see the attributes.
            more: the other attributes.

        Raises:
            InputError: the network was measured with one worker only.
        """
        cost = None if network is None else message_cost(network, workers)
        return cls(model, workers, servers, cost, network=network, **more)

    @property
    def is_timed(self) -> bool:
        """Whether a step can be predicted."""
        return self.cost is not None and self.trace is not None

    def homes(self) -> tuple[Home, ...]:
        """The servers of all variables.

        Raises:
            UnsupportedError: there is no variable that servers could have.
            InputError: there are more servers than such variables.
        """
        return place(variable_groups(self.model, exact_bits=self.exact_bits), self.servers)

    def ordered(self, ordering: str | None = None) -> OrderedStep:
        """The pulls in an order, and the step where it can be predicted.

        Args:
            ordering: name of the rule; None for the best one that the given times allow.

        Raises:
            InputError: the rule goes by times that are not known.
            CaramelError: see `homes`.
        """
        ordering = ordering or ("best" if self.is_timed else "tic")
        if ordering in TIMED and not self.is_timed:
            missing = [name for name, given in (("trace=", self.trace), ("network=", self.cost)) if given is None]
            raise InputError(
                f"ordering={ordering!r} goes by the times of ops and transfers: give {' and '.join(missing)}, or take "
                "'tic', which goes by the graph alone"
            )
        pull_s = (
            (lambda size_bytes: size_bytes * 1e-9)  # only how they compare matters then
            if self.cost is None
            else partial(
                channel_s,
                workers=self.workers,
                servers=self.servers,
                cost=self.cost,
                workers_on_host=1 if self.network is None else self.network.workers_on_host,
            )
        )
        op_s = {} if self.trace is None else _scaled(self.trace)
        homes = self.homes()
        step = worker_step(self.model, homes, op_s, pull_s)
        pulls = () if ordering == NO_ORDER else step.parameters(pull_order(ordering, step.problem))
        if self.cost is None or self.trace is None:
            return OrderedStep(ordering, pulls, homes)
        updates = find_dependencies(self.model).updates
        update_s = {name: sum(op_s.get(op, 0.0) for op in names) for name, names in updates.items()}
        predicted = partial(predict_served_step, step, workers=self.workers, message_s=pull_s, cost=self.cost)
        found, unordered = (predicted(parameters=order, update_s=update_s) for order in (pulls, ()))
        return OrderedStep(ordering, pulls, homes, replace(found, unordered_s=unordered.step_s))


@dataclass(frozen=True)
class OrderedStep:
    """A step whose pulls are in an order.

    Attributes:
        ordering: name of the rule.
        pulls: names of the parameters in the order in which they are sent; empty for no order.
        homes: servers of all variables.
        prediction: predicted step; None without a trace or costs.
    """

    ordering: str
    pulls: tuple[str, ...]
    homes: tuple[Home, ...]
    prediction: ServedStep | None = None


def _scaled(trace: Trace) -> Mapping[str, float]:
    """Seconds of each op, so that all together take the step that was measured."""
    total_s = sum(trace.op_s.values())
    scale = trace.step_s / total_s if total_s > 0 else 1.0
    return {name: scale * time_s for name, time_s in trace.op_s.items()}
