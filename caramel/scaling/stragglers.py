"""Workers that are slower than others: a step is as long as that of the slowest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from caramel.errors import InputError

_MOST_CV = 3.0
"""Largest coefficient of variation: beyond, the longest of some steps says nothing of the next one's (our choice)."""

_REACH, _POINTS = 12.0, 24_001
"""Standard deviations on either side over which the mean is integrated, and at how many points."""


@dataclass(frozen=True)
class Stragglers:
    """How the computation of workers differs.

    Attributes:
        cv: coefficient of variation (standard deviation / mean) of a worker's computation, which is log-normal and
            differs from worker to worker and from step to step; 0 for none.
        rank: rank of one worker that is always slower; None for none.
        factor: so many times as long its computation takes.

    Raises:
        InputError: a number is out of range.
    """

    cv: float = 0.0
    rank: int | None = None
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.cv <= _MOST_CV:
            raise InputError(f"the coefficient of variation must be between 0 and {_MOST_CV:g}, got {self.cv:g}")
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise InputError(
                f"a straggler takes at least as long as others: a factor of at least 1, got {self.factor:g}"
            )
        if self.rank is not None and self.rank < 0:
            raise InputError(f"the rank of a worker is at least 0, got {self.rank}")

    @classmethod
    def parsed(cls, text: str) -> Stragglers:
        """From ``lognormal:CV`` or ``RANK:FACTOR``.

        Raises:
            InputError: it is neither.

        >>> Stragglers.parsed("lognormal:0.1")
        Stragglers(cv=0.1, rank=None, factor=1.0)
        >>> Stragglers.parsed("3:1.5")
        Stragglers(cv=0.0, rank=3, factor=1.5)
        """
        kind, _, number = text.partition(":")
        is_spread = kind.strip() == "lognormal"
        try:
            rank, value = None if is_spread else int(kind), float(number)
        except ValueError as error:
            raise InputError(
                f"cannot read the straggler {text!r}: write lognormal:CV, as lognormal:0.1, or RANK:FACTOR, as 3:1.5"
            ) from error
        return cls(cv=value) if is_spread else cls(rank=rank, factor=value)

    def slowest(self, workers: int) -> float:
        """The mean time of the slowest worker's computation, over the mean time of one.

        Of log-normal times with mean 1 that is the mean of the largest of N, E[max] = integral of
        x d(F(x)^N); see any book on order statistics.

        Args:
            workers: number of workers.

        >>> Stragglers().slowest(100)
        1.0
        >>> [round(Stragglers(cv=0.1).slowest(n), 3) for n in (1, 2, 16, 1024)]
        [1.0, 1.056, 1.188, 1.377]
        """
        slowest = _mean_of_largest(self.cv, workers) if self.cv > 0 and workers > 1 else 1.0
        return slowest if self.rank is None or self.rank >= workers else max(slowest, self.factor)


NONE = Stragglers()
"""All workers compute as fast."""


def _mean_of_largest(cv: float, workers: int) -> float:
    from scipy.special import log_ndtr  # takes a while to import

    sigma = math.sqrt(math.log1p(cv**2))
    z = np.linspace(-_REACH, _REACH, _POINTS)
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) + math.log(workers) + (workers - 1) * log_ndtr(z)
    return float(np.exp(sigma * z - 0.5 * sigma**2 + log_density).sum() * (z[1] - z[0]))
