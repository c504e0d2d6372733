"""Why a gradient travels as a plan has it, as text for people."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from caramel.errors import InputError, listed
from caramel.facts import BACKWARD, FORWARD, Piece
from caramel.util.arguments import shown
from caramel.util.tables import counted
from caramel.util.units import format_ms

Plan = Any
"""A `caramel.plan.Plan`, which is built on this module."""

_LEAST_DIFFERENCE = 1e-6
"""Part of a step below which a difference is one of rounding."""

_NUMBERS = re.compile(r"\d[\d.,]*")
"""Numbers in an explanation."""


def explanation(plan: Plan, gradient: str) -> str:
    """What happens to one gradient, and why.

    Args:
        plan: the plan.
        gradient: see `caramel.Plan.explain`.

    Raises:
        InputError: the plan has no such gradient, or several.
    """
    if not isinstance(gradient, str):
        raise InputError(f"explain takes the name of a gradient, got {shown(gradient)}")
    if plan.local is not None:
        return _of_exchange(plan, gradient)
    if plan.servers is not None:
        name: str = plan.servers.explain(_named_among(plan, gradient, list(plan.servers.home_by_variable), "variable"))
        return name
    gradient = _named_among(plan, gradient, list(plan.pieces), "gradient")
    alike: dict[str, list[tuple[int, str]]] = {}  # many parts of one gradient travel alike, but for numbers
    for number, transfer in enumerate(plan.transfers):
        for text in (_of_piece(plan, number, piece) for piece in transfer.pieces if piece.gradient == gradient):
            alike.setdefault(_NUMBERS.sub("#", text), []).append((number, text))
    texts = [
        first if not others else f"{first} So it is, with other numbers, in {_transfers([n for n, _ in others])}."
        for (_, first), *others in alike.values()
    ]
    place = (
        f" Number {plan.order.index(gradient) + 1} of {len(plan.order)} gradients." if gradient in plan.order else ""
    )
    own = next((own for own, name in plan.aliases.items() if name == gradient), None)
    called = "" if own is None else f" This program calls it {own!r}."
    return "\n".join(texts) + place + called


def in_other_window(plan: Plan, number: int) -> str:
    """What a step would take with a transfer in its other window, as a clause; "" where that was not simulated.

    Args:
        plan: the plan.
        number: number of the transfer.
    """
    if plan.prediction is None or not plan.prediction.alternatives:
        return ""
    other_s = plan.prediction.alternatives[number]
    window = FORWARD if plan.transfers[number].window == BACKWARD else BACKWARD
    if other_s is None:
        return f"it cannot be in the {window} window"
    step_s = plan.prediction.timeline.iteration_s
    more_s = other_s - step_s
    if abs(more_s) < _LEAST_DIFFERENCE * step_s:
        return f"in the {window} window the step would take as long"
    more = "more" if more_s >= 0 else "less"
    return f"in the {window} window the step would take {format_ms(abs(more_s), 3)} {more}"


def _named_among(plan: Plan, name: str, names: Sequence[str], kind: str) -> str:
    """The one of some names that a name is, or is the end of."""
    if plan.aliases.get(name, name) in names:
        return str(plan.aliases.get(name, name))
    own = {alias: each for alias, each in plan.aliases.items() if each in names}
    found = [each for each in names if each.endswith("/" + name)]
    found = [each for alias, each in own.items() if alias.endswith("/" + name)] or found
    if len(found) > 1:
        raise InputError(f"the plan has several {kind}s whose name ends with {name!r}: {listed(found, 8)}")
    if not found:
        raise InputError(f"the plan has no {kind} {name!r}; it has {listed(names, 8)}")
    return found[0]


def _of_exchange(plan: Plan, name: str) -> str:
    exchanges = plan.local.exchanges
    name = _named_among(plan, name, [p for exchange in exchanges for p in exchange.parameters], "parameter")
    number = next(n for n, exchange in enumerate(exchanges) if name in exchange.parameters)
    exchange = exchanges[number]
    shared = _together(exchange.parameters, "other parameter")
    return (
        f"{name}: its gradient does not travel. Every worker updates it with its own, and after at most "
        f"{plan.local.sync_every} steps its difference is in transfer {number} of the exchange{shared}, "
        f"{exchange.size_bytes} bytes of {_on_wire(exchange)}, {exchange.algorithm} of depth {exchange.depth}. "
        f"{exchange.reason}"
    )


def _of_piece(plan: Plan, number: int, piece: Piece) -> str:
    transfer = plan.transfers[number]
    size = "a number of" if transfer.size_bytes is None else str(transfer.size_bytes)
    part = "" if len(plan.pieces[piece.gradient]) == 1 else f" elements {piece.range_text} in"
    is_sharded = piece.gradient in {update.gradient for update in plan.sharded}
    update = " Each worker makes its part of the update, and all get the new parameter." if is_sharded else ""
    elsewhere = in_other_window(plan, number)
    alternative = f" {elsewhere[0].upper()}{elsewhere[1:]}." if elsewhere else ""
    shared = _together(transfer.gradients, "other gradient")
    return (
        f"{piece.gradient}:{part} transfer {number}{shared}, {size} bytes of {_on_wire(transfer)}, "
        f"{transfer.algorithm} of depth {transfer.depth}, {transfer.window} window. "
        f"{transfer.reason}{alternative}{update}"
    )


def _together(names: Sequence[str], noun: str) -> str:
    """How many others travel with one of some."""
    return f" together with {counted(len(names) - 1, noun)}" if len(names) > 1 else ""


def _on_wire(transfer: Any) -> str:
    """The element type, and that of the messages if it is another."""
    return f"{transfer.dtype} ({transfer.wire} on the wire)" if transfer.wire else str(transfer.dtype)


def _transfers(numbers: Sequence[int]) -> str:
    """Some transfers, by their numbers.

    >>> _transfers([4, 5, 6, 9])
    'transfers 4 to 6 and 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    last = spelled.pop()
    places = f"{', '.join(spelled)} and {last}" if spelled else last
    return f"transfer{'s' if len(numbers) > 1 else ''} {places}"
