"""A contender in one cell: its bursts, and the row that they make."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.training.contender import Burst, Contender
from benchmarks.training.names import COMPUTATIONS, computation_of
from benchmarks.training.records import Cell, Row
from caramel.errors import CaramelError, InvariantError, in_one_line

T = TypeVar("T")

COMPARED_LOSSES = 5
"""Steps that all contenders must agree on; later ones differ more, as rounding adds up."""

LOSS_TOLERANCE = 1e-3
"""Relative."""


@dataclass(frozen=True)
class Conditions:
    """What holds for all contenders of a cell.

    Attributes:
        examples: of a batch of the whole job.
        link_bytes_per_s: measured payload rate of a link.
        least_bytes: what each host must send at least in a step.
        limit: (seconds of computation alone) -> seconds that no step is below; None if no bound is known.
        predicted_s: what a step should take, by contender.
    """

    examples: int
    link_bytes_per_s: float
    least_bytes: float
    limit: Callable[[float], float] | None = None
    predicted_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Meters:
    """What is read before and after a burst.

    Attributes:
        sent_bytes: of each host, so far.
        processor_s: of the processes with these ids, so far; None if that is not known.
    """

    sent_bytes: Callable[[], Sequence[int]]
    processor_s: Callable[[Sequence[int]], float | None]


def processor_time_s(pids: Sequence[int]) -> float | None:
    """Seconds of processor time that processes have used so far, in user and kernel mode.

    Args:
        pids: the processes; one that is named twice counts once.

    Returns:
        The sum; None when one of them has ended.
    """
    ticks = 0
    for pid in sorted(set(pids)):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        # The second field, the command's name, may itself have blanks and parentheses.
        fields = text.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def checked_burst(contender: Contender, steps: int) -> Burst:
    """Run steps.

    Raises:
        CaramelError: the contender fails.
        InvariantError: what it says is not of so many steps, or has numbers that cannot be.
    """
    burst = contender.run(steps)
    counts = len(burst.times_s), len(burst.losses)
    if counts != (steps, steps):
        raise InvariantError(f"{steps} steps were asked for, and it has {counts[0]} times and {counts[1]} losses")
    for number, (time_s, loss) in enumerate(zip(burst.times_s, burst.losses), 1):
        if not (math.isfinite(time_s) and time_s > 0 and math.isfinite(loss)):
            raise InvariantError(f"its step {number} of {steps} took {time_s:g} s and has loss {loss:g}")
    return burst


def step_time_s(burst: Burst) -> float:
    """Seconds of a step of a burst but for its first one, a warm-up.

    The mean, not the median: what one step leaves to the next one is then neither lost nor counted twice.
    """
    return statistics.fmean(burst.times_s[1:])


class Entry:
    """A contender in a cell, and what is known of it so far.

    Args:
        contender: which has not run a step yet.

    Attributes:
        name: of the contender.
        losses: of its first steps.
        error: why it takes no further part, in one line; None while it does.
    """

    def __init__(self, contender: Contender) -> None:
        self.name = contender.name
        self.losses: tuple[float, ...] = ()
        self.error: str | None = None
        self._contender = contender
        self._times_s: list[float] = []
        self._processor_s: list[float] = []
        self._sent_bytes: list[float] = []

    @property
    def is_comparable(self) -> bool:
        """Whether its losses are known, and those of a training with all workers."""
        return bool(self.losses) and self.error is None and self.name not in COMPUTATIONS

    def warm_up(self, steps: int, reference: Entry | None) -> None:
        """Run a burst of which nothing is recorded but the losses.

        Args:
            steps: of the burst, after one more.
            reference: whose losses it must have; None for nobody's.
        """
        burst = self._tried(lambda: checked_burst(self._contender, steps + 1))
        if burst is None:
            return
        self.losses = burst.losses[:COMPARED_LOSSES]
        if reference is None or not self.is_comparable:
            return
        for number, (ours, theirs) in enumerate(zip(self.losses, reference.losses), 1):
            if not math.isclose(ours, theirs, rel_tol=LOSS_TOLERANCE):
                told = f"loss {ours:.6g} in step {number}, and not {theirs:.6g}"
                self._drop(f"does not train as {reference.name} does: {told}")
                return

    def measure(self, steps: int, meters: Meters) -> None:
        """Run a burst that counts.

        Args:
            steps: of the burst, after one more, which is dropped.
            meters: what else is measured; they know nothing of the steps and count the first one too.
        """
        pids = self._tried(self._contender.pids)
        if pids is None:
            return
        sent_before, processor_before_s = meters.sent_bytes(), meters.processor_s(pids)
        burst = self._tried(lambda: checked_burst(self._contender, steps + 1))
        if burst is None:
            return
        processor_after_s, sent_after = meters.processor_s(pids), meters.sent_bytes()
        self._times_s.append(step_time_s(burst))
        if processor_before_s is not None and processor_after_s is not None:
            self._processor_s.append((processor_after_s - processor_before_s) / (steps + 1))
        sent = [after - before for before, after in zip(sent_before, sent_after)]
        if sent:
            self._sent_bytes.append(statistics.fmean(sent) / (steps + 1))

    def _tried(self, act: Callable[[], T]) -> T | None:
        """What the contender answers; None if it fails, and takes no further part."""
        try:
            return act()
        except CaramelError as error:
            self._drop(in_one_line(error))
            return None

    def _drop(self, error: str) -> None:
        self.error = error
        # Its processes may be in a state in which they disturb the others. What went wrong first is what is told.
        with suppress(CaramelError):
            self._contender.close()

    @property
    def time_s(self) -> float | None:
        """Median seconds of a step; None if it failed."""
        return None if self.error is not None else _median(self._times_s)

    def row(self, cell: Cell, conditions: Conditions, times_s: Mapping[str, float | None]) -> Row:
        """What was measured.

        Args:
            cell: in which it was measured.
            conditions: of the cell.
            times_s: median seconds of a step, by contender.
        """
        compute_s = times_s.get(computation_of(self.name))
        limit_s = naive_limit_s = None
        if compute_s is not None:
            naive_limit_s = max(compute_s, conditions.least_bytes / conditions.link_bytes_per_s)
            limit_s = None if conditions.limit is None else conditions.limit(compute_s)
        return Row(
            workload=cell.workload,
            workers=cell.workers,
            rho=cell.rho,
            examples=conditions.examples,
            link_bytes_per_s=conditions.link_bytes_per_s,
            contender=self.name,
            settings=dict(self._contender.settings),
            times_s=tuple(self._times_s),
            time_s=self.time_s,
            compute_s=compute_s,
            limit_s=limit_s,
            naive_limit_s=naive_limit_s,
            predicted_s=conditions.predicted_s.get(self.name),
            processor_s=_median(self._processor_s),
            sent_bytes=_median(self._sent_bytes),
            losses=self.losses,
            error=self.error,
        )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
