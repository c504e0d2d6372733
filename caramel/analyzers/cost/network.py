"""The network as planners see it: the time of a transfer with the best algorithm and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from caramel.errors import InputError
from caramel.netmodel.choice import CollectiveOptions, allowed_algorithms, possible_collectives
from caramel.netmodel.contention import MOST_PROCESSOR_SHARE
from caramel.netmodel.line import Line, Sample, fit_line
from caramel.netmodel.model import MOST_DEPTH
from caramel.netmodel.ranking import Candidate, Choice

_SMALLEST_PLANNED_BYTES = 2**16
"""Bytes of the smallest transfer to which the line is fitted: smaller ones do not decide about a plan (our choice)."""

_LEAST_CUT_GAIN = 0.1
"""Fraction that the bytes of smaller transfers must cost less for larger ones to be cut: parts have to be taken out and
put together again, which no measurement of a network contains (our choice)."""

_ROUNDING = 1e-12
"""Fraction by which a line below others is lowered, as floating-point numbers are rounded."""


@dataclass(frozen=True)
class _ReductionTimes:
    """Seconds of one all-reduce beside computation.

    Attributes:
        time_s: seconds from its start to its end.
        channel_s: seconds from its start until the next one may begin.
        processor_s: seconds by which computation takes longer.
    """

    time_s: float
    channel_s: float
    processor_s: float

    @property
    def lag_s(self) -> float:
        return self.time_s - self.channel_s


@dataclass(frozen=True)
class Network:
    """The times of transfers with one number of workers.

    Attributes:
        options: options of the caller for the collectives, with a network model or without.
        workers: number of workers.
        overlaps: whether a transfer may have the channel before the one in front of it has arrived, where that was
            measured.
    """

    options: CollectiveOptions
    workers: int
    overlaps: bool = True
    _predicted: dict[float, _ReductionTimes] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def is_known(self) -> bool:
        """Whether times can be predicted."""
        return self.options.network is not None or self.workers == 1

    @property
    def takes_processor(self) -> bool:
        """Whether transfers are known to make computation longer."""
        return self.options.network is not None and bool(self.options.network.contentions) and self.workers > 1

    @cached_property
    def without_overlaps(self) -> Network:
        """The same network as if each transfer had the channel until it has arrived."""
        return Network(self.options, self.workers, overlaps=False)

    def must_be_known(self, who: str) -> None:
        """Check that times can be predicted.

        Args:
            who: noun for what needs them, for the error.

        Raises:
            InputError: times cannot be predicted.
        """
        if not self.is_known:
            raise InputError(
                f"{who} needs the times of transfers, but there is no network model: pass network= (`caramel netbench` "
                "measures one, `caramel.NetworkModel.from_link_rate` makes one from a data sheet), or take policies "
                "that need none"
            )

    def time_s(self, size_bytes: float) -> float:
        """Predicted seconds of one all-reduce of so many bytes on the wire, while all workers compute.

        Raises:
            InputError: the network model knows nothing about what is allowed.
        """
        return self._seconds(size_bytes).time_s

    def channel_s(self, size_bytes: float) -> float:
        """Of `time_s`, the seconds for which the next transfer has to wait.

        Raises:
            InputError: the network model knows nothing about what is allowed.
        """
        return self._seconds(size_bytes).channel_s

    def lag_s(self, size_bytes: float) -> float:
        """Of `time_s`, the seconds that are left once the next transfer may begin.

        Raises:
            InputError: the network model knows nothing about what is allowed.
        """
        return self._seconds(size_bytes).lag_s

    def _seconds(self, size_bytes: float) -> _ReductionTimes:
        if size_bytes not in self._predicted:
            chosen = self._chosen(size_bytes)
            time_s = channel_s = processor_s = 0.0
            if chosen is not None:
                time_s = chosen.prediction.time_s
                channel_s = time_s if chosen.occupied_s is None or not self.overlaps else chosen.occupied_s
                processor_s = chosen.processor_share * time_s
            self._predicted[size_bytes] = _ReductionTimes(time_s, channel_s, processor_s)
        return self._predicted[size_bytes]

    def interpolation_error(self, size_bytes: float) -> float:
        """The relative error of the measurements from which `time_s` of so many bytes is predicted; 0 if none is."""
        chosen, network = self._chosen(size_bytes), self.options.network
        if chosen is None or network is None:
            return 0.0
        return network.interpolation_error(chosen.algorithm, chosen.depth, self.workers)

    def under_way_s(self, sizes_bytes: Sequence[float], most: int | None, credit_bytes: float | None = None) -> float:
        """Predicted seconds in which transfers that follow each other are under way.

        Args:
            sizes_bytes: bytes on the wire of each transfer.
            most: number of transfers that may be under way at once; None for no limit.
            credit_bytes: bytes that may be under way at once, if no transfer by itself is more; None for no limit.
        """
        times = [self._seconds(size) for size in sizes_bytes]
        limited_s = 0.0 if most is None else sum(time.time_s for time in times) / most
        if credit_bytes is not None:
            parts = (min(size / credit_bytes, 1.0) for size in sizes_bytes)
            limited_s = max(limited_s, sum(part * time.time_s for part, time in zip(parts, times)))
        return max(sum(time.channel_s for time in times) + max((time.lag_s for time in times), default=0.0), limited_s)

    @property
    def has_overlaps(self) -> bool:
        """Whether a transfer is known to let the next one begin before its own results are there."""
        network = self.options.network
        return self.overlaps and network is not None and network.has_overlaps(self.workers)

    def _chosen(self, size_bytes: float) -> Candidate | Choice | None:
        """What travels; None where nothing does, or nothing is known. Of the wire's bytes any element type will do."""
        options, network = self.options, self.options.network
        if network is None or self.workers == 1:
            return None
        depth = options.depth_of(self.workers, size_bytes)
        if options.algorithm is not None and depth is not None:
            return network.candidate(options.algorithm, depth, self.workers, size_bytes, is_beside=True)
        return network.choose(size_bytes, self.workers, allowed=self._allowed, depth=depth, is_beside=True)

    @cached_property
    def _allowed(self) -> Sequence[str]:
        return allowed_algorithms(self._options_without_wire, self.workers, "float32")

    def _possible(self, size_bytes: float) -> Sequence[Candidate]:
        return possible_collectives(self._options_without_wire, self.workers, "float32", size_bytes)

    def compute_factor(self, compute_s: float, under_way_s: float, taken_s: float) -> float:
        """The factor by which a step's computation takes longer beside its transfers, as far as that was measured.

        While transfers run, it makes progress at 1 - share of its speed, so with them all along it takes
        1 / (1 - share) times as long; and at most they take share of their own time from it.

        Args:
            compute_s: seconds of computation without transfers, updates included.
            under_way_s: seconds in which transfers are under way.
            taken_s: seconds that transfers take from computation, see `processor_s`.
        """
        if compute_s <= 0 or taken_s <= 0 or not self.takes_processor:
            return 1.0
        share = MOST_PROCESSOR_SHARE if under_way_s <= 0 else min(taken_s / under_way_s, MOST_PROCESSOR_SHARE)
        return min(1 / (1 - share), 1 + taken_s / compute_s)

    def least_compute_factor(self, compute_s: float, size_bytes: float) -> float:
        """`compute_factor` for one transfer, if it were the all-reduce that takes least from computation; for bounds.

        Args:
            compute_s: seconds of computation without transfers, updates included.
            size_bytes: bytes of the transfer on the wire.
        """
        network = self.options.network
        if network is None or compute_s <= 0 or not self.takes_processor:
            return 1.0
        # A depth that was not measured counts as what takes most; as one piece it may take less.
        return min(
            self.compute_factor(compute_s, c.time_s, share * c.time_s)
            for c in self._possible(size_bytes)
            for depth in {c.depth, self.options.depth or 1}
            for share in [network.processor_share(self.workers, c.algorithm, depth, size_bytes)]
        )

    def processor_s(self, size_bytes: float) -> float:
        """Seconds by which one transfer makes the computation beside it longer, as far as that was measured."""
        return self._seconds(size_bytes).processor_s if self.takes_processor else 0.0

    def processor_start_s(self, total_bytes: float) -> float:
        """The seconds of `processor_s` that every transfer has, whatever its size.

        Args:
            total_bytes: bytes of all gradients.
        """
        small, large = _SMALLEST_PLANNED_BYTES, max(total_bytes, 2 * _SMALLEST_PLANNED_BYTES)
        slope = (self.processor_s(large) - self.processor_s(small)) / (large - small)
        return max(self.processor_s(small) - max(slope, 0.0) * small, 0.0)

    @cached_property
    def _options_without_wire(self) -> CollectiveOptions:
        options = self.options
        return replace(options, wire=None)

    def cheapest_bytes(self, total_bytes: float) -> float:
        """The largest size of a transfer whose bytes cost much less than those of all in one.

        Args:
            total_bytes: bytes of all gradients; no transfer is larger.

        Returns:
            A size whose bytes cost at least `_LEAST_CUT_GAIN` less each; if there is none, all bytes.
        """
        network = self.options.network
        if network is None or self.workers == 1 or total_bytes <= 1:
            return max(total_bytes, 1.0)
        most_s_per_byte = (1 - _LEAST_CUT_GAIN) * self.channel_s(total_bytes) / total_bytes
        sizes = (size for size in network.breakpoints_bytes(self.workers) if 1 <= size < total_bytes)
        return max((s for s in sizes if self.channel_s(s) / s <= most_s_per_byte), default=total_bytes)

    def line(self, total_bytes: float) -> Line:
        """A line through the seconds for which transfers between 64 KiB and all bytes of a step have the channel.

        Args:
            total_bytes: bytes of all gradients.
        """
        if self.workers == 1:
            return Line(0.0, 0.0)
        return fit_line([Sample(size, self.channel_s(size)) for size in _sizes(total_bytes, _SMALLEST_PLANNED_BYTES)])

    def line_below(self, total_bytes: float) -> Line:
        """Of `lines_below`, the one that is highest for all bytes of a step.

        Args:
            total_bytes: bytes of all gradients.
        """
        return max(self.lines_below(total_bytes), key=lambda line: line.time_s(total_bytes))

    def lines_below(self, total_bytes: float) -> Sequence[Line]:
        """Lines that no transfer of up to all bytes of a step is below, whatever may be chosen; for bounds.

        They are the edges of the lower convex hull of all seconds for which a transfer may have the channel. Where an
        edge would be below 0 at the start, one through 0 takes its place.

        Args:
            total_bytes: bytes of all gradients.
        """
        if self.workers == 1:
            return [Line(0.0, 0.0)]
        hull: list[tuple[float, float]] = []
        for point in self._points_below(max(total_bytes, 1.0)):
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-2], point):
                hull.pop()
            hull.append(point)
        lines = [_line_through(*pair) for pair in pairwise(hull)]
        rising = [line for line in lines if line.b_s_per_byte >= 0 and line.a_s >= 0]
        if any(line.b_s_per_byte < 0 for line in lines):
            rising.append(Line(min(time_s for _, time_s in hull), 0.0))
        if not rising or any(line.a_s < 0 for line in lines):
            rising.append(Line(0.0, min(time_s / size for size, time_s in hull if size > 0)))
        return rising

    def _points_below(self, total_bytes: float) -> list[tuple[float, float]]:
        """Points (bytes, seconds) in ascending order, below whose connecting lines no transfer is.

        Between measured sizes each all-reduce takes seconds on a line. Where its contention was not measured, the least
        of both ends counts.
        """
        network = self.options.network
        assert network is not None
        sizes = {0.0, total_bytes, *(2.0**n for n in range(int(math.log2(total_bytes)) + 1))}
        sizes |= {size for size in network.breakpoints_bytes(self.workers) if size < total_bytes}
        if self.options.depth_by_threshold and 0 < self.threshold_bytes < math.inf:
            sizes |= {
                n * self.threshold_bytes for n in range(1, MOST_DEPTH + 1) if n * self.threshold_bytes < total_bytes
            }
        ordered = sorted(sizes)
        least = [min(map(self._channel_s_of, self._possible(size))) for size in ordered]
        for n, ends in enumerate(pairwise(ordered)):
            for kind in self._possible(sum(ends) / 2):  # what may be chosen changes at no size in between
                first, last = (
                    network.candidate(kind.algorithm, kind.depth, self.workers, size, is_beside=True) for size in ends
                )
                part = min((self._channel_s_of(c) / c.alone_s for c in (first, last) if c.alone_s > 0), default=1.0)
                least[n] = min(least[n], part * first.alone_s)
                least[n + 1] = min(least[n + 1], part * last.alone_s)
        return list(zip(ordered, least))

    def _channel_s_of(self, candidate: Candidate) -> float:
        return candidate.channel_s if self.overlaps else candidate.time_s

    @property
    def has_threshold(self) -> bool:
        """Whether the threshold follows from what was measured: it is that of transfers in one piece."""
        try:
            return self.threshold_bytes >= 0
        except InputError:
            return False

    @cached_property
    def threshold_bytes(self) -> float:
        """The largest size at which joining two transfers of one all-reduce saves 20 % of their time, in bytes.

        Source:
            Caramel, section 4.2.
        """
        return 0.0 if self.workers == 1 else self.options.threshold_bytes(self.workers)


def _slope(first: tuple[float, float], second: tuple[float, float]) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])


def _line_through(first: tuple[float, float], second: tuple[float, float]) -> Line:
    slope = _slope(first, second)
    start_s = min(first[1] - slope * first[0], second[1] - slope * second[0])
    return Line(start_s * (1 - _ROUNDING) if start_s > 0 else start_s, slope * (1 - _ROUNDING))


def _sizes(total_bytes: float, smallest: int) -> list[int]:
    """Bytes from the smallest transfer to all bytes of a step, each twice the one before."""
    last = int(max(total_bytes, 2 * _SMALLEST_PLANNED_BYTES))
    sizes = [smallest]
    while sizes[-1] * 2 < last:
        sizes.append(sizes[-1] * 2)
    return [*sizes, last]
