"""The network model: what is known about all-reduce times, and the choices that follow from it."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

from caramel.collectives.algorithms import ALGORITHMS, ALL_REDUCE_NAMES, NATIVE, all_reduce_named
from caramel.collectives.hierarchy import hierarchy_name
from caramel.errors import InputError
from caramel.netmodel.contention import Contention, ContentionModel
from caramel.netmodel.costs import Cost, fit_cost
from caramel.netmodel.line import Curve, Line
from caramel.netmodel.processor_time import fit_processor_cost, pooled
from caramel.netmodel.ranking import Candidate, Choice, Prediction, best_of, measured_if_any
from caramel.netmodel.table import ReductionTable
from caramel.util.arguments import MOST_CHUNKS, MOST_PREDICTED_WORKERS, shown

MOST_DEPTH = 8
"""Largest depth that is chosen (Caramel, section 4.4: depths from 1 to 8)."""

MEASURED_DEPTHS = (1, 2, 4, 8)
"""Depths that are measured (Caramel, figure 13)."""

_MOST_BYTES = 2**60
"""Bytes of the largest transfer whose time is predicted, as in the file of a network (our choice)."""

MOST_TIMES_MEASURED = 4
"""Ratio of a number of workers to the largest that was measured, up to which steps are predicted (our choice)."""

LARGE_BYTES = 4 * 2**20
"""Bytes of the larger of the two transfers that Caramel measures (section 4.2)."""

MESSAGE_LATENCY_S = 100e-6
"""Seconds of one message between two TensorFlow servers on the loopback device (`docs/benchmarks/all-reduces.md`)."""


def default_depth(size_bytes: float, threshold: float) -> int:
    """clamp(floor(bytes / threshold), 1, 8): the depth where no measurement of depths says better.

    >>> [default_depth(size, 100) for size in (0, 99, 250, 10_000)]
    [1, 1, 2, 8]

    Source:
        Caramel, section 4.4, which names the range and the threshold but no formula.
    """
    if threshold <= 0:
        return MOST_DEPTH if size_bytes > 0 else 1
    return int(min(max(size_bytes // threshold, 1), MOST_DEPTH))


def _check_range(workers: int, depth: int, size_bytes: float) -> None:
    """Refuse what no time can be predicted for."""
    try:
        is_possible = (
            1 <= workers <= MOST_PREDICTED_WORKERS
            and workers == int(workers)
            and 1 <= depth <= MOST_CHUNKS
            and depth == int(depth)
            and 0 <= size_bytes <= _MOST_BYTES
        )
    except (TypeError, ValueError):  # no numbers
        is_possible = False
    if not is_possible:
        raise InputError(
            f"a prediction needs at least 1 worker (at most {MOST_PREDICTED_WORKERS:,}), depth 1 "
            f"(at most {MOST_CHUNKS}) and 0 bytes (at most {_MOST_BYTES:.3g}), got {shown(workers)}, {shown(depth)} "
            f"and {shown(size_bytes)}"
        )


def _is_finite(value: Any) -> bool:
    """Whether this is a finite number of at least 0."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and bool(0 <= value <= sys.float_info.max)


@dataclass(frozen=True)
class NetworkModel:
    """Times of all-reduces on one network.

    Attributes:
        description: origin of the model, for people.
        curves: measured times, one curve for each number of workers, algorithm and depth.
        gamma_s_per_byte: measured seconds for adding a byte on one worker.
        given: alpha, beta and gamma that were given by hand, instead of measurements.
        contentions: measurements of how all-reduces and computation slow each other down, if there are any.
        workers_on_host: number of workers that share the link of a host, where costs were given by hand; measurements
            have been made with as many as there were. A file of a network does not have it.

    Examples:
        >>> import caramel
        >>> network = caramel.NetworkModel.from_link_rate(125e6)
        >>> round(network.predict("ring", 1, workers=4, size_bytes=4e6).time_s, 4)
        0.0486
    """

    description: str
    curves: tuple[Curve, ...] = ()
    gamma_s_per_byte: float = 0.0
    given: Cost | None = None
    contentions: tuple[Contention, ...] = ()
    workers_on_host: int = 1

    # -- making one ------------------------------------------------------------------------------

    @classmethod
    def from_costs(cls, alpha_s: float, beta_s_per_byte: float, gamma_s_per_byte: float = 0.0) -> NetworkModel:
        """A network by hand, for planning; it holds for any number of workers.

        Args:
            alpha_s: seconds for each message.
            beta_s_per_byte: seconds for each byte on a link.
            gamma_s_per_byte: seconds for each byte that is added.

        Raises:
            InputError: a negative or infinite number.
        """
        for name, value in (("alpha", alpha_s), ("beta", beta_s_per_byte), ("gamma", gamma_s_per_byte)):
            if not _is_finite(value):
                raise InputError(f"{name} of a network must be a finite number of at least 0, got {shown(value)}")
        if alpha_s == 0 and beta_s_per_byte == 0:
            raise InputError("a network needs an alpha or a beta above 0")
        text = f"given by hand: alpha {alpha_s:g} s, beta {beta_s_per_byte:g} s/byte, gamma {gamma_s_per_byte:g} s/byte"
        return cls(text, given=Cost(alpha_s, beta_s_per_byte, gamma_s_per_byte))

    @classmethod
    def from_link_rate(cls, rate_bytes_per_s: float, latency_s: float = MESSAGE_LATENCY_S) -> NetworkModel:
        """A network of links with one rate, for planning.

        Args:
            rate_bytes_per_s: payload bytes per second of each worker's link, in each direction.
            latency_s: seconds for each message.

        Raises:
            InputError: a rate that is not positive and finite, or a negative latency.
        """
        if not _is_finite(rate_bytes_per_s) or rate_bytes_per_s == 0:
            raise InputError(f"the rate of a link must be positive and finite, got {shown(rate_bytes_per_s)} bytes/s")
        network = cls.from_costs(latency_s, 1 / rate_bytes_per_s)
        return cls(
            f"given by hand: links of {rate_bytes_per_s:g} bytes/s, {latency_s:g} s per message", given=network.given
        )

    # -- what is known ---------------------------------------------------------------------------

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """Numbers of workers that were measured."""
        return tuple(sorted({c.workers for c in self.curves}))

    @cached_property
    def _by_key(self) -> dict[tuple[int, str, int], Curve]:
        return {(c.workers, c.algorithm, c.depth): c for c in self.curves}

    @cached_property
    def costs(self) -> dict[tuple[str, int], Cost]:
        """Alpha, beta and gamma by algorithm and depth, for those measured with several numbers of workers."""
        curves: dict[tuple[str, int], list[Curve]] = {}
        for curve in self.curves:
            if curve.workers > 1:
                curves.setdefault((curve.algorithm, curve.depth), []).append(curve)
        return {
            key: fit_cost(measured, self.gamma_s_per_byte)
            for key, measured in sorted(curves.items())
            if len({c.workers for c in measured}) > 1
        }

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about curves that no line fits."""
        return tuple(c.warning for c in self.curves if c.warning is not None)

    def merged(self, other: NetworkModel) -> NetworkModel:
        """This model with the measurements of another one of the same network, for other numbers of workers.

        Raises:
            InputError: both have measured the same.
        """
        if common := self._by_key.keys() & other._by_key.keys():
            workers, algorithm, depth = min(common)
            raise InputError(
                f"both network models have measured {algorithm} at depth {depth} on {workers} workers: "
                "leave one of the measurements out"
            )
        gamma = min(self.gamma_s_per_byte, other.gamma_s_per_byte)
        contentions = (*self.contentions, *other.contentions)
        return NetworkModel(self.description, (*self.curves, *other.curves), gamma, contentions=contentions)

    def further_algorithms(self, workers: int) -> Collection[str]:
        """Names of the all-reduces that are known besides those that need to know nothing of hosts.

        Args:
            workers: number of workers.
        """
        if self.given is None:
            return [name for name, _ in self._known(workers) if name not in ALL_REDUCE_NAMES]
        shares_links = 1 < self.workers_on_host < workers
        return [hierarchy_name(self.workers_on_host)] if shares_links else []

    def require(self, workers: int) -> None:
        """Check that a graph for so many workers may be built on this model.

        Raises:
            InputError: it was measured for other numbers of workers only.
        """
        if not self.is_known_for(workers):
            measured = ", ".join(map(str, self.workers)) or "no"
            raise InputError(
                f"the network model was measured with {measured} workers, not with {workers}: "
                f"measure that too (caramel netbench --workers {workers}); only predictions go beyond what was measured"
            )

    def is_known_for(self, workers: int) -> bool:
        """Whether all-reduces of so many workers were measured, or are given by hand: nothing is extrapolated."""
        return workers == 1 or self.given is not None or workers in self.workers

    def require_prediction(self, workers: int) -> None:
        """Check that steps of so many workers may be predicted on this model.

        Raises:
            InputError: nothing is known of such numbers of workers, or they are far beyond what was measured.
        """
        if self.is_known_for(workers):
            return
        measured = ", ".join(map(str, self.workers)) or "no"
        if not self.costs:
            raise InputError(
                f"the network model was measured with {measured} workers, which says nothing of {workers}: measure "
                "with another number of workers, too; from two on, others are predicted"
            )
        most = MOST_TIMES_MEASURED * max(self.workers)
        if workers > most:
            raise InputError(
                f"the network model was measured with {measured} workers, and predicts steps of up to {most} "
                f"({MOST_TIMES_MEASURED} times as many), not of {workers}: measure with more workers, or give the "
                "network by hand (caramel.NetworkModel.from_costs)"
            )

    # -- predictions -----------------------------------------------------------------------------

    def predict(
        self, algorithm: str, depth: int, workers: int, size_bytes: float, *, is_beside: bool = False
    ) -> Prediction:
        """Time of one all-reduce.

        Args:
            algorithm: name of the collective.
            depth: number of chunks.
            workers: number of workers, at least 1.
            size_bytes: bytes of the tensor.
            is_beside: whether all workers compute meanwhile.

        Raises:
            InputError: nothing is known about this algorithm at this depth or a smaller one.
        """
        if not isinstance(algorithm, str):
            raise InputError(
                f"an algorithm is named by a text, one of {', '.join(ALL_REDUCE_NAMES)}, got {shown(algorithm)}"
            )
        alone = self._predicted_alone(algorithm, depth, workers, size_bytes)
        if not (is_beside and self.contentions):
            return alone
        return replace(alone, time_s=alone.time_s * self.slowdown(workers, algorithm, depth, size_bytes))

    def interpolation_error(self, algorithm: str, depth: int, workers: int) -> float:
        """The relative error of an all-reduce's measurements; see `Curve.interpolation_error`.

        Args:
            algorithm: name of the collective.
            depth: number of chunks.
            workers: number of workers.

        Returns:
            The error; of what was not measured the largest of all curves, 0 where there is none.
        """
        curve = self._by_key.get((workers, algorithm, depth))
        curves = self.curves if curve is None else (curve,)
        return max((c.interpolation_error for c in curves), default=0.0)

    def _predicted_alone(self, algorithm: str, depth: int, workers: int, size_bytes: float) -> Prediction:
        _check_range(workers, depth, size_bytes)
        if self.given is not None:
            time_s = self.given.time_s(algorithm, workers, depth, size_bytes, self.workers_on_host)
            return Prediction(time_s, "given")
        if workers == 1:
            return Prediction(0.0, "measured")
        curve = self._by_key.get((workers, algorithm, depth))
        if curve is not None:
            first, last = curve.valid_bytes
            inside = first <= size_bytes <= last
            return Prediction(curve.time_s(size_bytes), "measured" if inside else "extrapolated")
        cost = self.costs.get((algorithm, depth))
        if cost is not None:
            return Prediction(cost.time_s(algorithm, workers, depth, size_bytes), "extrapolated")
        depths = sorted(d for name, d in self._known(workers) if name == algorithm)
        if algorithm != NATIVE and depths and depths[0] < depth:
            return Prediction(self._at_other_depth_s(algorithm, depths, depth, workers, size_bytes), "extrapolated")
        raise InputError(
            f"nothing was measured about {algorithm} at depth {depth} on {workers} workers: known are "
            f"{self._listed(self._known(workers))}; measure two or more numbers of workers to predict others"
        )

    def _at_other_depth_s(
        self, algorithm: str, depths: Sequence[int], depth: int, workers: int, size_bytes: float
    ) -> float:
        """Seconds at a depth that was not measured: between measured ones on a line, beyond with a start for each more.

        What else more chunks change than that each has a start of its own was not measured.
        """

        def time_s(known: int, size: float) -> float:
            return self._predicted_alone(algorithm, known, workers, size).time_s

        fewer = max(d for d in depths if d < depth)
        more = min((d for d in depths if d > depth), default=None)
        if more is not None:
            fraction = (depth - fewer) / (more - fewer)
            return (1 - fraction) * time_s(fewer, size_bytes) + fraction * time_s(more, size_bytes)
        fewest = depths[0]
        if fewest < fewer:
            start_s = max(time_s(fewer, 0) - time_s(fewest, 0), 0.0) / (fewer - fewest)
        else:
            start_s = time_s(fewer, 0) / fewer
        return time_s(fewer, size_bytes) + (depth - fewer) * start_s

    def _known(self, workers: int) -> list[tuple[str, int]]:
        """Measured pairs of algorithm and depth, in the order in which ties are broken."""
        if workers not in self._known_by_workers:
            measured = [(a, d) for n, a, d in self._by_key if n == workers]
            places = {name: place for place, name in enumerate(ALL_REDUCE_NAMES)}
            self._known_by_workers[workers] = sorted(
                measured or self.costs, key=lambda key: (key[1], places.get(key[0], len(places)), key[0])
            )
        return self._known_by_workers[workers]

    @cached_property
    def _known_by_workers(self) -> dict[int, list[tuple[str, int]]]:
        return {}

    def _listed(self, known: Sequence[tuple[str, int]]) -> str:
        text = ", ".join(f"{name} at depth {depth}" for name, depth in known)
        return text or f"measurements of {', '.join(map(str, self.workers))} workers only"

    def _threshold(self, algorithm: str, workers: int) -> float:
        """The threshold in bytes of an algorithm without chunks."""
        curve = self._by_key.get((workers, algorithm, 1))
        if curve is not None:
            return curve.threshold_bytes
        start_s, one_s = (self.predict(algorithm, 1, workers, size).time_s for size in (0, LARGE_BYTES))
        return Line(start_s, (one_s - start_s) / LARGE_BYTES).threshold_bytes

    def threshold_bytes(self, workers: int, algorithm: str | None = None) -> float:
        """The largest size in bytes at which joining two transfers still saves 20 % of their time.

        The largest x with f(2x) / (2 f(x)) <= 0.8; for a line that is 1.5 a / b.

        Args:
            workers: number of workers.
            algorithm: name of the algorithm whose time is f; default: that which is fastest for 4 MiB without chunks.

        Raises:
            InputError: nothing is known about it.

        Source:
            Caramel, section 4.2.
        """
        _check_range(workers, 1, 0)
        if workers == 1:
            return 0.0
        if algorithm is None:
            algorithm = self.choose(LARGE_BYTES, workers, depth=1).algorithm
        return self._threshold(algorithm, workers)

    def processor_share(self, workers: int, algorithm: str, depth: int, size_bytes: float) -> float:
        """The fraction of its progress that computation loses beside an all-reduce; 0 where that was not measured."""
        contention = self._contention_of(workers)
        return 0.0 if contention is None else contention.processor_share(algorithm, depth, size_bytes)

    def slowdown(self, workers: int, algorithm: str, depth: int, size_bytes: float) -> float:
        """The factor by which an all-reduce takes longer beside computation; 1 where that was not measured."""
        contention = self._contention_of(workers)
        return 1.0 if contention is None else contention.slowdown(algorithm, depth, size_bytes)

    def channel_part(self, workers: int, algorithm: str, depth: int, size_bytes: float) -> float:
        """The fraction of the time of an all-reduce beside computation for which the next one waits, at most 1.

        What messages wait for, besides each other, those of several all-reduces do at once. 1 where that was not
        measured.
        """
        contention = self._contention_of(workers)
        return 1.0 if contention is None or workers == 1 else contention.channel_part(algorithm, depth, size_bytes)

    def has_overlaps(self, workers: int) -> bool:
        """Whether some `channel_part` is less than 1."""
        return self._nearest_measured(workers) in self._overlapping_workers

    @cached_property
    def _overlapping_workers(self) -> frozenset[int]:
        overlapping = (c for c in self.contentions if c.occupancy is not None and c.occupancy < c.slowdown)
        return frozenset(c.workers for c in overlapping if c.workers > 1)

    def _nearest_measured(self, workers: int) -> int:
        """The number of workers whose measurements beside computation count for others, as their costs do."""
        if self.is_known_for(workers) or not self.contentions:
            return workers
        return min({c.workers for c in self.contentions}, key=lambda known: (abs(math.log(known / workers)), -known))

    def _contention_of(self, workers: int) -> ContentionModel | None:
        return self._contention_models.get(self._nearest_measured(workers))

    def breakpoints_bytes(self, workers: int) -> Collection[float]:
        """The sizes between which all predictions without computation are on lines, ascending.

        Args:
            workers: number of workers.
        """
        nearest = self._nearest_measured(workers)
        sizes = {s.size_bytes for c in self.curves if c.workers == workers for s in c.samples}
        sizes |= {c.size_bytes for c in self.contentions if c.workers == nearest}
        return sorted(map(float, sizes))

    @cached_property
    def _contention_models(self) -> dict[int, ContentionModel]:
        """The models of contention by number of workers."""

        def contention_model(workers: int) -> ContentionModel:
            def alone_s(algorithm: str, depth: int, size_bytes: float) -> float:
                return self._predicted_alone(algorithm, depth, workers, size_bytes).time_s

            contentions: Sequence[Contention] = [c for c in self.contentions if c.workers == workers]
            cost = fit_processor_cost(contentions, alone_s)
            if cost is None:
                return ContentionModel(contentions, alone_s)
            return ContentionModel(pooled(contentions, alone_s, cost), alone_s, lambda a, d: cost.line(a, workers, d))

        return {workers: contention_model(workers) for workers in {c.workers for c in self.contentions}}

    # -- choices ---------------------------------------------------------------------------------

    def choose(
        self,
        size_bytes: float,
        workers: int,
        *,
        allowed: Collection[str] | None = None,
        depth: int | None = None,
        is_beside: bool = False,
        after_pause: bool = False,
    ) -> Choice:
        """The algorithm and depth with the least predicted delay for one transfer; by itself that is its time.

        Args:
            size_bytes: bytes on the wire.
            workers: number of workers.
            allowed: names of algorithms; default: all that are known. `native` must be much faster than others: it runs
                no more once a server was restarted, or in two sessions on the same servers.
            depth: the only depth to choose; default: one of those that were measured.
            is_beside: whether all workers compute meanwhile.
            after_pause: whether nothing was sent for a while before.

        Returns:
            The choice by the rules of `best_of`; the order of equally fast ones is that of `ALGORITHMS`.

        Raises:
            InputError: none of the allowed ones is known for so many workers.
        """
        _check_range(workers, 1 if depth is None else depth, size_bytes)
        table = self._table(workers, allowed, depth, is_beside)
        if table is not None:
            candidates = table.near_best(size_bytes)
        else:
            candidates = self.candidates(size_bytes, workers, allowed=allowed, depth=depth, is_beside=is_beside)
        prefers_one_sender = (is_beside or after_pause) and workers > 2 and self.given is None
        return best_of(candidates, size_bytes, is_beside, prefers_one_sender)

    def _table(
        self, workers: int, allowed: Collection[str] | None, depth: int | None, is_beside: bool
    ) -> ReductionTable | None:
        """A table of what was measured, if there is anything to choose among."""
        key = (workers, None if allowed is None else frozenset(allowed), depth, is_beside)
        if key not in self._tables:
            curves = [
                self._by_key[workers, name, chunks]
                for name, chunks in self._known(workers)
                if (workers, name, chunks) in self._by_key
                and (allowed is None or name in allowed)
                and depth in (None, chunks)
            ]
            contention = self._contention_models.get(workers) if is_beside else None
            is_usable = curves and workers > 1 and self.given is None
            overlaps = self.has_overlaps(workers)
            self._tables[key] = ReductionTable(curves, contention, overlaps) if is_usable else None
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[tuple[int, frozenset[str] | None, int | None, bool], ReductionTable | None]:
        return {}

    def candidate(
        self, algorithm: str, depth: int, workers: int, size_bytes: float, *, is_beside: bool = False
    ) -> Candidate:
        """One all-reduce that may be chosen for one transfer.

        Args:
            algorithm: name of the collective.
            depth: number of chunks.
            workers: number of workers, at least 1.
            size_bytes: bytes of the tensor.
            is_beside: whether all workers compute meanwhile.

        Raises:
            InputError: see `predict`.
        """
        alone = self._predicted_alone(algorithm, depth, workers, size_bytes)
        if not (is_beside and self.contentions):
            return Candidate(alone, algorithm, depth)
        slowdown = self.slowdown(workers, algorithm, depth, size_bytes)
        share = self.processor_share(workers, algorithm, depth, size_bytes)
        prediction = Prediction(alone.time_s * slowdown, alone.basis)
        if not self.has_overlaps(workers):
            return Candidate(prediction, algorithm, depth, None, slowdown, share)
        occupied_s = self.channel_part(workers, algorithm, depth, size_bytes) * prediction.time_s
        return Candidate(prediction, algorithm, depth, occupied_s, slowdown, share)

    def candidates(
        self,
        size_bytes: float,
        workers: int,
        *,
        allowed: Collection[str] | None = None,
        depth: int | None = None,
        is_beside: bool = False,
    ) -> Sequence[Candidate]:
        """The candidates for one transfer; nothing is extrapolated where something was measured.

        Args:
            size_bytes: bytes on the wire.
            workers: number of workers.
            allowed: names of algorithms; default: all that are known.
            depth: the only depth to choose; default: see `choose`.
            is_beside: whether all workers compute meanwhile.

        Raises:
            InputError: none of the allowed ones is known for so many workers.
        """
        _check_range(workers, 1 if depth is None else depth, size_bytes)
        candidates = [
            candidate
            for candidate in self._candidates(size_bytes, workers, depth, is_beside, allowed or ())
            if allowed is None or candidate.algorithm in allowed
        ]
        if not candidates:
            wanted = "any algorithm" if allowed is None else " or ".join(allowed)
            given = (*ALGORITHMS, *self.further_algorithms(workers))
            known = self._known(workers) if self.given is None else [(name, 1) for name in given]
            raise InputError(
                f"the network model knows nothing about {wanted} on {workers} workers"
                + (f" at depth {depth}" if depth is not None else "")
                + f": known are {self._listed(known)}; measure it with caramel netbench"
            )
        return measured_if_any(candidates)

    def _candidates(
        self, size_bytes: float, workers: int, depth: int | None, is_beside: bool, asked: Collection[str]
    ) -> Iterator[Candidate]:
        if self.given is not None:
            yield from self._given_candidates(size_bytes, workers, depth, asked)
            return
        if workers == 1:
            yield Candidate(Prediction(0.0, "measured"), "shuffle", depth or 1)
            return
        for name, chunks in self._known(workers) if depth is None else self._at_depth(depth, workers):
            yield self.candidate(name, chunks, workers, size_bytes, is_beside=is_beside)

    def _at_depth(self, depth: int, workers: int) -> list[tuple[str, int]]:
        """The algorithms at one depth: those that were measured at it, or all if none was."""
        known = self._known(workers)
        names = [name for name, chunks in known if chunks == depth]
        others = (name for name, chunks in known if chunks < depth and name != NATIVE)
        return [(name, depth) for name in names or dict.fromkeys(others)]

    def _given_candidates(
        self, size_bytes: float, workers: int, depth: int | None, asked: Collection[str]
    ) -> Iterator[Candidate]:
        for name in dict.fromkeys((*ALL_REDUCE_NAMES, *self.further_algorithms(workers), *asked)):
            if depth is not None or name == NATIVE:
                depths: Sequence[int] = (depth or 1,)
            elif all_reduce_named(name).is_pipelined:
                depths = MEASURED_DEPTHS
            else:
                depths = (default_depth(size_bytes, self._threshold(name, workers)) if workers > 1 else 1,)
            for chunks in depths:
                yield Candidate(self.predict(name, chunks, workers, size_bytes), name, chunks)
