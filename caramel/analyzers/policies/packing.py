"""Policies of packing: when each bucket travels, and in which window. Each is an analyzer that provides `Schedule`.

A bucket is complete when its last gradient is ready, and is read when its first parameter is. Times are those of the
compute clock, without updates. Of equals the bucket that is complete first goes first; of two that are complete at one
time that whose last gradient `Boundaries` names first.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.both_windows import Stalls, schedule_of_windows
from caramel.analyzers.policies.pending_transfers import PendingTransfer, pending_transfers_of
from caramel.facts import BACKWARD, FORWARD, Boundaries, Buckets, Schedule
from caramel.util.arguments import byte_count
from caramel.util.intervals import TIME_TOLERANCE
from caramel.util.units import format_size, format_time


def backward_only() -> Analyzer:
    """Every bucket in the backward window, in the order in which they are complete.

    Source:
        Caramel, section 3.3.2 (B): what others do. MG-WFBP, section II.C.
    """

    def run(boundaries: Boundaries, buckets: Buckets) -> Schedule:
        transfers = pending_transfers_of(boundaries, buckets)
        return schedule_of_windows(
            boundaries, [], [(t, f"complete at {format_time(t.ready_s)}") for t in transfers], "backward only"
        )

    return Analyzer("backward only", (Boundaries, Buckets), Schedule, run)


def paper_packing() -> Analyzer:
    """Caramel's greedy packing into the backward pass, the forward pass, and what must be beyond.

    Buckets are taken in descending order of size. The channel has one axis of time, that of the step's computation.
    First stage: a bucket goes into the earliest gap after it is complete, if that ends before the computation does; it
    is then in the backward window. Else, if all of it can be postponed, it goes into the latest gap before it is read,
    if that does not begin before the step does; it is then in the forward window. Second stage, for the rest in the
    same order: the earliest gap may last beyond the end of the backward pass, and the latest one begin before the start
    of the forward pass; it is the one that makes the step longer by less, of equals the backward window's.

    The paper says "any time" in a window. The earliest and the latest gap are choices of this library, such that time
    stays free for buckets that are complete later or read earlier. Each window sends in the order of the gaps. Where
    several smaller gaps are free, none is combined: a transfer is sent in one go.

    Raises:
        InputError: the analyzer: there is no network model.

    Source:
        Caramel, section 4.3.
    """

    def run(boundaries: Boundaries, buckets: Buckets, network: Network) -> Schedule:
        network.must_be_known("Caramel's packing")
        return _PaperPacking(boundaries, pending_transfers_of(boundaries, buckets, network)).run()

    return Analyzer("Caramel's packing", (Boundaries, Buckets, Network), Schedule, run)


def priority(partition_bytes: float | None = None) -> Analyzer:
    """Priority scheduling as in ByteScheduler: whenever the channel is free, it takes what the next step reads first.

    There, transfers go on from the backward pass into the next forward pass, and the channel never idles while there is
    something to send. Here a transfer lies in one step. So what would not arrive before the end of the computation is
    put off to the next step's forward window, if it can be postponed; there, too, what is read first goes first. What
    cannot be postponed stays, beyond the end of the computation if it must. The channel serves the forward window
    first, and computation is later by what that stalls, so all this is repeated with what has been put off until it
    stays the same.

    Gradients that others wait for in the same step (of a lower `Boundary.level`) go before these, whatever they are
    read for. A transfer that has begun is not interrupted; ByteScheduler cuts tensors so that this matters less.

    Args:
        partition_bytes: largest number of bytes of a transfer on the wire. Of larger buckets each gradient travels by
            itself, in equal parts if it is larger still and can be cut. None to cut nothing.

    Raises:
        InputError: the partition size is not positive; the analyzer: it cuts a gradient into too many pieces, or there
            is no network model.

    Source:
        ByteScheduler, sections 4.1 (theorem 1) and 4.2 (algorithm 1); the barrier is that of Caramel, section 4.3.
    """
    size = math.inf if partition_bytes is None else byte_count(partition_bytes, "partition_bytes")

    def run(boundaries: Boundaries, buckets: Buckets, network: Network) -> Schedule:
        network.must_be_known("priority scheduling")
        return _Priority(boundaries, pending_transfers_of(boundaries, buckets, network, size)).run()

    cut = "" if partition_bytes is None else f" in pieces of {format_size(size)}"
    return Analyzer(f"by priority of the next read{cut}", (Boundaries, Buckets, Network), Schedule, run)


# -- Caramel, section 4.3 ----------------------------------------------------------------------


class _Axis:
    """One channel: the intervals of time that are taken, in seconds."""

    def __init__(self, tolerance_s: float) -> None:
        self._tolerance_s = tolerance_s
        self._taken: list[tuple[float, float]] = []

    def earliest(self, from_s: float, duration_s: float) -> tuple[float, float]:
        """The first gap of a duration that does not begin before a time."""
        start_s = from_s
        for taken_from_s, taken_until_s in self._taken:
            if start_s + duration_s <= taken_from_s + self._tolerance_s:
                break
            start_s = max(start_s, taken_until_s)
        return start_s, start_s + duration_s

    def latest(self, until_s: float, duration_s: float) -> tuple[float, float]:
        """The last gap of a duration that does not end after a time."""
        end_s = until_s
        for taken_from_s, taken_until_s in reversed(self._taken):
            if taken_until_s <= end_s - duration_s + self._tolerance_s:
                break
            end_s = min(end_s, taken_from_s)
        return end_s - duration_s, end_s

    def take(self, interval: tuple[float, float]) -> None:
        insort(self._taken, interval)


class _PaperPacking:
    def __init__(self, boundaries: Boundaries, transfers: Sequence[PendingTransfer]) -> None:
        self._boundaries = boundaries
        self._transfers = sorted(transfers, key=lambda transfer: (-transfer.size_bytes, transfer.number))
        self._tolerance_s = TIME_TOLERANCE * boundaries.compute_s
        self._axis = _Axis(self._tolerance_s)
        self._starts_s = 0.0  # of the step, which begins with computation or with what goes before it
        self._ends_s = boundaries.compute_s
        self._placed: dict[str, list[tuple[float, PendingTransfer, str]]] = {FORWARD: [], BACKWARD: []}

    def run(self) -> Schedule:
        unassigned = [t for t in self._transfers if not self._packed_in_parallel(t)]
        for t in unassigned:
            self._pack_beyond(t)
        forward, backward = (
            [(t, why) for _, t, why in sorted(self._placed[w], key=lambda placed: (placed[0], placed[1].number))]
            for w in (FORWARD, BACKWARD)
        )
        added_s = self._ends_s - self._starts_s - self._boundaries.compute_s
        reason = f"packed by size, {format_time(added_s)} of {len(unassigned)} transfers beyond the computation"
        return schedule_of_windows(self._boundaries, forward, backward, reason)

    def _packed_in_parallel(self, transfer: PendingTransfer) -> bool:
        """The first stage; whether there was room."""
        size = f"{format_size(transfer.size_bytes)} in {format_time(transfer.duration_s)}"
        slot = self._axis.earliest(transfer.ready_s, transfer.duration_s)
        if slot[1] <= self._boundaries.compute_s + self._tolerance_s:
            self._place(
                transfer,
                BACKWARD,
                slot,
                f"{size} fit at {format_time(slot[0])}, complete at {format_time(transfer.ready_s)}",
            )
            return True
        slot = self._axis.latest(transfer.read_s, transfer.duration_s)
        if slot[0] >= -self._tolerance_s and not transfer.kept_reason:
            why = f"{size} fit at {format_time(max(slot[0], 0.0))}, before the read at {format_time(transfer.read_s)}"
            self._place(transfer, FORWARD, slot, f"{why}, and not after {format_time(transfer.ready_s)}")
            return True
        return False

    def _pack_beyond(self, transfer: PendingTransfer) -> None:
        """The second stage."""
        after = self._axis.earliest(transfer.ready_s, transfer.duration_s)
        before = self._axis.latest(transfer.read_s, transfer.duration_s)
        after_s = max(after[1] - self._ends_s, 0.0)
        before_s = max(self._starts_s - before[0], 0.0)
        size = f"{format_size(transfer.size_bytes)} in {format_time(transfer.duration_s)} fit nowhere"
        if transfer.kept_reason:
            self._place(
                transfer, BACKWARD, after, f"{size}, add {format_time(after_s)} to the step, and {transfer.kept_reason}"
            )
        elif after_s <= before_s + self._tolerance_s:
            why = f"{size} and add {format_time(after_s)} to the step, in the forward window {format_time(before_s)}"
            self._place(transfer, BACKWARD, after, why)
        else:
            why = f"{size} and add {format_time(before_s)} to the step, in the backward window {format_time(after_s)}"
            self._place(transfer, FORWARD, before, why)

    def _place(self, transfer: PendingTransfer, window: str, slot: tuple[float, float], why: str) -> None:
        self._axis.take(slot)
        self._starts_s, self._ends_s = min(self._starts_s, slot[0]), max(self._ends_s, slot[1])
        self._placed[window].append((slot[0], transfer, why))


# -- priority scheduling -------------------------------------------------------------------------


class _Priority:
    def __init__(self, boundaries: Boundaries, transfers: Sequence[PendingTransfer]) -> None:
        self._boundaries = boundaries
        self._transfers = transfers  # in the order in which they are complete

    def run(self) -> Schedule:
        put_off: set[int] = set()
        while True:
            forward = sorted((t for t in self._transfers if t.number in put_off), key=lambda t: (t.read_s, t.number))
            sent, late = self._backward(forward)
            if not late:
                break
            put_off |= late
        return schedule_of_windows(
            self._boundaries,
            [(transfer, transfer.put_off_reason) for transfer in forward],
            [(transfer, _sent_reason(transfer, start_s)) for transfer, start_s in sent],
            f"by priority of the next read, {len(forward)} of {len(self._transfers)} transfers put off",
        )

    def _backward(self, forward: Sequence[PendingTransfer]) -> tuple[list[tuple[PendingTransfer, float]], set[int]]:
        """The transfers that the channel sends after the forward window, each with the second of its start; and the
        numbers of those that would arrive too late."""
        arrivals_s = accumulate(transfer.duration_s for transfer in forward)
        stalls = Stalls(forward, arrivals_s, self._boundaries.compute_s)
        end_s = (1 + TIME_TOLERANCE) * self._boundaries.compute_s + stalls.before(self._boundaries.compute_s)
        put_off = {transfer.number for transfer in forward}
        ready = [(t.ready_s + stalls.before(t.ready_s), t) for t in self._transfers if t.number not in put_off]
        coming = deque(sorted(ready, key=lambda pair: (pair[0], pair[1].number)))
        now_s = sum(transfer.duration_s for transfer in forward)
        queue: list[tuple[int, float, int, PendingTransfer]] = []
        sent: list[tuple[PendingTransfer, float]] = []
        late: set[int] = set()
        while coming or queue:
            if not queue:
                now_s = max(now_s, coming[0][0])
            while coming and coming[0][0] <= now_s:
                transfer = coming.popleft()[1]
                heappush(queue, (transfer.level(self._boundaries), transfer.read_s, transfer.number, transfer))
            transfer = heappop(queue)[3]
            if now_s + transfer.duration_s > end_s and not transfer.kept_reason:
                late.add(transfer.number)
            else:
                sent.append((transfer, now_s))
                now_s += transfer.duration_s
        return sent, late


def _sent_reason(transfer: PendingTransfer, start_s: float) -> str:
    kept = f"; {transfer.kept_reason}" if transfer.kept_reason else ""
    return f"the first to be read, at {format_time(transfer.read_s)}, of what is ready at {format_time(start_s)}{kept}"
