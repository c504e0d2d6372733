"""What the steps of a cell were predicted from, and what a real one was like: kept beside the record of the times.

For each cell a folder has the trace, the network, each plan of this library, and one timeline of a real step under
each plan. Why a prediction was wrong can then be read from the record, years later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.output import write_json
from benchmarks.training.records import Cell
from benchmarks.training.timeline import Message, Step, Work
from caramel.facts import Trace
from caramel.measure.trace_file import save_trace
from caramel.netmodel.file import save as save_network
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan

_LEAST_S = 20e-6
"""Shorter ops are not kept: there are thousands, and together they take next to no time."""

_TRACE, _NETWORK = "trace.json", "network.json"


@dataclass(frozen=True)
class Evidence:
    """What is known of the plans of a cell.

    Attributes:
        trace: of the workload.
        network: measured between the hosts.
        plans: of this library, by contender.
        timelines: of a real step under each plan, by contender; of some only, where others failed.
    """

    trace: Trace
    network: NetworkModel
    plans: Mapping[str, Plan]
    timelines: Mapping[str, Step]


def folder_of(record: str, cell: Cell) -> Path:
    """Where the evidence of a cell is.

    Args:
        record: file of the record.
        cell: of it.
    """
    path = Path(record)
    return path.with_name(f"{path.stem}_cells") / cell.key.replace(" ", "_").replace("/", "_")


def keep(evidence: Evidence, folder: Path) -> None:
    """Write the evidence of a cell; what was there of the same names is replaced.

    Args:
        evidence: all of it.
        folder: see `folder_of`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_trace(evidence.trace, folder / _TRACE)
    save_network(evidence.network, folder / _NETWORK)
    for name, plan in evidence.plans.items():
        plan.save(_plan_file(folder, name))
    for name, step in evidence.timelines.items():
        write_json(_as_data(step), folder / f"{name}.timeline.json")


def plan_of(folder: Path, contender: str) -> Plan | None:
    """The plan of a contender; None where none was kept.

    Args:
        folder: see `folder_of`.
        contender: name of a plan of this library.

    Raises:
        PlanError: it is damaged, or of another version.
    """
    path = _plan_file(folder, contender)
    return Plan.load(path) if path.exists() else None


def timeline(folder: Path, contender: str) -> Step:
    """The timeline of a contender.

    Args:
        folder: see `folder_of`.
        contender: name of a plan of this library.
    """
    data = json.loads((folder / f"{contender}.timeline.json").read_text(encoding="utf-8"))
    works = tuple(Work(*row) for row in data["works"]["rows"])
    messages = tuple(Message(*row) for row in data["messages"]["rows"])
    return Step(works, messages, data["step_s"])


def _plan_file(folder: Path, contender: str) -> Path:
    return folder / f"{contender}.plan.json"


def _as_data(step: Step) -> dict[str, Any]:
    """Rows without the names of their columns, which stand once."""
    works = [work for work in step.works if work.end_s - work.start_s >= _LEAST_S]
    return {"step_s": step.step_s, "works": _table(Work, works), "messages": _table(Message, step.messages)}


def _table(kind: type, rows: Iterable[Any]) -> dict[str, Any]:
    return {"columns": [field.name for field in fields(kind)], "rows": [list(astuple(row)) for row in rows]}
