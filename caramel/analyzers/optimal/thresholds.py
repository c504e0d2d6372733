"""The least exposed time of two windows, where gradients may be split: thresholds that cover every prefix.

docs/planner.md has the argument. All in seconds of the channel.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

MOST_STATES = 3000
"""Sets of thresholds that one search looks at; beyond, nothing is proved. Searches for real models have needed a
tenth (our choice)."""

_MOST_ABREAST = 60
"""Of one number of transfers; beyond, the most promising are kept and nothing is proved (our choice)."""

_MOST_ALTOGETHER = 6000
"""For one least exposed time (our choice: about 0.05 s)."""

_MOST_EARLIER = 24
"""So many earlier places for a forward threshold are tried, where gradients that must stay come after it."""


@dataclass(frozen=True)
class Chain:
    """Gradients in an order in which neither room decreases.

    Attributes:
        back_s: room in the backward window.
        fore_s: room in the forward window; of those that cannot be postponed it does not count.
        time_s: seconds of the channel for its bytes; positive.
        free: whether it can be postponed.
        start_s: seconds that each transfer costs besides.
        slack_s: what rounding may take.
    """

    back_s: tuple[float, ...]
    fore_s: tuple[float, ...]
    time_s: tuple[float, ...]
    free: tuple[bool, ...]
    start_s: float
    slack_s: float

    @cached_property
    def sums(self) -> tuple[list[float], list[float], list[float]]:
        """Of all, of those that must stay, and of those that can be postponed, up to each."""
        free = [t if f else 0.0 for t, f in zip(self.time_s, self.free)]
        kept = [0.0 if f else t for t, f in zip(self.time_s, self.free)]
        sum_free, sum_kept = np.cumsum(free), np.cumsum(kept)
        return (sum_free + sum_kept).tolist(), sum_kept.tolist(), sum_free.tolist()


@dataclass(frozen=True)
class Thresholds:
    """The lowest position of each transfer, in either window.

    Attributes:
        back: of the backward window, ascending.
        fore: of the forward window, ascending.
    """

    back: tuple[int, ...] = ()
    fore: tuple[int, ...] = ()


@dataclass(frozen=True)
class _State:
    """Thresholds so far, and what they carry.

    ``spare_s`` is the least of (capacity of the forward window - postponable prefix) at positions before
    the last forward threshold.
    """

    thresholds: Thresholds = Thresholds()
    back_s: float = 0.0
    fore_s: float = 0.0
    spare_s: float = 0.0


@dataclass(frozen=True)
class Cover:
    """What a search found.

    Attributes:
        plans: thresholds that cover everything, those with the fewest transfers first.
        is_complete: whether all was tried: if there are no plans, there are none.
        states: how many sets of thresholds were looked at.
    """

    plans: tuple[Thresholds, ...]
    is_complete: bool
    states: int


def cover(chain: Chain, late_s: float, further: int = 0) -> Cover:
    """Thresholds with which every prefix fits, with the fewest transfers.

    Args:
        chain: the gradients.
        late_s: exposed time that the backward window may have.
        further: how many transfers more than the fewest are of interest.
    """
    level, plans, is_complete, left, states = [_State()], list[Thresholds](), True, None, 0
    while level and left != 0:
        states += len(level)
        following = list[_State]()
        for state in level:
            place = _uncovered(chain, state)
            if place == len(chain.time_s):
                plans.append(state.thresholds)
                left = further + 1 if left is None else left
            else:
                children, all_tried = _children(chain, state, place, late_s)
                following += children
                is_complete = is_complete and all_tried
        level = _undominated(chain, following)
        most = min(_MOST_ABREAST, MOST_STATES - states)
        if len(level) > most:
            level = sorted(level, key=lambda s: (-_uncovered(chain, s), -s.back_s - s.fore_s))[: max(0, most)]
            is_complete = False
        left = None if left is None else left - 1
    return Cover(tuple(plans), is_complete, states)


def _uncovered(chain: Chain, state: _State) -> int:
    """The first position at which what is there does not fit; the number of positions if all does."""
    everything, kept, _ = chain.sums
    both = bisect_right(everything, state.back_s + state.fore_s + chain.slack_s)
    return min(both, bisect_right(kept, state.back_s + state.spare_s + chain.slack_s))


def _children(chain: Chain, state: _State, place: int, late_s: float) -> tuple[list[_State], bool]:
    """What to add at the first uncovered position, and whether that is all there is to try."""
    found, thresholds = list[_State](), state.thresholds
    back_s = chain.back_s[place] + late_s - (len(thresholds.back) + 1) * chain.start_s
    if back_s > state.back_s:
        added = Thresholds((*thresholds.back, place), thresholds.fore)
        found.append(_State(added, back_s, state.fore_s, state.spare_s))
    places, all_tried = _fore_places(chain, state, place)
    for k in places:
        fore_s = chain.fore_s[k] - (len(thresholds.fore) + 1) * chain.start_s
        if fore_s > state.fore_s:
            before = chain.sums[2][k - 1] if k else 0.0
            added = Thresholds(thresholds.back, (*thresholds.fore, k))
            found.append(_State(added, state.back_s, fore_s, min(state.spare_s, state.fore_s - before)))
    return found, all_tried


def _fore_places(chain: Chain, state: _State, place: int) -> tuple[list[int], bool]:
    """Where the next forward threshold may go.

    As late as covers the position; but if gradients that must stay come later, they may need the backward
    window to be spared more, and the threshold to be earlier.
    """
    _, kept, free = chain.sums
    needed_s = kept[place] - state.back_s
    if needed_s > state.spare_s + chain.slack_s:
        return [], True  # a forward transfer here would come too late
    last = min(place, bisect_right(free, state.fore_s - needed_s + chain.slack_s))
    if kept[-1] <= kept[place]:
        return [last], True
    most_s = min(state.spare_s, kept[-1] - state.back_s)
    first = min(last, bisect_right(free, state.fore_s - most_s + chain.slack_s))
    places = [k for k in range(first, last) if chain.free[k]]
    if len(places) <= _MOST_EARLIER:
        return [*places, last], True
    thinned = [places[i * len(places) // _MOST_EARLIER] for i in range(_MOST_EARLIER)]
    return [*thinned, last], False


def _undominated(chain: Chain, states: Iterable[_State]) -> list[_State]:
    """Those that no other state with the same numbers of transfers is at least as good as in all."""
    kept_s = chain.sums[1][-1] if chain.time_s else 0.0
    groups: dict[tuple[int, int], list[tuple[float, float, float, _State]]] = {}
    for s in states:
        # Where what must stay fits whatever comes, what was spared for it does not matter.
        spare_s = 0.0 if kept_s - s.back_s <= s.spare_s else s.spare_s
        key = len(s.thresholds.back), len(s.thresholds.fore)
        groups.setdefault(key, []).append((s.back_s, s.fore_s, spare_s, s))
    found = list[_State]()
    for key in sorted(groups):
        front = list[tuple[float, float, float]]()
        for back_s, fore_s, spare_s, state in sorted(groups[key], key=lambda each: (-each[0], -each[1], -each[2])):
            if not any(f >= fore_s and s >= spare_s for _, f, s in front):
                front.append((back_s, fore_s, spare_s))
                found.append(state)
    return found


def capacities(chain: Chain, plan: Thresholds, late_s: float) -> tuple[np.ndarray, np.ndarray]:
    """What the transfers with a threshold up to each position can carry, backward and forward."""

    def steps(places: Sequence[int], rooms: Sequence[float], late: float) -> np.ndarray:
        values = [0.0] + [rooms[k] + late - (n + 1) * chain.start_s for n, k in enumerate(places)]
        return np.array(values)[np.searchsorted(places, np.arange(len(chain.time_s)), side="right")]

    return steps(plan.back, chain.back_s, late_s), steps(plan.fore, chain.fore_s, 0.0)


def needed_s(chain: Chain, plan: Thresholds) -> float:
    """The least exposed time with which the transfers carry everything, if some such time does."""
    if not plan.back:
        return 0.0
    back, fore = capacities(chain, plan, 0.0)
    _, kept, free = (np.array(each) for each in chain.sums)
    spare = np.minimum.accumulate(np.minimum(fore - free, 0.0))
    first = plan.back[0]
    # A transfer later than another one of its window must leave that one its time.
    steps = [chain.back_s[k] - (n + 1) * chain.start_s for n, k in enumerate(plan.back)]
    return max(0.0, -steps[0], float((kept - back - spare)[first:].max()))


@dataclass(frozen=True)
class Least:
    """The least exposed time.

    Attributes:
        late_s: of a plan that was found.
        bound_s: below which there is none; equal to ``late_s`` up to rounding if the search was complete.
        plan: its thresholds; none if nothing is better than what the caller had.
    """

    late_s: float
    bound_s: float
    plan: Thresholds | None = None


def least_exposed(chain: Chain, low_s: float, high_s: float, precision_s: float) -> Least:
    """The least exposed time with which everything fits, by bisection.

    Args:
        chain: the gradients.
        low_s: there is no plan below.
        high_s: there is a plan.
        precision_s: how close to come.
    """
    plan: Thresholds | None = None
    for regular in _regular(chain):
        needed = needed_s(chain, regular)
        if needed < high_s:
            high_s, plan = max(low_s, needed), regular
    proven_s, failures, probe_s, left = low_s, 0, low_s, _MOST_ALTOGETHER
    while high_s - low_s > precision_s and left > 0:
        found = cover(chain, probe_s)
        left -= found.states
        if found.plans:
            needed, plan = min(((needed_s(chain, p), p) for p in found.plans), key=itemgetter(0))
            high_s, failures = max(low_s, min(probe_s, needed)), 0
        else:
            low_s, failures = probe_s, failures + 1
            proven_s = max(proven_s, probe_s) if found.is_complete else proven_s
        # The least known may already be the optimum: times between those of plans do not occur.
        close_s = high_s - 0.9 * precision_s
        probe_s = close_s if failures == 2 and close_s > low_s else (low_s + high_s) / 2
    return Least(high_s, min(high_s, proven_s), plan)


def _regular(chain: Chain) -> list[Thresholds]:
    """Thresholds in both windows whenever the room has grown by so much, for several amounts.

    Where transfers start at almost no cost, many are good and a search among them takes long.
    """
    found = list[Thresholds]()
    longest_s = max(chain.back_s[-1], chain.fore_s[-1])
    gap_s = longest_s / 4
    while gap_s > max(chain.start_s, longest_s / 2000):
        back = _grown(chain.back_s, range(len(chain.back_s)), -math.inf, gap_s)
        free = [k for k, is_free in enumerate(chain.free) if is_free]
        found.append(Thresholds(back, _grown(chain.fore_s, free, chain.start_s, gap_s)))
        gap_s /= 2
    return found


def _grown(room_s: Sequence[float], places: Iterable[int], more_than_s: float, gap_s: float) -> tuple[int, ...]:
    """The first place with more room than that, and each with that much more than the one before."""
    found = list[int]()
    for k in places:
        if room_s[k] > more_than_s:
            found.append(k)
            more_than_s = room_s[k] + gap_s
    return tuple(found)
