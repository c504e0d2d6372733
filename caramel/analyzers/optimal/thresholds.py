"""The least exposed time of two windows, where gradients may be split: thresholds that cover every prefix.

docs/explanation/two-windows.md has the argument. All in seconds of the channel.
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
"""Number of sets of thresholds that one search looks at; beyond, nothing is proved. Searches for real models have
needed a tenth (our choice)."""

_BEAM_WIDTH = 60
"""Number of sets of thresholds with one number of transfers; beyond, the most promising are kept and nothing is proved
(our choice)."""

_MOST_TOTAL_STATES = 6000
"""Number of sets of thresholds that all searches for one least exposed time look at (our choice: about 0.05 s)."""

_MOST_EARLIER_POSITIONS = 24
"""Number of earlier positions of a forward threshold that are tried, where gradients that must stay come after it."""


@dataclass(frozen=True)
class Chain:
    """Gradients in an order in which neither room decreases.

    Attributes:
        back_s: seconds of room in the backward window, for each gradient.
        fore_s: seconds of room in the forward window; without meaning for gradients that cannot be postponed.
        time_s: seconds of the channel for the bytes of each gradient; positive.
        free: whether each gradient can be postponed.
        start_s: seconds that each transfer costs, besides its bytes.
        slack_s: seconds that rounding may take.
    """

    back_s: tuple[float, ...]
    fore_s: tuple[float, ...]
    time_s: tuple[float, ...]
    free: tuple[bool, ...]
    start_s: float
    slack_s: float

    @cached_property
    def sums(self) -> tuple[list[float], list[float], list[float]]:
        """The seconds up to each gradient: of all, of those that must stay, and of those that can be postponed."""
        free = [t if f else 0.0 for t, f in zip(self.time_s, self.free)]
        kept = [0.0 if f else t for t, f in zip(self.time_s, self.free)]
        sum_free, sum_kept = np.cumsum(free), np.cumsum(kept)
        return (sum_free + sum_kept).tolist(), sum_kept.tolist(), sum_free.tolist()


@dataclass(frozen=True)
class Thresholds:
    """The lowest position of each transfer, in either window.

    Attributes:
        back: positions of the backward window, ascending.
        fore: positions of the forward window, ascending.
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
    """The result of a search.

    Attributes:
        plans: thresholds that cover everything, those with the fewest transfers first.
        is_complete: whether all thresholds were tried: if no plans were found, there are none.
        states: number of sets of thresholds that were looked at.
    """

    plans: tuple[Thresholds, ...]
    is_complete: bool
    states: int


def cover(chain: Chain, late_s: float, further: int = 0) -> Cover:
    """Thresholds with which every prefix fits, with the fewest transfers.

    Args:
        chain: the gradients.
        late_s: seconds of exposed time that the backward window may have.
        further: number of transfers above the fewest that are of interest.
    """
    level, plans, is_complete, rounds_left, states = [_State()], list[Thresholds](), True, None, 0
    while level and rounds_left != 0:
        states += len(level)
        successors = list[_State]()
        for state in level:
            position = _uncovered(chain, state)
            if position == len(chain.time_s):
                plans.append(state.thresholds)
                rounds_left = further + 1 if rounds_left is None else rounds_left
            else:
                children, all_tried = _children(chain, state, position, late_s)
                successors += children
                is_complete = is_complete and all_tried
        level = _undominated(chain, successors)
        beam_width = min(_BEAM_WIDTH, MOST_STATES - states)
        if len(level) > beam_width:
            level = sorted(level, key=lambda s: (-_uncovered(chain, s), -s.back_s - s.fore_s))[: max(0, beam_width)]
            is_complete = False
        rounds_left = None if rounds_left is None else rounds_left - 1
    return Cover(tuple(plans), is_complete, states)


def _uncovered(chain: Chain, state: _State) -> int:
    """The first position whose prefix does not fit; the number of positions if all fit."""
    everything, kept, _ = chain.sums
    first_uncovered = bisect_right(everything, state.back_s + state.fore_s + chain.slack_s)
    return min(first_uncovered, bisect_right(kept, state.back_s + state.spare_s + chain.slack_s))


def _children(chain: Chain, state: _State, position: int, late_s: float) -> tuple[list[_State], bool]:
    """The states with one more threshold for the first uncovered position, and whether these are all."""
    children, thresholds = list[_State](), state.thresholds
    back_s = chain.back_s[position] + late_s - (len(thresholds.back) + 1) * chain.start_s
    if back_s > state.back_s:
        added = Thresholds((*thresholds.back, position), thresholds.fore)
        children.append(_State(added, back_s, state.fore_s, state.spare_s))
    places, all_tried = _fore_positions(chain, state, position)
    for k in places:
        fore_s = chain.fore_s[k] - (len(thresholds.fore) + 1) * chain.start_s
        if fore_s > state.fore_s:
            before = chain.sums[2][k - 1] if k else 0.0
            added = Thresholds(thresholds.back, (*thresholds.fore, k))
            children.append(_State(added, state.back_s, fore_s, min(state.spare_s, state.fore_s - before)))
    return children, all_tried


def _fore_positions(chain: Chain, state: _State, position: int) -> tuple[list[int], bool]:
    """The positions of the next forward threshold, and whether these are all.

    As late as covers the position; but if gradients that must stay come later, they may need the backward
    window to be spared more, and the threshold to be earlier.
    """
    _, kept, free = chain.sums
    missing_s = kept[position] - state.back_s
    if missing_s > state.spare_s + chain.slack_s:
        return [], True  # a forward transfer here would come too late
    last = min(position, bisect_right(free, state.fore_s - missing_s + chain.slack_s))
    if kept[-1] <= kept[position]:
        return [last], True
    most_s = min(state.spare_s, kept[-1] - state.back_s)
    first = min(last, bisect_right(free, state.fore_s - most_s + chain.slack_s))
    places = [k for k in range(first, last) if chain.free[k]]
    if len(places) <= _MOST_EARLIER_POSITIONS:
        return [*places, last], True
    thinned = [places[i * len(places) // _MOST_EARLIER_POSITIONS] for i in range(_MOST_EARLIER_POSITIONS)]
    return [*thinned, last], False


def _undominated(chain: Chain, states: Iterable[_State]) -> list[_State]:
    """The states that no other state with the same numbers of transfers dominates in all capacities."""
    kept_s = chain.sums[1][-1] if chain.time_s else 0.0
    groups: dict[tuple[int, int], list[tuple[float, float, float, _State]]] = {}
    for s in states:
        # Where what must stay fits whatever comes, what was spared for it does not matter.
        spare_s = 0.0 if kept_s - s.back_s <= s.spare_s else s.spare_s
        key = len(s.thresholds.back), len(s.thresholds.fore)
        groups.setdefault(key, []).append((s.back_s, s.fore_s, spare_s, s))
    undominated = list[_State]()
    for key in sorted(groups):
        front = list[tuple[float, float, float]]()
        for back_s, fore_s, spare_s, state in sorted(groups[key], key=lambda entry: (-entry[0], -entry[1], -entry[2])):
            if not any(f >= fore_s and s >= spare_s for _, f, s in front):
                front.append((back_s, fore_s, spare_s))
                undominated.append(state)
    return undominated


def capacities(chain: Chain, plan: Thresholds, late_s: float) -> tuple[np.ndarray, np.ndarray]:
    """The seconds that transfers with a threshold up to each position can carry, backward and forward."""

    def steps(places: Sequence[int], rooms: Sequence[float], late: float) -> np.ndarray:
        values = [0.0] + [rooms[k] + late - (n + 1) * chain.start_s for n, k in enumerate(places)]
        return np.array(values)[np.searchsorted(places, np.arange(len(chain.time_s)), side="right")]

    return steps(plan.back, chain.back_s, late_s), steps(plan.fore, chain.fore_s, 0.0)


def needed_s(chain: Chain, plan: Thresholds) -> float:
    """The least exposed time with which the transfers carry everything, if some such time does."""
    if not plan.back:
        return 0.0
    back, fore = capacities(chain, plan, 0.0)
    _, kept, free = (np.array(sums) for sums in chain.sums)
    spare = np.minimum.accumulate(np.minimum(fore - free, 0.0))
    first = plan.back[0]
    # A transfer later than another one of its window must leave that one its time.
    steps = [chain.back_s[k] - (n + 1) * chain.start_s for n, k in enumerate(plan.back)]
    return max(0.0, -steps[0], float((kept - back - spare)[first:].max()))


@dataclass(frozen=True)
class LeastExposed:
    """The least exposed time.

    Attributes:
        late_s: exposed seconds of a plan that was found.
        bound_s: lower bound of the exposed seconds; equal to ``late_s`` up to rounding if the search was complete.
        plan: thresholds of the plan; None if nothing is better than what the caller had.
    """

    late_s: float
    bound_s: float
    plan: Thresholds | None = None


def least_exposed(chain: Chain, low_s: float, high_s: float, precision_s: float) -> LeastExposed:
    """The least exposed time with which everything fits, by bisection.

    Args:
        chain: the gradients.
        low_s: exposed seconds below which there is no plan.
        high_s: exposed seconds of a plan.
        precision_s: precision of the result, in seconds.
    """
    plan: Thresholds | None = None
    for spaced in _evenly_spaced(chain):
        needed = needed_s(chain, spaced)
        if needed < high_s:
            high_s, plan = max(low_s, needed), spaced
    proven_s, failures, probe_s, states_left = low_s, 0, low_s, _MOST_TOTAL_STATES
    while high_s - low_s > precision_s and states_left > 0:
        covered = cover(chain, probe_s)
        states_left -= covered.states
        if covered.plans:
            needed, plan = min(((needed_s(chain, p), p) for p in covered.plans), key=itemgetter(0))
            high_s, failures = max(low_s, min(probe_s, needed)), 0
        else:
            low_s, failures = probe_s, failures + 1
            proven_s = max(proven_s, probe_s) if covered.is_complete else proven_s
        # The least known may already be the optimum: times between those of plans do not occur.
        close_s = high_s - 0.9 * precision_s
        probe_s = close_s if failures == 2 and close_s > low_s else (low_s + high_s) / 2
    return LeastExposed(high_s, min(high_s, proven_s), plan)


def _evenly_spaced(chain: Chain) -> list[Thresholds]:
    """Thresholds in both windows at equal distances of room, for several distances.

    Where transfers start at almost no cost, many are good and a search among them takes long.
    """
    plans = list[Thresholds]()
    longest_s = max(chain.back_s[-1], chain.fore_s[-1])
    gap_s = longest_s / 4
    while gap_s > max(chain.start_s, longest_s / 2000):
        back = _spaced_positions(chain.back_s, range(len(chain.back_s)), -math.inf, gap_s)
        free = [k for k, is_free in enumerate(chain.free) if is_free]
        plans.append(Thresholds(back, _spaced_positions(chain.fore_s, free, chain.start_s, gap_s)))
        gap_s /= 2
    return plans


def _spaced_positions(
    room_s: Sequence[float], candidates: Iterable[int], more_than_s: float, gap_s: float
) -> tuple[int, ...]:
    """The first position with more room than ``more_than_s``, and each with ``gap_s`` more than the one before."""
    positions = list[int]()
    for position in candidates:
        if room_s[position] > more_than_s:
            positions.append(position)
            more_than_s = room_s[position] + gap_s
    return tuple(positions)
