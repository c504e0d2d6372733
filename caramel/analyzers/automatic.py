"""The analyzers that a set of options needs."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.search import optimal_buckets
from caramel.analyzers.policies.batching import fixed, paper_batching, single
from caramel.analyzers.policies.best_order import best_order
from caramel.analyzers.policies.best_packing import best_packing
from caramel.analyzers.policies.control_edges import no_serialization, serialization
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.policies.packing import paper_packing
from caramel.analyzers.policies.transfers import adaptive_depth, as_they_are
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace, unmeasured
from caramel.errors import InputError
from caramel.facts import ControlEdges, Trace
from caramel.plan import Transfers

POLICIES = ("optimal", "paper")

WANTED = (Transfers, ControlEdges)
"""The facts from which a plan is made."""


def automatic(
    network: Network,
    trace: Trace | None = None,
    *,
    serialize: bool = True,
    batching: bool = True,
    scheduling: bool = True,
    policy: str = "optimal",
    postponed: Sequence[str] = (),
) -> tuple[list[Analyzer], list[str]]:
    """The analyzers that ARModel takes if none are given.

    Args:
        network: what is known of the network.
        trace: measured times, if there are any.
        serialize: enforce one order of computation.
        batching: send small gradients together.
        scheduling: use the forward window, too.
        policy: ``"optimal"``, or ``"paper"`` for the rules of Caramel, sections 4.1 to 4.3.
        postponed: names of gradients to postpone by hand, instead of scheduling.

    Returns:
        The list, to change as one likes, and notes about what had to be left out.

    Raises:
        InputError: no such policy.
    """
    if policy not in POLICIES:
        raise InputError(f"policy must be {' or '.join(map(repr, POLICIES))}, got {policy!r}")
    notes = []
    can_time = trace is not None and network.is_known and network.workers > 1
    missing = " and ".join(
        name for name, there in (("trace=", trace is not None), ("network=", network.is_known)) if not there
    )
    if serialize and trace is None:
        notes.append("serialization: without trace= nothing is known about which order is good, so none is enforced")
    if scheduling and not can_time and network.workers > 1 and not postponed:
        notes.append(f"scheduling: without {missing} nothing is known about the windows, so nothing is postponed")
    is_packed = can_time and scheduling and not postponed
    is_ordered = serialize and trace is not None and network.workers > 1
    found = [
        dependencies(),
        unmeasured() if trace is None else given_trace(trace),
        best_order(is_packed) if is_ordered and can_time and policy == "optimal" else greedy_order(),
        serialization() if is_ordered else no_serialization(),
        boundaries(),
    ]
    if is_packed and batching and policy == "optimal":
        found.append(best_packing())
    else:
        found.append(_buckets(batching, can_time, policy))
        found.append(paper_packing() if is_packed else as_they_are(postponed))
    found.append(adaptive_depth())
    return found, notes


def _buckets(batching: bool, can_time: bool, policy: str) -> Analyzer:
    if not batching:
        return single()
    if not can_time:
        return fixed()
    return optimal_buckets() if policy == "optimal" else paper_batching()
