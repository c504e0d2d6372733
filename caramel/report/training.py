"""The report of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caramel.plan import Plan
from caramel.report.content import Report, shared_cores_warning
from caramel.report.predicted import predicted_timeline
from caramel.report.run_record import RunRecord
from caramel.report.what_helps import what_ifs
from caramel.runtime.clusters.base import Cluster
from caramel.runtime.clusters.in_process import InProcess
from caramel.runtime.clusters.local_processes import LocalProcesses
from caramel.runtime.host.environment import usable_cores


def where_workers_share_cores(cluster: Cluster, workers: int) -> str | None:
    """Why workers of a cluster are not faster than one device; None if each has a core of its own, as far as is known.

    Args:
        cluster: where they run.
        workers: number of workers.
    """
    is_here = isinstance(cluster, (InProcess, LocalProcesses))
    return shared_cores_warning(workers, usable_cores()) if is_here else None


def training_report(
    title: str, plan: Plan, version: str, facts: Mapping[type, Any], record: RunRecord, cluster: Cluster
) -> Report:
    """What a report says of a training.

    Args:
        title: name of the program.
        plan: the plan.
        version: version of this library.
        facts: facts from which it was made, by type; empty if it was given.
        record: the training.
        cluster: cluster on which it ran.

    Raises:
        TraceError: TensorFlow's statistics of the traced step cannot be read.
    """
    warning = where_workers_share_cores(cluster, plan.workers)
    return Report(
        title,
        plan,
        version,
        predicted_timeline(plan),
        what_ifs(plan, facts),
        record.timeline(),
        record,
        () if warning is None else (warning,),
        warning is not None,
    )
