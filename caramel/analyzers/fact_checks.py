"""Checks that a new fact is about this program's gradients: errors name the analyzer that made it, not its readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from caramel.errors import listed
from caramel.facts import Boundaries, Buckets, ControlEdges, Schedule, UpdateOrder
from caramel.model import Model


def fact_error(fact: Any, facts: Mapping[type, Any]) -> str:
    """The error of a fact as text; "" if there is none.

    Args:
        fact: fact that an analyzer made.
        facts: facts that are there already, by type; without a `Model` or `Boundaries` nothing is compared.
    """
    check = _CHECKS.get(type(fact))
    return "" if check is None else check(fact, facts)


def _order(fact: UpdateOrder, facts: Mapping[type, Any]) -> str:
    if len(fact.stages) != len(fact.gradients):
        return f"there are {len(fact.stages)} stages for {len(fact.gradients)} gradients"
    return _each_once(fact.gradients, facts) or _ops((op for stage in fact.stages for op in stage), facts)


def _edges(fact: ControlEdges, facts: Mapping[type, Any]) -> str:
    return _ops((op for edge in fact.edges for op in edge), facts)


def _boundaries(fact: Boundaries, facts: Mapping[type, Any]) -> str:
    return _each_once([g.name for g in fact.gradients], facts)


def _buckets(fact: Buckets, facts: Mapping[type, Any]) -> str:
    if len(fact.reasons) != len(fact.buckets):
        return f"there are {len(fact.reasons)} reasons for {len(fact.buckets)} buckets"
    if not all(fact.buckets):
        return "a bucket is empty"
    return _each_once([name for bucket in fact.buckets for name in bucket], facts)


def _schedule(fact: Schedule, facts: Mapping[type, Any]) -> str:
    # A gradient may be there in several pieces; whether they are all of it is for the plan to say.
    return _each_once(list(dict.fromkeys(p.gradient for t in fact.transfers for p in t.pieces)), facts)


_CHECKS: Mapping[type, Callable[[Any, Mapping[type, Any]], str]] = {
    UpdateOrder: _order,
    ControlEdges: _edges,
    Boundaries: _boundaries,
    Buckets: _buckets,
    Schedule: _schedule,
}


def _each_once(names: Sequence[str], facts: Mapping[type, Any]) -> str:
    owner = facts.get(Model) or facts.get(Boundaries)
    if owner is None:
        return ""
    wanted = {g.name for g in owner.gradients}
    counts = Counter(names)
    errors = {
        "has other names than the program's gradients,": [name for name in counts if name not in wanted],
        "has twice": [name for name, count in counts.items() if count > 1 and name in wanted],
        "leaves out": sorted(wanted - set(counts)),
    }
    return "; ".join(
        f"it {error_text} {listed(list(map(repr, affected)), 4)}" for error_text, affected in errors.items() if affected
    )


def _ops(names: Iterable[str], facts: Mapping[type, Any]) -> str:
    if Model not in facts:
        return ""
    unknown = next((name for name in names if name not in facts[Model].graph), None)
    return "" if unknown is None else f"the program has no op {unknown!r}"
