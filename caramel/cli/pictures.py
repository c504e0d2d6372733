"""The options ``--timeline`` and ``--report`` of several commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caramel.cli.options import check_writable

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.compiler.distributed_model import DistributedModel
    from caramel.measure.step_stats import TracedStep
    from caramel.report.run_record import RunRecord
    from caramel.runtime.session import Session

with_timeline = click.option(
    "--timeline",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Also draw a step, worker by worker, for Perfetto or chrome://tracing.",
)


def check_pictures(*files: str | None) -> None:
    """Refuse files of pictures that cannot be written, before the work that they are to show.

    Args:
        files: values of the options; None for one that was not given.

    Raises:
        InputError: see `check_writable`.
    """
    for file in files:
        if file is not None:
            check_writable(file)


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


class RunPictures:
    """The pictures of ``caramel run``.

    Args:
        timeline: value of ``--timeline``.
    """

    def __init__(self, timeline: str | None) -> None:
        check_pictures(timeline)
        self._timeline = timeline

    def record(self, session: Session, armodel: ARModel) -> RunRecord | None:
        """A record of the steps to come; None if no picture is wanted."""
        if self._timeline is None:
            return None
        from caramel.report.run_record import RunRecord

        return RunRecord(session, armodel.distributed)

    def write(self, armodel: ARModel, record: RunRecord | None) -> None:
        """Write the pictures after a training, and say where they are.

        Raises:
            ReportError: a file cannot be written.
        """
        if record is None or not record.losses:
            return
        from caramel.report.chrome_trace import write_timeline
        from caramel.report.predicted import predicted_timeline

        timelines = [each for each in (predicted_timeline(armodel.plan), record.timeline()) if each is not None]
        if self._timeline is not None:
            write_timeline(self._timeline, armodel.plan, timelines)
            click.echo(f"written: {self._timeline}")
