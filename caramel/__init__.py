"""Caramel: compile a single-device TensorFlow training program into one data-parallel graph.

Importing this package is cheap; TensorFlow is imported when something first needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    PlanError,
    ProgramError,
    StepError,
    TraceError,
    UnsupportedError,
)

__version__ = "0.1.0"

_LAZY = {
    "ARModel": "caramel.armodel",
    "Analyzer": "caramel.analyzers.analyzer",
    "Context": "caramel.frontend.context",
    "InProcess": "caramel.runtime.clusters.in_process",
    "LocalProcesses": "caramel.runtime.clusters.local_processes",
    "NetworkModel": "caramel.netmodel.model",
    "Plan": "caramel.plan",
    "Servers": "caramel.runtime.clusters.existing",
    "Session": "caramel.runtime.session",
    "StepResult": "caramel.runtime.session",
    "all_reduce": "caramel.allreduce",
    "capture": "caramel.frontend.context",
    "fit": "caramel.keras.fit",
    "trace": "caramel.measure.tracer",
}

if TYPE_CHECKING:
    from caramel.allreduce import all_reduce
    from caramel.analyzers.analyzer import Analyzer
    from caramel.armodel import ARModel
    from caramel.frontend.context import Context, capture
    from caramel.keras.fit import fit
    from caramel.measure.tracer import trace
    from caramel.netmodel.model import NetworkModel
    from caramel.plan import Plan
    from caramel.runtime.clusters.existing import Servers
    from caramel.runtime.clusters.in_process import InProcess
    from caramel.runtime.clusters.local_processes import LocalProcesses
    from caramel.runtime.session import Session, StepResult

__all__ = [
    "AnalysisError",
    "Analyzer",
    "ARModel",
    "CaptureError",
    "CaramelError",
    "CheckpointError",
    "ClusterError",
    "Context",
    "DataError",
    "EndOfData",
    "ExportError",
    "FitError",
    "InProcess",
    "InputError",
    "InvariantError",
    "LocalProcesses",
    "NetworkModel",
    "Plan",
    "PlanError",
    "ProgramError",
    "Servers",
    "Session",
    "StepError",
    "StepResult",
    "TraceError",
    "UnsupportedError",
    "all_reduce",
    "capture",
    "fit",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'caramel' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
