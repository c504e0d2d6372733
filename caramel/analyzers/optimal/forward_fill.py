"""Which gradients, or parts of them, go into the forward window, once capacities are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

MOST_RANGES = 6
"""Number of ranges of postponed seconds that are followed for each number of splits (our choice: exact in small
cases)."""

MOST_SPLITS = 8
"""Largest number of splits that is looked for (plans for published layer times have had at most two)."""


@dataclass(frozen=True)
class ForwardFill:
    """A choice of what is postponed.

    Attributes:
        postponed_s: postponed seconds of the channel, for each gradient.
        splits: number of gradients that are cut.
    """

    postponed_s: tuple[float, ...]
    splits: int


_Range = tuple[float, float, str, Any]
"""(from, to, step, origin): the seconds that may have been postponed up to some gradient, the step that leads there
(``"stay"``, ``"all"`` or ``"part"``), and the range before it."""


def fill_forward_window(
    time_s: Sequence[float],
    free: Sequence[bool],
    cuttable: Sequence[bool],
    back_s: np.ndarray,
    fore_s: np.ndarray,
    slack_s: float,
    most_splits: int = MOST_SPLITS,
    width: int = MOST_RANGES,
) -> ForwardFill | None:
    """Postpone as few parts of gradients as will do, and of such choices the fewest bytes.

    The seconds postponed up to a gradient must be at most what the forward window can carry of it, and at
    least what the backward window cannot. So they walk through a corridor, by all of a gradient, nothing of
    it, or (a split) something between. The walk keeps, for each number of splits, some of the ranges that can
    be reached.

    Args:
        time_s: seconds of the channel for each gradient, in an order in which neither room decreases.
        free: whether each gradient can be postponed.
        cuttable: whether each gradient can be cut.
        back_s: seconds that the backward window can carry of the gradients up to each, shape [gradients].
        fore_s: seconds that the forward window can carry of the gradients up to each, shape [gradients].
        slack_s: seconds that rounding may take.
        most_splits: largest number of gradients that may be cut.
        width: number of ranges that are kept for each number of splits; at least 2.

    Returns:
        The choice; None if there is none, or none was found.
    """
    least_s = (np.cumsum(time_s) - back_s - slack_s).tolist()
    most_s = (fore_s + slack_s).tolist()
    reached: list[list[_Range]] = [[(0.0, 0.0, "", None)]]
    for i, time in enumerate(time_s):
        following = _extended(reached, time, free[i], cuttable[i], most_splits)
        reached = [_thinned(ranges, least_s[i], most_s[i], width) for ranges in following]
        while reached and not reached[-1]:
            reached.pop()
        if not reached:
            return None
    for ranges in reached:
        if ranges:
            return _traced_back(time_s, min(ranges, key=itemgetter(0)))
    return None


def _extended(
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
    """The ranges within the corridor, without those inside others; of too many, some, with the first and last."""
    within, reach_s = list[_Range](), -math.inf
    for reachable in sorted(ranges, key=itemgetter(0)):
        low_s, high_s, step, origin = reachable
        high_s = high_s if high_s < most_s else most_s
        if low_s <= high_s and high_s >= least_s and high_s > reach_s:
            reach_s = high_s
            within.append((low_s if low_s > least_s else least_s, high_s, step, origin))
    if len(within) <= width:
        return within
    return [within[i * (len(within) - 1) // (width - 1)] for i in range(width)]


def _traced_back(time_s: Sequence[float], last: _Range) -> ForwardFill:
    """Back from the end: what each gradient contributed to the least that can be reached."""
    postponed, splits, cumulative_s, current = list[float](), 0, last[0], last
    for time in reversed(time_s):
        _, _, step, origin = current
        low_s, high_s = origin[0], origin[1]
        if step == "part":
            low_s, high_s = max(low_s, cumulative_s - time), min(high_s, cumulative_s)
            earlier = (low_s + high_s) / 2
            postponed.append(min(time, max(0.0, cumulative_s - earlier)))
            splits += 1
        else:
            postponed.append(time if step == "all" else 0.0)
            earlier = min(max(cumulative_s - postponed[-1], low_s), high_s)
        cumulative_s, current = earlier, origin
    return ForwardFill(tuple(reversed(postponed)), splits)
