"""Lower bounds on the time of a step: no plan can be faster, whatever it merges, splits or postpones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caramel.errors import InputError
from caramel.facts import Boundaries, Boundary
from caramel.netmodel.line import Line

_MOST_THRESHOLDS = 1000
"""Largest number of thresholds of each window: a table has this many rows and columns; of more, some are left out."""


@dataclass(frozen=True)
class Bounds:
    """Lower bounds on the seconds of a step.

    The set that decides `lb2_s` is that of all gradients with no more room than ``backward_room_s`` and, unless
    they cannot be postponed, no more than ``forward_room_s``.

    Attributes:
        lb1_s: lower bound in seconds, from the bytes of such sets and one transfer for each set.
        lb2_s: lower bound in seconds, from the same, with two transfers for a set in both windows.
        gradients: names of the gradients of the set that decides; none where computation does.
        set_bytes: bytes of these gradients.
        backward_room_s: largest number of seconds from when one of them is ready to the end of the computation.
        forward_room_s: largest number of seconds from the start of the step to the first read of one of them.
    """

    lb1_s: float
    lb2_s: float
    gradients: tuple[str, ...] = ()
    set_bytes: float = 0.0
    backward_room_s: float = 0.0
    forward_room_s: float = 0.0


def checked_boundaries(boundaries: Boundaries, line: Line) -> Boundaries:
    """The boundaries with all numbers checked; gradients that are ready after the computation's end are ready at it.

    Args:
        boundaries: boundaries of a step.
        line: line of the seconds of a transfer.

    Raises:
        InputError: a number is negative or not finite, or two gradients have one name.
    """
    numbers = [
        ("the line's a_s", line.a_s),
        ("the line's b_s_per_byte", line.b_s_per_byte),
        ("compute_s", boundaries.compute_s),
    ]
    for g in boundaries.gradients:
        of = f"of gradient {g.name!r}"
        numbers += [(f"size_bytes {of}", g.size_bytes), (f"ready_s {of}", g.ready_s), (f"update_s {of}", g.update_s)]
        numbers += [(f"elements {of}", g.elements or 0), (f"level {of}", g.level)]
        if not g.read_s >= 0:  # endless where nothing reads it
            raise InputError(f"read_s {of} must not be negative, got {g.read_s!r}")
    for what, number in numbers:
        if not (math.isfinite(number) and number >= 0):
            raise InputError(f"{what} must be finite and not negative, got {number!r}")
    if len(boundaries.by_name) < len(boundaries.gradients):
        raise InputError("two gradients have one name: give each its own")
    end_s = boundaries.compute_s
    inside = (replace(g, ready_s=end_s) if g.ready_s > end_s else g for g in boundaries.gradients)
    return replace(boundaries, gradients=tuple(inside))


def rooms(boundaries: Boundaries) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that each gradient has in the backward and in the forward window, if nothing waits.

    Args:
        boundaries: checked boundaries of a step.

    Returns:
        Seconds from being ready to the end of the computation, shape [gradients]; and seconds from the start of the
        computation to the first read, shape [gradients].
    """
    end = boundaries.compute_s
    backward = np.array([end - g.ready_s for g in boundaries.gradients])
    forward = np.array([min(g.read_s, end) for g in boundaries.gradients])
    return backward, forward


def lower_bounds(boundaries: Boundaries, line: Line) -> Bounds:
    """Lower bounds on the seconds of a step with any plan for these gradients.

    For any x and y, take the gradients with a backward room of at most x that cannot be postponed or have a
    forward room of at most y. Say they have S bytes, and the step takes C + w, C being its computation. Channel
    time for them lies between the first one's being ready and the step's end, at most x + w; before the last
    one's read, at most y + w; and altogether at most min(x + y, C) + w. In the backward window alone they take
    a + b S at least; in the forward window alone (if all can be postponed) the same; in both, 2 a + b S. The
    least of what the three cases leave as w is LB2; LB1 asks for one transfer only. Sets of nothing but what cannot
    be postponed have only the first case, and x. docs/explanation/two-windows.md has the proof.

    Args:
        boundaries: boundaries of a step.
        line: line of the seconds of a transfer.

    Raises:
        InputError: a number is negative or not finite.

    Source:
        Own; the rooms are the transfer boundaries of Caramel, section 4.3.
    """
    boundaries = checked_boundaries(boundaries, line)
    gradients = boundaries.gradients
    floor_s = boundaries.compute_s + boundaries.updates_s
    if not gradients or (line.a_s == 0 and line.b_s_per_byte == 0):
        return Bounds(floor_s, floor_s)
    backward, forward = rooms(boundaries)
    exposed1_s, exposed2_s, x, y = _worst_set(gradients, backward, forward, boundaries.compute_s, line)
    lb1_s = max(floor_s, boundaries.compute_s + exposed1_s)
    lb2_s = max(floor_s, boundaries.compute_s + exposed2_s)
    if lb2_s <= floor_s:
        return Bounds(lb1_s, lb2_s)
    chosen = [g for g, b, f in zip(gradients, backward, forward) if b <= x and (f <= y or not g.is_postponable)]
    names, size = tuple(g.name for g in chosen), sum(g.size_bytes for g in chosen)
    return Bounds(lb1_s, lb2_s, names, size, x, max(0.0, y))


def _worst_set(
    gradients: Sequence[Boundary], backward: np.ndarray, forward: np.ndarray, compute_s: float, line: Line
) -> tuple[float, float, float, float]:
    """The largest LB1 and LB2 of all sets, as exposed seconds, and the rooms that make the latter's set."""
    # Below all forward rooms there are sets of nothing but what cannot be postponed.
    x, y = _thresholds(backward), np.append(-1.0, _thresholds(forward))
    # A set has a backward room of x or less: it belongs to the first threshold that is no smaller.
    rows, columns = np.searchsorted(x, backward), np.searchsorted(y, forward)
    sizes = np.array([g.size_bytes for g in gradients])
    free = np.array([g.is_postponable for g in gradients])

    def below(values: np.ndarray) -> np.ndarray:
        """Sums over those with a backward room of at most each x, as a column."""
        return np.bincount(rows, values, len(x)).cumsum()[:, None]

    table = np.zeros((len(x), len(y)))
    np.add.at(table, (rows[free], columns[free]), sizes[free])
    free_bytes = table.cumsum(axis=0).cumsum(axis=1)
    # What must stay has no room in the forward window, whatever y is.
    work_s = line.b_s_per_byte * (free_bytes + below(np.where(free, 0.0, sizes)))
    kept_count = below(~free)
    first = np.full(len(x), len(y))
    np.minimum.at(first, rows[free], columns[free])
    has_free = np.arange(len(y)) >= np.minimum.accumulate(first)[:, None]
    has_any = has_free | (kept_count > 0)
    both_s = np.minimum(x[:, None] + np.maximum(y, 0.0)[None, :], compute_s)
    lb1 = np.where(has_any, line.a_s + work_s - both_s, -np.inf)
    one_window = line.a_s + work_s - np.where(kept_count > 0, x[:, None], np.maximum(x[:, None], y[None, :]))
    two_windows = np.where(has_free, 2 * line.a_s + work_s - both_s, np.inf)
    lb2 = np.where(has_any, np.minimum(one_window, two_windows), -np.inf)
    row, column = np.unravel_index(int(lb2.argmax()), lb2.shape)
    return float(lb1.max()), float(lb2.max()), float(x[row]), float(y[column])


def _thresholds(room: np.ndarray) -> np.ndarray:
    """The different rooms, smallest first; of very many, some, the largest always among them."""
    distinct = np.unique(room)
    if len(distinct) <= _MOST_THRESHOLDS:
        return distinct
    return distinct[np.linspace(0, len(distinct) - 1, _MOST_THRESHOLDS).round().astype(int)]
