"""Which gradients, or parts of them, go into the forward window, once capacities are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOST_RANGES = 6
"""Ranges of postponed seconds that are followed for each number of splits (our choice: exact in small cases)."""

_MOST_SPLITS = 8
"""More splits are not looked for (optimal plans of real models have had at most five)."""


@dataclass(frozen=True)
class Filled:
    """A choice of what is postponed.

    Attributes:
        postponed_s: seconds of the channel, for each gradient.
        splits: how many gradients are cut.
    """

    postponed_s: tuple[float, ...]
    splits: int


@dataclass(frozen=True)
class _Range:
    """Seconds that may have been postponed up to some gradient, and how it came to it."""

    low_s: float
    high_s: float
    step: str = ""
    before: _Range | None = None


def fill(
    time_s: Sequence[float],
    free: Sequence[bool],
    cuttable: Sequence[bool],
    back_s: np.ndarray,
    fore_s: np.ndarray,
    slack_s: float,
) -> Filled | None:
    """Postpone as few parts of gradients as will do, and of such choices the fewest bytes.

    The seconds postponed up to a gradient must be at most what the forward window can carry of it, and at
    least what the backward window cannot. So they walk through a corridor, by all of a gradient, nothing of
    it, or (a split) something between. The walk keeps, for each number of splits, some of the ranges that can
    be reached.

    Args:
        time_s: of each gradient, in an order in which neither room decreases.
        free: whether it can be postponed.
        cuttable: whether it can be cut.
        back_s: what the backward window can carry of the gradients up to each.
        fore_s: likewise, the forward window.
        slack_s: what rounding may take.

    Returns:
        The choice; None if there is none, or none was found.
    """
    least = (np.cumsum(time_s) - back_s - slack_s).tolist()
    most = (fore_s + slack_s).tolist()
    reached: list[list[_Range]] = [[_Range(0.0, 0.0)]]
    for i, time in enumerate(time_s):
        following: list[list[_Range]] = [[] for _ in range(min(len(reached) + 1, _MOST_SPLITS + 1))]
        for splits, ranges in enumerate(reached):
            for r in ranges:
                _keep(following[splits], r.low_s, r.high_s, "stay", r, least[i], most[i])
                if not free[i]:
                    continue
                _keep(following[splits], r.low_s + time, r.high_s + time, "all", r, least[i], most[i])
                if cuttable[i] and splits + 1 < len(following):
                    _keep(following[splits + 1], r.low_s, r.high_s + time, "part", r, least[i], most[i])
        reached = [_thinned(ranges) for ranges in following]
        while reached and not reached[-1]:
            reached.pop()
    for ranges in reached:
        if ranges:
            return _walked(time_s, min(ranges, key=lambda r: r.low_s))
    return None


def _keep(
    ranges: list[_Range], low_s: float, high_s: float, step: str, before: _Range, least_s: float, most_s: float
) -> None:
    low_s, high_s = max(low_s, least_s), min(high_s, most_s)
    if low_s <= high_s:
        ranges.append(_Range(low_s, high_s, step, before))


def _thinned(ranges: list[_Range]) -> list[_Range]:
    """Without those inside others; of too many, some evenly, the first and the last among them."""
    found = list[_Range]()
    for r in sorted(ranges, key=lambda r: (r.low_s, -r.high_s)):
        if not found or r.high_s > found[-1].high_s:
            found.append(r)
    if len(found) <= _MOST_RANGES:
        return found
    return [found[i * (len(found) - 1) // (_MOST_RANGES - 1)] for i in range(_MOST_RANGES)]


def _walked(time_s: Sequence[float], last: _Range) -> Filled:
    """Back from the end: what each gradient contributed to the least that can be reached."""
    postponed, splits, here, at = list[float](), 0, last.low_s, last
    for time in reversed(time_s):
        assert at.before is not None
        low_s, high_s = at.before.low_s, at.before.high_s
        if at.step == "part":
            low_s, high_s = max(low_s, here - time), min(high_s, here)
            before = (low_s + high_s) / 2
            splits += 1
        else:
            before = here - (time if at.step == "all" else 0.0)
            before = min(max(before, low_s), high_s)
        postponed.append(min(time, max(0.0, here - before)) if at.step == "part" else time * (at.step == "all"))
        here, at = before, at.before
    return Filled(tuple(reversed(postponed)), splits)
