"""A packing written down: pieces in whole elements, transfers in their order, and the reason of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.analyzers.optimal.windows import ROUNDING_TOLERANCE, Window, least_late_fewest_buckets
from caramel.collectives.schedule import ALIGNMENT_ELEMENTS
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, Piece, Scheduled
from caramel.netmodel.line import Line
from caramel.util.units import format_ms

_UNALIGNED_CUT_ELEMENTS = 4096
"""Number of elements up to which a gradient is cut anywhere; larger ones at multiples of `ALIGNMENT_ELEMENTS`."""

_WHOLE_NUMBER_TOLERANCE = 1e-6
"""Distance from a whole number below which a number of steps counts as whole."""


@dataclass(frozen=True)
class PlacedGradient:
    """The windows in which a gradient travels.

    Attributes:
        gradient: boundary of the gradient.
        back: piece in the backward window; None if there is none.
        fore: piece in the forward window; None if there is none.
        room_s: seconds that other transfers leave of its backward room.
    """

    gradient: Boundary
    back: Piece | None
    fore: Piece | None
    room_s: float


def aligned_elements(gradient: Boundary, elements: float) -> int:
    """The number of elements near a given one at which a gradient may be cut.

    Args:
        gradient: boundary of the gradient.
        elements: wanted number of elements.
    """
    step = ALIGNMENT_ELEMENTS if (gradient.elements or 0) > _UNALIGNED_CUT_ELEMENTS else 1
    return round(elements / step) * step


def cut_gradients(gradients: Sequence[Boundary], postponed: Sequence[float], upwards: bool) -> list[PlacedGradient]:
    """Cut gradients at whole elements. What one piece gets too much or too little, the next piece makes up for.

    Args:
        gradients: gradients in ascending order of room.
        postponed: fraction of each gradient that is to travel in the forward window, from 0 to 1.
        upwards: whether the first gradients' forward pieces are rounded up; else they are rounded down.

    Returns:
        The pieces, without rooms.
    """
    placed, owed_bytes = list[PlacedGradient](), 0.0
    for gradient, part in zip(gradients, postponed):
        elements, whole = gradient.elements or 0, Piece(gradient.name, 0, gradient.elements)
        if part in (0.0, 1.0):
            placed.append(PlacedGradient(gradient, None if part else whole, whole if part else None, 0.0))
            continue
        step = ALIGNMENT_ELEMENTS if elements > _UNALIGNED_CUT_ELEMENTS else 1
        first = (elements * (1 - part) - owed_bytes / gradient.item_bytes) / step
        first = math.floor(first + _WHOLE_NUMBER_TOLERANCE) if upwards else math.ceil(first - _WHOLE_NUMBER_TOLERANCE)
        first = min(max(0, first * step), elements)
        owed_bytes += (elements * part - (elements - first)) * gradient.item_bytes
        back = Piece(gradient.name, 0, first) if first else None
        fore = Piece(gradient.name, first, elements - first) if first < elements else None
        placed.append(PlacedGradient(gradient, back, fore, 0.0))
    return placed


@dataclass(frozen=True)
class _Part:
    piece: Piece
    of: Boundary
    size_bytes: float
    room_s: float


@dataclass(frozen=True)
class _PendingTransfer:
    """A transfer before it has its reason."""

    parts: tuple[_Part, ...]
    window: str
    why: str = ""

    @property
    def time_key(self) -> tuple[float, str]:
        """The order in a window: backward by the time when it is ready, forward by the time when it is read."""
        edge = self.edge
        return (edge.ready_s if self.window == BACKWARD else edge.read_s), edge.name

    @property
    def edge(self) -> Boundary:
        """The gradient whose boundary is that of the transfer."""
        gradients = sorted((p.of for p in self.parts), key=lambda g: g.name)
        if self.window == BACKWARD:
            return max(gradients, key=lambda g: g.ready_s)
        return min(gradients, key=lambda g: g.read_s)

    @property
    def size_bytes(self) -> float:
        return sum(p.size_bytes for p in self.parts)


def scheduled_transfers(
    boundaries: Boundaries, line: Line, placed: Sequence[PlacedGradient], alone: Sequence[Boundary], allowed_s: float
) -> tuple[Scheduled, ...]:
    """The transfers of a packing.

    Args:
        boundaries: boundaries of all gradients.
        line: line of the seconds of a transfer.
        placed: gradients that may travel together, with their windows.
        alone: gradients that travel alone in the backward window.
        allowed_s: exposed seconds that count as equally good as the least; they allow fewer transfers.
    """
    scale_s = boundaries.compute_s + sum(line.time_s(g.size_bytes) for g in boundaries.gradients)
    fore = _grouped([_part(p.gradient, p.fore) for p in placed if p.fore], FORWARD, line, 0.0, scale_s)
    free_s = boundaries.compute_s - sum(line.time_s(t.size_bytes) for t in fore)
    back_parts = [_part(p.gradient, p.back, min(p.room_s, free_s)) for p in placed if p.back]
    back = _grouped(back_parts, BACKWARD, line, allowed_s, scale_s)
    for g in alone:
        part = _Part(Piece(g.name, 0, g.elements), g, g.size_bytes, 0.0)
        back.append(_PendingTransfer((part,), BACKWARD, _why_alone(g)))
    transfers = [*sorted(fore, key=lambda t: t.time_key), *sorted(back, key=lambda t: t.time_key)]
    spans, _, _ = _simulated(boundaries, line, transfers)
    return tuple(
        Scheduled(tuple(p.piece for p in t.parts), t.window, _reason(boundaries, t, start_s, end_s))
        for t, (start_s, end_s) in zip(transfers, spans)
    )


def exposed_and_stalled_s(boundaries: Boundaries, line: Line, transfers: Sequence[Scheduled]) -> tuple[float, float]:
    """Seconds in which a step waits for its transfers, in the model: one at a time, in their order.

    Args:
        boundaries: boundaries of all gradients.
        line: line of the seconds of a transfer.
        transfers: all transfers, those of the forward window first.

    Returns:
        Exposed seconds, and the stalled ones among them, which are in the forward pass.
    """
    pending = [
        _PendingTransfer(tuple(_part(boundaries.by_name[p.gradient], p) for p in t.pieces), t.window) for t in transfers
    ]
    _, exposed_s, stalled_s = _simulated(boundaries, line, pending)
    return exposed_s, stalled_s


def _part(gradient: Boundary, piece: Piece, room_s: float = 0.0) -> _Part:
    whole = piece.elements in (None, gradient.elements)
    size = gradient.size_bytes if whole else gradient.item_bytes * (piece.elements or 0)
    return _Part(piece, gradient, size, room_s)


def _simulated(
    boundaries: Boundaries, line: Line, transfers: Sequence[_PendingTransfer]
) -> tuple[list[tuple[float, float]], float, float]:
    spans, now_s, stalled_s = list[tuple[float, float]](), 0.0, 0.0
    for transfer in transfers:
        if transfer.window == BACKWARD:
            now_s = max(now_s, transfer.edge.ready_s + stalled_s)
        end_s = now_s + line.time_s(transfer.size_bytes)
        spans.append((now_s, end_s))
        now_s = end_s
        if transfer.window == FORWARD:
            stalled_s = max(stalled_s, end_s - transfer.edge.read_s)
    return spans, max(now_s - boundaries.compute_s, stalled_s), stalled_s


def _grouped(parts: list[_Part], window: str, line: Line, allowed_s: float, scale_s: float) -> list[_PendingTransfer]:
    """Transfers of one window: neighbours together, one transfer for each element type."""

    def room_s(part: _Part) -> float:
        return part.room_s if window == BACKWARD else part.of.read_s

    parts = sorted(parts, key=lambda p: (room_s(p), p.of.name))
    times = tuple(line.b_s_per_byte * p.size_bytes for p in parts)
    dtypes = tuple(p.of.kind for p in parts)
    problem = Window(tuple(map(room_s, parts)), times, dtypes, line.a_s, ROUNDING_TOLERANCE * scale_s)
    transfers = list[_PendingTransfer]()
    for first, end in least_late_fewest_buckets(problem, allowed_s):
        for dtype in sorted(set(dtypes[first:end])):
            chosen = [p for p in parts[first:end] if p.of.kind == dtype]
            if window == BACKWARD:
                chosen.sort(key=lambda p: (p.of.ready_s, p.of.name))
            transfers.append(_PendingTransfer(tuple(chosen), window))
    return transfers


def _why_alone(gradient: Boundary) -> str:
    if gradient.elements is None:
        return "Sparse, so it travels alone"
    return "One of several all-reduces that wait for each other in a step, so it travels alone"


def _reason(boundaries: Boundaries, transfer: _PendingTransfer, start_s: float, end_s: float) -> str:
    edge, times = transfer.edge, f"predicted from {_ms(start_s)} to {_ms(end_s)}"
    cut_parts = [p for p in transfer.parts if p.piece.elements != p.of.elements]
    split = f"; a piece of {cut_parts[0].of.name}" if cut_parts else ""
    split += f" and of {len(cut_parts) - 1} more" if len(cut_parts) > 1 else ""
    if transfer.window == FORWARD:
        by = f"by {_ms(edge.read_s)}, when {edge.name} is read first"
        if edge.read_s >= boundaries.compute_s:
            by = f"with the computation, as nothing reads {edge.name} before"
        return (
            f"Must end {by}; {times}{split}. In the forward window, "
            "as the backward window has no room for it that would not make the step longer"
        )
    late_s = end_s - boundaries.compute_s
    after = f", {_ms(late_s)} of it after the computation" if late_s > ROUNDING_TOLERANCE * end_s else ""
    after = ", all after the computation" if start_s >= boundaries.compute_s and after else after
    kept_gradient = next((p.of for p in transfer.parts if p.of.kept_reason), None)
    if transfer.why:
        why = transfer.why
    elif kept_gradient is not None:
        why = f"{kept_gradient.name} cannot wait for the next step: {kept_gradient.kept_reason}"
    else:
        why = "postponing it would not make the step shorter"
    return (
        f"Can start at {_ms(edge.ready_s)}, when {edge.name} is ready; {times}{after}{split}. In the backward window: "
        f"{why[0].lower() + why[1:] if transfer.why else why}"
    )


def _ms(time_s: float) -> str:
    return format_ms(time_s)
