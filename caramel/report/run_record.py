"""What a training was like: the loss and the time of every step, and a few steps traced in full."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Sequence

from caramel.measure.step_stats import median_step, step_of, with_all_messages
from caramel.report.measured import measured_timeline
from caramel.report.step_timeline import StepTimeline
from caramel.runtime.session import Session
from caramel.runtime.step_rate import FIRST_RUNS, SettledRuns
from caramel.runtime.step_result import StepResult

_TRACED = (1, *range(FIRST_RUNS + 1, FIRST_RUNS + 4))
"""Numbers of the runs that are traced, each a step; the first one is drawn only where there is no later one."""


class RunRecord:
    """Notes the steps of a session from now on.

    Attributes:
        losses: loss of each step.
        step_s: seconds of each step, from the end of the one before; with its data, and with a checkpoint saved before
            it. The first one begins with the record.
        examples: number of examples of all steps that `examples_per_s` counts.

    Args:
        session: session that is about to train.
        is_drawn: whether a timeline is wanted, so that a few steps are traced.
    """

    def __init__(self, session: Session, is_drawn: bool = True) -> None:
        self.losses = array("d")
        self.step_s = array("d")
        self.examples = 0
        self._session = session
        self._is_drawn = is_drawn
        self._runs = SettledRuns()
        self._plain = array("q")  # positions of the steps that count for rates
        self._wait_s = session.data_wait_s
        self._waits_s = array("d")
        self._traced: list[tuple[int, bytes]] = []  # number of a run, counted from 1, and what TensorFlow says of it
        self._last_s = time.perf_counter()
        self._trace_next()

    def note(self, results: Sequence[StepResult]) -> None:
        """Note a run that has just ended; of several steps that are one run each has the same time.

        Args:
            results: results of its steps.
        """
        now_s = time.perf_counter()
        steps_s = [(now_s - self._last_s) / len(results)] * len(results)
        self._last_s = now_s
        waited_s, self._wait_s = self._session.data_wait_s - self._wait_s, self._session.data_wait_s
        if self._runs.note(len(results)) and not self._is_traced(self._runs.runs):
            self._plain.extend(range(len(self.losses), len(self.losses) + len(results)))
            self._waits_s.extend([waited_s / len(results)] * len(results))
            self.examples += sum(result.examples for result in results)
        self.losses.extend(result.loss for result in results)
        self.step_s.extend(steps_s)
        self._trace_next()

    def _trace_next(self) -> None:
        number = self._runs.runs + 1
        if self._is_traced(number):
            self._session.trace_next(lambda metadata: self._traced.append((number, metadata)))

    def _is_traced(self, number: int) -> bool:
        return self._is_drawn and number in _TRACED

    @property
    def steps_in_run(self) -> int:
        """Largest number of steps that were one run."""
        return self._runs.largest

    @property
    def plain_steps_s(self) -> Sequence[float]:
        """Seconds of the steps that count for rates: not those of first runs (see `SettledRuns`), nor traced ones."""
        return [self.step_s[position] for position in self._plain]

    @property
    def median_step_s(self) -> float | None:
        """Median seconds of such a step; None if there is none."""
        return statistics.median(self.plain_steps_s) if self.plain_steps_s else None

    @property
    def mean_step_s(self) -> float | None:
        """Mean seconds of such a step; None if there is none."""
        return statistics.fmean(self.plain_steps_s) if self.plain_steps_s else None

    @property
    def data_wait_s(self) -> float:
        """Median seconds of such a step in which it waits for its data."""
        return statistics.median(self._waits_s) if self._waits_s else 0.0

    @property
    def examples_per_s(self) -> float | None:
        """Examples in a second of such steps; None if there is none, or their number is not known."""
        total_s = sum(self.plain_steps_s)
        return self.examples / total_s if self.examples and total_s else None

    def timeline(self) -> StepTimeline | None:
        """The traced step of median length; None if no step was traced.

        Raises:
            TraceError: TensorFlow's statistics cannot be read.
        """
        if not self._traced:
            return None
        later = [metadata for number, metadata in self._traced if number > FIRST_RUNS]
        steps = [step_of(metadata) for metadata in later or [self._traced[0][1]]]
        step = median_step(with_all_messages(steps))
        notes = [
            "The step that is shown was traced, which changes its time; "
            "what the driver does between steps is not shown."
        ]
        if not later:
            notes.append("It is the first step, in which TensorFlow still gets ready: make more steps.")
        return measured_timeline(self._session.distributed, step, notes)
