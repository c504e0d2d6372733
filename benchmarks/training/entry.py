"""A contender in one cell: its bursts, and the row that they make."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from benchmarks.training.contender import Burst, Contender
from benchmarks.training.meters import Meter, Reading
from benchmarks.training.names import COMPUTATIONS, computation_of
from benchmarks.training.records import Cell, Row
from caramel.errors import CaramelError, InvariantError, in_one_line

T = TypeVar("T")

COMPARED_LOSSES = 4
"""Steps that all contenders must agree on; later ones differ more, as rounding adds up."""

LOSS_TOLERANCE = 1e-3
"""Relative."""


@dataclass(frozen=True)
class Conditions:
    """What holds for all contenders of a cell.

    Attributes:
        examples: of a batch of the whole job.
        program: what measures; see `program_here`.
        links_bytes_per_s: measured payload rates of links.
        network_s: seconds that each link needs for what must be sent in a step.
        limit: (seconds of computation alone) -> seconds that no step is below; None if no bound is known.
        predicted_s: what a step should take, by contender.
    """

    examples: int
    program: str
    links_bytes_per_s: Sequence[float]
    network_s: float
    limit: Callable[[float], float] | None = None
    predicted_s: Mapping[str, float] = field(default_factory=dict)


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
        self._used: list[Reading] = []

    @property
    def is_comparable(self) -> bool:
        """Whether its losses are known, and those of a training with all workers."""
        return bool(self.losses) and self.error is None and self.name not in COMPUTATIONS

    def warm_up(self) -> None:
        """Run a burst of which nothing is recorded but the losses."""
        burst = self._tried(lambda: checked_burst(self._contender, COMPARED_LOSSES))
        if burst is not None:
            self.losses = burst.losses

    def compare(self, reference: Entry) -> None:
        """Check that it trains as another contender does, if both train with all workers."""
        if not (self.is_comparable and reference.is_comparable):
            return
        for number, (ours, theirs) in enumerate(zip(self.losses, reference.losses), 1):
            if not math.isclose(ours, theirs, rel_tol=LOSS_TOLERANCE):
                told = f"loss {ours:.6g} in step {number}, and not {theirs:.6g}"
                self._drop(f"does not train as {reference.name} does: {told}")
                return

    def measure(self, steps: int, read: Meter) -> None:
        """Run a burst that counts.

        Args:
            steps: of the burst, after one more, which is dropped.
            read: what else is measured; that knows nothing of the steps and counts the first one too.
        """
        pids = self._tried(self._contender.pids)
        if pids is None:
            return
        before = read(pids)
        burst = self._tried(lambda: checked_burst(self._contender, steps + 1))
        if burst is None:
            return
        self._times_s.append(step_time_s(burst))
        self._used.append(read(pids).since(before, steps + 1))

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
            naive_limit_s = max(compute_s, conditions.network_s)
            limit_s = None if conditions.limit is None else conditions.limit(compute_s)
        processor_s = [each.processor_s for each in self._used if each.processor_s]
        sent_bytes = [each.sent_bytes for each in self._used]
        return Row(
            workload=cell.workload,
            workers=cell.workers,
            rho=cell.rho,
            examples=conditions.examples,
            link_bytes_per_s=statistics.median(conditions.links_bytes_per_s),
            links_bytes_per_s=tuple(conditions.links_bytes_per_s),
            contender=self.name,
            settings=dict(self._contender.settings),
            times_s=tuple(self._times_s),
            time_s=self.time_s,
            compute_s=compute_s,
            limit_s=limit_s,
            naive_limit_s=naive_limit_s,
            predicted_s=conditions.predicted_s.get(self.name),
            processor_s=_median([sum(each) for each in processor_s]),
            host_processor_s=_medians(processor_s),
            sent_bytes=_median([statistics.fmean(each) for each in sent_bytes]),
            host_sent_bytes=_medians(sent_bytes),
            host_received_bytes=_medians([each.received_bytes for each in self._used]),
            losses=self.losses,
            program=conditions.program,
            error=self.error,
        )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _medians(values: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Of each column."""
    return tuple(map(statistics.median, zip(*values)))
