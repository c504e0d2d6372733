"""T = a + b * bytes, fitted to measured all-reduces."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from caramel.errors import FitError
from caramel.util.units import format_size, format_time

LARGE_DOUBLING_RATIO = 0.8
"""Ratio f(2x) / (2 f(x)) above which joining two transfers of x bytes saves less than 20 % of their time (Caramel,
section 4.2)."""

MOST_RESIDUAL = 0.25
"""Largest residual of a line that fits, as a fraction of the measured time; a line with a larger one at some measured
size is said not to fit (our choice: decisions between algorithms and depths differ by less where they matter)."""

_SHORTEST_S, _LONGEST_S = 1e-15, 1e9
"""Range of the seconds of an all-reduce; beyond, floating-point numbers would overflow."""


@dataclass(frozen=True)
class Sample:
    """One measured size.

    Attributes:
        size_bytes: bytes of the tensor.
        time_s: median seconds of one all-reduce.
    """

    size_bytes: int
    time_s: float


@dataclass(frozen=True)
class Line:
    """T = a + b * bytes.

    Attributes:
        a_s: seconds of every all-reduce, whatever its size.
        b_s_per_byte: further seconds for each byte of the tensor.
    """

    a_s: float
    b_s_per_byte: float

    def time_s(self, size_bytes: float) -> float:
        """Predicted seconds for a tensor of so many bytes."""
        return self.a_s + self.b_s_per_byte * size_bytes

    @property
    def threshold_bytes(self) -> float:
        """The largest x with f(2x) / (2 f(x)) <= 0.8, which for a line is 1.5 a / b.

        (a + 2bx) / (2a + 2bx) <= 0.8 means 0.4 b x <= 0.6 a. Infinite where bytes cost nothing but the
        start does.

        Source:
            Caramel, section 4.2.
        """
        if self.a_s == 0:
            return 0.0
        return math.inf if self.b_s_per_byte == 0 else 1.5 * self.a_s / self.b_s_per_byte


def fit_line(samples: Sequence[Sample]) -> Line:
    """The line with the least relative errors, a >= 0 and b >= 0.

    Each sample is weighted by 1 / T^2; unweighted, the large sizes drown the intercept.

    Args:
        samples: measurements of at least two different sizes; equal sizes may repeat.

    Raises:
        FitError: too few sizes, or times that are not positive and finite.
    """
    from sklearn.linear_model import LinearRegression  # takes a second to import

    sizes = np.array([s.size_bytes for s in samples], float)
    times = np.array([s.time_s for s in samples], float)
    if len(set(sizes)) < 2:
        raise FitError(f"a line needs measurements of at least 2 sizes, got {len(set(sizes))}: measure more sizes")
    if not np.all((times >= _SHORTEST_S) & (times <= _LONGEST_S)) or np.any(sizes < 0):
        raise FitError(
            f"a line needs sizes of at least 0 bytes and times between {_SHORTEST_S:g} s and {_LONGEST_S:g} s"
        )
    # In units near 1, or the solver's tolerance hides the small coefficient.
    size_unit, time_unit = sizes.max(), times.min()
    features = np.column_stack([np.ones_like(sizes), sizes / size_unit])
    model = LinearRegression(fit_intercept=False, positive=True)
    model.fit(features, times / time_unit, sample_weight=(time_unit / times) ** 2)
    a, b = model.coef_ * time_unit
    return Line(float(a), float(b / size_unit))


@dataclass(frozen=True)
class Curve:
    """Measured times of one algorithm at one depth for one number of workers, and their line.

    Attributes:
        workers: number of workers.
        algorithm: name of the collective.
        depth: number of chunks.
        samples: measurements in ascending order of size.
        line: line that is fitted to the samples.
    """

    workers: int
    algorithm: str
    depth: int
    samples: tuple[Sample, ...]
    line: Line

    @classmethod
    def fitted(cls, workers: int, algorithm: str, depth: int, samples: Sequence[Sample]) -> Curve:
        """Fit the line.

        Raises:
            FitError: a line cannot be fitted.
        """
        ordered = tuple(sorted(samples, key=lambda s: (s.size_bytes, s.time_s)))
        return cls(workers, algorithm, depth, ordered, fit_line(ordered))

    @property
    def valid_bytes(self) -> tuple[int, int]:
        """The smallest and the largest measured size."""
        return self.samples[0].size_bytes, self.samples[-1].size_bytes

    @property
    def residuals(self) -> tuple[float, ...]:
        """(predicted - measured) / measured by the line, for each sample."""
        return tuple(self.line.time_s(s.size_bytes) / s.time_s - 1 for s in self.samples)

    @cached_property
    def interpolation_error(self) -> float:
        """The root mean square of (predicted - measured) / measured, where each size but the first and the last is
        predicted from its neighbours; 0 if there is none.
        """
        sizes, times = self._points
        predicted = (
            times[n - 1] + (times[n + 1] - times[n - 1]) * (sizes[n] - sizes[n - 1]) / (sizes[n + 1] - sizes[n - 1])
            for n in range(1, len(sizes) - 1)
        )
        errors = [time_s / measured_s - 1 for time_s, measured_s in zip(predicted, times[1:])]
        return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0

    @property
    def worst(self) -> tuple[Sample, float]:
        """The sample that the line misses most, and its residual."""
        return max(zip(self.samples, self.residuals), key=lambda pair: abs(pair[1]))

    @property
    def fits(self) -> bool:
        """Whether no residual is larger than `MOST_RESIDUAL`."""
        return abs(self.worst[1]) <= MOST_RESIDUAL

    @property
    def warning(self) -> str | None:
        """What is wrong with the line, if it does not fit."""
        if self.fits:
            return None
        sample, residual = self.worst
        text = (
            f"{self.algorithm} at depth {self.depth} on {self.workers} workers: its line says "
            f"{format_time(self.line.time_s(sample.size_bytes))} for {format_size(sample.size_bytes)}, "
            f"{abs(residual):.0%} {'less' if residual < 0 else 'more'} than the measured {format_time(sample.time_s)}"
        )
        jump = self.jump
        if jump is not None:
            before, after = jump
            text += (
                f"; the time jumps from {format_time(before.time_s)} for {format_size(before.size_bytes)} "
                f"to {format_time(after.time_s)} for {format_size(after.size_bytes)}"
            )
        return text

    @property
    def jump(self) -> tuple[Sample, Sample] | None:
        """Neighbouring sizes between which time grows by more than 1.5 times the size's growth, if any.

        Of several the largest.
        """
        largest: tuple[float, Sample, Sample] | None = None
        for before, after in zip(self.samples, self.samples[1:]):
            if 0 < before.size_bytes < after.size_bytes:
                excess = after.time_s / before.time_s / (after.size_bytes / before.size_bytes)
                if excess > 1.5 and (largest is None or excess > largest[0]):
                    largest = (excess, before, after)
        return None if largest is None else largest[1:]

    @cached_property
    def _last_slope_s_per_byte(self) -> float:
        """From the largest size that is at most half of the largest one, as noise would tilt a shorter piece.

        The line's own slope also has to fit the smallest sizes: on links of 50 Mbit/s it promised four chunks of 1.8
        MiB a time below that of their bytes. No all-reduce takes longer than two of half its size, one after the other.
        """
        last = self.samples[-1]
        before = next((s for s in reversed(self.samples) if 0 < 2 * s.size_bytes <= last.size_bytes), None)
        if before is None or before.time_s >= last.time_s:
            return self.line.b_s_per_byte
        slope = (last.time_s - before.time_s) / (last.size_bytes - before.size_bytes)
        return min(slope, last.time_s / last.size_bytes)

    @cached_property
    def _points(self) -> tuple[list[float], list[float]]:
        """The different measured sizes, ascending, and the time of each."""
        by_size = {float(s.size_bytes): s.time_s for s in self.samples}
        return list(by_size), list(by_size.values())

    def time_s(self, size_bytes: float) -> float:
        """Predicted seconds: between the neighbouring measurements, and above them with the slope between the largest.

        Below the smallest measured size it is that size's time: what a start costs, no transfer is without. Algorithms
        and depths often differ by less than a line misses the measurements (at 256 KiB on a 500 Mbit/s link, for one,
        by 15 %), so choices need the measurements themselves.
        """
        sizes, times = self._points
        if size_bytes <= sizes[0]:
            return times[0]
        if size_bytes > sizes[-1]:
            return times[-1] + self._last_slope_s_per_byte * (size_bytes - sizes[-1])
        place = bisect_left(sizes, size_bytes)
        size, time = sizes[place - 1], times[place - 1]
        return time + (times[place] - time) * ((size_bytes - size) / (sizes[place] - size))

    @cached_property
    def threshold_bytes(self) -> float:
        """The largest size at which joining two transfers still saves 20 % of their time.

        By the line where it fits and has a start, else by the interpolated measurements: a line that misses some size
        by more than `MOST_RESIDUAL` says nothing about it.

        Source:
            Caramel, section 4.2.
        """
        if self.fits and self.line.a_s > 0:
            return self.line.threshold_bytes
        return largest_joined_bytes(*self._points, self._last_slope_s_per_byte)


def largest_joined_bytes(sizes: Sequence[float], times: Sequence[float], last_slope_s_per_byte: float) -> float:
    """The largest x with f(2x) <= 1.6 f(x), where f is interpolated, constant before the first size.

    Joining two transfers of x bytes then saves at least 20 % of their time. Beyond a jump of f joining may save that
    again, so it is not the smallest x from which on it saves less.

    Args:
        sizes: sizes in bytes, ascending.
        times: seconds of each.
        last_slope_s_per_byte: seconds of each further byte.

    Source:
        Caramel, section 4.2.
    """

    def time_s(size: float) -> float:
        if size > sizes[-1]:
            return times[-1] + last_slope_s_per_byte * (size - sizes[-1])
        return float(np.interp(size, sizes, times))

    def lost_s(size: float) -> float:  # on a line between any two of the points
        return time_s(2 * size) - 2 * LARGE_DOUBLING_RATIO * time_s(size)

    points = sorted({*sizes, *(size / 2 for size in sizes)})
    last_slope = (2 - 2 * LARGE_DOUBLING_RATIO) * last_slope_s_per_byte
    if lost_s(points[-1]) <= 0:
        return points[-1] - lost_s(points[-1]) / last_slope if last_slope > 0 else math.inf
    for before, after in zip(points[-2::-1], points[:0:-1]):
        if lost_s(before) <= 0:
            return before + (after - before) * lost_s(before) / (lost_s(before) - lost_s(after))
    return points[0]
