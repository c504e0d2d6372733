"""Ratios of times that were measured in turn, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 4000


@dataclass(frozen=True)
class Ratio:
    """A median ratio and its bounds.

    Attributes:
        median: of the rounds.
        low: lower 95 % bound.
        high: upper 95 % bound.
    """

    median: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """ours / theirs, round by round: the median, and its one-sided bounds by percentile bootstrap.

    Args:
        ours: time of each round.
        theirs: time of the same rounds.
    """
    ratios = np.asarray(ours, float) / np.asarray(theirs, float)
    rng = np.random.default_rng(0)
    resampled = np.median(rng.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
    low, high = np.percentile(resampled, [5, 95])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(np.asarray(values, float)))))
