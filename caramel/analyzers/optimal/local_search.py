"""The last step of planning: a local search on the simulated step itself.

Packings are optimal for a line, in an order in which rooms agree, and without the time of updates. Measured times are a
curve, and orders and updates are what they are. So the best packings are changed a little, again and again, as long as
the simulated step gets shorter. The search looks at a fixed number of steps and never at a clock: the same inputs give
the same plan.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence

from caramel.analyzers.cost.network import Network
from caramel.analyzers.cost.step_evaluator import StepEvaluator
from caramel.analyzers.optimal.buckets import BACK, FORE, BucketPlans, Windows, count_pieces
from caramel.analyzers.optimal.changes import Changes
from caramel.facts import Boundaries, InFlight, Schedule

_LEAST_GAIN = 1e-7
"""Fraction of a step by which a change must make it shorter to be taken: less is rounding."""

_LEAST_GAIN_OF_CUTS = 5e-5
"""The same for a change after which more pieces travel: each costs ops that the simulator does not see (our choice)."""

_DESCENT_SHARE = 0.3
"""Part of the steps that are simulated on the first way down, at most; the rest are of random walks (our choice)."""

_WALK_SHARE = 0.3
"""Part of what is left for a random walk; the rest is for the way down from the best it has come by (our choice)."""

_HOTTEST, _COLDEST = 1e-2, 1e-5
"""Fractions of a step by which a random walk goes up, on average where it does, at its beginning and its end (our
choice)."""

_MOST_IMPOSSIBLE = 20
"""Number of random changes for each step of a walk that may turn out not to be possible."""

_LAST_SHARE = 0.02
"""Part of all steps so small that no further walk is begun with it."""


class LocalSearch:
    """Search for schedules near given ones.

    Args:
        network: network as planners see it.
        boundaries: boundaries of all gradients.
        scales: factors on the computation: 1 for what is predicted, then others for what may be instead.
        in_flight: how much of each window may be under way at once; default: the usual numbers of transfers.

    Attributes:
        evaluations: number of steps that were simulated so far.
    """

    def __init__(
        self,
        network: Network,
        boundaries: Boundaries,
        scales: Sequence[float] = (1.0,),
        in_flight: InFlight | None = None,
    ) -> None:
        self._in_flight = in_flight
        self._scales = scales
        self._evaluator = StepEvaluator(network, boundaries)
        self._plans = BucketPlans(boundaries)
        self._changes = Changes(self._plans)
        self._rng = random.Random(0)  # the same numbers for the same calls
        self.evaluations = 0

    # -- what a schedule costs -------------------------------------------------------------------

    def times_s(self, schedule: Schedule) -> list[float]:
        """Seconds of a step under a schedule, for each length of computation.

        Args:
            schedule: all transfers.
        """
        return self._times_s(self._plans.windows(schedule))

    def _times_s(self, windows: Windows, scales: Sequence[float] | None = None) -> list[float]:
        forward, backward = self._plans.items(windows)
        wanted = self._scales if scales is None else scales
        self.evaluations += len(wanted)
        return [self._evaluator.iteration_s(forward, backward, self._in_flight, scale) for scale in wanted]

    def in_pieces(self, schedule: Schedule, most_bytes: float) -> Schedule:
        """A schedule in which each transfer that is larger is several, one after the other.

        Args:
            schedule: all transfers.
            most_bytes: number of bytes of a transfer on the wire, or a few more.
        """
        return self._plans.in_pieces(schedule, most_bytes)

    def in_other_window_s(self, schedule: Schedule, number: int, most: int) -> float | None:
        """Seconds of the step with one transfer at the best place of its other window; None if it cannot be there.

        Args:
            schedule: all transfers.
            number: number of the transfer.
            most: number of places to try, those nearest to where the transfer is due.
        """
        windows = self._plans.windows(schedule)
        is_backward = number >= len(windows[FORE])
        window, other = (BACK, FORE) if is_backward else (FORE, BACK)
        place = number - len(windows[FORE]) if is_backward else number
        bucket = windows[window][place]
        if not self._plans.may_be(bucket.pieces, other):
            return None
        left = self._plans.replaced(windows, window, windows[window][:place] + windows[window][place + 1 :])
        times_s = []
        for target in self._plans.places(left[other], bucket, other)[:most]:
            buckets = (*left[other][:target], bucket, *left[other][target:])
            times_s += self._times_s(self._plans.replaced(left, other, buckets), self._scales[:1])
        return min(times_s)

    def _cost_s(self, windows: Windows, limit_s: float | None) -> float:
        (predicted_s,) = self._times_s(windows, self._scales[:1])
        if limit_s is None:
            return predicted_s
        if predicted_s > limit_s:
            return math.inf
        return statistics.fmean([predicted_s, *self._times_s(windows, self._scales[1:])])

    # -- the search ------------------------------------------------------------------------------

    def improve(self, schedule: Schedule, evaluations: int, limit_s: float | None = None) -> Schedule:
        """The best schedule that is found from one on.

        It goes from each schedule to a better neighbour until there is none. Then it walks on at random, up as well as
        down and ever less up, and down from the best that it has come by, as long as there are steps to simulate.

        Args:
            schedule: schedule to begin with.
            evaluations: number of steps to simulate, or a few more.
            limit_s: seconds that a step may take with the computation as predicted, so that the mean over all lengths
                of the computation is least; None to make the step with the computation as predicted the least.
        """
        last = self.evaluations + evaluations
        first_way_down = self.evaluations + round(_DESCENT_SHARE * evaluations)
        best, best_s = self._descended(self._plans.windows(schedule), limit_s, first_way_down)
        while last - self.evaluations > _LAST_SHARE * evaluations and len(best[FORE]) + len(best[BACK]):
            begun = self.evaluations
            walked = self._walked(best, best_s, limit_s, round(_WALK_SHARE * (last - begun)))
            found, found_s = self._descended(walked, limit_s, last)
            if self._is_better(found, found_s, best, best_s) or (
                found_s <= best_s and count_pieces(found) < count_pieces(best)
            ):
                best, best_s = found, found_s
            if self.evaluations - begun <= _LAST_SHARE * evaluations:
                break  # hardly anything can be changed
        return self._plans.schedule(best, schedule)

    @staticmethod
    def _is_better(windows: Windows, cost_s: float, than: Windows, than_s: float) -> bool:
        gain = _LEAST_GAIN_OF_CUTS if count_pieces(windows) > count_pieces(than) else _LEAST_GAIN
        return cost_s < than_s * (1 - gain)

    def _walked(self, windows: Windows, cost_s: float, limit_s: float | None, evaluations: int) -> Windows:
        """The best schedule on a random walk: simulated annealing."""
        rng, begun = self._rng, self.evaluations
        best, best_s = windows, cost_s
        for _ in range(_MOST_IMPOSSIBLE * evaluations):
            done = (self.evaluations - begun) / evaluations
            if done >= 1:
                break
            changed = self._changes.random_change(windows, rng)
            if changed is None:
                continue
            changed_s = self._cost_s(changed, limit_s)
            heat = _HOTTEST * (_COLDEST / _HOTTEST) ** done
            if changed_s <= cost_s * (1 + heat * rng.expovariate(1)):
                windows, cost_s = changed, changed_s
                if self._is_better(changed, changed_s, best, best_s):
                    best, best_s = changed, changed_s
        return best

    def _descended(self, windows: Windows, limit_s: float | None, last: int) -> tuple[Windows, float]:
        """A schedule without a better neighbour, or as far as it came, and its cost."""
        best_s = self._cost_s(windows, limit_s)
        improved = True
        while improved:
            improved = False
            for kind in self._changes.kinds:
                while (better := self._better(kind(windows), windows, best_s, limit_s, last)) is not None:
                    windows, best_s = better
                    improved = True
        return windows, best_s

    def _better(
        self, candidates: Iterable[Windows], than: Windows, than_s: float, limit_s: float | None, last: int
    ) -> tuple[Windows, float] | None:
        """The first candidate that is better, and its cost; None if there is none, or no more may be simulated."""
        for candidate in candidates:
            if self.evaluations >= last:
                return None
            cost_s = self._cost_s(candidate, limit_s)
            if self._is_better(candidate, cost_s, than, than_s):
                return candidate, cost_s
        return None
