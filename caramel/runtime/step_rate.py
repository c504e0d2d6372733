"""How fast steps are, without the first ones, in which TensorFlow gets ready and connections are made."""

from __future__ import annotations

import statistics
import time
from collections import deque

from caramel.util.units import format_ms, format_number

FIRST_RUNS = 3
"""Number of runs that are left out: they prune and place the graph, allocate, and fill caches. Each is one step or
several."""

_LAST_RUNS = 10_000
"""Number of runs, the last ones, of which medians are taken."""


class SettledRuns:
    """Tells which runs count for rates: none of the first ones, and no first one of so many steps.

    Attributes:
        runs: number of runs so far.
        largest: largest number of steps in a run so far.
    """

    def __init__(self) -> None:
        self.runs = self.largest = 0
        self._seen: set[int] = set()  # numbers of steps for which TensorFlow is ready

    def note(self, steps: int) -> bool:
        """Note a run that has just ended; whether it counts.

        Args:
            steps: number of steps in it.
        """
        self.runs += 1
        self.largest = max(self.largest, steps)
        counts = self.runs > FIRST_RUNS and steps in self._seen
        self._seen.add(steps)
        return counts


class StepTimes:
    """What steps take, by the runs that count for rates."""

    def __init__(self) -> None:
        self._runs = SettledRuns()
        self._steps_s: deque[float] = deque(maxlen=_LAST_RUNS)
        self._waits_s: deque[float] = deque(maxlen=_LAST_RUNS)

    def note(self, run_s: float, wait_s: float, steps: int) -> bool:
        """Note a run that has just ended; whether it counts.

        Args:
            run_s: seconds of the run.
            wait_s: seconds of it in which steps have waited for their data.
            steps: number of steps in it.
        """
        counts = self._runs.note(steps)
        if counts:
            self._steps_s.append(run_s / steps)
            self._waits_s.append(wait_s / steps)
        return counts

    @property
    def steps_in_run(self) -> int:
        """Largest number of steps that were one run."""
        return self._runs.largest

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step; None while there are too few."""
        return statistics.median(self._steps_s) if self._steps_s else None

    @property
    def data_wait_s(self) -> float:
        """Median seconds of a step in which it waits for its data."""
        return statistics.median(self._waits_s) if self._waits_s else 0.0


class StepRate:
    """The rate of the steps so far; begins with the first step.

    Attributes:
        steps: number of steps so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._times = StepTimes()
        self._counted = self._examples = 0
        self._counted_s = self._wait_s = 0.0
        self._end_s = self._started_s = time.perf_counter()

    def note(self, examples: int, steps: int = 1, wait_s: float = 0.0) -> None:
        """Note a run that has just ended.

        Args:
            examples: number of examples in it; 0 where that is not known.
            steps: number of steps in it.
            wait_s: seconds so far in which steps have waited for their data.
        """
        before_s, self._end_s = self._end_s, time.perf_counter()
        waited_s, self._wait_s = wait_s - self._wait_s, wait_s
        self.steps += steps
        if self._times.note(self._end_s - before_s, waited_s, steps):
            self._counted += steps
            self._counted_s += self._end_s - before_s
            self._examples += examples

    @property
    def steps_in_run(self) -> int:
        """Largest number of steps that were one run."""
        return self._times.steps_in_run

    @property
    def elapsed_s(self) -> float:
        """Seconds of all steps."""
        return self._end_s - self._started_s

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step; None while there are too few."""
        return self._times.step_s

    @property
    def data_wait_s(self) -> float:
        """Median seconds of a step in which it waits for its data."""
        return self._times.data_wait_s

    @property
    def examples_per_s(self) -> float | None:
        """Examples in a second of all these steps; None while there are too few, or their number is not known."""
        return self._examples / self._counted_s if self._examples and self._counted_s else None

    def __str__(self) -> str:
        """The steps and their rate, for people."""
        text = f"{self.steps} step{'s' * (self.steps != 1)} in {self.elapsed_s:.1f} s"
        if self.step_s is None:
            return text
        rate = "" if self.examples_per_s is None else f", {format_number(self.examples_per_s)} examples/s"
        first = self.steps - self._counted
        return f"{text} (after the first {first} a median of {format_ms(self.step_s)} each{rate})"
