"""How computation and all-reduces that run at once are in each other's way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caramel.errors import FitError

_MOST_SHARE = 0.95
"""Of the processors' time; computation would hardly go on beside all-reduces that take more."""


@dataclass(frozen=True)
class Durations:
    """Seconds from a common start to the end of both.

    Attributes:
        compute_s: of the computation.
        reduce_s: of the all-reduces.
    """

    compute_s: float
    reduce_s: float


@dataclass(frozen=True)
class Contention:
    """What was measured with one number of workers, one kind of all-reduce and one size.

    Attributes:
        workers: number of workers, all of which compute.
        algorithm: name of the collective.
        depth: number of chunks.
        size_bytes: bytes of the tensors that are reduced.
        processor_share: the part of its progress that computation loses while all-reduces run, from 0 to 0.95.
        slowdown: how many times as long all-reduces take while all workers compute, at least 1.
    """

    workers: int
    algorithm: str
    depth: int
    size_bytes: int
    processor_share: float
    slowdown: float


def contention_of(alone: Durations, together: Durations) -> tuple[float, float]:
    """What follows from the same computation and the same all-reduces, each by itself and both at once.

    While both run, each makes progress at its slower speed; what is left of the longer one then runs by itself. So the
    computation's speed beside all-reduces is what it has done by their end, over the time that took, and likewise.

    Args:
        alone: each by itself.
        together: both at once.

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
    share = min(max(1 - compute_speed, 0.0), _MOST_SHARE)
    return share, 1 / min(max(reduce_speed, 1 - _MOST_SHARE), 1.0)


def processor_share(found: Sequence[Contention], workers: int, algorithm: str, depth: int, size_bytes: float) -> float:
    """The part of its progress that computation loses while such an all-reduce runs; 0 if nothing was measured.

    Args:
        found: measurements.
        workers: number of workers.
        algorithm: name of the collective.
        depth: number of chunks. What was not measured is taken to cost as much as what costs most.
        size_bytes: bytes of the tensor; as for `slowdown`.
    """
    return _at(size_bytes, [(each.size_bytes, each.processor_share) for each in _of(found, workers, algorithm, depth)])


def slowdown(found: Sequence[Contention], workers: int, algorithm: str, depth: int, size_bytes: float) -> float:
    """How many times as long an all-reduce takes; between measured sizes on a line over the size's logarithm.

    Args:
        found: measurements.
        workers: number of workers; 1 where nothing was measured with so many.
        algorithm: name of the collective.
        depth: number of chunks. What was not measured is taken to be as slow as the slowest that was.
        size_bytes: bytes of the tensor. Beyond the measured sizes the last one holds.
    """
    return _at(size_bytes, [(each.size_bytes, each.slowdown) for each in _of(found, workers, algorithm, depth)], 1.0)


def _of(found: Sequence[Contention], workers: int, algorithm: str, depth: int) -> Sequence[Contention]:
    of_all = [each for each in found if each.workers == workers]
    return [each for each in of_all if (each.algorithm, each.depth) == (algorithm, depth)] or of_all


def _at(size_bytes: float, points: Sequence[tuple[float, float]], default: float = 0.0) -> float:
    """What holds at a size, the largest value of each point."""
    if not points:
        return default
    largest: dict[float, float] = {}
    for size, value in points:
        place = math.log2(max(size, 1))
        largest[place] = max(value, largest.get(place, value))
    places = sorted(largest)
    return float(np.interp(math.log2(max(size_bytes, 1)), places, [largest[place] for place in places]))
