"""The simulator: one step in steady state under a schedule, and the checks that a schedule is one."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from caramel.errors import InputError, InvariantError, PlanError, listed
from caramel.facts import (
    BACKWARD,
    FORWARD,
    NO_LIMIT,
    Boundaries,
    Boundary,
    InFlight,
    Piece,
    Schedule,
    Scheduled,
    Span,
    Timeline,
)
from caramel.in_flight import awaited_in_windows
from caramel.util.intervals import covered_s


def simulate(
    boundaries: Boundaries,
    schedule: Schedule,
    channel_s: Callable[[float], float],
    lag_s: Callable[[float], float] = lambda size_bytes: 0.0,
    in_flight: InFlight = NO_LIMIT,
) -> Timeline:
    """One step in steady state of one of N equal workers.

    What it assumes:

    - All workers are equal, so one stands for all: a transfer starts on all of them at once.
    - Transfers use one serial channel, each for ``channel_s`` of its bytes. They start in the order of the schedule,
      each when its pieces exist and the channel is free; one that is not ready holds up those behind it. A transfer
      arrives ``lag_s`` after it has left the channel: what messages wait for, besides each other, they do at once.
      Where ``in_flight`` lets m transfers of a window be under way at once, each also starts only when the one m places
      before it in that window has arrived; of so many bytes, when what `caramel.in_flight.awaited` says has arrived.
    - A transfer lies wholly inside a step: steps end with a barrier that none crosses. Those of the forward window
      carry gradients of the step before, so they may start with the step. They go first, before any transfer of the
      backward window, even one that is ready already: something waits for them.
    - Computation can be interrupted anywhere. It reaches `Boundary.ready_s` and `Boundary.read_s` in the order of their
      times, later by all updates and stalls so far. A time beyond the end of the computation is that end, where
      nothing is left to stall.
    - An update takes `Boundary.update_s` of the computation's time once all pieces of its gradient have arrived. It
      goes before computation, at once: updates of one transfer in the order of (read_s, name), of several in the order
      of arrival. A gradient with a piece in the forward window is updated in the forward pass (its pieces in the
      backward window have arrived in the step before), all others in the step that makes them.
    - Computation that reaches the read of a postponed gradient waits until that gradient is updated.
    - Gradients of a level above 0, and what they wait for, are transfers like others.

    Args:
        boundaries: boundaries of all gradients.
        schedule: all transfers.
        channel_s: function from bytes on the wire to the seconds for which a transfer has the channel.
        lag_s: function from bytes on the wire to the seconds from when a transfer has left the channel until it has
            arrived; default: none.
        in_flight: transfers, or bytes, of each window that may be under way at once; default: no limit.

    Returns:
        The step. Spans of computation have no name, those of stalls that of the gradient for which the step waits (of
        several with the same read the first name), those of transfers their number in the schedule. Computation
        without interruption is one span; what takes no time has none, transfers apart.

    Raises:
        InputError: a time or a size is negative, infinite or not a number.
        PlanError: the schedule does not fit; see `validate_schedule`.

    Source:
        Caramel, sections 3.1 and 4.3: two windows and one barrier. The order and the channel are ours.

    >>> from caramel.facts import BACKWARD, Boundaries, Boundary, Piece, Schedule, Scheduled
    >>> last, first = Boundary("last", "float32", 4, 16.0, 5.0, 2.0), Boundary("first", "float32", 1, 4.0, 6.0, 0.0)
    >>> each = tuple(Scheduled((Piece(g.name, 0, g.elements),), BACKWARD, "") for g in (last, first))
    >>> step = simulate(Boundaries((last, first), compute_s=6.0), Schedule(each, ""), lambda size: size / 8)
    >>> [(s.what, s.start_s, s.end_s) for s in step.spans if s.kind == "transfer"], step.iteration_s
    ([('0', 5.0, 7.0), ('1', 7.0, 7.5)], 7.5)
    """
    check_boundaries(boundaries)
    validate_schedule(boundaries, schedule)
    sizes_bytes = [wire_bytes(boundaries, transfer) for transfer in schedule.transfers]
    durations, lags = (
        [_checked(seconds(size), f"{what} of transfer {number}") for number, size in enumerate(sizes_bytes)]
        for seconds, what in ((channel_s, "the predicted time"), (lag_s, "the predicted lag"))
    )
    waits = awaited_in_windows([t.window for t in schedule.transfers], sizes_bytes, in_flight)
    return _Step(boundaries, schedule, durations, lags, waits).run()


def wire_bytes(boundaries: Boundaries, transfer: Scheduled) -> float:
    """Bytes of a transfer on the wire: each piece has its share of its gradient's.

    Args:
        boundaries: boundaries of the gradients of the transfer.
        transfer: the transfer.
    """
    return sum(_piece_bytes(boundaries.by_name[p.gradient], p) for p in transfer.pieces)


def _piece_bytes(boundary: Boundary, piece: Piece) -> float:
    is_whole = piece.elements == boundary.elements
    return boundary.size_bytes if is_whole else boundary.item_bytes * (piece.elements or 0)


# -- checks ------------------------------------------------------------------------------------


def _checked(value: float, what: str, may_be_infinite: bool = False) -> float:
    if math.isnan(value) or value < 0 or (math.isinf(value) and not may_be_infinite):
        raise InputError(f"{what} must be finite and at least 0, got {value!r}")
    return value


def check_boundaries(boundaries: Boundaries) -> None:
    """Check that all numbers are such as times and sizes can be, and that no name is there twice.

    Args:
        boundaries: boundaries of all gradients. A parameter that is never read may have an infinite read_s.

    Raises:
        InputError: a number or a name is wrong; with the gradient and the attribute.
    """
    _checked(boundaries.compute_s, "compute_s of the boundaries")
    if len(boundaries.by_name) != len(boundaries.gradients):
        twice = [name for name, count in Counter(g.name for g in boundaries.gradients).items() if count > 1]
        raise InputError(f"the boundaries have gradients more than once: {listed(twice)}")
    for g in boundaries.gradients:
        for attribute in ("size_bytes", "ready_s", "read_s", "update_s"):
            _checked(getattr(g, attribute), f"{attribute} of gradient {g.name!r}", attribute == "read_s")
        if g.elements is not None:
            _checked(g.elements, f"elements of gradient {g.name!r}")


def validate_schedule(boundaries: Boundaries, schedule: Schedule) -> None:
    """Check that a schedule sends every element of every gradient exactly once, as workers can.

    Each transfer has a window, one element type and one level. Those of the forward window come before those of the
    backward window and have only gradients that can be postponed. A sparse gradient is whole and alone, what cannot be
    cut is whole, and a piece is empty only where its gradient is.

    Args:
        boundaries: boundaries of all gradients.
        schedule: all transfers.

    Raises:
        PlanError: a rule is broken; with the transfer or the gradient.
    """
    seen: dict[str, list[Piece]] = {g.name: [] for g in boundaries.gradients}
    was_backward = False
    for number, transfer in enumerate(schedule.transfers):
        where = f"transfer {number} of the schedule"
        if transfer.window not in (BACKWARD, FORWARD):
            raise PlanError(f"{where} is in window {transfer.window!r}: there are {BACKWARD!r} and {FORWARD!r}")
        if was_backward and transfer.window == FORWARD:
            raise PlanError(f"{where} is of the forward window, but one of the backward window is before it: sort them")
        was_backward = transfer.window == BACKWARD
        for piece in transfer.pieces:
            if piece.gradient not in seen:
                raise PlanError(f"{where} has gradient {piece.gradient!r}; there are only {listed(list(seen))}")
            seen[piece.gradient].append(piece)
        _check_transfer(where, transfer, [boundaries.by_name[p.gradient] for p in transfer.pieces])
    for name, pieces in seen.items():
        _check_coverage(boundaries.by_name[name], pieces)


def _check_transfer(where: str, transfer: Scheduled, gradients: Sequence[Boundary]) -> None:
    if not gradients:
        raise PlanError(f"{where} is empty: leave it out")
    kinds: Sequence[tuple[str, set[Any]]] = (
        ("element type", {g.dtype for g in gradients}),
        ("level", {g.level for g in gradients}),
        ("condition", {g.condition or "none" for g in gradients}),
    )
    for what, values in kinds:
        if len(values) > 1:
            listed_values = listed(map(str, sorted(values)))
            raise PlanError(f"{where} has gradients of more than one {what} ({listed_values}): take it apart")
    kept = [g for g in gradients if not g.is_postponable]
    if transfer.window == FORWARD and kept:
        raise PlanError(f"{where} is of the forward window, but {kept[0].name!r} cannot be: {kept[0].kept_reason}")
    if len(gradients) > 1 and any(g.elements is None for g in gradients):
        raise PlanError(f"{where} has a sparse gradient and others: a sparse one travels alone")


def _check_coverage(boundary: Boundary, pieces: Sequence[Piece]) -> None:
    where, elements = f"gradient {boundary.name!r}", boundary.elements
    if not pieces:
        raise PlanError(f"{where} is in no transfer of the schedule: add it")
    if elements is None or not boundary.divisible:
        if len(pieces) > 1 or pieces[0].elements != elements or pieces[0].start != 0:
            raise PlanError(f"{where} cannot be cut, but the schedule has {listed([_range_of(p) for p in pieces])}")
        return
    end = 0
    for piece in sorted(pieces, key=lambda p: (p.start, p.elements or 0)):
        if piece.elements is None or piece.start != end or (piece.elements < 1 and elements > 0):
            raise PlanError(f"{where}: {_range_of(piece)} of the schedule do not follow element {end}, or are none")
        end += piece.elements
    if end != elements or len(pieces) > max(elements, 1):
        raise PlanError(f"{where} has {elements} elements, but the schedule sends {end} in {len(pieces)} pieces")


def _range_of(piece: Piece) -> str:
    return "all rows" if piece.elements is None else f"elements {piece.start} to {piece.start + piece.elements}"


# -- the step ----------------------------------------------------------------------------------


class _Step:
    """A step, event by event. Computation is at ``now - delay`` of its own clock while it runs."""

    def __init__(
        self,
        boundaries: Boundaries,
        schedule: Schedule,
        durations: Sequence[float],
        lags: Sequence[float],
        waits: Sequence[Sequence[int]],
    ) -> None:
        self._boundaries = boundaries
        self._transfers = schedule.transfers
        self._durations = durations
        self._lags = lags
        self._spans: list[Span] = []
        self._now_s = 0.0
        self._ready = [self._ready_point(transfer) for transfer in self._transfers]
        # The channel: the next transfer to start, when the one that has it leaves it, and who arrives when.
        self._next = 0
        self._waits = waits
        self._arrived: set[int] = set()
        self._busy_until_s = math.inf
        self._arriving: list[tuple[float, int]] = []
        # The computation: where it gets to next, where it has got to, how much later than it would by itself.
        self._points = deque(sorted(self._all_points()))
        self._reached_s = 0.0
        self._delay_s = 0.0
        # Updates: pieces that have to arrive, those that may run, and the one that runs.
        self._missing = Counter(p.gradient for t in self._transfers for p in t.pieces if self._is_awaited(t, p))
        self._waiting: deque[str] = deque()
        self._updating: tuple[str, float] | None = None
        self._unread = sorted((self._point_of(boundaries.by_name[name].read_s), name) for name in self._postponed)
        # What the worker does, as (kind, what), and since when.
        self._doing: tuple[str, str] | None = None
        self._since_s = 0.0

    @cached_property
    def _postponed(self) -> frozenset[str]:
        return frozenset(p.gradient for t in self._transfers if t.window == FORWARD for p in t.pieces)

    def _is_awaited(self, transfer: Scheduled, piece: Piece) -> bool:
        """Whether an update of this step waits for the piece; otherwise one of the next step does."""
        return transfer.window == FORWARD or piece.gradient not in self._postponed

    def _point_of(self, time_s: float) -> float:
        return min(time_s, self._boundaries.compute_s)

    def _ready_point(self, transfer: Scheduled) -> float:
        if transfer.window == FORWARD:
            return 0.0
        return max(self._point_of(self._boundaries.by_name[p.gradient].ready_s) for p in transfer.pieces)

    def _all_points(self) -> set[float]:
        reads = {self._point_of(self._boundaries.by_name[name].read_s) for name in self._postponed}
        return {self._boundaries.compute_s, *self._ready, *reads} - {0.0}

    def run(self) -> Timeline:
        """See `simulate`."""
        while True:
            self._send()
            self._start_updates()
            self._switch_to(self._activity())
            lane_s = self._end_of_activity()
            channel_s = min(self._busy_until_s, self._arriving[0][0] if self._arriving else math.inf)
            if math.isinf(min(lane_s, channel_s)):
                break
            # At one time the computation goes first: what it has made by then is sent, and then updates begin.
            if lane_s <= channel_s:
                self._now_s = max(self._now_s, lane_s)
                self._finish_activity()
            else:
                self._now_s = channel_s
                if self._busy_until_s <= channel_s:
                    self._next, self._busy_until_s = self._next + 1, math.inf
                while self._arriving and self._arriving[0][0] <= channel_s:
                    self._arrive(heapq.heappop(self._arriving)[1])
        if self._next < len(self._transfers) or self._unread:
            raise InvariantError("the simulated step waits for what never comes (a defect of this library)")
        spans = sorted(self._spans, key=lambda s: (s.start_s, s.end_s, s.kind, s.what))
        compute_s = self._boundaries.compute_s + self._boundaries.updates_s
        communication_s = covered_s((s.start_s, s.end_s) for s in spans if s.kind == "transfer")
        return Timeline(tuple(spans), self._now_s, compute_s, communication_s)

    def _send(self) -> None:
        if not math.isinf(self._busy_until_s) or self._next == len(self._transfers):
            return
        if self._ready[self._next] <= self._reached_s and self._arrived.issuperset(self._waits[self._next]):
            self._busy_until_s = self._now_s + self._durations[self._next]
            arrival_s = self._busy_until_s + self._lags[self._next]
            heapq.heappush(self._arriving, (arrival_s, self._next))
            self._spans.append(Span("transfer", str(self._next), self._now_s, arrival_s))

    def _arrive(self, number: int) -> None:
        self._arrived.add(number)
        transfer = self._transfers[number]
        arrived = Counter(p.gradient for p in transfer.pieces if self._is_awaited(transfer, p))
        self._missing.subtract(arrived)
        complete = [self._boundaries.by_name[name] for name in arrived if not self._missing[name]]
        self._waiting += [g.name for g in sorted(complete, key=lambda g: (g.read_s, g.name))]

    def _start_updates(self) -> None:
        while self._waiting and self._updating is None:
            name = self._waiting.popleft()
            update_s = self._boundaries.by_name[name].update_s
            if update_s == 0:
                self._is_updated(name)
            else:
                self._updating = name, self._now_s + update_s
                self._delay_s += update_s

    def _is_updated(self, name: str) -> None:
        if name in self._postponed:
            self._unread = [(read_s, unread) for read_s, unread in self._unread if unread != name]

    def _activity(self) -> tuple[str, str] | None:
        if self._updating is not None:
            return "update", self._updating[0]
        if not self._points:
            return None
        if self._unread and self._unread[0][0] <= self._reached_s:
            return "stall", self._unread[0][1]
        return "compute", ""

    def _switch_to(self, activity: tuple[str, str] | None) -> None:
        if activity == self._doing:
            return
        if self._doing is not None:
            self._record(*self._doing)
        self._doing, self._since_s = activity, self._now_s

    def _record(self, kind: str, what: str) -> None:
        """Add the span of what has just ended."""
        if kind == "stall":
            self._delay_s += self._now_s - self._since_s
        if self._now_s == self._since_s:
            return
        before = next((n for n in range(len(self._spans) - 1, -1, -1) if self._spans[n].kind != "transfer"), None)
        if before is not None and self._spans[before].kind == kind == "compute":
            self._spans[before] = replace(self._spans[before], end_s=self._now_s)
        else:
            self._spans.append(Span(kind, what, self._since_s, self._now_s))

    def _end_of_activity(self) -> float:
        if self._updating is not None:
            return self._updating[1]
        if self._doing is None or self._doing[0] == "stall":
            return math.inf
        return self._points[0] + self._delay_s

    def _finish_activity(self) -> None:
        if self._updating is not None:
            self._is_updated(self._updating[0])
            self._updating = None
        else:
            self._reached_s = self._points.popleft()
