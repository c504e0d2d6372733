"""What another plan decides otherwise, as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from caramel.errors import listed
from caramel.util.tables import fitted, wrapped
from caramel.util.units import format_ms

Plan = Any
"""A `caramel.plan.Plan`, which is built on this module."""

_TITLES = {
    "model_digest": "digest of the program",
    "workers": "workers",
    "reduction": "reduction",
    "reduction_reason": "reason of the reduction",
    "weighted": "gradients weighted by examples",
    "deterministic": "deterministic",
    "statistics": "statistics",
    "network": "network",
    "sharding": "division of the dataset",
    "order_reason": "order of gradients",
    "in_flight": "under way at once",
    "extra_bytes": "bytes kept for the next step",
    "local": "local steps",
}
"""Attributes of a plan that are shown as they are, and what people call them."""

_SETS = {"devices": "devices", "analyzers": "analyzers", "sharded": "sharded updates"}
"""Attributes of which it is said what is new and what is gone."""

_MOST_ROWS = 20
"""Largest number of gradients of which it is shown how each travels."""


def plan_differences(mine: Plan, other: Plan) -> str:
    """What another plan decides otherwise; empty if nothing.

    Args:
        mine: the plan to start from.
        other: the other one.
    """
    lines = list(_predictions(mine, other))
    if mine.servers is not None and other.servers is not None:
        lines += mine.servers.diff(other.servers)
    elif mine.servers != other.servers:
        lines.append(f"parameter servers: {mine.servers or 'none'} -> {other.servers or 'none'}")
    counts = [f"{len(plan.transfers)} with {plan.bytes_per_step:,} bytes" for plan in (mine, other)]
    if counts[0] != counts[1]:
        lines.append(f"transfers of a step: {counts[0]} -> {counts[1]}")
    for name, title in _TITLES.items():
        before, after = getattr(mine, name), getattr(other, name)
        if before != after:
            lines.append(f"{title}: {_shown(before)} -> {_shown(after)}")
    for name, title in _SETS.items():
        lines += _set_changes(title, _texts(getattr(mine, name)), _texts(getattr(other, name)))
    lines += [f"note, new: {note}" for note in other.notes if note not in mine.notes]
    lines += [f"note, gone: {note}" for note in mine.notes if note not in other.notes]
    lines += _class_changes(dict(mine.variable_classes), dict(other.variable_classes))
    lines += _order_changes(mine, other)
    paragraphs = ["\n".join(map(wrapped, lines)), _travels_of_both(mine, other)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _predictions(mine: Plan, other: Plan) -> Iterable[str]:
    before, after = (p.prediction.timeline.iteration_s if p.prediction else None for p in (mine, other))
    if before != after:
        texts = ["unknown" if time_s is None else format_ms(time_s) for time_s in (before, after)]
        yield f"predicted step: {texts[0]} -> {texts[1]}"


def _shown(value: object) -> str:
    """A value of an attribute."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _texts(values: Sequence[Any]) -> list[str]:
    """What stands for each element of an attribute."""
    return [value if isinstance(value, str) else str(value.gradient) for value in values]


def _set_changes(title: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    changes = {"new": [t for t in after if t not in before], "gone": [t for t in before if t not in after]}
    lines = [f"{title}, {kind}: {'; '.join(texts)}" for kind, texts in changes.items() if texts]
    return lines or ([f"{title}: the same, in another order"] if list(before) != list(after) else [])


def _class_changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    names = dict.fromkeys((*before, *after))
    changes = ((name, before.get(name, "not there"), after.get(name, "not there")) for name in names)
    lines = [f"variable {name}: {old} -> {new}" for name, old, new in changes if old != new]
    more = len(lines) - _MOST_ROWS
    return [*lines[:_MOST_ROWS], *([f"{more} more variables differ"] if more > 0 else [])]


def _order_changes(mine: Plan, other: Plan) -> list[str]:
    lines = []
    if mine.order != other.order:
        places = {name: place for place, name in enumerate(mine.order)}
        moved = [name for place, name in enumerate(other.order) if places.get(name) != place]
        lines.append(f"gradients in other places of the order: {len(moved)} ({listed(moved, 4)})")
    if mine.edges != other.edges:
        lines.append(f"control edges that enforce it: {len(mine.edges)} -> {len(other.edges)}, others")
    return lines


def _travels_of_both(mine: Plan, other: Plan) -> str:
    """How gradients travel in either plan, where that is not the same."""
    before, after = _travels(mine), _travels(other)
    rows = [(name, before.get(name, "not there"), after.get(name, "not there")) for name in {**before, **after}]
    rows = [row for row in rows if row[1] != row[2]]
    if not rows:
        return ""
    table = fitted([("gradient", "travels", "in the other plan"), *rows[:_MOST_ROWS]])
    more = len(rows) - _MOST_ROWS
    return f"{table}\nand {more} more gradients" if more > 0 else table


def _travels(plan: Plan) -> dict[str, str]:
    """How each gradient travels."""
    parts_by_gradient: dict[str, list[str]] = {}
    for number, transfer in enumerate(plan.transfers):
        wire = f" as {transfer.wire}" if transfer.wire else ""
        adds = ", slices added up" if transfer.adds_slices else ""
        how = f"in transfer {number}, {transfer.window}, {transfer.algorithm} x{transfer.depth}{wire}{adds}"
        for piece in transfer.pieces:
            is_whole = len(plan.pieces[piece.gradient]) == 1
            part = "" if is_whole else f"[{piece.start}:{piece.start + (piece.elements or 0)}] "
            parts_by_gradient.setdefault(piece.gradient, []).append(part + how)
    return {name: "; ".join(parts) for name, parts in parts_by_gradient.items()}
