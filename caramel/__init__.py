"""Caramel: compile a single-device TensorFlow training program into one data-parallel graph.

Importing this package is cheap; TensorFlow is imported when something first needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caramel.errors import (
    AnalysisError,
    CaptureError,
    CaramelError,
    CheckpointError,
    ClusterError,
    DataError,
    EndOfData,
    ExportError,
    FitError,
    InputError,
    InvariantError,
    OtherProgramError,
    PlanError,
    ProgramError,
    ReportError,
    StepError,
    TraceError,
    UnsupportedError,
)
from caramel.util.lazy_names import lazy_names

__version__ = "0.1.0"

_PLACES = {
    "all_reduce": "allreduce",
    "Analyzer": "analyzers.analyzer",
    "ARModel": "armodel",
    "capture": "frontend.context",
    "Cluster": "runtime.clusters.base",
    "Context": "frontend.context",
    "evaluate": "keras.evaluate",
    "fit": "keras.fit",
    "InProcess": "runtime.clusters.in_process",
    "load_trace": "measure.trace_file",
    "LocalProcesses": "runtime.clusters.local_processes",
    "NetworkModel": "netmodel.model",
    "Plan": "plan",
    "predict": "keras.evaluate",
    "Profile": "report.profile",
    "profile": "report.profile",
    "PSModel": "psmodel",
    "ray_servers": "runtime.clusters.ray_servers",
    "ready_orders": "measure.step_stats",
    "RunOptions": "runtime.host.run_options",
    "save_trace": "measure.trace_file",
    "Servers": "runtime.clusters.existing",
    "Session": "runtime.session",
    "StepResult": "runtime.step_result",
    "trace": "measure.tracer",
    "traced_step": "measure.step_stats",
    "tune": "tuning.live",
    "what_if": "armodel",
}

if TYPE_CHECKING:
    from caramel.allreduce import all_reduce
    from caramel.analyzers.analyzer import Analyzer
    from caramel.armodel import ARModel, what_if
    from caramel.frontend.context import Context, capture
    from caramel.keras.evaluate import evaluate, predict
    from caramel.keras.fit import fit
    from caramel.measure.step_stats import ready_orders, traced_step
    from caramel.measure.trace_file import load_trace, save_trace
    from caramel.measure.tracer import trace
    from caramel.netmodel.model import NetworkModel
    from caramel.plan import Plan
    from caramel.psmodel import PSModel
    from caramel.report.profile import Profile, profile
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.clusters.existing import Servers
    from caramel.runtime.clusters.in_process import InProcess
    from caramel.runtime.clusters.local_processes import LocalProcesses
    from caramel.runtime.clusters.ray_servers import ray_servers
    from caramel.runtime.host.run_options import RunOptions
    from caramel.runtime.session import Session
    from caramel.runtime.step_result import StepResult
    from caramel.tuning.live import tune

__all__ = [
    "all_reduce",
    "AnalysisError",
    "Analyzer",
    "ARModel",
    "capture",
    "CaptureError",
    "CaramelError",
    "CheckpointError",
    "Cluster",
    "ClusterError",
    "Context",
    "DataError",
    "EndOfData",
    "evaluate",
    "ExportError",
    "fit",
    "FitError",
    "InProcess",
    "InputError",
    "InvariantError",
    "load_trace",
    "LocalProcesses",
    "NetworkModel",
    "Plan",
    "OtherProgramError",
    "PlanError",
    "predict",
    "Profile",
    "profile",
    "ProgramError",
    "PSModel",
    "ray_servers",
    "ready_orders",
    "ReportError",
    "RunOptions",
    "save_trace",
    "Servers",
    "Session",
    "StepError",
    "StepResult",
    "trace",
    "traced_step",
    "TraceError",
    "tune",
    "UnsupportedError",
    "what_if",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
