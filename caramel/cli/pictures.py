"""The options ``--timeline`` and ``--report`` of several commands, and what they write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caramel import __version__
from caramel.cli.files import check_writable

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.compiler.distributed_model import DistributedModel
    from caramel.measure.step_stats import TracedStep
    from caramel.report.run_record import RunRecord
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.session import Session

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


class Pictures:
    """The pictures of ``caramel plan`` and ``run``.

    Args:
        title: name of the program.
        timeline: value of ``--timeline``.
        report: value of ``--report``.
    """

    def __init__(self, title: str, timeline: str | None, report: str | None) -> None:
        check_pictures(timeline, report)
        self._title, self._timeline, self._report = title, timeline, report

    @property
    def are_wanted(self) -> bool:
        """Whether there is any."""
        return self._timeline is not None or self._report is not None

    def write_plan(self, armodel: ARModel) -> None:
        """Write the pictures of a plan that has not run.

        Args:
            armodel: what was planned.

        Raises:
            ReportError: a file cannot be written.
        """
        if not self.are_wanted:
            return
        from caramel.report.chrome_trace import write_timeline
        from caramel.report.content import Report
        from caramel.report.page import write_report
        from caramel.report.predicted import predicted_timeline
        from caramel.report.what_helps import what_ifs

        plan = armodel.plan
        predicted = predicted_timeline(plan)
        if self._timeline is not None:
            write_timeline(self._timeline, plan, [] if predicted is None else [predicted])
        if self._report is not None:
            write_report(self._report, Report(self._title, plan, __version__, predicted, what_ifs(plan, armodel.facts)))

    def record(self, session: Session, armodel: ARModel) -> RunRecord | None:
        """A record of the steps to come; None if no picture is wanted."""
        if not self.are_wanted:
            return None
        from caramel.report.run_record import RunRecord

        return RunRecord(session, armodel.distributed)

    def write(self, armodel: ARModel, cluster: Cluster, record: RunRecord | None) -> list[str]:
        """Write the pictures after a training; their files.

        Raises:
            ReportError: a file cannot be written.
            TraceError: TensorFlow's statistics of the traced step cannot be read.
        """
        if record is None or not record.losses or not self.are_wanted:
            return []
        from caramel.report.chrome_trace import write_timeline
        from caramel.report.page import write_report
        from caramel.report.training import training_report

        report = training_report(self._title, armodel.plan, __version__, armodel.facts, record, cluster)
        if self._timeline is not None:
            timelines = [step for step in (report.predicted, report.measured) if step is not None]
            write_timeline(self._timeline, armodel.plan, timelines)
        if self._report is not None:
            write_report(self._report, report)
        return [file for file in (self._timeline, self._report) if file is not None]
