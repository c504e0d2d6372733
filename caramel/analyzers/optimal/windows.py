"""Whole pieces in one window: how much room each has, and which neighbours travel together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDING_TOLERANCE = 1e-12
"""Error of floating-point numbers, as a fraction of the largest time."""


@dataclass(frozen=True)
class Window:
    """The pieces that travel in one window, those with the least room first.

    Attributes:
        room_s: seconds of each piece from its being ready to the end (backward), or from the start to its
            first read (forward). Never decreasing.
        time_s: seconds of the channel for the bytes of each piece.
        dtypes: element type of each piece.
        start_s: seconds that each transfer costs, besides its bytes.
        slack_s: seconds that rounding may take.
    """

    room_s: tuple[float, ...]
    time_s: tuple[float, ...]
    dtypes: tuple[str, ...]
    start_s: float
    slack_s: float


BucketRanges = tuple[tuple[int, int], ...]
"""Buckets as (first, one after the last) of a window's positions, from the least room on."""


def fewest_buckets(window: Window, late_s: float) -> BucketRanges | None:
    """The fewest buckets of neighbours that all end in time.

    From the least room on, each bucket takes as many as fit: all that travel later in the backward window
    (earlier in the forward window) have been counted by then.

    Args:
        window: pieces that travel.
        late_s: seconds by which the last transfer may end after the window.

    Returns:
        The buckets; None if there is no such plan. With several element types a bucket is one transfer for
        each, and there may be fewer.
    """
    if len(set(window.dtypes)) > 1:
        return _fewest_mixed_buckets(window, late_s)
    groups, done, sums = list[tuple[int, int]](), 0, np.cumsum(window.time_s).tolist()
    while done < len(sums):
        most_s = window.room_s[done] + late_s - (len(groups) + 1) * window.start_s
        reach = bisect_right(sums, most_s + window.slack_s)
        if reach <= done:
            return None
        groups.append((done, reach))
        done = reach
    return tuple(groups)


def _fewest_mixed_buckets(window: Window, late_s: float) -> BucketRanges | None:
    groups, done, used_s = list[tuple[int, int]](), 0, 0.0
    while done < len(window.room_s):
        most_s = window.room_s[done] + late_s + window.slack_s
        reach, seen = done, set[str]()
        while reach < len(window.room_s):
            new = window.dtypes[reach] not in seen
            cost_s = window.time_s[reach] + (window.start_s if new else 0.0)
            if used_s + cost_s > most_s:
                break
            seen.add(window.dtypes[reach])
            used_s += cost_s
            reach += 1
        if reach == done:
            return None
        groups.append((done, reach))
        done = reach
    return tuple(groups)


def least_late_s(window: Window) -> float:
    """The least seconds by which the last transfer is late, in the backward window.

    From the most room on: what has been sent when the pieces from position i on have been is the least, over
    all j > i, of max(sent[j], -room[i]) + T(pieces i to j - 1).

    Args:
        window: pieces that travel; a bucket of several element types is as many transfers.
    """
    count = len(window.room_s)
    sums = np.concatenate([[0.0], np.cumsum(window.time_s)])
    sent = np.full(count + 1, -np.inf)
    following = dict.fromkeys(window.dtypes, count)  # where each element type is next
    for i in range(count - 1, -1, -1):
        following[window.dtypes[i]] = i
        starts: np.ndarray | float = window.start_s
        if len(following) > 1:
            starts = window.start_s * sum((np.arange(i + 1, count + 1) > p) for p in following.values())
        sent[i] = np.min(np.maximum(sent[i + 1 :], -window.room_s[i]) + sums[i + 1 :] - sums[i] + starts)
    return max(0.0, float(sent[0]))


def least_late_fewest_buckets(window: Window, most_late_s: float) -> BucketRanges:
    """Of the plans of one window that are as late as allowed, the least late of those with the fewest buckets.

    Args:
        window: pieces of the backward window.
        most_late_s: seconds by which the last transfer may be late; more if there is no such plan.
    """
    if not window.room_s:
        return ()
    best = fewest_buckets(window, most_late_s)
    high = most_late_s
    if best is None:
        high = least_late_s(window) + window.slack_s
        best = fewest_buckets(window, high)
    while best is None:  # rounding, or element types that mix badly
        high = 1.001 * high + max(window.start_s, window.slack_s)
        best = fewest_buckets(window, high)
    low = 0.0
    for _ in range(30):
        middle = (low + high) / 2
        candidate = fewest_buckets(window, middle)
        if candidate is not None and len(candidate) <= len(best):
            best, high = candidate, middle
        else:
            low = middle
    return best


def room_beside_lone_transfers(room_s: np.ndarray, alone: Sequence[tuple[float, float]]) -> np.ndarray:
    """Backward rooms that are left beside transfers that travel alone.

    Those ready after a transfer's first gradient, or with it, take their time out of its room; and where one
    of them has more room, it must be in time behind the transfer.

    Args:
        room_s: seconds of room of the gradients that may travel together, shape [gradients].
        alone: room and time in seconds of each transfer that travels alone.
    """
    if not alone:
        return room_s
    ordered = sorted(alone)
    alone_room_s = np.array([room for room, _ in ordered])
    taken_s = np.concatenate([[0.0], np.cumsum([time for _, time in ordered])])
    last = np.searchsorted(alone_room_s, alone_room_s, side="right")
    left_s = np.append(np.minimum.accumulate((alone_room_s - taken_s[last])[::-1])[::-1], np.inf)
    positions = np.searchsorted(alone_room_s, room_s, side="right")
    return np.minimum(room_s - taken_s[positions], left_s[positions])
