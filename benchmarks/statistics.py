"""Ratios of times that were measured in turn, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ERROR = 0.05
"""How often a bound may be wrong."""

LEAST_ROUNDS = 5
"""Of fewer rounds, even the least ratio is above the median more often."""


@dataclass(frozen=True)
class Ratio:
    """A median ratio and its bounds.

    Attributes:
        median: of the rounds.
        low: lower 95 % bound; 0 of fewer than `LEAST_ROUNDS` rounds.
        high: upper 95 % bound; then infinite.
    """

    median: float
    low: float
    high: float

    @property
    def has_bounds(self) -> bool:
        """Whether there were rounds enough."""
        return math.isfinite(self.high)

    def bounds(self, digits: int) -> str:
        """Both bounds for people, with so many decimals; a dash where there are none.

        >>> Ratio(1.0, 0.91, 1.1).bounds(2), Ratio(1.0, 0.0, math.inf).bounds(2)
        ('0.91 to 1.10', '-')
        """
        return f"{self.low:.{digits}f} to {self.high:.{digits}f}" if self.has_bounds else "-"


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """ours / theirs, round by round: the median, and one-sided bounds of the median of all rounds that there could be.

    Each round is as likely above that median as below it, whatever the distribution: the bounds are rounds' ratios.

    Args:
        ours: time of each round, at least one.
        theirs: time of the same rounds.

    Source:
        The sign test (Conover, Practical Nonparametric Statistics, section 3.2, confidence intervals of a quantile).
    """
    ratios = np.sort(np.asarray(ours, float) / np.asarray(theirs, float))
    left_out = _left_out(len(ratios))
    low, high = (0.0, math.inf) if left_out is None else (ratios[left_out], ratios[-1 - left_out])
    return Ratio(float(np.median(ratios)), float(low), float(high))


def _left_out(rounds: int) -> int | None:
    """How many ratios are below the lower bound, which is above the median in so few cases as it may be.

    >>> [_left_out(rounds) for rounds in (4, 5, 7, 8, 11)]
    [None, 0, 0, 1, 2]
    """
    at_most, found = 0.0, None
    for below in range(rounds):
        at_most += math.comb(rounds, below) / 2**rounds
        if at_most > _ERROR:
            break
        found = below
    return found


def worst_bound(ratios: Sequence[Ratio], digits: int) -> str:
    """The largest lower bound for people, with so many decimals; a dash where there is none."""
    return f"{max(r.low for r in ratios):.{digits}f}" if all(r.has_bounds for r in ratios) else "-"


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(np.asarray(values, float)))))
