"""The problem of the two windows in seconds of the channel, and its least exposed time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caramel.analyzers.cost.bounds import lower_bounds, rooms
from caramel.analyzers.optimal.thresholds import Chain, LeastExposed, least_exposed
from caramel.analyzers.optimal.windows import (
    ROUNDING_TOLERANCE,
    Window,
    fewest_buckets,
    least_late_s,
    room_beside_lone_transfers,
)
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary
from caramel.netmodel.line import Line

TIE_TOLERANCE = 0.002
"""Fraction of a step below which two plans count as equally good: times are not known better (our choice)."""

_TOLERANCE_BEFORE_CUTS = 0.95
"""Fraction of `TIE_TOLERANCE` that is used before cuts are rounded to whole elements."""

_EXPOSED_PRECISION = 1e-7
"""Precision of the least exposed time, as a fraction of the largest time."""

_EMPTY_GRADIENT_TIME = 1e-10
"""Time of a gradient without bytes, as a fraction of the largest time: it needs a transfer, too."""


@dataclass(frozen=True)
class PackingProblem:
    """The problem in seconds of the channel. Arrays are of the gradients that may travel together.

    Attributes:
        boundaries: boundaries of all gradients.
        line: line of the seconds of a transfer.
        together: gradients that may share transfers.
        alone: other gradients; each is a transfer of the backward window.
        back_s: seconds of backward room that are left beside the gradients alone.
        fore_s: seconds of forward room.
        time_s: seconds of the channel for the bytes, never quite 0.
        free: whether each gradient can be postponed.
        cuttable: whether each gradient can be cut in two.
        scale_s: largest time in seconds.
    """

    boundaries: Boundaries
    line: Line
    together: tuple[Boundary, ...]
    alone: tuple[Boundary, ...]
    back_s: np.ndarray
    fore_s: np.ndarray
    time_s: np.ndarray
    free: tuple[bool, ...]
    cuttable: tuple[bool, ...]
    scale_s: float

    @classmethod
    def of(cls, boundaries: Boundaries, line: Line) -> PackingProblem:
        top = max((g.level for g in boundaries.gradients), default=0)
        lone = [travels_alone(g, top) for g in boundaries.gradients]
        together = tuple(g for g, is_lone in zip(boundaries.gradients, lone) if not is_lone)
        alone = tuple(g for g, is_lone in zip(boundaries.gradients, lone) if is_lone)
        back, fore = rooms(boundaries)
        where = np.array([not is_lone for is_lone in lone], bool)
        beside = [
            (float(b), line.time_s(g.size_bytes))
            for g, b, is_together in zip(boundaries.gradients, back, where)
            if not is_together
        ]
        wire_s = np.array([line.b_s_per_byte * g.size_bytes for g in together])
        total_s = boundaries.compute_s + line.a_s + float(wire_s.sum()) + sum(t for _, t in beside)
        scale_s = total_s if total_s > 0 else 1.0
        time_s = np.maximum(wire_s, _EMPTY_GRADIENT_TIME * scale_s)
        cuttable = [
            g.divisible and (g.elements or 0) > 1 and t > 2 * _EMPTY_GRADIENT_TIME * scale_s
            for g, t in zip(together, time_s)
        ]
        free = tuple(g.is_postponable for g in together)
        back_s = room_beside_lone_transfers(back[where], beside)
        return cls(boundaries, line, together, alone, back_s, fore[where], time_s, free, tuple(cuttable), scale_s)

    @property
    def slack_s(self) -> float:
        """The seconds that rounding may take."""
        return ROUNDING_TOLERANCE * self.scale_s

    @property
    def precision_s(self) -> float:
        """The precision of the least exposed time, in seconds."""
        return _EXPOSED_PRECISION * self.scale_s

    @property
    def spare_s(self) -> float:
        """An upper bound of the seconds that empty gradients were given."""
        return 2 * _EMPTY_GRADIENT_TIME * self.scale_s * len(self.together)

    @property
    def dtypes(self) -> int:
        """The number of element types: a bucket of several is as many transfers."""
        return len({g.kind for g in self.together})

    def tied_s(self, late_s: float) -> float:
        """The longest exposed time that counts as equally good as ``late_s``, in seconds."""
        step_s = self.boundaries.compute_s + self.boundaries.updates_s + late_s
        return late_s + _TOLERANCE_BEFORE_CUTS * TIE_TOLERANCE * step_s

    def window(self, kind: str, part_s: np.ndarray) -> Window:
        """The parts of gradients, in seconds of the channel, that travel in one window."""
        room_s = self.back_s if kind == BACKWARD else self.fore_s
        indices = [int(i) for i in np.flatnonzero(part_s > 0)]
        indices.sort(key=lambda i: (room_s[i], self.together[i].name))
        times, dtypes = (part_s[i] for i in indices), (self.together[i].kind for i in indices)
        room = tuple(float(room_s[i]) for i in indices)
        return Window(room, tuple(map(float, times)), tuple(dtypes), self.line.a_s, self.slack_s)

    def simple_bound_s(self) -> float:
        """The lower bound of the exposed time by `lower_bounds`, with updates that take no time."""
        free = tuple(replace(g, update_s=0.0) for g in self.boundaries.gradients)
        bounds = lower_bounds(replace(self.boundaries, gradients=free), self.line)
        return bounds.lb2_s - self.boundaries.compute_s

    def least_backward_only_s(self) -> float:
        """The least exposed time with nothing postponed; with several element types, of buckets of neighbours."""
        return self._backward_only_s(self.window(BACKWARD, self.time_s))

    def backward_only_bound_s(self) -> float:
        """A lower bound of the exposed time of plans with nothing postponed: as though there were one element type."""
        window = self.window(BACKWARD, self.time_s)
        bound_s = self._backward_only_s(replace(window, dtypes=("",) * len(window.dtypes)))
        return max(0.0, bound_s - self.spare_s)

    def _backward_only_s(self, window: Window) -> float:
        late_s = least_late_s(window) if self.together else 0.0
        sent_s = 0.0
        for g in sorted(self.alone, key=lambda g: (g.ready_s, g.name)):
            sent_s = max(sent_s, g.ready_s) + self.line.time_s(g.size_bytes)
        return max(late_s, sent_s - self.boundaries.compute_s)

    def late_s(self, postponed_s: np.ndarray) -> float:
        """The least exposed time with so much postponed; infinite where that stalls the forward pass."""
        if fewest_buckets(self.window(FORWARD, postponed_s), 0.0) is None:
            return math.inf
        rest_s = self.time_s - postponed_s
        back = self.window(BACKWARD, np.where(rest_s > self.slack_s, rest_s, 0.0))
        if not back.room_s:
            return 0.0
        if self.dtypes > 1:
            return least_late_s(back)
        low_s, high_s = 0.0, self.scale_s + self.line.a_s * len(self.together)
        while high_s - low_s > self.precision_s:
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (low_s, middle_s) if fewest_buckets(back, middle_s) is not None else (middle_s, high_s)
        return high_s


def travels_alone(gradient: Boundary, top_level: int) -> bool:
    """Whether a gradient is sparse, or of a row of all-reduces that wait for each other in one step.

    Args:
        gradient: boundary of the gradient.
        top_level: largest level of all gradients of the step.
    """
    return (
        gradient.elements is None or gradient.level > 0 or (gradient.level < top_level and not gradient.is_postponable)
    )


@dataclass(frozen=True)
class OrderedProblem:
    """The gradients in an order.

    Attributes:
        order: position of each gradient of the chain in `PackingProblem.together`.
        chain: rooms and times of the gradients in this order.
    """

    order: tuple[int, ...]
    chain: Chain


def least_exposed_in_both(
    problem: PackingProblem, low_s: float, backward_only_s: float
) -> tuple[LeastExposed, OrderedProblem]:
    """The least exposed time with both windows, and the problem that has it.

    Where the orders by backward and by forward room agree, the windows do not overlap and there is one element
    type, that is the problem itself. Else its rooms are no more than the true ones, and another's, no less
    than the true ones, give the bound.
    """
    precision_s = problem.precision_s
    orders = _orders(problem)
    careful = [
        OrderedProblem(order, _chain(problem, order, end_s, True)) for order in orders for end_s in _ends(problem)
    ]
    solutions = [least_exposed(p.chain, low_s, backward_only_s, precision_s) for p in careful]
    best = min(range(len(solutions)), key=lambda n: (solutions[n].late_s, n))
    generous = [_chain(problem, order, math.inf, False) for order in orders]
    if len(careful) == 1 and generous[0] == careful[0].chain:
        bound_s = solutions[0].bound_s
    else:
        bound_s = max(least_exposed(chain, low_s, backward_only_s, precision_s).bound_s for chain in generous)
    bound_s = min(bound_s, solutions[best].late_s) - problem.spare_s
    return replace(solutions[best], bound_s=max(0.0, bound_s)), careful[best]


def _orders(problem: PackingProblem) -> list[tuple[int, ...]]:
    """Orders of the gradients from the least room on; one, if the rooms agree."""
    names, back, fore = [g.name for g in problem.together], problem.back_s, problem.fore_s
    everything = range(len(names))
    by_back = sorted(everything, key=lambda i: (back[i], fore[i], names[i]))
    free = [fore[i] for i in by_back if problem.free[i]]
    if free == sorted(free):
        return [tuple(by_back)]
    by_fore = sorted(everything, key=lambda i: (fore[i] if problem.free[i] else back[i], back[i], names[i]))
    by_both = sorted(everything, key=lambda i: (back[i] + (fore[i] if problem.free[i] else back[i]), names[i]))
    return [tuple(by_back), tuple(by_fore), tuple(by_both)]


def _ends(problem: PackingProblem) -> list[float]:
    """Times at which the forward window may end for good and the backward window begin.

    Any time will do between the last read and the first gradient. If a read comes after that, the windows
    overlap, and some times between are tried.
    """
    first_ready_s = min(g.ready_s for g in problem.boundaries.gradients)
    last_read_s = max((float(f) for f, free in zip(problem.fore_s, problem.free) if free), default=0.0)
    if last_read_s <= first_ready_s:
        return [math.inf]
    return [float(t) for t in np.linspace(first_ready_s, last_read_s, 5)]


def _chain(problem: PackingProblem, order: Sequence[int], end_s: float, careful: bool) -> Chain:
    """The gradients in an order, with rooms that do not decrease: no more than the true ones, or no less."""
    indices = list(order)
    free = np.array(problem.free)[indices]
    fore = np.minimum(problem.fore_s[indices], end_s)
    back = np.minimum(problem.back_s[indices], problem.boundaries.compute_s - (end_s if math.isfinite(end_s) else 0.0))
    if careful:
        fore = np.minimum.accumulate(np.where(free, fore, np.inf)[::-1])[::-1]
        back = np.minimum.accumulate(back[::-1])[::-1]
    # What cannot be postponed gets the forward room of those before it, which keeps the order.
    fore = np.maximum.accumulate(np.where(free, fore, 0.0))
    start_s = problem.line.a_s * (problem.dtypes if careful else 1)
    return Chain(
        tuple(back.tolist()) if careful else tuple(np.maximum.accumulate(back).tolist()),
        tuple(fore.tolist()),
        tuple(problem.time_s[indices].tolist()),
        tuple(free.tolist()),
        start_s,
        problem.slack_s,
    )
