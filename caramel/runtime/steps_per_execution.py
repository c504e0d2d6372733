"""How many steps are worth being one run: what unrolling saves, and what it costs at first."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

from caramel.errors import InputError
from caramel.runtime.step_rate import FIRST_RUNS
from caramel.util.arguments import whole_number

_logger = logging.getLogger(__name__)

AUTO = "auto"
"""Asks for the number of steps in a run to be chosen."""

_TRIED = 8
"""Number of single steps that are measured, after the first ones that do not count."""

_CHOICES = (2, 4, 8, 16)

READY_S_PER_NODE = 0.25e-3
"""Seconds that it takes to get ready for a node of unrolled steps: import, placement and partition, on two cores."""

OPTIMIZED_S_PER_NODE = 1.25e-3
"""Seconds that it takes besides where TensorFlow must optimise the graph itself."""

_LEAST_GAIN = 0.05
"""Part of a step below which it is not worth the trouble."""


def worthwhile_steps(step_s: float, run_s: float, steps: int, node_s: float, most: int) -> int:
    """The number of steps in a run with which a training ends first; 1 where unrolling saves little.

    Args:
        step_s: seconds of a step that is a run of its own.
        run_s: seconds of a run in which nothing is done.
        steps: number of steps to come.
        node_s: seconds that it takes to get ready for the nodes of a step.
        most: largest number of steps in a run.

    >>> worthwhile_steps(0.006, 0.002, 100_000, 0.5, 200)
    16
    >>> worthwhile_steps(0.006, 0.002, 1_000, 0.5, 200)
    1
    >>> worthwhile_steps(0.500, 0.002, 100_000, 0.5, 200)
    1
    """

    def total_s(count: int) -> float:
        ready_s = 0.0 if count == 1 else count * node_s
        return ready_s + steps * (step_s - run_s * (1 - 1 / count))

    best = min((count for count in (1, *_CHOICES) if count <= most), key=total_s)
    return best if total_s(best) < (1 - _LEAST_GAIN) * total_s(1) else 1


def within_epochs(most: int, steps: int) -> int:
    """The number of steps in a run with which epochs have the fewest runs, where a run does not go beyond an epoch.

    Args:
        most: largest number of steps in a run.
        steps: number of steps of an epoch, of which those that are left over run one by one.

    >>> within_epochs(16, 1000), within_epochs(16, 8), within_epochs(16, 15), within_epochs(16, 1)
    (16, 8, 4, 1)
    """
    return max((1, *(count for count in _CHOICES if count <= most)), key=lambda count: steps // count * (count - 1))


class StepsInRun:
    """The number of steps in a run, while a training goes on.

    Args:
        given: a number, or `AUTO`: then single steps are measured first.
        steps: number of steps of the training; None if it is not known, and then `AUTO` is 1.
        choose: function that chooses: seconds of a single step and number of steps to come -> number of steps in a run.

    Attributes:
        count: the number for the next run.

    Raises:
        InputError: it is neither.
    """

    def __init__(self, given: int | str, steps: int | None, choose: Callable[[float, int], int]) -> None:
        if isinstance(given, str) and given != AUTO:
            raise InputError(f"steps_per_execution must be a number of steps, or 'auto', got {given!r}")
        self.count = 1 if isinstance(given, str) else whole_number(given, "steps_per_execution")
        self._is_open = given == AUTO and steps is not None
        self._steps_left = steps or 0
        self._choose = choose
        self._steps_s: list[float] = []
        self._last_s = time.perf_counter()

    def note(self, steps: int) -> None:
        """Note a run that has just ended.

        Args:
            steps: number of steps in it.
        """
        if not self._is_open:
            return
        now_s = time.perf_counter()
        self._steps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._steps_left -= steps
        if len(self._steps_s) == FIRST_RUNS + _TRIED and self._steps_left > 1:
            step_s = statistics.median(self._steps_s[FIRST_RUNS:])
            self.count = self._choose(step_s, self._steps_left)
            self._is_open = False
            _logger.info("a step takes %.3g ms; steps in a run from now on: %d", step_s * 1e3, self.count)
