"""How fast steps are, without the first ones, in which TensorFlow optimises the graph and connections are made."""

from __future__ import annotations

import time

FIRST_RUNS = 3
"""Number of runs that are left out; each is a step, or several that are one run."""


class StepRate:
    """The rate of the steps so far; begins with the first step.

    Attributes:
        steps: number of steps so far.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._runs = 0
        self._counted = self._examples = 0
        self._begin_s = self._end_s = self._started_s = time.perf_counter()

    def note(self, examples: int, steps: int = 1) -> None:
        """Note a run that has just ended.

        Args:
            examples: number of examples in it; 0 where that is not known.
            steps: number of steps in it.
        """
        self.steps += steps
        self._runs += 1
        self._end_s = time.perf_counter()
        if self._runs <= FIRST_RUNS:
            self._begin_s = self._end_s
            return
        self._counted += steps
        self._examples += examples

    @property
    def elapsed_s(self) -> float:
        """Seconds of all steps."""
        return self._end_s - self._started_s

    @property
    def step_s(self) -> float | None:
        """Seconds of a step, as a mean; None while there are too few."""
        return (self._end_s - self._begin_s) / self._counted if self._counted else None

    @property
    def examples_per_s(self) -> float | None:
        """Examples in a second; None while there are too few steps, or where their number is not known."""
        step_s = self.step_s
        return self._examples / self._counted / step_s if self._examples and step_s else None

    def __str__(self) -> str:
        """The steps and their rate, for people."""
        text = f"{self.steps} step{'s' * (self.steps != 1)} in {self.elapsed_s:.1f} s"
        if self.step_s is None:
            return text
        rate = "" if self.examples_per_s is None else f", {self.examples_per_s:.4g} examples/s"
        return f"{text} ({self.step_s * 1e3:.1f} ms each after the first {self.steps - self._counted}{rate})"
