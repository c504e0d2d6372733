"""Bayesian optimisation over a finite set of points: which one to try next."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from caramel.errors import InputError

XI = 0.1
"""By how much a trial is to be better than the best so far, as a part of it (ByteScheduler, section 5)."""

_AS_BAD_AS = 1.5
"""How many times as long as the longest trial a failed one counts (our choice)."""


class BayesianSearch:
    """Proposes points by the expected improvement under a Gaussian process.

    Times are scaled by the least one so far. The first proposals, as long as fewer than three points have times, are
    the points that are farthest from those tried.

    Args:
        points: coordinates of all points, shape [points, dimensions], each between 0 and 1.
        seed: seed of the fit's restarts.
        incumbent_s: seconds of what there is without a search, which has no point; None if there is nothing.

    Raises:
        InputError: there are no points.

    Source:
        ByteScheduler, section 5 (Gaussian process, expected improvement with xi = 0.1).
    """

    def __init__(self, points: np.ndarray, seed: int = 0, incumbent_s: float | None = None) -> None:
        self._points = np.asarray(points, float)
        if self._points.ndim != 2 or not len(self._points):
            raise InputError("a search needs points with coordinates")
        self._seed, self._incumbent_s = seed, incumbent_s
        self._times_s: dict[int, float | None] = {}

    def note(self, number: int, time_s: float | None) -> None:
        """Note a trial.

        Args:
            number: number of the point.
            time_s: seconds that it took; None if it failed.
        """
        self._times_s[number] = time_s

    def propose(self) -> int | None:
        """Number of the point to try next; None if all have been tried."""
        left = [number for number in range(len(self._points)) if number not in self._times_s]
        if not left:
            return None
        known = [time_s for time_s in self._times_s.values() if time_s is not None]
        if len(known) < _LEAST_KNOWN:
            return self._farthest(left)
        expected = self._expected_improvement(left, known)
        return left[int(np.argmax(expected))]

    def _farthest(self, left: Sequence[int]) -> int:
        if not self._times_s:
            return left[0]
        tried = self._points[list(self._times_s)]
        gaps = np.linalg.norm(self._points[list(left)][:, None] - tried[None], axis=-1).min(axis=1)
        return left[int(np.argmax(gaps))]

    def _expected_improvement(self, left: Sequence[int], known: Sequence[float]) -> np.ndarray:
        """The expected improvement over the best time less `XI`, for the points that are left."""
        from scipy.stats import norm
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        best_s, failed_s = min([*known, self._incumbent_s or math.inf]), _AS_BAD_AS * max(known)
        tried = list(self._times_s)
        scaled = [(failed_s if (time_s := self._times_s[n]) is None else time_s) / best_s for n in tried]
        dimensions = self._points.shape[1]
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern([0.5] * dimensions, (0.1, 10.0), nu=2.5)
        kernel += WhiteKernel(1e-3, (1e-6, 1e-1))
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=self._seed, n_restarts_optimizer=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a bound of the kernel is as good as what is beyond it
            process.fit(self._points[tried], scaled)
        mean, deviation = process.predict(self._points[list(left)], return_std=True)
        deviation = np.maximum(deviation, 1e-12)
        gain = 1 - XI - mean
        improvement: np.ndarray = gain * norm.cdf(gain / deviation) + deviation * norm.pdf(gain / deviation)
        return improvement


_LEAST_KNOWN = 3
"""Number of times from which on a process is fitted to them (our choice)."""
