"""``python -m benchmarks.training.prediction_errors RECORD``: how near predictions come to measured steps.

Of cells whose evidence was kept: beside the record, each cell has the plans, with what their predictions leave open.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from benchmarks.output import errors_for_click, markdown_table
from benchmarks.training.evidence import folder_of, plan_of
from benchmarks.training.names import TITLES
from benchmarks.training.records import Cell, load
from benchmarks.training.report import NONE
from caramel.errors import InputError
from caramel.prediction import Interval

_DIFFERENT = 0.03
"""Two plans of a cell are compared where their measured steps differ by at least so much."""

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Predicted:
    """A plan of this library in a cell: what was predicted, and what was measured.

    Attributes:
        cell: which.
        contender: its name.
        predicted_s: seconds of a step by its plan.
        time_s: median seconds of a step.
        interval: of the prediction.
        at_computation_s: seconds of a step by its plan, where computation takes as long as it did in the cell; None
            where that was not measured.
    """

    cell: Cell
    contender: str
    predicted_s: float
    time_s: float
    interval: Interval
    at_computation_s: float | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.time_s - 1

    @property
    def error_at_computation(self) -> float | None:
        """The same with the computation of the cell."""
        return None if self.at_computation_s is None else self.at_computation_s / self.time_s - 1

    @property
    def left_open(self) -> float:
        """The variance that the trace and the network leave, of the logarithm of the step."""
        return self.interval.trace**2 + self.interval.network**2

    def is_covered(self, model_error: float) -> bool:
        """Whether the measured step is in the 95 % interval with some error of the model."""
        interval = Interval.around(self.predicted_s, self.interval.trace, self.interval.network, model_error)
        return interval.low_s <= self.time_s <= interval.high_s


def kept(record: str) -> list[Predicted]:
    """What was predicted and measured in the cells of a record.

    Args:
        record: file of the record.

    Raises:
        InputError: the record cannot be read.
        PlanError: a plan is damaged, or of another version.
    """
    found = []
    for row in load(record).rows:
        plan = plan_of(folder_of(record, row.cell), row.contender)
        if plan is not None and plan.prediction is not None and plan.prediction.interval is not None and row.time_s:
            step_s, at_s = plan.prediction.timeline.iteration_s, row.predicted_at_computation_s
            found.append(Predicted(row.cell, row.contender, step_s, row.time_s, plan.prediction.interval, at_s))
    return found


def model_error(pairs: Iterable[Predicted]) -> float:
    """What the simulation leaves out: the standard deviation of log(measured / predicted) that trace and network do not
    explain, around 0.

    Args:
        pairs: plans; without any it is 0.
    """
    excess = [math.log(each.time_s / each.predicted_s) ** 2 - each.left_open for each in pairs]
    return math.sqrt(max(statistics.fmean(excess), 0.0)) if excess else 0.0


def covered(pairs: Sequence[Predicted]) -> int:
    """How many steps are in their intervals, where those of a cell have the error of the model of all other cells."""
    found = 0
    for cell in dict.fromkeys(each.cell for each in pairs):
        error = model_error(each for each in pairs if each.cell != cell)
        found += sum(each.is_covered(error) for each in pairs if each.cell == cell)
    return found


def bounds_of_share(found: int, count: int) -> tuple[float, float]:
    """The exact 95 % bounds of a share (Clopper and Pearson), each side by itself 2.5 %.

    >>> [round(bound, 3) for bound in bounds_of_share(24, 24)]
    [0.858, 1.0]

    Args:
        found: number of successes.
        count: number of trials.
    """
    from scipy.stats import binomtest

    interval = binomtest(found, count).proportion_ci(_CONFIDENCE, "exact")
    return float(interval.low), float(interval.high)


def ranked(pairs: Sequence[Predicted]) -> tuple[int, int]:
    """Of the pairs of plans of one cell whose measured steps differ, how many are predicted in their order, and all."""
    right = count = 0
    for one, other in itertools.combinations(pairs, 2):
        if one.cell == other.cell and abs(math.log(one.time_s / other.time_s)) >= math.log1p(_DIFFERENT):
            count += 1
            right += (one.time_s - other.time_s) * (one.predicted_s - other.predicted_s) > 0
    return right, count


def table(pairs: Sequence[Predicted]) -> str:
    """Predictions beside measurements, and what they come to, as Markdown.

    Args:
        pairs: plans; at least two cells.
    """
    rows = [
        (
            str(each.cell),
            TITLES[each.contender],
            f"{each.predicted_s * 1e3:.4g}",
            f"{each.interval.low_s * 1e3:.4g} to {each.interval.high_s * 1e3:.4g}",
            f"{each.time_s * 1e3:.4g}",
            f"{each.error:+.1%}",
            NONE if each.error_at_computation is None else f"{each.error_at_computation:+.1%}",
            f"{each.interval.trace:.1%}, {each.interval.network:.1%}",
        )
        for each in pairs
    ]
    head = (
        "cell",
        "plan",
        "predicted [ms]",
        "interval [ms]",
        "measured [ms]",
        "off",
        "at its computation",
        "trace, network",
    )
    right, count = ranked(pairs)
    inside = covered(pairs)
    low, high = bounds_of_share(inside, len(pairs))
    errors = [each.error for each in pairs]
    beside = [each.error_at_computation for each in pairs if each.error_at_computation is not None]
    then = f" ({statistics.fmean(beside):+.1%} with the computation of the cell)" if beside else ""
    told = (
        f"Signed mean {statistics.fmean(errors):+.1%}{then}; half are within "
        f"{statistics.median(map(abs, errors)):.1%}, the worst is {max(errors, key=abs):+.1%}. "
        f"Of {count} pairs of plans of a cell whose steps differ by at least "
        f"{_DIFFERENT:.0%}, {right} are predicted in their order ({right / max(count, 1):.0%}). The error of the model "
        f"comes to {model_error(pairs):.1%}. With that of the other cells, {inside} of {len(pairs)} steps are in their "
        f"intervals ({inside / len(pairs):.0%}, 95 % bounds {low:.0%} to {high:.0%})."
    )
    return f"{markdown_table(head, rows)}\n\n{told}"


@click.command()
@click.argument("record", type=click.Path(exists=True, dir_okay=False))
@errors_for_click
def main(record: str) -> None:
    """Compare predictions with the measured steps of a RECORD of the training benchmark."""
    pairs = kept(record)
    if len({each.cell for each in pairs}) < 2:
        raise InputError(
            f"{record!r} has plans of {len({each.cell for each in pairs})} cells beside it: each cell is judged by the "
            "error of the others, so measure two or more (python -m benchmarks.training)"
        )
    click.echo(table(pairs))


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.training.prediction_errors"))
