"""ByteScheduler and P3: gradients in pieces, sent by the priority of their next read, within a credit of bytes.

Each is an analyzer that provides `Schedule`, with the credit as its limit of what is under way at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.cost.in_flight import ORDERED_IN_FLIGHT
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.both_windows import Stalls, schedule_of_windows
from caramel.analyzers.policies.credit_queue import Link, Sent, Task, check_credit, send_by_credit
from caramel.analyzers.policies.pending_transfers import PendingTransfer, pending_transfers_of
from caramel.errors import InputError
from caramel.facts import Boundaries, Buckets, InFlight, Schedule
from caramel.util.arguments import byte_count
from caramel.util.gc_pause import paused_gc
from caramel.util.intervals import TIME_TOLERANCE
from caramel.util.units import format_size, format_time

P3_PARTITION_BYTES = 160 * 2**10
"""Bytes of a piece of P3 by default (ByteScheduler, section 2.3)."""

_SMALLEST_PARTITION_BYTES = 2**16
"""Bytes of the smallest piece that is taken by itself: smaller ones do not decide about a plan (our choice)."""

_MOST_OVERHEAD = 0.05
"""Fraction of the time of its bytes that cutting into pieces may cost (our choice).

In simulations of 48 chains of 10 to 60 layers, with 20 and 100 us for a message and a rho of 0.5, 1 and 2, steps were
on average 3.4 % above the best plans of this library with it, 4.8 % with 0.1, 8 % with 0.2, and 2.0 % with the best of
all sizes."""


@dataclass(frozen=True)
class CreditLimits:
    """What may be sent in one go, and be under way at once.

    Attributes:
        partition_bytes: largest number of bytes of a piece on the wire; infinity to cut nothing.
        credit_bytes: bytes on the wire that may be under way at once; infinity for any.
        reason: origin of the numbers.
    """

    partition_bytes: float
    credit_bytes: float
    reason: str

    @property
    def in_flight(self) -> InFlight:
        """The limit of both windows; whole bytes, as plans have them."""
        return InFlight(credit_bytes=None if math.isinf(self.credit_bytes) else max(int(self.credit_bytes), 1))


def credit_limits(
    network: Network, boundaries: Boundaries, partition_bytes: float | None = None, credit_bytes: float | None = None
) -> CreditLimits:
    """Partition and credit of a network, where they are not given.

    A small piece lets a more urgent gradient go first soon, but every piece has a start. So the partition is the
    smallest power of two from 64 KiB on with which the channel needs at most 5 % more time for a byte than with the
    best size. A small credit lets it go first soon, too, but with one piece at a time the channel idles for the lag of
    each. So the credit is the least number W of pieces with which it never does: W - 1 pieces have the channel for at
    least the lag of one. Where lags were not measured, W is 2, as that was the best number on hosts that were.

    The paper finds both by trials of the training (section 4.3); `caramel.tune` does that.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients.
        partition_bytes: largest number of bytes of a piece, by hand.
        credit_bytes: bytes that may be under way at once, by hand.

    Raises:
        InputError: the credit is less than the partition.
    """
    if partition_bytes is not None and credit_bytes is not None:
        check_credit(partition_bytes, credit_bytes)
        return CreditLimits(partition_bytes, credit_bytes, "partition and credit by hand")
    of_partition = "partition by hand"
    if partition_bytes is None:
        partition_bytes, of_partition = _partition(
            network, boundaries, math.inf if credit_bytes is None else credit_bytes
        )
    if credit_bytes is not None:
        check_credit(partition_bytes, credit_bytes)
        return CreditLimits(partition_bytes, credit_bytes, f"{of_partition}, credit by hand")
    number, of_credit = _pieces_under_way(network, partition_bytes)
    return CreditLimits(partition_bytes, number * partition_bytes, f"{of_partition}, {of_credit}")


def _partition(network: Network, boundaries: Boundaries, most_bytes: float) -> tuple[float, str]:
    """The partition of a network, not larger than a credit, and why."""
    total_bytes = max(math.ceil(sum(g.size_bytes for g in boundaries.gradients)), 1)
    sizes = [float(total_bytes)]
    while sizes[0] > _SMALLEST_PARTITION_BYTES:
        count = math.ceil(math.log2(sizes[0] / _SMALLEST_PARTITION_BYTES)) - 1
        sizes.insert(0, float(_SMALLEST_PARTITION_BYTES * 2**count))
    costs = [network.channel_s(size) / size for size in sizes]
    best = min(costs)
    if best == 0:
        return min(total_bytes, most_bytes), "nothing is cut, as transfers take no time"
    found = next(size for size, cost in zip(sizes, costs) if cost <= (1 + _MOST_OVERHEAD) * best)
    if found > most_bytes:
        return most_bytes, "partition as large as the credit"
    return found, f"of the smallest pieces that cost at most {_MOST_OVERHEAD:.0%} more time for a byte than the best"


def _pieces_under_way(network: Network, partition_bytes: float) -> tuple[int, str]:
    """The number of pieces that keep the channel busy, and why."""
    if not network.has_overlaps or math.isinf(partition_bytes):
        number = ORDERED_IN_FLIGHT.backward or 1
        return number, f"a credit of {number} pieces, as lags were not measured"
    channel_s, lag_s = network.channel_s(partition_bytes), network.lag_s(partition_bytes)
    number = 1 + (math.ceil((1 - TIME_TOLERANCE) * lag_s / channel_s) if channel_s > 0 else 0)
    return number, f"a credit of {number} pieces, the least with which the channel is never idle for a lag"


def bytescheduler(partition_bytes: float | None = None, credit_bytes: float | None = None) -> Analyzer:
    """ByteScheduler: pieces of gradients go by the priority of their next read, within a credit of bytes.

    Every bucket (in the policy of this name each gradient by itself) is cut into pieces of at most the partition size.
    What is ready goes into a queue, and leaves it while the bytes under way are within the credit, the piece that the
    next step reads first before all others (see `caramel.analyzers.policies.credit_queue`).

    There, pieces go on leaving the queue in the next forward pass. Here a transfer lies in one step. So a piece that
    would not have arrived when the computation of its step ends goes into the forward window of the next step, where
    again what is read first goes first, and those behind it go on; one that cannot be postponed stays, beyond the end
    of the computation if it must. What is in the forward window has the channel first, and may stall the computation,
    so this is repeated with what has been put off until nothing more is. Each window has the credit by itself. The
    order is made once, for the predicted times, and is the same on all workers; in ByteScheduler, too, one of them
    decides for all.

    Args:
        partition_bytes: largest number of bytes of a piece on the wire, infinity to cut nothing; None for that of the
            network, see `credit_limits`.
        credit_bytes: bytes on the wire that may be under way at once, infinity for any; None for that of the network.

    Raises:
        InputError: a size is not positive, or the credit is less than the partition; the analyzer: likewise, or a
            gradient is cut into too many pieces, or there is no network model.

    Source:
        ByteScheduler, sections 4.1 (theorem 1) and 4.2 (algorithm 1); the barrier is that of Caramel, section 4.3.
    """
    partition = None if partition_bytes is None else byte_count(partition_bytes, "partition_bytes")
    credit = None if credit_bytes is None else byte_count(credit_bytes, "credit_bytes")
    if partition is not None and credit is not None:
        check_credit(partition, credit)
    by_hand = [
        f" {what} {format_size(size)}"
        for what, size in (("of pieces of", partition), ("with a credit of", credit))
        if size is not None and not math.isinf(size)
    ]
    name = "".join(["ByteScheduler's queue", *by_hand])
    return _analyzer(name, lambda network, boundaries: credit_limits(network, boundaries, partition, credit))


def p3(partition_bytes: float = P3_PARTITION_BYTES) -> Analyzer:
    """P3: as `bytescheduler`, with a credit of one piece, so that it stops and waits after each.

    Args:
        partition_bytes: largest number of bytes of a piece on the wire.

    Raises:
        InputError: the size is not positive or not finite; the analyzer: see `bytescheduler`.

    Source:
        ByteScheduler, section 2.3: P3's partition size, and its credit of one partition.
    """
    size = byte_count(partition_bytes, "partition_bytes")
    if math.isinf(size):
        raise InputError("partition_bytes must be finite: P3 sends one piece of that size at a time")
    by_hand = "" if size == P3_PARTITION_BYTES else f" of pieces of {format_size(size)}"
    limits = CreditLimits(size, size, "P3 has one piece under way at a time")
    return _analyzer(f"P3's queue{by_hand}", lambda network, boundaries: limits)


def _analyzer(name: str, limits_of: Callable[[Network, Boundaries], CreditLimits]) -> Analyzer:
    @paused_gc()  # of thousands of pieces, which all stay
    def run(boundaries: Boundaries, buckets: Buckets, network: Network) -> Schedule:
        network.must_be_known("scheduling by credit")
        limits = limits_of(network, boundaries)
        transfers = pending_transfers_of(boundaries, buckets, network, limits.partition_bytes)
        return _ByCredit(boundaries, transfers, network, limits).run()

    return Analyzer(name, (Boundaries, Buckets, Network), Schedule, run)


class _ByCredit:
    def __init__(
        self, boundaries: Boundaries, transfers: Sequence[PendingTransfer], network: Network, limits: CreditLimits
    ) -> None:
        self._boundaries = boundaries
        self._transfers = transfers  # in the order in which they are complete; each has its place as number
        self._network = network
        self._limits = limits

    def run(self) -> Schedule:
        put_off: set[int] = set()
        while True:
            forward = self._forward(put_off)
            sent, late = self._backward(forward, put_off)
            if not late:
                break
            put_off |= late
        sizes = f"pieces of {_size(self._limits.partition_bytes)}, a credit of {_size(self._limits.credit_bytes)}"
        return schedule_of_windows(
            self._boundaries,
            [(transfer, transfer.put_off_reason) for transfer, _ in forward],
            [(transfer, _sent_reason(transfer, each)) for transfer, each in sent],
            f"by priority of the next read within a credit, {sizes} ({self._limits.reason}); "
            f"{len(forward)} of {len(self._transfers)} transfers put off",
            self._limits.in_flight,
        )

    def _forward(self, put_off: set[int]) -> list[tuple[PendingTransfer, Sent]]:
        """The transfers of the forward window: all are there when the step starts."""
        tasks = [(t, _task(t, 0.0)) for t in self._transfers if t.number in put_off]
        return self._sent(tasks, 0.0, math.inf)

    def _backward(
        self, forward: Sequence[tuple[PendingTransfer, Sent]], put_off: set[int]
    ) -> tuple[list[tuple[PendingTransfer, Sent]], set[int]]:
        """The transfers that the channel sends after the forward window, and the numbers of those that are late."""
        compute_s = self._boundaries.compute_s
        stalls = Stalls([t for t, _ in forward], [each.arrived_s for _, each in forward], compute_s)
        tasks = [
            (t, _task(t, t.ready_s + stalls.before(t.ready_s), t.level(self._boundaries)))
            for t in self._transfers
            if t.number not in put_off
        ]
        end_s = (1 + TIME_TOLERANCE) * compute_s + stalls.before(compute_s)
        sent = self._sent(tasks, forward[-1][1].left_s if forward else 0.0, end_s)
        return sent, {t.number for t, _ in tasks} - {t.number for t, _ in sent}

    def _sent(
        self, tasks: Sequence[tuple[PendingTransfer, Task]], free_s: float, until_s: float
    ) -> list[tuple[PendingTransfer, Sent]]:
        link = Link(self._network.channel_s, self._network.lag_s, free_s)
        sent = send_by_credit([task for _, task in tasks], self._limits.credit_bytes, link, until_s)
        return [(tasks[each.number][0], each) for each in sent]


def _task(transfer: PendingTransfer, ready_s: float, level: int = 0) -> Task:
    return Task(
        transfer.pieces[0].gradient,
        (level, transfer.read_s),
        ready_s,
        transfer.size_bytes,
        can_wait=not transfer.kept_reason,
    )


def _size(size_bytes: float) -> str:
    return "any size" if math.isinf(size_bytes) else format_size(size_bytes)


def _sent_reason(transfer: PendingTransfer, sent: Sent) -> str:
    kept = f"; {transfer.kept_reason}" if transfer.kept_reason else ""
    first = f"the first to be read, at {format_time(transfer.read_s)}, of what is ready at {format_time(sent.queued_s)}"
    return f"{first}{kept}"
