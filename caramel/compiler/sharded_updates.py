"""Which updates are sharded: all that can be, or those that make the predicted step shorter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from caramel.analyzers.plan_checks import reason_against_sharding
from caramel.analyzers.policies.best_packing import INDIFFERENCE
from caramel.analyzers.step.element_updates import ElementUpdate, element_updates, summary
from caramel.model import Model
from caramel.plan import Plan, ShardedUpdate
from caramel.util.units import format_ms


def decide_about_sharding(
    model: Model,
    decide: Callable[[Mapping[str, ElementUpdate]], tuple[Plan, Mapping[type, Any]]],
    is_asked: bool,
) -> tuple[Plan, Mapping[type, Any]]:
    """A plan with sharded updates, and its facts.

    Args:
        model: the single-device step.
        decide: function that makes a plan, and its facts, as if some updates were sharded.
        is_asked: whether all are to be sharded that can be. Otherwise one of three plans is taken, by the predicted
            step: without any; with those whose gradients travel whole, in their own step, in that plan; with all.
    """
    updates, reasons = element_updates(model)
    if is_asked:
        plan, facts = decide(updates)
        return with_sharded_updates(plan, model, updates, reasons), facts
    plain, plain_facts = decide({})
    if plain.prediction is None:
        note = "no update is sharded: nothing is predicted without a trace and a network"
        return replace(plain, notes=(*plain.notes, note)), plain_facts
    as_they_are = {n: u for n, u in updates.items() if reason_against_sharding(plain, u) is None}
    best, best_facts, plain_s = plain, plain_facts, plain.prediction.timeline.iteration_s
    for names in [as_they_are] if len(as_they_are) == len(updates) else [as_they_are, updates]:
        if not names:
            continue
        plan, facts = decide(names)
        plan = with_sharded_updates(plan, model, names, {})
        if plan.sharded and _predicted_s(plan) < min(_predicted_s(best), (1 - INDIFFERENCE) * plain_s):
            best, best_facts = plan, facts
    best_s = _predicted_s(best)
    why = (
        f"predicted {format_ms(best_s)}, and {format_ms(plain_s)} without" if best.sharded else "none makes it shorter"
    )
    note = f"{len(best.sharded)} of {len(model.gradients)} updates are sharded: {why}"
    return replace(best, notes=(*best.notes, note)), best_facts


def _predicted_s(plan: Plan) -> float:
    assert plan.prediction is not None
    return plan.prediction.timeline.iteration_s


def with_sharded_updates(
    plan: Plan, model: Model, updates: Mapping[str, ElementUpdate], reasons: Mapping[str, str]
) -> Plan:
    """The plan, with all updates sharded of which each worker can make a part, and why others are not.

    Args:
        plan: a plan without sharded updates.
        model: the single-device step.
        updates: updates that could be sharded, by the names of their gradients.
        reasons: why others cannot.
    """
    plan_names = {v.name: v.plan_name for v in model.variables}
    sharded, whole = [], dict(reasons)
    for gradient in model.gradients:
        if gradient.name not in updates:
            continue
        reason = reason_against_sharding(plan, updates[gradient.name])
        if reason is None:
            slots = tuple(plan_names[slot] for slot in updates[gradient.name].slots)
            sharded.append(ShardedUpdate(gradient.name, slots))
        else:
            whole[gradient.name] = reason
    notes = plan.notes
    if whole:
        names = [g.name for g in model.gradients if g.name in whole]
        notes = (*notes, f"{len(whole)} of {len(model.gradients)} updates are not sharded: {summary(whole, names)}")
    return replace(plan, sharded=tuple(sharded), notes=notes)
