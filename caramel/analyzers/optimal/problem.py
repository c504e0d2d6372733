"""The problem of the two windows in seconds of the channel, and its least exposed time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from caramel.analyzers.cost.bounds import lower_bounds, rooms
from caramel.analyzers.optimal.thresholds import Chain, Least, least_exposed
from caramel.analyzers.optimal.windows import ROUNDING, Window, fewest, least_late_s, less_alone
from caramel.facts import BACKWARD, FORWARD, Boundaries, Boundary
from caramel.netmodel.line import Line

TIES = 0.002
"""Plans whose steps differ by less than this part are equally good: times are not known better (our choice)."""

_KEPT_FOR_CUTS = 0.95
"""The part of it that is used before cuts are rounded to whole elements."""

_PRECISION = 1e-7
"""To which part of the largest time the least exposed time is found."""

_EMPTY = 1e-10
"""What a gradient without bytes counts for, as a part of the largest time: it needs a transfer, too."""


@dataclass(frozen=True)
class Task:
    """The problem in seconds of the channel. Arrays are of the gradients that may travel together.

    Attributes:
        boundaries: of all gradients.
        line: seconds of a transfer.
        together: gradients that may share transfers.
        alone: the others; each is a transfer of the backward window.
        back_s: backward room that is left beside those alone.
        fore_s: forward room.
        time_s: seconds for the bytes, never quite 0.
        free: which can be postponed.
        cuttable: which can be cut in two.
        scale_s: the largest time.
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
    def of(cls, boundaries: Boundaries, line: Line) -> Task:
        top = max((g.level for g in boundaries.gradients), default=0)
        lone = [_travels_alone(g, top) for g in boundaries.gradients]
        together = tuple(g for g, is_lone in zip(boundaries.gradients, lone) if not is_lone)
        alone = tuple(g for g, is_lone in zip(boundaries.gradients, lone) if is_lone)
        back, fore = rooms(boundaries)
        where = np.array([not is_lone for is_lone in lone], bool)
        beside = [(float(b), line.time_s(g.size_bytes)) for g, b, w in zip(boundaries.gradients, back, where) if not w]
        wire_s = np.array([line.b_s_per_byte * g.size_bytes for g in together])
        total_s = boundaries.compute_s + line.a_s + float(wire_s.sum()) + sum(t for _, t in beside)
        scale_s = total_s if total_s > 0 else 1.0
        time_s = np.maximum(wire_s, _EMPTY * scale_s)
        cuttable = [
            g.divisible and (g.elements or 0) > 1 and t > 2 * _EMPTY * scale_s for g, t in zip(together, time_s)
        ]
        free = tuple(g.is_postponable for g in together)
        back_s = less_alone(back[where], beside)
        return cls(boundaries, line, together, alone, back_s, fore[where], time_s, free, tuple(cuttable), scale_s)

    @property
    def slack_s(self) -> float:
        """What rounding may take."""
        return ROUNDING * self.scale_s

    @property
    def precision_s(self) -> float:
        """How close to the least exposed time is close enough."""
        return _PRECISION * self.scale_s

    @property
    def spare_s(self) -> float:
        """At most the time that empty gradients were given."""
        return 2 * _EMPTY * self.scale_s * len(self.together)

    @property
    def dtypes(self) -> int:
        """How many element types there are: a bucket of several is as many transfers."""
        return len({g.kind for g in self.together})

    def tied_s(self, late_s: float) -> float:
        """The exposed time that is as good as ``late_s``."""
        step_s = self.boundaries.compute_s + self.boundaries.updates_s + late_s
        return late_s + _KEPT_FOR_CUTS * TIES * step_s

    def window(self, kind: str, part_s: np.ndarray) -> Window:
        """What of each gradient travels in one window."""
        room_s = self.back_s if kind == BACKWARD else self.fore_s
        which = [int(i) for i in np.flatnonzero(part_s > 0)]
        which.sort(key=lambda i: (room_s[i], self.together[i].name))
        times, dtypes = (part_s[i] for i in which), (self.together[i].kind for i in which)
        room = tuple(float(room_s[i]) for i in which)
        return Window(room, tuple(map(float, times)), tuple(dtypes), self.line.a_s, self.slack_s)

    def simple_bound_s(self) -> float:
        """What `lower_bounds` says about the exposed time; the updates' time is none."""
        free = tuple(replace(g, update_s=0.0) for g in self.boundaries.gradients)
        bounds = lower_bounds(replace(self.boundaries, gradients=free), self.line)
        return bounds.lb2_s - self.boundaries.compute_s

    def least_plain_s(self) -> float:
        """The least exposed time with nothing postponed; with several element types, of buckets of neighbours."""
        return self._plain_s(self.window(BACKWARD, self.time_s))

    def plain_bound_s(self) -> float:
        """What no plan with nothing postponed can be below: as though there were one element type."""
        window = self.window(BACKWARD, self.time_s)
        found_s = self._plain_s(replace(window, dtypes=("",) * len(window.dtypes)))
        return max(0.0, found_s - self.spare_s)

    def _plain_s(self, window: Window) -> float:
        late_s = least_late_s(window) if self.together else 0.0
        sent_s = 0.0
        for g in sorted(self.alone, key=lambda g: (g.ready_s, g.name)):
            sent_s = max(sent_s, g.ready_s) + self.line.time_s(g.size_bytes)
        return max(late_s, sent_s - self.boundaries.compute_s)

    def late_s(self, postponed_s: np.ndarray) -> float:
        """The least exposed time with so much postponed; infinite where that stalls the forward pass."""
        if fewest(self.window(FORWARD, postponed_s), 0.0) is None:
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
            low_s, high_s = (low_s, middle_s) if fewest(back, middle_s) is not None else (middle_s, high_s)
        return high_s


def _travels_alone(gradient: Boundary, top: int) -> bool:
    """Whether it is sparse, or of a row of all-reduces that wait for each other in one step."""
    return gradient.elements is None or gradient.level > 0 or (gradient.level < top and not gradient.is_postponable)


@dataclass(frozen=True)
class Problem:
    """The gradients in an order, and what is asked of it.

    Attributes:
        order: which gradient each of the chain is.
        chain: their rooms and times.
    """

    order: tuple[int, ...]
    chain: Chain


def least_of(task: Task, low_s: float, plain_s: float) -> tuple[Least, Problem]:
    """The least exposed time with both windows, and the problem that has it.

    Where the orders by backward and by forward room agree, the windows do not overlap and there is one element
    type, that is the problem itself. Else its rooms are no more than the true ones, and another's, no less
    than the true ones, give the bound.
    """
    precision_s = task.precision_s
    orders = _orders(task)
    careful = [Problem(order, _chain(task, order, end_s, True)) for order in orders for end_s in _ends(task)]
    found = [least_exposed(p.chain, low_s, plain_s, precision_s) for p in careful]
    best = min(range(len(found)), key=lambda n: (found[n].late_s, n))
    generous = [_chain(task, order, math.inf, False) for order in orders]
    if len(careful) == 1 and generous[0] == careful[0].chain:
        bound_s = found[0].bound_s
    else:
        bound_s = max(least_exposed(chain, low_s, plain_s, precision_s).bound_s for chain in generous)
    bound_s = min(bound_s, found[best].late_s) - task.spare_s
    return replace(found[best], bound_s=max(0.0, bound_s)), careful[best]


def _orders(task: Task) -> list[tuple[int, ...]]:
    """Orders of the gradients from the least room on; one, if the rooms agree."""
    names, back, fore = [g.name for g in task.together], task.back_s, task.fore_s
    everything = range(len(names))
    by_back = sorted(everything, key=lambda i: (back[i], fore[i], names[i]))
    free = [fore[i] for i in by_back if task.free[i]]
    if free == sorted(free):
        return [tuple(by_back)]
    by_fore = sorted(everything, key=lambda i: (fore[i] if task.free[i] else back[i], back[i], names[i]))
    by_both = sorted(everything, key=lambda i: (back[i] + (fore[i] if task.free[i] else back[i]), names[i]))
    return [tuple(by_back), tuple(by_fore), tuple(by_both)]


def _ends(task: Task) -> list[float]:
    """Times at which the forward window may end for good and the backward window begin.

    Any time will do between the last read and the first gradient. If a read comes after that, the windows
    overlap, and some times between are tried.
    """
    first_ready_s = min(g.ready_s for g in task.boundaries.gradients)
    last_read_s = max((float(f) for f, free in zip(task.fore_s, task.free) if free), default=0.0)
    if last_read_s <= first_ready_s:
        return [math.inf]
    return [float(t) for t in np.linspace(first_ready_s, last_read_s, 5)]


def _chain(task: Task, order: Sequence[int], end_s: float, careful: bool) -> Chain:
    """The gradients in an order, with rooms that do not decrease: no more than the true ones, or no less."""
    which = list(order)
    free = np.array(task.free)[which]
    fore = np.minimum(task.fore_s[which], end_s)
    back = np.minimum(task.back_s[which], task.boundaries.compute_s - (end_s if math.isfinite(end_s) else 0.0))
    if careful:
        fore = np.minimum.accumulate(np.where(free, fore, np.inf)[::-1])[::-1]
        back = np.minimum.accumulate(back[::-1])[::-1]
    # What cannot be postponed gets the forward room of those before it, which keeps the order.
    fore = np.maximum.accumulate(np.where(free, fore, 0.0))
    start_s = task.line.a_s * (task.dtypes if careful else 1)
    return Chain(
        tuple(back.tolist()) if careful else tuple(np.maximum.accumulate(back).tolist()),
        tuple(fore.tolist()),
        tuple(task.time_s[which].tolist()),
        tuple(free.tolist()),
        start_s,
        task.slack_s,
    )
