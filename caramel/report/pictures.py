"""The files of a timeline and of a report, as commands and `caramel.fit` write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from caramel.util.whole_files import check_writable

if TYPE_CHECKING:
    from caramel.plan import Plan
    from caramel.report.run_record import RunRecord
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.session import Session


class Pictures:
    """The pictures that somebody wants: of a plan, or of a training.

    Args:
        title: name of the program.
        timeline: path of the timeline; None for none.
        report: path of the report; None for none.
        version: version of this library.

    Raises:
        InputError: a file cannot be written.
    """

    def __init__(self, title: str, timeline: str | None, report: str | None, version: str) -> None:
        for file in (timeline, report):
            if file is not None:
                check_writable(file)
        self._title, self._timeline, self._report, self._version = title, timeline, report, version

    @property
    def are_wanted(self) -> bool:
        """Whether there is any."""
        return self._timeline is not None or self._report is not None

    def write_plan(self, plan: Plan, facts: Mapping[type, Any]) -> None:
        """Write the pictures of a plan that has not run.

        Args:
            plan: the plan.
            facts: facts from which it was made, by type.

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

        predicted = predicted_timeline(plan)
        if self._timeline is not None:
            write_timeline(self._timeline, plan, [] if predicted is None else [predicted])
        if self._report is not None:
            write_report(self._report, Report(self._title, plan, self._version, predicted, what_ifs(plan, facts)))

    def record(self, session: Session) -> RunRecord | None:
        """A record of the steps to come; None if no picture is wanted."""
        if not self.are_wanted:
            return None
        from caramel.report.run_record import RunRecord

        return RunRecord(session)

    def write(self, plan: Plan, facts: Mapping[type, Any], cluster: Cluster, record: RunRecord | None) -> list[str]:
        """Write the pictures after a training; their files.

        Args:
            plan: the plan.
            facts: facts from which it was made, by type.
            cluster: cluster on which it ran.
            record: the training.

        Raises:
            ReportError: a file cannot be written.
            TraceError: TensorFlow's statistics of the traced step cannot be read.
        """
        if record is None or not record.losses or not self.are_wanted:
            return []
        from caramel.report.chrome_trace import write_timeline
        from caramel.report.page import write_report
        from caramel.report.training import training_report

        report = training_report(self._title, plan, self._version, facts, record, cluster)
        if self._timeline is not None:
            timelines = [step for step in (report.predicted, report.measured) if step is not None]
            write_timeline(self._timeline, plan, timelines)
        if self._report is not None:
            write_report(self._report, report)
        return [file for file in (self._timeline, self._report) if file is not None]
