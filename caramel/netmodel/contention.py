"""How computation and all-reduces that run at once are in each other's way."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from caramel.errors import FitError
from caramel.netmodel.line import Line

MOST_PROCESSOR_SHARE = 0.95
"""Largest processor share of all-reduces, as a fraction of the processors' time; computation would hardly go on beside
all-reduces that take more."""


@dataclass(frozen=True)
class Durations:
    """Seconds from a common start to the end of the computation and to the end of the all-reduces.

    Attributes:
        compute_s: seconds of the computation.
        reduce_s: seconds of the all-reduces.
    """

    compute_s: float
    reduce_s: float


@dataclass(frozen=True)
class Contention:
    """A measurement with one number of workers, one kind of all-reduce and one size.

    Attributes:
        workers: number of workers, all of which compute.
        algorithm: name of the collective.
        depth: number of chunks.
        size_bytes: bytes of the tensors that are reduced.
        processor_share: fraction of its progress that computation loses while all-reduces run, from 0 to 0.95.
        slowdown: factor by which an all-reduce takes longer while all workers compute, at least 1.
        occupancy: the seconds by which each more of several at once delays the end of all, while all workers compute,
            over those that one takes by itself: what they wait for, besides each other, they do at once. None where
            that was not measured: then each counts as if none began before it has ended.
    """

    workers: int
    algorithm: str
    depth: int
    size_bytes: int
    processor_share: float
    slowdown: float
    occupancy: float | None = None


def contention_of(alone: Durations, together: Durations) -> tuple[float, float]:
    """The contention that follows from the times of a computation and of all-reduces, each by itself and both at once.

    While both run, each makes progress at its slower speed; what is left of the longer one then runs by itself. So the
    computation's speed beside all-reduces is what it has done by their end, over the time that took, and likewise.

    Args:
        alone: seconds of each by itself.
        together: seconds of each with both at once.

    Returns:
        The processor share and the slowdown; see `Contention`.

    Raises:
        FitError: a time is not positive and finite.

    >>> share, slowdown = contention_of(Durations(0.6, 1.0), Durations(0.75, 1.1))
    >>> round(share, 9), round(slowdown, 3)
    (0.2, 1.154)
    """
    times = (alone.compute_s, alone.reduce_s, together.compute_s, together.reduce_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times):
        raise FitError(f"times of computation and all-reduces must be positive and finite, got {times}")
    both_s = min(together.compute_s, together.reduce_s)
    compute_speed = (alone.compute_s - (together.compute_s - both_s)) / both_s
    reduce_speed = (alone.reduce_s - (together.reduce_s - both_s)) / both_s
    share = min(max(1 - compute_speed, 0.0), MOST_PROCESSOR_SHARE)
    return share, 1 / min(max(reduce_speed, 1 - MOST_PROCESSOR_SHARE), 1.0)


class _Effects(NamedTuple):
    """What an all-reduce and computation do to each other; see `effects_of`."""

    slowdown: float
    channel_part: float
    processor_share: float


class _MeasuredKind:
    """One algorithm at one depth: seconds on lines between measured sizes, and beyond them those at the nearest."""

    def __init__(self, contentions: Sequence[Contention], alone_s: Callable[[float], float]) -> None:
        self.sizes = [float(contention.size_bytes) for contention in contentions]
        self._alone_s = alone_s
        self._seconds = []
        """For each size: seconds in which the all-reduce waits for computation; which it takes from computation; and,
        of its own, for which other all-reduces need not wait."""
        for contention, size in zip(contentions, self.sizes):
            time_s = alone_s(size)
            lag = 0.0 if contention.occupancy is None else max(contention.slowdown - contention.occupancy, 0.0)
            taken = contention.processor_share * contention.slowdown
            self._seconds.append(((contention.slowdown - 1) * time_s, taken * time_s, lag * time_s))

    def seconds(self, size_bytes: float) -> tuple[float, float, float, float]:
        """Seconds by itself, waited, taken from computation, and of lag, at the nearest size that was measured."""
        size = min(max(size_bytes, self.sizes[0]), self.sizes[-1])
        if len(self.sizes) == 1:
            return self._alone_s(size), *self._seconds[0]
        after = max(bisect_left(self.sizes, size), 1)
        first, last = self.sizes[after - 1], self.sizes[after]
        part = (size - first) / (last - first)
        waited_s, taken_s, lag_s = (x + (y - x) * part for x, y in zip(self._seconds[after - 1], self._seconds[after]))
        return self._alone_s(size), waited_s, taken_s, lag_s


def effects_of(alone_s: Any, waited_s: Any, taken_s: Any, lag_s: Any) -> tuple[Any, Any, Any]:
    """What all-reduces and computation do to each other, from seconds: numbers, or arrays of them.

    Args:
        alone_s: seconds of an all-reduce by itself.
        waited_s: further seconds in which it waits for computation.
        taken_s: seconds that it takes from computation.
        lag_s: seconds of the first two for which other all-reduces need not wait.

    Returns:
        The slowdown of the all-reduce, the part of its time for which the next one waits, and its processor share.
    """
    total_s = alone_s + waited_s
    return (
        1 + waited_s / alone_s,
        np.maximum(1 - lag_s / total_s, 0.0),
        np.minimum(taken_s / total_s, MOST_PROCESSOR_SHARE),
    )


class ContentionModel:
    """All-reduces of one number of workers beside computation, at sizes that were measured and at others.

    What computation costs an all-reduce is seconds for each of its messages, which wait for a processor, and what an
    all-reduce costs computation is seconds for its messages and for its bytes. So between measured sizes seconds lie on
    a line over the bytes; below the smallest and above the largest one their part of the time stays as it is. What was
    measured up to some size, while others were measured beyond, counts as not measured there: a star of 4 KiB, which is
    next to nothing but waiting, says little of larger ones.

    Args:
        contentions: measurements with one number of workers.
        alone_s: function (algorithm, depth, bytes) -> seconds of an all-reduce by itself.
        taken: function (algorithm, depth) -> seconds that an all-reduce which was not measured takes from computation,
            over its bytes; None where too little is known for that.

    Attributes:
        taken: the function.
    """

    def __init__(
        self,
        contentions: Sequence[Contention],
        alone_s: Callable[[str, int, float], float],
        taken: Callable[[str, int], Line | None] = lambda algorithm, depth: None,
    ) -> None:
        by_kind: dict[tuple[str, int], list[Contention]] = {}
        for contention in sorted(contentions, key=lambda contention: contention.size_bytes):
            by_kind.setdefault((contention.algorithm, contention.depth), []).append(contention)
        self._largest_bytes = {kind: measured[-1].size_bytes for kind, measured in by_kind.items()}
        self._kinds = {kind: _MeasuredKind(measured, partial(alone_s, *kind)) for kind, measured in by_kind.items()}
        self._alone_s = alone_s
        self.taken = taken
        self._latest: tuple[float, dict[tuple[str, int], tuple[float, float, float, float]], _Effects] | None = None

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """The pairs (algorithm, depth) that were measured."""
        return list(self._kinds)

    @property
    def sizes_bytes(self) -> set[float]:
        """All sizes that were measured."""
        return {size for measured in self._kinds.values() for size in measured.sizes}

    def largest_bytes(self, kind: tuple[str, int]) -> int:
        """The largest size at which one of `kinds` was measured."""
        return self._largest_bytes[kind]

    def seconds_of(self, kind: tuple[str, int]) -> Callable[[float], tuple[float, float, float, float]]:
        """A function from a size in bytes to the arguments of `effects_of`, for one of `kinds`."""
        return self._kinds[kind].seconds

    def kinds_like(self, algorithm: str, depth: int) -> list[tuple[str, int]]:
        """The `kinds` of one algorithm, that with the most similar number of chunks first."""
        alike = [kind for kind in self._kinds if kind[0] == algorithm]
        return sorted(alike, key=lambda kind: (abs(math.log(kind[1] / depth)), kind[1]))

    def slowdown(self, algorithm: str, depth: int, size_bytes: float) -> float:
        """The factor by which an all-reduce takes longer; 1 if nothing was measured.

        Args:
            algorithm: name of the collective.
            depth: number of chunks. What was not measured waits as long as the same algorithm with the most similar
                depth that was; where there is none, it is as slow as the slowest that was at such sizes.
            size_bytes: bytes of the tensor.
        """
        return self._effects(algorithm, depth, size_bytes).slowdown

    def channel_part(self, algorithm: str, depth: int, size_bytes: float) -> float:
        """The fraction of its time by which an all-reduce delays those behind it; 1 if nothing was measured.

        Args:
            algorithm: name of the collective.
            depth: number of chunks; see `slowdown`.
            size_bytes: bytes of the tensor.
        """
        return self._effects(algorithm, depth, size_bytes).channel_part

    def processor_share(self, algorithm: str, depth: int, size_bytes: float) -> float:
        """The fraction of its progress that computation loses while an all-reduce runs; 0 if nothing was measured.

        Args:
            algorithm: name of the collective.
            depth: number of chunks. What was not measured costs what its messages and bytes do; where that is not
                known, as `slowdown` says.
            size_bytes: bytes of the tensor.
        """
        return self._effects(algorithm, depth, size_bytes).processor_share

    def _effects(self, algorithm: str, depth: int, size_bytes: float) -> _Effects:
        if self._latest is None or self._latest[0] != size_bytes:
            least_bytes = min(size_bytes, max(self._largest_bytes.values(), default=0))
            seconds = {
                kind: measured.seconds(size_bytes)
                for kind, measured in self._kinds.items()
                if self._largest_bytes[kind] >= least_bytes
            }
            of_all = [_as_effects(*each) for each in seconds.values()]
            largest = _Effects(*map(max, zip(*of_all))) if of_all else _Effects(1.0, 1.0, 0.0)
            self._latest = (size_bytes, seconds, largest)
        _, seconds, largest = self._latest
        if (algorithm, depth) in seconds:
            return _as_effects(*seconds[algorithm, depth])
        line = self.taken(algorithm, depth)
        like = next((seconds[kind] for kind in self.kinds_like(algorithm, depth) if kind in seconds), None)
        if like is None and line is None:
            return largest
        alone_s = self._alone_s(algorithm, depth, size_bytes)
        found = largest if like is None else _as_effects(alone_s, *like[1:])
        if line is None:
            return found
        share = line.time_s(size_bytes) / (found.slowdown * alone_s)
        return found._replace(processor_share=min(share, MOST_PROCESSOR_SHARE))


def _as_effects(*seconds: float) -> _Effects:
    return _Effects(*map(float, effects_of(*seconds)))
