"""Which embedding tables are divided by rows: all that can be, or those of a plan whose predicted step is shorter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from caramel.analyzers.policies.best_packing import INDIFFERENCE
from caramel.analyzers.step.element_updates import summary
from caramel.analyzers.step.row_updates import row_updates
from caramel.model import Model
from caramel.plan import OWNERS, Plan, Transfer
from caramel.util.units import format_ms

_REASON = "A sparse gradient: each worker gets the slices of the rows of the table that it has, in rank order."


def choose_tables(
    model: Model, decide: Callable[[Collection[str]], Plan], deterministic: bool, is_asked: bool
) -> tuple[frozenset[str], tuple[str, ...]]:
    """The tables of which each worker is to have some rows.

    Args:
        model: the single-device step.
        decide: function that makes a plan as if the tables of some gradients were divided.
        deterministic: whether gradients are added in rank order only.
        is_asked: whether all are to be divided that can be. Otherwise all of them are, or none, by the predicted step.

    Returns:
        The names of their gradients, and notes for the plan.
    """
    updates, impossible = row_updates(model)
    ruled_out = {
        name: f"the plan is deterministic, and {update.other_bits}"
        for name, update in updates.items()
        if deterministic and update.other_bits
    }
    names = frozenset(name for name in updates if name not in ruled_out)
    reasons = {**impossible, **ruled_out}
    sparse = len(updates) + len(impossible)
    left = [g.name for g in model.gradients if g.name in reasons]
    notes = [f"{len(left)} of {sparse} embedding tables are not divided: {summary(reasons, left)}"] if left else []
    if is_asked and not sparse:
        notes = ["no embedding table is divided: there is none with a sparse gradient"]
    if is_asked or not names:
        return names, tuple(notes)
    predicted_s = []
    for chosen in (names, frozenset[str]()):
        prediction = decide(chosen).prediction
        if prediction is None:
            return frozenset(), ("no embedding table is divided: nothing is predicted without a trace and a network",)
        predicted_s.append(prediction.timeline.iteration_s)
    divided_s, whole_s = predicted_s
    is_shorter = divided_s < (1 - INDIFFERENCE) * whole_s
    verb = "are" if is_shorter else "would be able to be"
    notes.append(
        f"{len(names)} of {sparse} embedding tables {verb} divided: predicted {format_ms(divided_s)}, and "
        f"{format_ms(whole_s)} with whole ones"
    )
    return names if is_shorter else frozenset(), tuple(notes)


def with_divided_tables(transfers: Sequence[Transfer], names: Collection[str]) -> tuple[Transfer, ...]:
    """The transfers, those of some sparse gradients to the workers that have the rows.

    Args:
        transfers: transfers of a plan.
        names: names of the gradients.
    """

    return tuple(
        replace(t, algorithm=OWNERS, reason=_REASON) if t.pieces[0].gradient in names else t for t in transfers
    )
