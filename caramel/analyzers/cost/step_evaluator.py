"""Seconds of a step under a plan, without its timeline: the simulator's rules, for a search that asks very often.

`caramel.simulator` says what a step is, and keeps every event. Here a transfer is an `Item`: its size, when it may
start, by when it is needed and the updates that it lets begin. What happens between the arrivals of transfers need not
be looked at, so a step costs as many operations as it has transfers, whatever the number of gradients.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from caramel.analyzers.cost.in_flight import ORDERED_IN_FLIGHT
from caramel.analyzers.cost.network import Network
from caramel.facts import NO_LIMIT, Boundaries, InFlight
from caramel.in_flight import awaited


class Item(NamedTuple):
    """One transfer, as a step sees it.

    Attributes:
        size_bytes: bytes on the wire.
        ready_s: time on the compute clock when all of it is there; of no meaning in the forward window.
        read_s: time on the compute clock when something first needs it; of no meaning in the backward window.
        update_s: seconds of the updates that begin when it has arrived.
    """

    size_bytes: float
    ready_s: float
    read_s: float
    update_s: float


class _Cost(NamedTuple):
    """Seconds of a transfer: until the next may start, from there to its end, of processors, and all but the third."""

    channel_s: float
    lag_s: float
    processor_s: float
    time_s: float


class StepEvaluator:
    """Seconds of steps with the same computation on the same network.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients.
    """

    def __init__(self, network: Network, boundaries: Boundaries) -> None:
        self._network = network
        self._compute_s = boundaries.compute_s
        self._alone_s = (boundaries.compute_s + boundaries.updates_s) / boundaries.factor
        self._factor = boundaries.factor
        self._costs: dict[float, _Cost] = {}

    def cost(self, size_bytes: float) -> _Cost:
        """The seconds of a transfer of so many bytes on the wire."""
        if size_bytes not in self._costs:
            network = self._network
            channel_s, lag_s = network.channel_s(size_bytes), network.lag_s(size_bytes)
            processor_s = network.processor_s(size_bytes) if network.takes_processor else 0.0
            self._costs[size_bytes] = _Cost(channel_s, lag_s, processor_s, channel_s + lag_s)
        return self._costs[size_bytes]

    def iteration_s(
        self,
        forward: Sequence[Item],
        backward: Sequence[Item],
        in_flight: InFlight | None = None,
        scale: float = 1.0,
    ) -> float:
        """Seconds of a step; those of `simulate_on`.

        Args:
            forward: transfers of the forward window, in their order.
            backward: transfers of the backward window, in their order.
            in_flight: how much of each window may be under way at once; default: the usual numbers of transfers.
            scale: factor on all computation.
        """
        limits = in_flight or (ORDERED_IN_FLIGHT if forward else NO_LIMIT)
        costs = [self.cost(item.size_bytes) for item in forward], [self.cost(item.size_bytes) for item in backward]
        factor = scale * self._contention_factor(forward, backward, costs, limits, scale)
        return _Step(factor * self._compute_s, factor).run(forward, backward, costs, limits)

    def _contention_factor(
        self,
        forward: Sequence[Item],
        backward: Sequence[Item],
        costs: tuple[list[_Cost], list[_Cost]],
        limits: InFlight,
        scale: float,
    ) -> float:
        """The factor by which computation takes longer beside these transfers than the boundaries say."""
        if not self._network.takes_processor:
            return 1.0
        under_way_s = taken_s = 0.0
        for items, of_window, most in zip((forward, backward), costs, (limits.forward, limits.backward)):
            limited_s = 0.0 if most is None else sum(c.time_s for c in of_window) / most
            if limits.credit_bytes is not None:
                parts = (min(item.size_bytes / limits.credit_bytes, 1.0) for item in items)
                limited_s = max(limited_s, sum(part * c.time_s for part, c in zip(parts, of_window)))
            sent_s = sum(c.channel_s for c in of_window) + max((c.lag_s for c in of_window), default=0.0)
            under_way_s += max(sent_s, limited_s)
            taken_s += sum(c.processor_s for c in of_window)
        return max(self._network.compute_factor(scale * self._alone_s, under_way_s, taken_s) / self._factor, 1.0)


class _Step:
    """The computation of a step: at ``clock_s`` of its own clock at ``now_s``, from when on it runs."""

    def __init__(self, compute_s: float, factor: float) -> None:
        self._compute_s = compute_s
        self._factor = factor
        self._now_s = self._clock_s = 0.0
        self._arrivals: list[tuple[float, int]] = []  # that are still to come
        self._updates_s: list[float] = []
        self._first_reads: list[float] = []  # of the transfers of the forward window from each arrival on
        self._forward_arrived = 0

    def run(
        self,
        forward: Sequence[Item],
        backward: Sequence[Item],
        costs: tuple[list[_Cost], list[_Cost]],
        limits: InFlight,
    ) -> float:
        factor, free_s = self._factor, 0.0
        ends: list[float] = []
        start_s_of = _starts(forward, limits.forward, limits.credit_bytes)
        for number, cost in enumerate(costs[0]):
            start_s = start_s_of(free_s, ends, number)
            free_s = start_s + cost.channel_s
            ends.append(free_s + cost.lag_s)
        self._arrivals = sorted((end_s, number) for number, end_s in enumerate(ends))
        self._updates_s = [factor * item.update_s for item in forward]
        self._first_reads = [math.inf] * (len(forward) + 1)
        for place in range(len(forward) - 1, -1, -1):
            read_s = min(factor * forward[self._arrivals[place][1]].read_s, self._compute_s)
            self._first_reads[place] = min(read_s, self._first_reads[place + 1])
        ends = []
        start_s_of = _starts(backward, limits.backward, limits.credit_bytes)
        for number, (item, cost) in enumerate(zip(backward, costs[1])):
            start_s = start_s_of(free_s, ends, number)
            ready_s = self._reach(min(factor * item.ready_s, self._compute_s))
            free_s = max(start_s, ready_s) + cost.channel_s
            ends.append(free_s + cost.lag_s)
            insort(self._arrivals, (ends[-1], len(forward) + number))
            self._updates_s.append(factor * item.update_s)
        while self._arrivals:
            self._arrive()
        return self._now_s + self._compute_s - self._clock_s

    def _reach(self, clock_s: float) -> float:
        """The time at which the computation gets to a time of its clock; 0 where it is there already."""
        if clock_s <= self._clock_s:
            return 0.0
        while True:
            reached_s = self._now_s + clock_s - self._clock_s
            is_held_up = clock_s > self._first_reads[self._forward_arrived]
            if not is_held_up and (not self._arrivals or reached_s <= self._arrivals[0][0]):
                return reached_s
            self._arrive()
            if clock_s <= self._clock_s:
                return self._now_s

    def _arrive(self) -> None:
        """Let the next transfer arrive: its updates go before the computation."""
        arrival_s, number = self._arrivals.pop(0)
        if arrival_s > self._now_s:
            limit_s = min(self._first_reads[self._forward_arrived], self._compute_s)
            # What waits at a read has not yet done what the read is for.
            self._clock_s = max(min(self._clock_s + arrival_s - self._now_s, limit_s), self._clock_s)
            self._now_s = arrival_s
        self._now_s += self._updates_s[number]
        if number < len(self._first_reads) - 1:
            self._forward_arrived += 1


def _starts(
    items: Sequence[Item], most: int | None, credit_bytes: int | None
) -> Callable[[float, Sequence[float], int], float]:
    """The earliest start of a transfer of a window: the channel is free, and little enough is under way.

    Takes when the channel is free, when those before it have arrived, and the transfer's number.
    """
    if credit_bytes is None:
        return lambda free_s, ends, number: (
            max(free_s, ends[number - most]) if most is not None and number >= most else free_s
        )
    waits = awaited([item.size_bytes for item in items], most, credit_bytes)
    return lambda free_s, ends, number: max([free_s, *(ends[earlier] for earlier in waits[number])])
