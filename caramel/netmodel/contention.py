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
    """What was measured with one number of workers and one size.

    Attributes:
        workers: number of workers, all of which compute.
        size_bytes: bytes of the tensors that are reduced.
        processor_share: the part of its progress that computation loses while all-reduces run, from 0 to 0.95.
        slowdown: how many times as long all-reduces take while all workers compute, at least 1.
    """

    workers: int
    size_bytes: int
    processor_share: float
    slowdown: float


def contention_of(workers: int, size_bytes: int, alone: Durations, together: Durations) -> Contention:
    """What follows from the same computation and the same all-reduces, each by itself and both at once.

    While both run, each makes progress at its slower speed; what is left of the longer one then runs by itself. So the
    computation's speed beside all-reduces is what it has done by their end, over the time that took, and likewise.

    Args:
        workers: number of workers.
        size_bytes: bytes of the tensors that are reduced.
        alone: each by itself.
        together: both at once.

    Raises:
        FitError: a time is not positive and finite.

    >>> contention_of(4, 64, Durations(0.6, 1.0), Durations(0.75, 1.1))
    Contention(workers=4, size_bytes=64, processor_share=0.2, slowdown=1.15...)
    """
    times = (alone.compute_s, alone.reduce_s, together.compute_s, together.reduce_s)
    if not all(math.isfinite(time_s) and time_s > 0 for time_s in times):
        raise FitError(f"times of computation and all-reduces must be positive and finite, got {times}")
    both_s = min(together.compute_s, together.reduce_s)
    compute_speed = (alone.compute_s - (together.compute_s - both_s)) / both_s
    reduce_speed = (alone.reduce_s - (together.reduce_s - both_s)) / both_s
    share = min(max(1 - compute_speed, 0.0), _MOST_SHARE)
    return Contention(workers, size_bytes, share, 1 / min(max(reduce_speed, 1 - _MOST_SHARE), 1.0))


def processor_share(found: Sequence[Contention], workers: int) -> float:
    """The share at the largest size that was measured with so many workers; 0 if none was.

    Of the sizes the largest says best what a step's bytes cost, as these travel in few transfers.
    """
    fitting = [each for each in found if each.workers == workers]
    return max(fitting, key=lambda each: each.size_bytes).processor_share if fitting else 0.0


def slowdown(found: Sequence[Contention], workers: int, size_bytes: float) -> float:
    """How many times as long an all-reduce takes; between measured sizes on a line over the size's logarithm.

    Args:
        found: measurements.
        workers: number of workers; 1 where nothing was measured with so many.
        size_bytes: bytes of the tensor. Beyond the measured sizes the last one holds.
    """
    fitting = sorted((each.size_bytes, each.slowdown) for each in found if each.workers == workers)
    if not fitting:
        return 1.0
    sizes = [math.log2(max(size, 1)) for size, _ in fitting]
    return float(np.interp(math.log2(max(size_bytes, 1)), sizes, [value for _, value in fitting]))
