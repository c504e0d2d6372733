"""The policies that are compared: this library's, how others make buckets, and parameter servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.automatic import predict_step
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import DEFAULT_THRESHOLD_BYTES, fixed, mg_wfbp, single
from caramel.analyzers.policies.control_edges import no_serialization
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.policies.packing import backward_only
from caramel.analyzers.policies.transfers import adaptive_depth
from caramel.analyzers.registry import POLICIES, automatic_analyzers
from caramel.analyzers.servers.ordered_step import ServedProblem
from caramel.analyzers.servers.pull_orders import NO_ORDER, ORDERINGS
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace
from caramel.errors import InputError
from caramel.facts import Dependencies, Trace
from caramel.model import Model
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.scaling.lists import MOST_DIGITS
from caramel.util.arguments import one_of, shown, whole_number
from caramel.util.intervals import covered_s
from caramel.util.units import format_size


@dataclass(frozen=True)
class PredictedStep:
    """What a policy makes of a step.

    Attributes:
        step_s: predicted seconds of a step.
        compute_s: seconds of these in which a worker computes.
        communication_s: seconds in which something is under way on its link.
        low_s: with 95 % probability a step takes at least so many; None where nothing is said of that.
        high_s: at most so many.
    """

    step_s: float
    compute_s: float
    communication_s: float
    low_s: float | None = None
    high_s: float | None = None


class Policy(Protocol):
    """What steps are predicted with."""

    @property
    def name(self) -> str:
        """Name of the policy, for options and tables."""
        ...

    def predict(
        self, model: Model, needs: Dependencies, trace: Trace, network: NetworkModel, workers: int
    ) -> PredictedStep:
        """Predict a step.

        Args:
            model: the single-device step.
            needs: what each gradient needs.
            trace: measured times of its ops.
            network: network model.
            workers: number of workers.

        Raises:
            CaramelError: there is no such step, or nothing is known of it.
        """
        ...


@dataclass(frozen=True)
class Compared:
    """A policy of all-reduces.

    Attributes:
        name: name of the policy, for options.
        summary: what it does, for people.
        analyzers: function from a network and a trace to its analyzers.
        collectives: function that completes the options of the all-reduces.
        drops_needless_order: whether no order is enforced where all gradients travel in one transfer, as in plans.
    """

    name: str
    summary: str
    analyzers: Callable[[Network, Trace], Sequence[Analyzer]]
    collectives: Callable[[CollectiveOptions], CollectiveOptions] = lambda options: options
    drops_needless_order: bool = False

    def predict(
        self, model: Model, needs: Dependencies, trace: Trace, network: NetworkModel, workers: int
    ) -> PredictedStep:
        """Predict a step; see `Policy`."""
        options = self.collectives(CollectiveOptions(network=network, is_what_if=True))
        options.check_workers(workers)
        of_workers = Network(options, workers)
        prediction = predict_step(
            self.analyzers(of_workers, trace),
            [model, of_workers, needs],
            drops_needless_order=self.drops_needless_order,
        )
        step, interval = prediction.timeline, prediction.interval
        low_s, high_s = (None, None) if interval is None else (interval.low_s, interval.high_s)
        return PredictedStep(step.iteration_s, step.compute_s, step.communication_s, low_s, high_s)


@dataclass(frozen=True)
class OnServers:
    """Parameter servers in the place of all-reduces.

    Attributes:
        servers: number of servers; None for as many as workers.
        ordering: rule by which parameters are pulled.

    Raises:
        InputError: there is no such rule, or no server.
    """

    servers: int | None
    ordering: str = "best"

    def __post_init__(self) -> None:
        one_of(self.ordering, (*ORDERINGS, NO_ORDER), "order of pulls")
        if self.servers is not None:
            whole_number(self.servers, "the number of servers")

    @property
    def name(self) -> str:
        """Name of the policy, for tables."""
        many = "N servers" if self.servers is None else "1 server" if self.servers == 1 else f"{self.servers} servers"
        return f"{many}, {self.ordering}"

    def predict(
        self, model: Model, needs: Dependencies, trace: Trace, network: NetworkModel, workers: int
    ) -> PredictedStep:
        """Predict a step; see `Policy`. Servers are on hosts of their own."""
        CollectiveOptions(network=network, is_what_if=True).check_workers(workers)
        servers = workers if self.servers is None else self.servers
        problem = ServedProblem.on(network, model, workers, servers, trace=trace)
        step = problem.ordered(self.ordering).prediction
        assert step is not None  # there are a trace and costs
        link_s = covered_s((span.start_s, span.end_s) for span in step.spans if span.kind in ("pull", "push"))
        return PredictedStep(step.step_s, step.compute_s, link_s)


def _of_this_library(name: str) -> Compared:
    policy = POLICIES[name]
    return Compared(
        name,
        policy.summary,
        lambda network, trace: automatic_analyzers(network, trace, policy=name)[0],
        policy.collectives or (lambda options: options),
        drops_needless_order=policy.edges is None,
    )


def _in_the_backward_pass(name: str, summary: str, buckets: Callable[[], Analyzer]) -> Compared:
    """Buckets that are sent as they are ready; a step ends when the last one has arrived. No order is enforced."""

    def analyzers(network: Network, trace: Trace) -> Sequence[Analyzer]:
        found = [dependencies(), given_trace(trace), greedy_order(), no_serialization(), boundaries()]
        return [*found, buckets(), backward_only(), adaptive_depth()]

    return Compared(name, summary, analyzers)


COMPARED: Mapping[str, Compared] = {
    each.name: each
    for each in (
        *map(_of_this_library, POLICIES),
        _in_the_backward_pass("mg_wfbp", "merged as MG-WFBP does", mg_wfbp),
        _in_the_backward_pass("buckets", f"buckets of {format_size(DEFAULT_THRESHOLD_BYTES)}", fixed),
        _in_the_backward_pass("each", "each gradient by itself (WFBP)", single),
        _in_the_backward_pass("one", "one bucket at the end (SyncEASGD)", lambda: fixed(math.inf)),
    )
}
"""By name; the first is this library's default."""

ALL = "all"


def policies_named(text: str) -> list[Compared]:
    """The policies of a list with commas, or all.

    Raises:
        InputError: there is no such policy, or one twice.
    """
    if text.strip() == ALL:
        return list(COMPARED.values())
    names = [one_of(name.strip(), COMPARED, "policy") for name in text.split(",")]
    if len({*names}) < len(names):
        raise InputError(f"a policy is named twice in {text!r}")
    return [COMPARED[name] for name in names]


OF_EACH = "N"
"""What stands for as many servers as workers."""


def servers_named(text: str, orderings: str = "best") -> list[OnServers]:
    """Parameter servers, for each number in a list with commas, or N for as many as workers, and each order.

    Args:
        text: numbers of servers.
        orderings: rules of orders with commas.

    Raises:
        InputError: a number or rule cannot be read, or comes twice.

    >>> [policy.name for policy in servers_named("1,N", "tac,none")]
    ['1 server, tac', '1 server, none', 'N servers, tac', 'N servers, none']
    """
    counts: list[int | None] = []
    for part in map(str.strip, text.split(",")):
        if part != OF_EACH and (not part.isdecimal() or len(part) > MOST_DIGITS):
            raise InputError(
                f"cannot read {shown(part)} in {shown(text)}: write numbers of servers with commas, or {OF_EACH}"
            )
        counts.append(None if part == OF_EACH else int(part))
    found = [OnServers(count, rule.strip()) for count in counts for rule in orderings.split(",")]
    if len({*found}) < len(found):
        raise InputError(f"a number of servers or an order is named twice in {text!r} or {orderings!r}")
    return found
