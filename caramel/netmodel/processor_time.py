"""What all-reduces take from the computation beside them: processor time for their messages and for their bytes.

Seconds that are measured for one all-reduce are the small difference of two long times, and the planner prefers
whatever a disturbance made look cheap. But all algorithms send messages of the same kind. So one cost of a message and
of a byte is fitted to all that was measured, and each measurement counts by how exact it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from caramel.collectives.algorithms import NATIVE, schedule_maker
from caramel.collectives.schedule import check
from caramel.netmodel.contention import MOST_PROCESSOR_SHARE, Contention
from caramel.netmodel.line import Line

_LEAST_MEASUREMENTS = 6
"""Number of measurements from which on a cost is fitted: twice its coefficients."""

_LENGTH_ERROR = 0.05
"""Standard deviation of a measured time taken, over the time of the all-reduce: with that of a computation as long as
it, from one run to the next."""

_KIND_ERROR = 0.2
"""Standard deviation of what is really taken, over the fitted cost. On three published networks of four workers the
measured times lie 24 to 28 % around it, most of which is their own error."""

_HALF_TRUSTED_DEVIATIONS = 2.0
"""Number of standard deviations from the fitted cost at which a measurement counts half: it may be disturbed."""

_MOST_FITS = 50
"""Largest number of fits, each of which weights the measurements by the one before."""


@cache
def messages_of(algorithm: str, workers: int) -> float:
    """Mean number of messages that a worker sends in an all-reduce of one chunk.

    Args:
        algorithm: name of an all-reduce that has a schedule.
        workers: number of workers.
    """
    return sum(check(schedule_maker(algorithm)(workers, workers)).sends) / workers


@dataclass(frozen=True)
class ProcessorCost:
    """Seconds by which computation takes longer, for what a worker sends and receives.

    Attributes:
        message_s: of each message of the first chunk.
        further_message_s: of each message of further chunks; several are handled at once.
        byte_s: of each byte.
    """

    message_s: float
    further_message_s: float
    byte_s: float

    def line(self, algorithm: str, workers: int, depth: int) -> Line | None:
        """Seconds by which computation takes longer beside an all-reduce, over its bytes.

        Args:
            algorithm: name of an all-reduce.
            workers: number of workers.
            depth: number of chunks.

        Returns:
            The line; None for TensorFlow's own collective, whose messages are not known.
        """
        if algorithm == NATIVE:
            return None
        first, further, bytes_each = _features(algorithm, workers, depth, 1.0)
        return Line(self.message_s * first + self.further_message_s * further, self.byte_s * bytes_each)


def _features(algorithm: str, workers: int, depth: int, size_bytes: float) -> tuple[float, float, float]:
    """What a worker sends on average: messages of the first chunk, of the others, and bytes."""
    messages = messages_of(algorithm, workers)
    return messages, (depth - 1) * messages, 2 * (workers - 1) / workers * size_bytes


def fit_processor_cost(
    contentions: Sequence[Contention], alone_s: Callable[[str, int, float], float]
) -> ProcessorCost | None:
    """The cost that fits what was measured with one number of workers; None where too little was.

    Args:
        contentions: measurements.
        alone_s: function (algorithm, depth, bytes) -> seconds of an all-reduce by itself.
    """
    from scipy.optimize import nnls  # takes a second to import

    known = [each for each in contentions if each.algorithm != NATIVE]
    if len(known) < _LEAST_MEASUREMENTS:
        return None
    features = np.array([_features(c.algorithm, c.workers, c.depth, c.size_bytes) for c in known])
    beside_s = np.array([_beside_s(each, alone_s) for each in known])
    taken_s = np.array([each.processor_share for each in known]) * beside_s
    units = features.max(axis=0).clip(min=1.0)
    fitted_s = taken_s
    solution = np.zeros(3)
    for _ in range(_MOST_FITS):
        weights = 1 / np.hypot(_LENGTH_ERROR * beside_s, _KIND_ERROR * fitted_s)
        weights *= np.sqrt(_trust(np.abs(taken_s - fitted_s) * weights))
        previous, (solution, _) = solution, nnls(features / units * weights[:, None], taken_s * weights)
        fitted_s = features / units @ solution
        if np.allclose(previous, solution, rtol=1e-6, atol=0):
            break
    return ProcessorCost(*map(float, solution / units))


def pooled(
    contentions: Sequence[Contention], alone_s: Callable[[str, int, float], float], cost: ProcessorCost
) -> Sequence[Contention]:
    """Measurements with the processor shares that are most likely, given all of them.

    What is measured has an error in proportion to the length of the all-reduce, the fitted cost one in proportion to
    itself; each counts by the inverse of its variance. A measurement that is far from the cost counts less.

    Args:
        contentions: measurements with one number of workers.
        alone_s: function (algorithm, depth, bytes) -> seconds of an all-reduce by itself.
        cost: fitted to them.
    """
    found = []
    for each in contentions:
        line = cost.line(each.algorithm, each.workers, each.depth)
        if line is not None:
            beside_s, fitted_s = _beside_s(each, alone_s), line.time_s(each.size_bytes)
            measured_weight, fitted_weight = (_KIND_ERROR * fitted_s) ** 2, (_LENGTH_ERROR * beside_s) ** 2
            fitted_share = fitted_s / beside_s
            deviation_s = abs(each.processor_share * beside_s - fitted_s)
            measured_weight *= float(_trust(deviation_s / math.sqrt(measured_weight + fitted_weight)))
            share = (measured_weight * each.processor_share + fitted_weight * fitted_share) / (
                measured_weight + fitted_weight
            )
            each = replace(each, processor_share=min(share, MOST_PROCESSOR_SHARE))
        found.append(each)
    return found


def _trust(deviations: Any) -> Any:
    """How much measurements count, from 0 to 1, by their numbers of standard deviations from the cost (Cauchy's)."""
    return 1 / (1 + (deviations / _HALF_TRUSTED_DEVIATIONS) ** 2)


def _beside_s(contention: Contention, alone_s: Callable[[str, int, float], float]) -> float:
    """Seconds of the all-reduce while all workers compute."""
    return contention.slowdown * alone_s(contention.algorithm, contention.depth, contention.size_bytes)
