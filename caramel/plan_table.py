"""A plan as text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caramel.errors import listed
from caramel.util.tables import counted, fitted, wrapped
from caramel.util.units import format_ms

Plan = Any
"""A `caramel.plan.Plan`, which is built on this module."""

_MOST_NAMES = 6
"""Largest number of gradients of a bucket whose names a table shows."""


@dataclass(frozen=True)
class _Table:
    """What differs between plans that all-reduce, that have parameter servers, and that exchange now and then.

    Attributes:
        head: lines above the table.
        rows: the table, with its head.
        right: columns with numbers.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int]


def plan_table(plan: Plan) -> str:
    """The plan as text.

    Args:
        plan: the plan.
    """
    if plan.servers is not None:
        table = _of_servers(plan)
    elif plan.local is not None:
        table = _of_exchanges(plan)
    else:
        table = _of_transfers(plan)
    notes = ["", *(f"note: {note}" for note in plan.notes)] if plan.notes else []
    proof = ["", *(f"checked: {statement}" for statement in plan.proof)] if plan.proof else []
    head = [*table.head, *_decisions(plan)]
    after = [*_predicted(plan), *notes, *proof, *_names_here(plan)]
    return "\n".join([*map(wrapped, head), "", fitted(table.rows, right=table.right), *map(wrapped, after)])


def _name(plan: Plan) -> str:
    return f"plan {plan.digest[:12]}: {counted(plan.workers, 'worker')}"


def _of_servers(plan: Plan) -> _Table:
    pulls, rule = plan.servers.pulls, plan.servers.ordering
    order = "no order" if not pulls else f"an order ({rule}): {listed(pulls, _MOST_NAMES)}"
    head = [
        f"{_name(plan)} and {counted(len(plan.server_devices), 'parameter server')}",
        f"{plan.servers}, in {order}",
        f"gradients are combined by {plan.reduction}, in rank order: {plan.reduction_reason}",
    ]
    return _Table(head, list(plan.servers.rows()), frozenset({0, 2, 3, 4}))


def _of_exchanges(plan: Plan) -> _Table:
    head = [f"{_name(plan)}, which send no gradients", f"local steps: {plan.local}"]
    contents = [(listed(each.parameters, _MOST_NAMES), "exchange") for each in plan.local.exchanges]
    return _all_reduces("parameters", plan.local.exchanges, contents, [*head, *_in_rank_order(plan)])


def _of_transfers(plan: Plan) -> _Table:
    sent = f"{counted(len(plan.transfers), 'transfer')}, {plan.bytes_per_step:,} bytes of gradients per worker and step"
    head = [f"{_name(plan)}, {sent}", f"gradients are combined by {plan.reduction}: {plan.reduction_reason}"]

    def pieces(transfer: Any) -> list[str]:
        return [
            p.gradient if len(plan.pieces[p.gradient]) == 1 else f"{p.gradient}[{p.range_text}]"
            for p in transfer.pieces
        ]

    contents = [(listed(pieces(each), _MOST_NAMES), each.window) for each in plan.transfers]
    return _all_reduces("gradients", plan.transfers, contents, [*head, *_in_rank_order(plan)])


def _in_rank_order(plan: Plan) -> list[str]:
    return ["deterministic: gradients are added in rank order"] if plan.deterministic else []


def _all_reduces(
    what: str, all_reduces: Sequence[Any], contents: Sequence[tuple[str, str]], head: Sequence[str]
) -> _Table:
    """The table of some all-reduces, with what is in each, and when it travels."""
    is_predicted = any(each.predicted_s is not None for each in all_reduces)
    rows = [("#", what, "dtype", "bytes", "algorithm", "depth", "window", *(["ms"] if is_predicted else []))]
    for number, (each, (content, window)) in enumerate(zip(all_reduces, contents)):
        time = ["-" if each.predicted_s is None else f"{each.predicted_s * 1e3:.3g}"] if is_predicted else []
        size = "sparse" if each.size_bytes is None else f"{each.size_bytes:,}"
        dtype = f"{each.dtype} as {each.wire}" if each.wire else each.dtype
        rows.append((str(number), content, dtype, size, each.algorithm, str(each.depth), window, *time))
    return _Table(head, rows, frozenset({0, 3, 5, 7}))


def _decisions(plan: Plan) -> list[str]:
    """What any plan may say above its table."""
    lines = []
    if plan.network is not None:
        lines.append(f"network: {plan.network}")
    if plan.analyzers:
        lines.append(f"analyzers: {', '.join(plan.analyzers)}")
    if plan.order:
        lines.append(f"order of gradients: {plan.order_reason}")
    if plan.in_flight.credit_bytes is not None:
        lines.append(f"at most {plan.in_flight.credit_bytes:,} bytes of each window are under way at once")
    if plan.sharded:
        slots = sum(len(update.slots) for update in plan.sharded)
        lines.append(
            f"{counted(len(plan.sharded), 'sharded update')}: each worker makes a part, and has a part of "
            f"{counted(slots, 'slot')}"
        )
    if plan.divided_tables:
        tables = counted(len(plan.divided_tables), "divided embedding table")
        lines.append(f"{tables}: each worker has some rows, and of their slots")
    if plan.extra_bytes:
        lines.append(f"each worker keeps {plan.extra_bytes:,} bytes of gradients for the next step")
    if plan.workers > 1:
        further = f" and {plan.transfer_threads} for transfers" if plan.transfer_threads else ""
        lines.append(f"threads of a server that is started for this: one for each core{further}")
    kinds = Counter(kind for _, kind in plan.variable_classes)
    lines.append("variables: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    return lines


def _names_here(plan: Plan) -> list[str]:
    """What the program calls gradients whose names have other numbers in the plan."""
    own = [f"{name} is {alias}" for alias, name in plan.aliases.items() if name in plan.pieces]
    return ["", f"names that Keras numbers are counted anew; here {listed(own, 2)}"] if own else []


def _predicted(plan: Plan) -> list[str]:
    if plan.servers is not None and plan.servers.prediction is not None:
        return ["", str(plan.servers.prediction)]
    if plan.prediction is None:
        return []
    prediction, step = plan.prediction, plan.prediction.timeline
    bound = (
        f"no plan takes less than {format_ms(prediction.lower_bound_s)} (gap {prediction.gap:.1%})"
        if prediction.has_bound
        else "the lower bound came out above this step, so it is withdrawn (a defect; see caramel plan --check)"
    )
    return [
        "",
        f"predicted: {format_ms(step.iteration_s)} per step: {format_ms(step.compute_s)} of computation, "
        f"{format_ms(step.communication_s)} of communication, {format_ms(step.exposed_s)} of it exposed",
        *([] if prediction.interval is None else [str(prediction.interval)]),
        f"alpha {step.alpha:.3f}, rho {step.rho:.3f}, utilisation {step.utilisation:.1%}; {bound}",
        f"from: {prediction.basis}",
    ]
