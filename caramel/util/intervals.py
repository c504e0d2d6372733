"""Times: how exactly they are added up and compared, and how much of it intervals cover."""

from __future__ import annotations

from collections.abc import Iterable

TIME_RESOLUTION_S = 1e-9
"""Seconds of one tick, where times are whole nanoseconds: sums of equal times are equal in any order, and what has been
taken off a sum is exactly gone."""

TIME_TOLERANCE = 1e-9
"""Fraction of a time below which two times count as equal: they are sums of the same numbers, in another order."""


def covered_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds, from 0 on, that at least one of some intervals covers.

    Args:
        intervals: start and end of each, in seconds, in any order.

    >>> covered_s([(4.0, 6.0), (0.0, 2.0), (1.0, 1.5), (5.0, 7.0)])
    5.0
    """
    total_s = until_s = 0.0
    for start_s, end_s in sorted(intervals):
        total_s += max(end_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, end_s)
    return total_s
