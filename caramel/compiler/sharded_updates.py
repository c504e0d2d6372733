"""Which updates are sharded: all that can be, or those that make the predicted step shorter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from caramel.analyzers.plan_checks import reason_against_sharding
from caramel.analyzers.policies.best_packing import INDIFFERENCE
from caramel.analyzers.step.element_updates import ElementUpdate, element_updates, summary
from caramel.model import Model
from caramel.netmodel.choice import ON_ONE_WORKER, CollectiveOptions
from caramel.plan import Plan, ShardedUpdate
from caramel.util.units import format_ms


def decide_about_sharding(
    model: Model,
    decide: Callable[[Mapping[str, ElementUpdate]], tuple[Plan, Mapping[type, Any]]],
    collectives: CollectiveOptions,
    is_asked: bool,
) -> tuple[Plan, Mapping[type, Any]]:
    """A plan with sharded updates, and its facts.

    Args:
        model: the single-device step.
        decide: function that makes a plan, and its facts, as if some updates were sharded.
        collectives: options of the all-reduces, which may rule some out.
        is_asked: whether all are to be sharded that can be. Otherwise one of three plans is taken, by the predicted
            step: without any; with those whose gradients travel whole, in their own step, in that plan; with all.
    """
    possible, impossible = element_updates(model)
    ruled_out = {name: reason for name, update in possible.items() if (reason := _ruled_out(update, collectives))}
    updates = {name: update for name, update in possible.items() if name not in ruled_out}
    reasons = {**impossible, **ruled_out}
    if is_asked:
        return _decided(model, decide, updates, reasons)
    plain, plain_facts = decide({})
    if plain.prediction is None:
        note = "no update is sharded: nothing is predicted without a trace and a network"
        return replace(plain, notes=(*plain.notes, note)), plain_facts
    as_they_are = {n: u for n, u in updates.items() if reason_against_sharding(plain, model, u) is None}
    best, best_facts, plain_s = plain, plain_facts, plain.prediction.timeline.iteration_s
    for names in [as_they_are] if len(as_they_are) == len(updates) else [as_they_are, updates]:
        if not names:
            continue
        plan, facts = _decided(model, decide, names, {})
        if plan.sharded and _predicted_s(plan) < min(_predicted_s(best), (1 - INDIFFERENCE) * plain_s):
            best, best_facts = plan, facts
    best_s = _predicted_s(best)
    why = (
        f"predicted {format_ms(best_s)}, and {format_ms(plain_s)} without" if best.sharded else "none makes it shorter"
    )
    note = f"{len(best.sharded)} of {len(model.gradients)} updates are sharded: {why}"
    return replace(best, notes=(*best.notes, note)), best_facts


def _decided(
    model: Model,
    decide: Callable[[Mapping[str, ElementUpdate]], tuple[Plan, Mapping[type, Any]]],
    updates: Mapping[str, ElementUpdate],
    reasons: Mapping[str, str],
) -> tuple[Plan, Mapping[type, Any]]:
    """A plan in which just those updates are sharded that it was made for."""
    reasons = dict(reasons)
    while True:
        made, facts = decide(updates)
        plan = with_sharded_updates(made, model, updates, reasons)
        sharded = {update.gradient for update in plan.sharded}
        if len(sharded) == len(updates):
            return plan, facts
        left = {name: update for name, update in updates.items() if name not in sharded}
        reasons |= {name: reason_against_sharding(made, model, update) or "" for name, update in left.items()}
        updates = {name: update for name, update in updates.items() if name in sharded}


def _ruled_out(update: ElementUpdate, collectives: CollectiveOptions) -> str:
    """Why the options of the caller do not allow that an update is sharded; "" where they do."""
    if collectives.wire is not None:
        return f"wire={collectives.wire} would round the parameter"
    if collectives.algorithm in ON_ONE_WORKER:
        return f"the {collectives.algorithm} all-reduce, which was asked for, completes all sums on one worker"
    return (
        f"the plan is deterministic, and {update.other_bits}" if collectives.deterministic and update.other_bits else ""
    )


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
        reason = reason_against_sharding(plan, model, updates[gradient.name])
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
