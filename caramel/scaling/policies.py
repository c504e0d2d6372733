"""The policies that are compared: this library's, and how others make buckets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.batching import DEFAULT_THRESHOLD_BYTES, fixed, mg_wfbp, single
from caramel.analyzers.policies.control_edges import no_serialization
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.policies.packing import backward_only
from caramel.analyzers.policies.transfers import adaptive_depth
from caramel.analyzers.registry import POLICIES, automatic_analyzers
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.util.arguments import one_of
from caramel.util.units import format_size


@dataclass(frozen=True)
class Compared:
    """A policy that steps are predicted with.

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
