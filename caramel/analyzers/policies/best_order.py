"""The order in which gradients are computed, chosen for how long they take to be sent.

The paper's greedy order looks at computation alone: what takes longest to compute comes last, even if it is what takes
longest to be sent. Computing and then sending is a flow shop of two machines, for which Johnson's rule is optimal:
first what takes longer to be sent than to be computed. Here gradients have operations in common, and some travel in the
next step, so several orders are made and compared by what the step is predicted to take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.optimal.search import optimal_buckets
from caramel.analyzers.policies.best_packing import INDIFFERENCE, choose_packing
from caramel.analyzers.policies.order import Rule, order_by_cost, order_by_rule
from caramel.analyzers.policies.packing import backward_only
from caramel.analyzers.step.boundaries import find_boundaries
from caramel.facts import Boundaries, ControlEdges, Dependencies, Schedule, Trace, UpdateOrder
from caramel.model import Model
from caramel.util.intervals import TIME_RESOLUTION_S
from caramel.util.units import format_ms

_ASSUMED_EDGES = ControlEdges((), "total", "not made yet")
"""Control edges with which the orders are compared; whatever is enforced in the end, the comparison is as good."""


def best_order(uses_forward: bool = True) -> Analyzer:
    """The order with the least predicted step, of the paper's greedy one and those that look at transfers, too.

    The others take again and again, with the computation that has not been done yet and the time of the bytes,

    - the gradient with the most bytes for the computation it needs;
    - of those that take longer to be sent than to be computed the one that is computed soonest; if there is none, the
      one that is sent longest (Johnson's rule);
    - of those the one that is sent longest; if there is none, the one that is computed soonest.

    The greedy one is taken unless another one is better by more than 0.5 % of the step (`INDIFFERENCE`).

    Args:
        uses_forward: whether gradients may travel in the next step.

    Raises:
        InputError: the analyzer: there is no network model.

    Source:
        Own; Caramel, section 4.1, for the greedy order, and S. M. Johnson, Optimal two- and three-stage production
        schedules with setup times included, 1954, for the rule.
    """

    def run(model: Model, dependencies: Dependencies, trace: Trace, network: Network) -> UpdateOrder:
        network.must_be_known("the order of gradients for their transfers")

        def bounds_of(order: UpdateOrder) -> Boundaries:
            return find_boundaries(model, dependencies, trace, order, _ASSUMED_EDGES, network)

        greedy = order_by_cost(model, dependencies, trace.op_s, "")
        bounds = bounds_of(greedy)
        orders = {"least remaining computation first": (greedy, bounds)}
        for name, rule in _rules(_sent_ticks(dependencies, trace, bounds, network)):
            order = order_by_rule(model, dependencies, trace.op_s, rule, "")
            if all(order.gradients != other.gradients for other, _ in orders.values()):
                orders[name] = order, bounds_of(order)
        steps_s = {
            name: simulate_on(network, order_bounds, _packed(order_bounds, network, uses_forward)).iteration_s
            for name, (_, order_bounds) in orders.items()
        }
        least_s = min(steps_s.values())
        best = next(name for name, step_s in steps_s.items() if step_s <= (1 + INDIFFERENCE) * least_s)
        costs = "; ".join(f"{name} {format_ms(step_s)}" for name, step_s in steps_s.items())
        return replace(orders[best][0], reason=f"{best}, by the predicted steps: {costs}")

    return Analyzer("best order", (Model, Dependencies, Trace, Network), UpdateOrder, run)


def _packed(bounds: Boundaries, network: Network, uses_forward: bool) -> Schedule:
    if uses_forward:
        return choose_packing(bounds, network, search=False)
    schedule: Schedule = backward_only().run(bounds, optimal_buckets().run(bounds, network))
    return schedule


def _sent_ticks(dependencies: Dependencies, trace: Trace, bounds: Boundaries, network: Network) -> np.ndarray:
    """The time of the bytes of each gradient on the links, in ticks of the clock of the trace's ops; [gradients]."""
    sizes = {g.name: g.size_bytes for g in bounds.gradients}
    total_s = sum(trace.op_s.get(op, 0.0) for op in dependencies.ops)
    speed = total_s / bounds.compute_s if bounds.compute_s > 0 else 1.0  # the boundaries' clock is that of a step
    byte_s = speed * network.line(sum(sizes.values())).b_s_per_byte
    return np.array([sizes[name] * byte_s for name in dependencies.gradients]) / TIME_RESOLUTION_S


def _rules(sent: np.ndarray) -> Sequence[tuple[str, Rule]]:
    """Rules for gradients that take so many ticks to be sent; a rule is given a position and the remaining ticks."""

    def most_bytes(n: int, remaining: int) -> Sequence[float]:
        return (-sent[n] / max(remaining, 1),)

    def by_johnson(n: int, remaining: int) -> Sequence[float]:
        return (False, remaining) if sent[n] >= remaining else (True, -sent[n])

    def longest_first(n: int, remaining: int) -> Sequence[float]:
        return (False, -sent[n]) if sent[n] >= remaining else (True, remaining)

    return (
        ("most bytes for the remaining computation first", most_bytes),
        ("Johnson's rule", by_johnson),
        ("what is sent longer than computed first, the longest before", longest_first),
    )
