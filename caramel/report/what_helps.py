"""What a step would take if something were different, by the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from caramel.analyzers.automatic import predict_step
from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.simulate import simulate_on
from caramel.analyzers.registry import automatic_analyzers
from caramel.analyzers.servers.ordered_step import ServedProblem
from caramel.collectives.dtypes import ITEM_BYTES, NARROWABLE_DTYPES
from caramel.errors import CaramelError, InputError
from caramel.facts import Boundaries, Schedule, Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.plan import Plan
from caramel.server_plan import ParameterServers
from caramel.simulator import simulate


@dataclass(frozen=True)
class WhatIf:
    """A change, and the step with it.

    Attributes:
        change: the change, in words.
        step_s: predicted seconds of the step, for as many examples as now.
        gain: fraction of the present step that it saves.
    """

    change: str
    step_s: float
    gain: float


def what_ifs(plan: Plan, facts: Mapping[type, Any]) -> tuple[WhatIf, ...]:
    """Changes that may make a step shorter, with what the simulator says of each.

    The plan stays as it is; with parameter servers, pulls are put in an order anew, by the same rule.

    Args:
        plan: the plan.
        facts: facts from which it was made, by type.

    Returns:
        The changes; none if nothing was predicted, or the plan was not made here.
    """
    if plan.servers is not None:
        problem = facts.get(ServedProblem)
        return () if problem is None or not problem.is_timed else _with_servers(plan.servers, problem)
    if plan.prediction is None or not {Boundaries, Schedule, Network} <= facts.keys() or plan.workers == 1:
        return ()
    now_s, compute_s = plan.prediction.timeline.iteration_s, plan.prediction.timeline.compute_s
    steps_s: dict[str, float] = {}
    is_rounded = any(t.wire is not None for t in plan.transfers)
    if not (is_rounded or plan.deterministic or plan.sharded):  # where updates are sharded, nothing is rounded
        rounded = _rounded(facts[Boundaries])
        if rounded != facts[Boundaries]:
            steps_s["Fewer bytes: gradients rounded to bfloat16 (--wire bfloat16)"] = _simulated_s(plan, facts, rounded)
    steps_s["Links twice as fast: each transfer takes half the time"] = _with_faster_links_s(plan, facts, 0.5)
    larger_s = _simulated_s(plan, facts, _with_examples(facts[Boundaries], 2.0)) / 2.0
    steps_s["Batches twice as large; the time is for as many examples as now"] = larger_s
    steps_s["Nothing to send: more than this, no faster link can gain"] = compute_s
    return tuple(WhatIf(change, step_s, 1 - step_s / now_s if now_s > 0 else 0.0) for change, step_s in steps_s.items())


def _with_servers(servers: ParameterServers, problem: ServedProblem) -> tuple[WhatIf, ...]:
    """Changes of a step with parameter servers, each planned anew."""
    now, cost, trace = servers.prediction, problem.cost, problem.trace
    assert now is not None and cost is not None and trace is not None
    faster = replace(cost, alpha_s=cost.alpha_s / 2, beta_s_per_byte=cost.beta_s_per_byte / 2)
    changed = {
        "Links twice as fast: each message takes half the time": replace(problem, cost=faster),
        f"Twice as many servers: {2 * problem.servers}": replace(problem, servers=2 * problem.servers),
    }
    steps_s: dict[str, float] = {}
    for change, other in changed.items():
        with suppress(InputError):  # there are not as many variables as servers
            step = other.ordered(servers.ordering).prediction
            assert step is not None
            steps_s[change] = step.step_s
    steps_s |= _with_all_reduces(problem, trace)
    if servers.pulls:
        steps_s["Pulls in no order (--ordering none)"] = now.unordered_s
    steps_s["Nothing to send: more than this, no faster link can gain"] = now.compute_s
    return tuple(WhatIf(change, step_s, 1 - step_s / now.step_s) for change, step_s in steps_s.items())


def _with_all_reduces(problem: ServedProblem, trace: Trace) -> Mapping[str, float]:
    """The step with all-reduces by the default policy; empty where that cannot be predicted."""
    options = CollectiveOptions(network=problem.network, is_what_if=True)
    with suppress(CaramelError):
        options.check_workers(problem.workers)
        network = Network(options, problem.workers)
        analyzers, _ = automatic_analyzers(network, trace)
        step = predict_step(analyzers, [problem.model, network], drops_needless_order=True)
        return {"All-reduces instead of servers (without --servers)": step.timeline.iteration_s}
    return {}


def _rounded(boundaries: Boundaries) -> Boundaries:
    """The same gradients, rounded to 2 bytes on the wire where that can be."""
    gradients = (
        replace(g, size_bytes=g.size_bytes * 2 / ITEM_BYTES[g.dtype]) if g.dtype in NARROWABLE_DTYPES else g
        for g in boundaries.gradients
    )
    return replace(boundaries, gradients=tuple(gradients))


def _with_examples(boundaries: Boundaries, factor: float) -> Boundaries:
    """The same computation of so many times as many examples; updates take as long as before."""
    scaled = boundaries.scaled(factor)
    updates = [g.update_s for g in boundaries.gradients]
    gradients = tuple(replace(g, update_s=update_s) for g, update_s in zip(scaled.gradients, updates))
    return replace(scaled, gradients=gradients)


def _simulated_s(plan: Plan, facts: Mapping[type, Any], boundaries: Boundaries) -> float:
    return simulate_on(facts[Network], boundaries, facts[Schedule], plan.in_flight).iteration_s


def _with_faster_links_s(plan: Plan, facts: Mapping[type, Any], factor: float) -> float:
    """The step with transfers that take so many times as long, beside computation that takes as long as now."""
    network: Network = facts[Network]
    boundaries: Boundaries = facts[Boundaries]
    schedule: Schedule = facts[Schedule]
    now = simulate_on(network, boundaries, schedule, plan.in_flight)
    alone_s = boundaries.compute_s + boundaries.updates_s
    beside = boundaries.scaled(now.compute_s / alone_s) if alone_s > 0 else boundaries
    return simulate(
        beside,
        schedule,
        lambda size_bytes: factor * network.channel_s(size_bytes),
        lambda size_bytes: factor * network.lag_s(size_bytes),
        plan.in_flight,
    ).iteration_s
