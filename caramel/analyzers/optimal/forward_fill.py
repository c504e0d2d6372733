"""Which gradients, or parts of them, go into the forward window, once capacities are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

MOST_RANGES = 6
"""Ranges of postponed seconds that are followed for each number of splits (our choice: exact in small cases)."""

MOST_SPLITS = 8
"""More splits are not looked for (plans for published layer times have had at most two)."""


@dataclass(frozen=True)
class Filled:
    """A choice of what is postponed.

    Attributes:
        postponed_s: seconds of the channel, for each gradient.
        splits: how many gradients are cut.
    """

    postponed_s: tuple[float, ...]
    splits: int


_Range = tuple[float, float, str, Any]
"""Seconds that may have been postponed up to some gradient, from, to; the step that led to it, and from where."""


def fill(
    time_s: Sequence[float],
    free: Sequence[bool],
    cuttable: Sequence[bool],
    back_s: np.ndarray,
    fore_s: np.ndarray,
    slack_s: float,
    most_splits: int = MOST_SPLITS,
    width: int = MOST_RANGES,
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
        most_splits: how many gradients may be cut.
        width: how many ranges are kept for each number of splits; at least 2.

    Returns:
        The choice; None if there is none, or none was found.
    """
    least = (np.cumsum(time_s) - back_s - slack_s).tolist()
    most = (fore_s + slack_s).tolist()
    reached: list[list[_Range]] = [[(0.0, 0.0, "", None)]]
    for i, time in enumerate(time_s):
        following = _followed(reached, time, free[i], cuttable[i], most_splits)
        reached = [_thinned(ranges, least[i], most[i], width) for ranges in following]
        while reached and not reached[-1]:
            reached.pop()
        if not reached:
            return None
    for ranges in reached:
        if ranges:
            return _walked(time_s, min(ranges, key=itemgetter(0)))
    return None


def _followed(
    reached: list[list[_Range]], time_s: float, free: bool, cuttable: bool, most_splits: int
) -> list[list[_Range]]:
    """Where the walk can be after one more gradient, for each number of splits."""
    following: list[list[_Range]] = [[] for _ in range(min(len(reached) + cuttable, most_splits + 1))]
    for splits, ranges in enumerate(reached):
        following[splits] += [(r[0], r[1], "stay", r) for r in ranges]
        if free:
            following[splits] += [(r[0] + time_s, r[1] + time_s, "all", r) for r in ranges]
            if cuttable and splits < most_splits:
                following[splits + 1] += [(r[0], r[1] + time_s, "part", r) for r in ranges]
    return following


def _thinned(ranges: list[_Range], least_s: float, most_s: float, width: int) -> list[_Range]:
    """Those within the corridor, without those inside others; of too many, some evenly, first and last among them."""
    found, reach_s = list[_Range](), -math.inf
    for r in sorted(ranges, key=itemgetter(0)):
        low_s, high_s, step, before = r
        high_s = high_s if high_s < most_s else most_s
        if low_s <= high_s and high_s >= least_s and high_s > reach_s:
            reach_s = high_s
            found.append((low_s if low_s > least_s else least_s, high_s, step, before))
    if len(found) <= width:
        return found
    return [found[i * (len(found) - 1) // (width - 1)] for i in range(width)]


def _walked(time_s: Sequence[float], last: _Range) -> Filled:
    """Back from the end: what each gradient contributed to the least that can be reached."""
    postponed, splits, here, at = list[float](), 0, last[0], last
    for time in reversed(time_s):
        _, _, step, before = at
        low_s, high_s = before[0], before[1]
        if step == "part":
            low_s, high_s = max(low_s, here - time), min(high_s, here)
            earlier = (low_s + high_s) / 2
            postponed.append(min(time, max(0.0, here - earlier)))
            splits += 1
        else:
            postponed.append(time if step == "all" else 0.0)
            earlier = min(max(here - postponed[-1], low_s), high_s)
        here, at = earlier, before
    return Filled(tuple(reversed(postponed)), splits)
