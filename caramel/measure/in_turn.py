"""Steps of two compiled programs in turn, so that whatever else happens on a machine happens to both."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from caramel.measure.timed_steps import Batches, timed_steps
from caramel.runtime.session import Session

__all__ = ["ROUNDS", "is_gain", "times_in_turn"]

ROUNDS = 5
"""Number of rounds, of so many steps of both."""


_LEAST_GAIN = 0.01
"""Part of a step that has to be saved in these rounds; less is noise (our choice)."""


def is_gain(ratios: Sequence[float]) -> bool:
    """Whether a step is faster than another beyond noise: by more than 1 % in the median, and in all rounds but one.

    Args:
        ratios: its time over that of the other, in each round.
    """
    return statistics.median(ratios) < 1 - _LEAST_GAIN and sum(ratio >= 1 for ratio in ratios) <= 1


def times_in_turn(sessions: tuple[Session, Session], batches: Batches | None, steps: int) -> list[tuple[float, float]]:
    """Median seconds of a step of both, in each of some rounds, every other of which begins with the second.

    Args:
        sessions: of both, which have run the steps in which TensorFlow gets ready.
        batches: function that gives so many batches, for inputs that are fed; None for data on the workers.
        steps: number of steps of each in a round.
    """
    found = []
    for number in range(ROUNDS):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        times_s = {which: statistics.median(timed_steps(sessions[which], batches, steps)) for which in order}
        found.append((times_s[0], times_s[1]))
    return found
