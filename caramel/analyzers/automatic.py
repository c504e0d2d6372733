"""The analyzers that a set of switches and a policy need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.analyzers.analyzer import Analyzer, analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.prediction import predict
from caramel.analyzers.policies.batching import fixed, single
from caramel.analyzers.policies.control_edges import no_serialization, serialization, without_needless_order
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.policies.transfers import adaptive_depth, as_they_are
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace, unmeasured
from caramel.errors import InputError
from caramel.facts import ControlEdges, Dependencies, Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.plan import Transfers
from caramel.prediction import Prediction
from caramel.util.units import format_size

WANTED = (Transfers, ControlEdges)
"""Types of the facts from which a plan is made."""

DEFAULT_POLICY = "optimal"
"""Name of the policy where nobody asks for another."""


@dataclass(frozen=True)
class Policy:
    """The analyzers that decide orders, buckets and windows where a trace and a network model are there.

    Attributes:
        name: name of the policy in options and the command.
        summary: description of the policy for the command's help.
        buckets: factory of the analyzer of the buckets of one window.
        windows: factory of the analyzer that puts given buckets into both windows.
        order: factory of the analyzer of the order, from whether both windows will be used; None for the greedy order.
        packing: factory of the analyzer that decides buckets and windows at once; None for one after the other.
        edges: factory of the analyzer of the control edges that enforce the order; None for `serialization`.
        uses_least_times: whether ops count with their least times over all runs of the trace.
        has_threshold: whether batching and depths go by the network's threshold, which the plan then names.
        collectives: function that completes the options of the collectives, where the caller leaves them open; None if
            nothing is to be completed.
    """

    name: str
    summary: str
    buckets: Callable[[], Analyzer]
    windows: Callable[[], Analyzer]
    order: Callable[[bool], Analyzer] | None = None
    packing: Callable[[], Analyzer] | None = None
    edges: Callable[[], Analyzer] | None = None
    uses_least_times: bool = False
    has_threshold: bool = False
    collectives: Callable[[CollectiveOptions], CollectiveOptions] | None = None


def choose_analyzers(
    policy: Policy,
    network: Network,
    trace: Trace | None = None,
    *,
    serialize: bool = True,
    batching: bool = True,
    scheduling: bool = True,
    postponed: Sequence[str] = (),
) -> tuple[list[Analyzer], list[str]]:
    """The analyzers of a policy; `caramel.analyzers.automatic_analyzers` takes it by its name.

    Args:
        policy: policy that decides.
        network: network as planners see it.
        trace: measured times; None without any.
        serialize: whether one order of computation is enforced.
        batching: whether small gradients travel together.
        scheduling: whether the forward window is used, too.
        postponed: names of gradients to postpone by hand, instead of scheduling.

    Returns:
        The list, to change as one likes, and notes about what had to be left out.
    """
    notes = []
    can_time = trace is not None and network.is_known and network.workers > 1
    missing = " and ".join(
        name for name, is_given in (("trace=", trace is not None), ("network=", network.is_known)) if not is_given
    )
    if serialize and trace is None:
        notes.append("serialization: without trace= nothing is known about which order is good, so none is enforced")
    if scheduling and not can_time and network.workers > 1 and not postponed:
        notes.append(f"scheduling: without {missing} nothing is known about the windows, so nothing is postponed")
    if policy.has_threshold and network.is_known and network.workers > 1:
        notes.append(
            f"threshold: joining two transfers of up to {format_size(network.threshold_bytes)} saves at least 20 % of "
            "their time; larger gradients travel alone, and transfers are cut into pieces of this size, at most 8"
        )
    if not can_time and network.workers > 1 and policy.name != DEFAULT_POLICY:
        notes.append(f"policy: without {missing} nothing can go by the rules of {policy.name!r}, so nothing does")
    is_packed = can_time and scheduling and not postponed
    is_ordered = serialize and trace is not None and network.workers > 1
    analyzers = [
        dependencies(),
        unmeasured() if trace is None else given_trace(trace, least=policy.uses_least_times),
        policy.order(is_packed) if is_ordered and can_time and policy.order is not None else greedy_order(),
        (policy.edges or serialization)() if is_ordered else no_serialization(),
        boundaries(),
    ]
    if is_packed and batching and policy.packing is not None:
        analyzers.append(policy.packing())
    else:
        analyzers.append(_buckets(policy, batching, can_time))
        analyzers.append(policy.windows() if is_packed else as_they_are(postponed))
    analyzers.append(adaptive_depth())
    return analyzers, notes


def _buckets(policy: Policy, batching: bool, can_time: bool) -> Analyzer:
    if not batching:
        return single()
    return policy.buckets() if can_time else fixed()


def predict_step(
    analyzers: Sequence[Analyzer], given: Sequence[Any], *, drops_needless_order: bool = False
) -> Prediction:
    """The step that analyzers make, predicted; no plan is made.

    Args:
        analyzers: analyzers of a policy.
        given: facts that are there, such as the step and the network. What provides one of them is left out.
        drops_needless_order: whether no order is enforced where none has a use, as in plans.

    Raises:
        InputError: the trace has no measured times.
        AnalysisError: an analyzer failed.
    """
    is_given = any(isinstance(fact, Dependencies) for fact in given)
    needed = [each for each in analyzers if not (is_given and each.provides is Dependencies)]
    facts = analyse(needed, given, WANTED)
    if drops_needless_order:
        facts = without_needless_order(facts)
    prediction = predict(facts, has_alternatives=False)
    if prediction is None:
        raise InputError("the trace has no measured times: make one with caramel trace")
    return prediction
