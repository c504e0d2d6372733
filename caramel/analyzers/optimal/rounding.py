"""A packing written down: pieces in whole elements, transfers in their order, and the reason of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.analyzers.optimal.windows import ROUNDING, Window, within_ties
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary, Piece, Scheduled
from caramel.netmodel.line import Line

CUT_ELEMENTS = 64
"""Larger gradients are cut at multiples of this, so that both pieces begin on a cache line."""

_CUT_ANYWHERE = 4096
"""Elements up to which a gradient is cut anywhere."""

_NEARLY = 1e-6
"""So close to a whole number is one."""


@dataclass(frozen=True)
class Placed:
    """Where a gradient travels.

    Attributes:
        gradient: its boundary.
        back: what travels in the backward window, if any.
        fore: what travels in the forward window, if any.
        room_s: what other transfers leave of its backward room.
    """

    gradient: Boundary
    back: Piece | None
    fore: Piece | None
    room_s: float


def cut(gradients: Sequence[Boundary], postponed: Sequence[float], upwards: bool) -> list[Placed]:
    """Cut gradients at whole elements. What one piece gets too much or too little, the next piece makes up for.

    Args:
        gradients: those with less room first.
        postponed: the part of each that is to travel in the forward window, from 0 to 1.
        upwards: whether the first ones' parts are rather too large; else rather too small.

    Returns:
        The pieces, without rooms.
    """
    found, owed_bytes = list[Placed](), 0.0
    for g, part in zip(gradients, postponed):
        elements, whole = g.elements or 0, Piece(g.name, 0, g.elements)
        if part in (0.0, 1.0):
            found.append(Placed(g, None if part else whole, whole if part else None, 0.0))
            continue
        step = CUT_ELEMENTS if elements > _CUT_ANYWHERE else 1
        first = (elements * (1 - part) - owed_bytes / g.item_bytes) / step
        first = math.floor(first + _NEARLY) if upwards else math.ceil(first - _NEARLY)
        first = min(max(0, first * step), elements)
        owed_bytes += (elements * part - (elements - first)) * g.item_bytes
        back = Piece(g.name, 0, first) if first else None
        fore = Piece(g.name, first, elements - first) if first < elements else None
        found.append(Placed(g, back, fore, 0.0))
    return found


@dataclass(frozen=True)
class _Part:
    piece: Piece
    of: Boundary
    size_bytes: float
    room_s: float


@dataclass(frozen=True)
class _Move:
    """A transfer before it has its reason."""

    parts: tuple[_Part, ...]
    window: str
    why: str = ""

    @property
    def time_key(self) -> tuple[float, str]:
        """Backward: when it is ready. Forward: when it is read."""
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


def written(
    boundaries: Boundaries, line: Line, placed: Sequence[Placed], alone: Sequence[Boundary], allowed_s: float
) -> tuple[Scheduled, ...]:
    """The transfers of a packing.

    Args:
        boundaries: of all gradients.
        line: seconds of a transfer.
        placed: gradients that may travel together.
        alone: gradients that travel alone in the backward window.
        allowed_s: exposed seconds that are as good as the least: fewer transfers are made of them.
    """
    scale_s = boundaries.compute_s + sum(line.time_s(g.size_bytes) for g in boundaries.gradients)
    fore = _grouped([_part(p.gradient, p.fore) for p in placed if p.fore], FORWARD, line, 0.0, scale_s)
    free_s = boundaries.compute_s - sum(line.time_s(m.size_bytes) for m in fore)
    halves = [_part(p.gradient, p.back, min(p.room_s, free_s)) for p in placed if p.back]
    back = _grouped(halves, BACKWARD, line, allowed_s, scale_s)
    for g in alone:
        part = _Part(Piece(g.name, 0, g.elements), g, g.size_bytes, 0.0)
        back.append(_Move((part,), BACKWARD, _why_alone(g)))
    moves = [*sorted(fore, key=lambda m: m.time_key), *sorted(back, key=lambda m: m.time_key)]
    spans, _, _ = _simulated(boundaries, line, moves)
    return tuple(
        Scheduled(tuple(p.piece for p in m.parts), m.window, _reason(boundaries, m, start_s, end_s))
        for m, (start_s, end_s) in zip(moves, spans)
    )


def waits_s(boundaries: Boundaries, line: Line, transfers: Sequence[Scheduled]) -> tuple[float, float]:
    """Seconds in which a step waits for its transfers, in the model: one at a time, in their order.

    Args:
        boundaries: of all gradients.
        line: seconds of a transfer.
        transfers: those of the forward window first.

    Returns:
        Altogether, and those of them in the forward pass.
    """
    moves = [_Move(tuple(_part(boundaries.by_name[p.gradient], p) for p in t.pieces), t.window) for t in transfers]
    _, exposed_s, stalled_s = _simulated(boundaries, line, moves)
    return exposed_s, stalled_s


def _part(gradient: Boundary, piece: Piece, room_s: float = 0.0) -> _Part:
    whole = piece.elements in (None, gradient.elements)
    size = gradient.size_bytes if whole else gradient.item_bytes * (piece.elements or 0)
    return _Part(piece, gradient, size, room_s)


def _simulated(
    boundaries: Boundaries, line: Line, moves: Sequence[_Move]
) -> tuple[list[tuple[float, float]], float, float]:
    spans, now_s, stalled_s = list[tuple[float, float]](), 0.0, 0.0
    for move in moves:
        if move.window == BACKWARD:
            now_s = max(now_s, move.edge.ready_s + stalled_s)
        end_s = now_s + line.time_s(move.size_bytes)
        spans.append((now_s, end_s))
        now_s = end_s
        if move.window == FORWARD:
            stalled_s = max(stalled_s, end_s - move.edge.read_s)
    return spans, max(now_s - boundaries.compute_s, stalled_s), stalled_s


def _grouped(parts: list[_Part], window: str, line: Line, allowed_s: float, scale_s: float) -> list[_Move]:
    """Transfers of one window: neighbours together, one transfer for each element type."""

    def room_s(part: _Part) -> float:
        return part.room_s if window == BACKWARD else part.of.read_s

    parts = sorted(parts, key=lambda p: (room_s(p), p.of.name))
    times = tuple(line.b_s_per_byte * p.size_bytes for p in parts)
    dtypes = tuple(p.of.kind for p in parts)
    problem = Window(tuple(map(room_s, parts)), times, dtypes, line.a_s, ROUNDING * scale_s)
    moves = list[_Move]()
    for first, end in within_ties(problem, allowed_s):
        for dtype in sorted(set(dtypes[first:end])):
            chosen = [p for p in parts[first:end] if p.of.kind == dtype]
            if window == BACKWARD:
                chosen.sort(key=lambda p: (p.of.ready_s, p.of.name))
            moves.append(_Move(tuple(chosen), window))
    return moves


def _why_alone(gradient: Boundary) -> str:
    if gradient.elements is None:
        return "Sparse, so it travels alone"
    return "One of several all-reduces that wait for each other in a step, so it travels alone"


def _reason(boundaries: Boundaries, move: _Move, start_s: float, end_s: float) -> str:
    edge, times = move.edge, f"predicted from {_ms(start_s)} to {_ms(end_s)}"
    cut = [p for p in move.parts if p.piece.elements != p.of.elements]
    split = f"; a piece of {cut[0].of.name}" if cut else ""
    split += f" and of {len(cut) - 1} more" if len(cut) > 1 else ""
    if move.window == FORWARD:
        by = f"by {_ms(edge.read_s)}, when {edge.name} is read first"
        if edge.read_s >= boundaries.compute_s:
            by = f"with the computation, as nothing reads {edge.name} before"
        return (
            f"Must end {by}; {times}{split}. In the forward window, "
            "as the backward window has no room for it that would not make the step longer"
        )
    late_s = end_s - boundaries.compute_s
    after = f", {_ms(late_s)} of it after the computation" if late_s > ROUNDING * end_s else ""
    after = ", all after the computation" if start_s >= boundaries.compute_s and after else after
    kept = next((p.of for p in move.parts if p.of.kept_reason), None)
    if move.why:
        why = move.why
    elif kept is not None:
        why = f"{kept.name} cannot wait for the next step: {kept.kept_reason}"
    else:
        why = "postponing it would not make the step shorter"
    return (
        f"Can start at {_ms(edge.ready_s)}, when {edge.name} is ready; {times}{after}{split}. In the backward window: "
        f"{why[0].lower() + why[1:] if move.why else why}"
    )


def _ms(time_s: float) -> str:
    return f"{time_s * 1e3:.4g} ms"
