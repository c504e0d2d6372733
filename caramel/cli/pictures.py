"""The options ``--timeline`` and ``--report`` of several commands, and what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from caramel.compiler.distributed_model import DistributedModel
    from caramel.measure.step_stats import TracedStep

with_timeline = click.option(
    "--timeline",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Also draw a step, worker by worker, for Perfetto or chrome://tracing.",
)


with_report = click.option(
    "--report",
    metavar="FILE.html",
    type=click.Path(dir_okay=False),
    help="Also write a report: where the time of a step goes, what would help, the plan, and of a run the loss.",
)


def draw_computation(file: str, computation: DistributedModel, step: TracedStep) -> None:
    """Draw a traced step of computation alone.

    Args:
        file: value of ``--timeline``.
        computation: computation that was traced.
        step: the traced step.

    Raises:
        ReportError: the file cannot be written.
    """
    from caramel.report.chrome_trace import write_timeline
    from caramel.report.measured import measured_timeline

    notes = ["Nothing was sent, and each worker ran one op at a time."]
    write_timeline(file, None, [measured_timeline(computation, step, notes)])
