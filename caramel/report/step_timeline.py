"""A step as lanes of bars, predicted or measured: what each worker computes and what its link carries."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise

COMPUTE = "compute"
"""Kind of computation of which a prediction says no more."""

FORWARD_PASS = "forward pass"
BACKWARD_PASS = "backward pass"
UPDATE = "update"
REDUCTION = "reduction"
"""Kind of ops that cut, add up and join the tensors of transfers, on a worker's processor."""

OTHER = "other"
"""Kind of ops that neither the loss nor a gradient needs, and that follow from none: metrics, counters."""

STALL = "stall"
"""Kind of time in which a worker computes nothing."""

TRANSFER = "transfer"

PULL = "pull"
"""Kind of what a worker gets of a parameter server."""

PUSH = "push"
"""Kind of what a worker sends to a parameter server."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What happens for some time on a lane.

    Attributes:
        kind: one of the kinds of this module.
        name: name of the op, of the gradient that is updated or waited for, or of the transfer.
        start_s: seconds after the start of the step.
        end_s: likewise.
        transfer: number of the transfer that it is or belongs to, or that a stall waits for; None if there is none.
        cause: name of what a stall waits for on the worker's link; None if nothing is under way there.
        count: number of ops or transfers that it stands for; short ones beside each other may become one bar.
    """

    kind: str
    name: str
    start_s: float
    end_s: float
    transfer: int | None = None
    count: int = 1
    cause: str | None = None

    @property
    def time_s(self) -> float:
        """Seconds from its start to its end."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Lanes:
    """The lanes of one worker, or of one parameter server.

    Attributes:
        rank: rank of the worker, or number of the server.
        computation: what it computes, and its stalls, in the order in which they start; ops on several threads overlap.
        link: its transfers, or its pulls and pushes, in the order in which they start.
        received: for each tensor that has come from another worker the seconds at which it was there, and its bytes, in
            the order of time; empty in predictions and where workers share a process.
    """

    rank: int
    computation: tuple[Bar, ...]
    link: tuple[Bar, ...]
    received: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True)
class StepTimeline:
    """One step.

    Attributes:
        source: ``"predicted"`` or ``"measured"``.
        iteration_s: seconds of the step.
        workers: lanes of each worker, by rank.
        notes: sentences about what it leaves out, or why it is doubtful.
        has_one_clock: whether times of different workers can be compared.
        servers: lanes of each parameter server, by its number, which is their rank; their links are those of the
            workers.
    """

    source: str
    iteration_s: float
    workers: tuple[Lanes, ...]
    notes: tuple[str, ...] = ()
    has_one_clock: bool = True
    servers: tuple[Lanes, ...] = ()

    def merged(self, least_s: float) -> StepTimeline:
        """The same step with short bars that follow each other as one.

        Bars of one kind become one of any length; bars of several kinds one of the kind of the longest, until it is no
        longer short.

        Args:
            least_s: seconds from which on a bar stays by itself, and between two bars that stay apart.
        """

        def merged(lanes: Lanes) -> Lanes:
            return replace(
                lanes,
                computation=merged_lane(lanes.computation, least_s),
                link=merged_lane(lanes.link, least_s),
                received=_thinned(lanes.received, least_s),
            )

        return replace(self, workers=tuple(map(merged, self.workers)), servers=tuple(map(merged, self.servers)))


def tracks(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Divide bars over as few tracks as there are bars at one time, so that none overlap on a track.

    Args:
        bars: bars in the order in which they start.

    >>> a, b, c = Bar("compute", "a", 0.0, 2.0), Bar("compute", "b", 1.0, 3.0), Bar("compute", "c", 2.0, 4.0)
    >>> [[bar.name for bar in track] for track in tracks([a, b, c])]
    [['a', 'c'], ['b']]
    """
    found: list[list[Bar]] = []
    busy: list[tuple[float, int]] = []  # tracks that are taken, by when they are free again
    free: list[int] = []
    numbers = count()
    for bar in bars:
        while busy and busy[0][0] <= bar.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            number = heapq.heappop(free)
        else:
            number = next(numbers)
            found.append([])
        found[number].append(bar)
        heapq.heappush(busy, (bar.end_s, number))
    return found


def gaps(bars: Sequence[Bar], start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """The times in which none of some bars is under way, as (start, end) in seconds.

    Args:
        bars: bars in the order in which they start.
        start_s: seconds at which to begin.
        end_s: seconds at which to end.

    >>> list(gaps([Bar("compute", "", 1.0, 3.0), Bar("compute", "", 2.0, 2.5), Bar("compute", "", 4.0, 5.0)], 0.0, 6.0))
    [(0.0, 1.0), (3.0, 4.0), (5.0, 6.0)]
    """
    until_s = start_s
    for bar in bars:
        if bar.start_s > until_s:
            yield until_s, min(bar.start_s, end_s)
        until_s = max(until_s, bar.end_s)
        if until_s >= end_s:
            return
    if until_s < end_s:
        yield until_s, end_s


def busy_s(bars: Iterable[Bar], end_s: float) -> float:
    """Seconds of a step in which at least one of some bars is under way.

    That is the step less the gaps, so that a step without gaps is covered to the last digit.

    Args:
        bars: the bars, in any order.
        end_s: seconds of the step.

    >>> busy_s([Bar("compute", "", 2.0, 7.0), Bar("compute", "", 0.0, 1.0)], 6.0)
    5.0
    """
    in_turn = sorted(bars, key=lambda bar: bar.start_s)
    return end_s - sum(stop_s - start_s for start_s, stop_s in gaps(in_turn, 0.0, end_s))


def stalls(name: str, link: Sequence[Bar], start_s: float, end_s: float) -> Iterator[Bar]:
    """Cut a wait into stalls, each caused by what is under way on the link and ends first there.

    Args:
        name: name of the stalls.
        link: what is on the worker's link.
        start_s: seconds at which the wait begins.
        end_s: seconds at which it ends.

    >>> sent = [Bar("transfer", "a", 0.0, 2.0, 0), Bar("transfer", "b", 2.0, 5.0, 1)]
    >>> [(bar.start_s, bar.end_s, bar.transfer, bar.cause) for bar in stalls("", sent, 1.0, 6.0)]
    [(1.0, 2.0, 0, 'a'), (2.0, 5.0, 1, 'b'), (5.0, 6.0, None, None)]
    """
    cuts = {time_s for bar in link for time_s in (bar.start_s, bar.end_s) if start_s < time_s < end_s}
    coming = deque(sorted(enumerate(link), key=lambda pair: pair[1].start_s))
    under_way: list[tuple[float, str, int]] = []  # when each ends, its name and its number
    pieces: list[tuple[float, float, Bar | None]] = []
    for first_s, last_s in pairwise(sorted({start_s, end_s, *cuts})):
        while coming and coming[0][1].start_s <= first_s:
            number, bar = coming.popleft()
            heapq.heappush(under_way, (bar.end_s, bar.name, number))
        while under_way and under_way[0][0] <= first_s:
            heapq.heappop(under_way)
        cause = link[under_way[0][2]] if under_way else None
        if pieces and pieces[-1][2] == cause:
            first_s = pieces.pop()[0]
        pieces.append((first_s, last_s, cause))
    for first_s, last_s, cause in pieces:
        transfer, of = (None, None) if cause is None else (cause.transfer, cause.name)
        yield Bar(STALL, name, first_s, last_s, transfer, cause=of)


def in_order(bars: Iterable[Bar]) -> tuple[Bar, ...]:
    """Bars in the order in which they start, ties by end, kind and name.

    Args:
        bars: the bars.
    """
    return tuple(sorted(bars, key=lambda bar: (bar.start_s, bar.end_s, bar.kind, bar.name)))


def merged_lane(bars: Iterable[Bar], least_s: float) -> tuple[Bar, ...]:
    """The bars of a lane with short ones that follow each other as one; see `StepTimeline.merged`.

    Args:
        bars: bars in the order in which they start.
        least_s: see `StepTimeline.merged`.
    """
    return in_order(bar for track in tracks(bars) for bar in _merged_track(track, least_s))


def _merged_track(track: Iterable[Bar], least_s: float) -> list[Bar]:
    merged: list[Bar] = []
    for bar in track:
        last = merged[-1] if merged else None
        if last is None or not _join(last, bar, least_s):
            merged.append(bar)
            continue
        total = last.count + bar.count
        transfer = last.transfer if last.transfer == bar.transfer else None
        cause = last.cause if last.cause == bar.cause else None
        kind = last.kind if last.time_s >= bar.time_s else bar.kind
        merged[-1] = Bar(kind, f"{total} short ones, {kind}", last.start_s, bar.end_s, transfer, total, cause)
    return merged


def _join(last: Bar, bar: Bar, least_s: float) -> bool:
    """Whether two bars become one."""
    if bar.time_s >= least_s or bar.start_s - last.end_s >= least_s:
        return False
    return last.time_s < least_s or (last.count > 1 and last.kind == bar.kind)


def _thinned(received: Iterable[tuple[float, int]], least_s: float) -> tuple[tuple[float, int], ...]:
    """Arrivals, those within so many seconds as one, at the time of the last."""
    thinned: list[tuple[float, int]] = []
    first_s = 0.0
    for time_s, size_bytes in received:
        if thinned and time_s - first_s < least_s:
            thinned[-1] = (time_s, thinned[-1][1] + size_bytes)
        else:
            thinned.append((time_s, size_bytes))
            first_s = time_s
    return tuple(thinned)
