"""The predicted seconds of all measured all-reduces at once: a planner asks for thousands of sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from caramel.collectives.algorithms import NATIVE
from caramel.netmodel.contention import MOST_PROCESSOR_SHARE, ContentionModel, effects_of
from caramel.netmodel.line import Curve
from caramel.netmodel.ranking import NEAR_DELAY_RATIO, Candidate, Prediction, delay_s


class ReductionTable:
    """Seconds of several all-reduces with one number of workers; between neighbouring sizes all are on lines.

    It gives the numbers of `NetworkModel.candidate`, for all at once.

    Args:
        curves: measured times, one curve for each all-reduce.
        contention: measurements of how all-reduces and computation slow each other down; None for all-reduces alone.
        has_overlaps: whether an all-reduce is known to let the next one begin before it has arrived.
    """

    def __init__(self, curves: Sequence[Curve], contention: ContentionModel | None, has_overlaps: bool) -> None:
        self._curves = curves
        self._first = np.array([curve.valid_bytes[0] for curve in curves])
        self._last = np.array([curve.valid_bytes[1] for curve in curves])
        self._is_native = np.array([curve.algorithm == NATIVE for curve in curves])
        self._has_overlaps = has_overlaps
        sizes = {float(sample.size_bytes) for curve in curves for sample in curve.samples}
        self._alone = _Lines(sorted(sizes), [curve.time_s for curve in curves])
        self._effects = None if contention is None else _EffectsTable(contention, curves)

    def near_best(self, size_bytes: float) -> Sequence[Candidate]:
        """The all-reduces that may be the best for one transfer: those with nearly the least delay.

        Where some were measured at such sizes, the others are left out.

        Args:
            size_bytes: bytes on the wire.
        """
        alone_s = self._alone.at(size_bytes)
        slowdown = share = None
        time_s = channel_s = alone_s
        if self._effects is not None:
            slowdown, channel_part, share = self._effects.at(size_bytes, alone_s)
            time_s = alone_s * slowdown
            channel_s = time_s * channel_part if self._has_overlaps else time_s
        delays_s = delay_s(time_s, channel_s)
        is_measured = (self._first <= size_bytes) & (size_bytes <= self._last)
        if is_measured.any():
            delays_s = np.where(is_measured, delays_s, np.inf)
        # TensorFlow's own all-reduce may not count, however fast it is.
        limit_s = NEAR_DELAY_RATIO * np.where(self._is_native, np.inf, delays_s).min()
        second_s = np.partition(delays_s, 1)[1] if len(delays_s) > 1 else np.inf  # the next best is named in the reason
        near = np.flatnonzero(delays_s <= max(limit_s, second_s)).tolist()
        return [
            Candidate(
                Prediction(float(time_s[n]), "measured" if is_measured[n] else "extrapolated"),
                self._curves[n].algorithm,
                self._curves[n].depth,
                float(channel_s[n]) if slowdown is not None and self._has_overlaps else None,
                1.0 if slowdown is None else float(slowdown[n]),
                0.0 if share is None else float(share[n]),
            )
            for n in near
            if np.isfinite(delays_s[n])
        ]


class _Lines:
    """Functions of a size that are on lines between given sizes, constant below them, and on a line above them."""

    def __init__(self, sizes: Sequence[float], functions: Sequence[Callable[[float], float]]) -> None:
        self._sizes = sizes
        points = [*sizes, 2 * sizes[-1]]
        values = np.array([[function(size) for function in functions] for size in points])
        self._values = values
        self._slopes = np.diff(values, axis=0) / np.diff(points)[:, None]

    def at(self, size_bytes: float) -> np.ndarray:
        """The values of all functions, shape [functions]."""
        place = bisect_left(self._sizes, size_bytes) - 1
        if place < 0:
            return np.asarray(self._values[0])
        return np.asarray(self._values[place] + self._slopes[place] * (size_bytes - self._sizes[place]))


class _EffectsTable:
    """What all-reduces and computation do to each other, for all curves."""

    def __init__(self, contention: ContentionModel, curves: Sequence[Curve]) -> None:
        kinds = contention.kinds
        self._largest = np.array([contention.largest_bytes(kind) for kind in kinds])
        place = {kind: n for n, kind in enumerate(kinds)}
        self._is_own = np.array([(curve.algorithm, curve.depth) in place for curve in curves])
        self._like = np.full((len(curves), len(kinds)), -1)
        for row, curve in zip(self._like, curves):
            alike = [place[kind] for kind in contention.kinds_like(curve.algorithm, curve.depth)]
            row[: len(alike)] = alike
        self._count = len(kinds)
        seconds = [contention.seconds_of(kind) for kind in kinds]
        sizes = {*contention.sizes_bytes, *(float(sample.size_bytes) for curve in curves for sample in curve.samples)}
        rows = [lambda size, of=of, n=n: of(size)[n] for n in range(4) for of in seconds]
        self._seconds = _Lines(sorted(sizes), rows)
        lines = [contention.taken(curve.algorithm, curve.depth) for curve in curves]
        self._is_known = np.array([line is not None for line in lines])
        self._taken_start_s, self._taken_s_per_byte = np.array(
            [(0.0, 0.0) if line is None else (line.a_s, line.b_s_per_byte) for line in lines]
        ).T

    def at(self, size_bytes: float, alone_s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Slowdown, channel part and processor share of each curve.

        Args:
            size_bytes: bytes on the wire.
            alone_s: seconds of each by itself.
        """
        rows = self._seconds.at(size_bytes).reshape(4, self._count)
        counts = self._largest >= min(size_bytes, self._largest.max())
        is_like = (self._like >= 0) & counts[self._like]
        nearest = np.take_along_axis(self._like, is_like.argmax(axis=1)[:, None], axis=1)[:, 0]
        is_own, has_like = self._is_own & is_like[:, 0], is_like.any(axis=1)
        of_kinds = effects_of(*rows)
        of_curves = effects_of(alone_s, *rows[1:, nearest])
        slowdown, channel_part, share = (
            np.where(is_own, kinds[nearest], np.where(has_like, curves, kinds[counts].max()))
            for kinds, curves in zip(of_kinds, of_curves)
        )
        taken_s = self._taken_start_s + self._taken_s_per_byte * size_bytes
        fitted = np.minimum(taken_s / (slowdown * alone_s), MOST_PROCESSOR_SHARE)
        return slowdown, channel_part, np.where(is_own | ~self._is_known, share, fitted)
