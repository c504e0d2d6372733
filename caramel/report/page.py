"""Reports: one HTML file about a plan or a training, which asks for nothing else and opens anywhere."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from typing import Any

from caramel.errors import ReportError, listed
from caramel.report.content import Report, advice, milliseconds, notes, versions
from caramel.report.drawn_lanes import ROW_HEIGHT, DrawnStep, drawn_step, ticks
from caramel.report.drawn_lanes import WIDTH as LANE_WIDTH
from caramel.report.drawn_series import HEIGHT, WIDTH, DrawnSeries, drawn_series
from caramel.report.figures import StepFigures, exposed_by_transfer, figures_of
from caramel.report.run_record import RunRecord
from caramel.report.step_timeline import (
    BACKWARD_PASS,
    COMPUTE,
    FORWARD_PASS,
    OTHER,
    PULL,
    PUSH,
    REDUCTION,
    STALL,
    TRANSFER,
    UPDATE,
)
from caramel.util.text_files import write_text
from caramel.util.units import format_size, format_time

MOST_BYTES = 5_000_000
"""Largest size of a report."""

_MOST_WORKERS = 16
"""Largest number of workers whose measured lanes are shown, and of servers."""

_MOST_NAMES = (10_000, 30, 3)
"""Largest numbers of gradients of a transfer that are named: the first with which the page is small enough."""

_MOST_TRANSFERS = 3000
"""Largest number of transfers in the table, and of pulls in the list."""

KINDS = {
    COMPUTE: "computation",
    FORWARD_PASS: "forward pass",
    BACKWARD_PASS: "backward pass",
    UPDATE: "updates",
    REDUCTION: "adding up and copying for transfers",
    OTHER: "other ops",
    STALL: "waiting",
    TRANSFER: "transfers",
    PULL: "pulls of parameters",
    PUSH: "pushes of gradients",
}
"""Kinds of bars, in the order of the legend, with their names."""


def write_report(path: str | os.PathLike[str], report: Report) -> None:
    """Write a report to a file.

    Args:
        path: path of the file.
        report: what it is about.

    Raises:
        ReportError: the file cannot be written; an earlier one is untouched.
    """
    write_text(path, report_page(report), "the report", ReportError)


def report_page(report: Report) -> str:
    """The text of a report: HTML with its styles and script in it."""
    import jinja2  # only who wants a report waits for it

    files = resources.files("caramel.report") / "templates"
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"ms": milliseconds, "size": format_size, "time": format_time}
    template = environment.from_string((files / "report.html").read_text(encoding="utf-8"))
    parts = {name: (files / f"report.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    content = _content(report)
    text = ""
    for most_names in _MOST_NAMES:
        text = template.render(**content, transfers=_transfers(report, most_names), **parts)
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _content(report: Report) -> dict[str, Any]:
    plan, record = report.plan, report.record
    steps = _drawn_steps(report)
    return {
        "title": report.title,
        "plan": plan,
        "tiles": _tiles(report),
        "parts": _parts(report),
        "steps": steps,
        "ticks": ticks(_length_s(report)) if steps else [],
        "kinds": {kind: name for kind, name in KINDS.items() if kind in _kinds(steps)},
        "row_height": ROW_HEIGHT,
        "lane_width": LANE_WIDTH,
        "advice": advice(report),
        "what_ifs": report.what_ifs,
        "series": [] if record is None else _series(record),
        "series_width": WIDTH,
        "series_height": HEIGHT,
        "most_pulls": _MOST_TRANSFERS,
        "left_out": max(len(plan.transfers) - _MOST_TRANSFERS, 0),
        "notes": notes(report),
        "versions": versions(report),
    }


# -- figures -----------------------------------------------------------------------------------


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """The figures at the head: name, value and what goes with it."""
    tiles = []
    prediction, record = report.plan.prediction, report.record
    plan, local = report.plan, report.plan.local
    if prediction is not None:
        interval = prediction.interval
        between = "" if interval is None else f"95 %: {milliseconds(interval.low_s)} to {milliseconds(interval.high_s)}"
        tiles.append(("predicted step", milliseconds(prediction.timeline.iteration_s), between))
    if record is not None and record.median_step_s is not None:
        tiles.append(
            (
                "measured step",
                milliseconds(record.median_step_s),
                f"median of {len(record.plain_steps_s)} steps; mean {milliseconds(record.mean_step_s or 0.0)}",
            )
        )
    if plan.servers is not None and plan.servers.prediction is not None:
        predicted = plan.servers.prediction
        tiles.append(("predicted step", milliseconds(predicted.step_s), ""))
        tiles.append(("lower bound", milliseconds(predicted.lower_bound_s), "no order of pulls is shorter"))
    if prediction is not None and prediction.has_bound:
        tiles.append(
            (
                "lower bound",
                milliseconds(prediction.lower_bound_s),
                f"no plan is predicted to be shorter; gap {max(prediction.gap, 0.0):.1%}",
            )
        )
    if record is not None and record.examples_per_s is not None:
        tiles.append(("throughput", f"{record.examples_per_s:,.0f} /s", "examples of all workers"))
    if record is not None and record.losses:
        beside = f"after {len(record.losses):,} steps; first {record.losses[0]:.4g}"
        tiles.append(("loss", f"{record.losses[-1]:.4g}", beside))
    if plan.servers is not None:
        beside = (
            f"pulled by each of {plan.workers} workers; {format_size(plan.servers.pushed_bytes)} of gradients pushed"
        )
        tiles.append(("parameters", format_size(plan.servers.pulled_bytes), beside))
    elif local is not None:
        beside = (
            f"in {len(local.exchanges):,} transfers, after at most {local.sync_every:,} steps, {plan.workers} workers"
        )
        tiles.append(("exchange", format_size(local.size_bytes), beside))
    else:
        beside = f"in {len(plan.transfers):,} transfers, {plan.workers} workers"
        tiles.append(("gradients", format_size(plan.bytes_per_step), beside))
    return tiles


def _parts(report: Report) -> list[tuple[str, StepFigures]]:
    """The parts of the predicted and of the measured step."""
    parts = []
    if report.plan.prediction is not None:
        step = report.plan.prediction.timeline
        parts.append(("predicted", StepFigures(step.iteration_s, step.compute_s, step.communication_s, step.exposed_s)))
    elif report.predicted is not None:
        parts.append(("predicted", figures_of(report.predicted)))
    if report.measured is not None:
        parts.append(("measured", figures_of(report.measured)))
    return parts


# -- pictures ----------------------------------------------------------------------------------


def _length_s(report: Report) -> float:
    return max(step.iteration_s for step in (report.predicted, report.measured) if step is not None)


def _drawn_steps(report: Report) -> list[DrawnStep]:
    drawn = []
    if report.predicted is not None:
        title = f"predicted: {milliseconds(report.predicted.iteration_s)}"
        drawn.append(drawn_step(report.predicted, title, _length_s(report), 1, _MOST_WORKERS, "each worker"))
    if report.measured is not None:
        title = f"measured, a traced step: {milliseconds(report.measured.iteration_s)}"
        drawn.append(drawn_step(report.measured, title, _length_s(report), _MOST_WORKERS, _MOST_WORKERS))
    return drawn


def _kinds(steps: Sequence[DrawnStep]) -> set[str]:
    lanes = [lane for step in steps for lane in step.lanes]
    on_links = {box.bar.kind for lane in lanes for box in lane.boxes}
    return {kind for lane in lanes for kind in lane.paths} | on_links


def _series(record: RunRecord) -> list[DrawnSeries]:
    each = (
        drawn_series("loss", record.losses),
        drawn_series("step [ms]", [1e3 * s for s in record.step_s], is_cut=True),
    )
    return [series for series in each if series is not None]


# -- transfers ---------------------------------------------------------------------------------


def _transfers(report: Report, most_names: int) -> list[dict[str, Any]]:
    """Each transfer, for the table."""
    predicted_s = {} if report.predicted is None else exposed_by_transfer(report.predicted)
    measured_s = {} if report.measured is None else exposed_by_transfer(report.measured)
    rows = []
    for number, transfer in enumerate(report.plan.transfers[:_MOST_TRANSFERS]):
        rows.append(
            {
                "number": number,
                "transfer": transfer,
                "names": listed(transfer.gradients, most_names),
                "predicted_s": None if report.predicted is None else predicted_s.get(number, 0.0),
                "measured_s": None if report.measured is None else measured_s.get(number, 0.0),
                "elsewhere": report.plan.in_other_window(number),
            }
        )
    return rows
