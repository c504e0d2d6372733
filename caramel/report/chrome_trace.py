"""Timelines as files for Perfetto and chrome://tracing, of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caramel.errors import InputError, ReportError, listed
from caramel.plan import Plan
from caramel.report.step_timeline import (
    OTHER,
    PULL,
    PUSH,
    REDUCTION,
    STALL,
    TRANSFER,
    UPDATE,
    Bar,
    Lanes,
    StepTimeline,
    tracks,
)
from caramel.util.text_files import write_text

MOST_BYTES = 5_000_000
"""Largest size of a timeline's file: viewers open such files at once."""

_MOST_NAMES = 40
"""Largest number of gradients of a transfer that a bar names; the head of the file names all, where there is room."""

_FIRST_LEAST = 1e-5
"""Fraction of a step from which on bars stay by themselves, in the first attempt to keep within the size."""

_LEAST_EVENT_BYTES = 60
"""Bytes that an event takes at least."""

_LANES_OF_STEP = 1000
"""Numbers of threads that are kept for the lanes of a worker in one step."""

_COLORS = {
    TRANSFER: "thread_state_iowait",
    PULL: "thread_state_iowait",
    PUSH: "thread_state_runnable",
    STALL: "terrible",
    UPDATE: "good",
    REDUCTION: "grey",
    OTHER: "generic_work",
}
"""Names of colours of chrome://tracing, by kind of bar; other viewers choose their own."""


def write_timeline(path: str | os.PathLike[str], plan: Plan | None, timelines: Sequence[StepTimeline]) -> None:
    """Write timelines of one step to a file in the Trace Event Format, which Perfetto and chrome://tracing open.

    Args:
        path: path of the file.
        plan: plan of the step, which says what travels in which transfer; None if nothing travels.
        timelines: the predicted step, the measured one, or both; they are shown beside each other.

    Raises:
        InputError: there is no timeline.
        ReportError: the file cannot be written; an earlier one is untouched.
    """
    write_text(path, trace_events(plan, timelines), "the timeline", ReportError)


def trace_events(plan: Plan | None, timelines: Sequence[StepTimeline], most_bytes: int = MOST_BYTES) -> str:
    """The text of such a file. Short bars beside each other are joined as far as its size makes necessary.

    Args:
        plan: see `write_timeline`.
        timelines: see `write_timeline`.
        most_bytes: largest size of the text.

    Raises:
        InputError: there is no timeline.
    """
    if not timelines:
        raise InputError("there is nothing to draw: neither a prediction nor a measured step")
    details = {} if plan is None else {number: _details(plan, number) for number in range(len(plan.transfers))}
    head = _head(plan, timelines)
    if len(json.dumps(head)) > most_bytes // 4:
        del head["transfers"]
    workers = 1 + max((lanes.rank for timeline in timelines for lanes in timeline.workers), default=-1)
    step_s = max(timeline.iteration_s for timeline in timelines)
    least_s = 0.0
    while True:
        if _LEAST_EVENT_BYTES * sum(map(_count, timelines)) <= most_bytes or least_s > step_s:
            events = [event for timeline in timelines for event in _events(timeline, workers, details)]
            text = _text(events, {**head, "bars shorter than this are joined [ms]": _milliseconds(least_s)})
            if len(text) <= most_bytes or least_s > step_s:
                return text
        least_s = max(2 * least_s, _FIRST_LEAST * step_s)
        timelines = [timeline.merged(least_s) for timeline in timelines]


def _count(timeline: StepTimeline) -> int:
    """Number of bars and arrivals."""
    every = (*timeline.workers, *timeline.servers)
    return sum(len(lanes.computation) + len(lanes.link) + len(lanes.received) for lanes in every)


def _text(events: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> str:
    """JSON with an event on each line."""
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(head)},"traceEvents":[\n{lines}\n]}}\n'


def _head(plan: Plan | None, timelines: Sequence[StepTimeline]) -> dict[str, Any]:
    """What is said of the whole file."""
    head: dict[str, Any] = {f"{t.source} step [ms]": _milliseconds(t.iteration_s) for t in timelines}
    head["notes"] = [f"{timeline.source}: {note}" for timeline in timelines for note in timeline.notes]
    if plan is not None:
        head["plan"] = plan.digest
        head["workers"] = plan.workers
        head["transfers"] = {str(number): list(t.gradients) for number, t in enumerate(plan.transfers)}
    return head


def _details(plan: Plan, number: int) -> dict[str, Any]:
    """What a viewer shows of a transfer."""
    transfer = plan.transfers[number]
    details = {
        "gradients": listed(transfer.gradients, _MOST_NAMES),
        "bytes": transfer.size_bytes,
        "window": transfer.window,
        "algorithm": transfer.algorithm,
        "depth": transfer.depth,
        "predicted [ms]": None if transfer.predicted_s is None else _milliseconds(transfer.predicted_s),
    }
    return {name: value for name, value in details.items() if value is not None}


def _events(timeline: StepTimeline, workers: int, details: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events of a step: a process for each worker and server, the same in all timelines, and threads for lanes."""
    first = 1  # viewers take process 0 and thread 0 for idle processors
    for lanes in timeline.workers:
        yield from _process_events(first + lanes.rank, f"worker {lanes.rank}", lanes, timeline.source, details)
    for lanes in timeline.servers:
        number = first + workers + lanes.rank
        yield from _process_events(number, f"server {lanes.rank}", lanes, timeline.source, details)


def _process_events(
    process: int, name: str, lanes: Lanes, source: str, details: Mapping[int, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    first = 1 if source == "predicted" else _LANES_OF_STEP + 1
    thread = first + process * 2 * _LANES_OF_STEP
    yield _named(process, thread, "process_name", name=name)
    yield _named(process, thread, "process_sort_index", sort_index=process)
    yield from _lane_events(process, thread, f"computation, {source}", lanes.computation, details)
    if lanes.link:
        yield from _lane_events(process, thread + _LANES_OF_STEP // 2, f"link, {source}", lanes.link, details)
    yield from _received_events(process, lanes.received)


def _lane_events(
    process: int, first: int, name: str, bars: Sequence[Bar], details: Mapping[int, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The events of a lane, on as many threads as bars overlap."""
    for number, track in enumerate(tracks(bars)):
        thread = first + number
        yield _named(process, thread, "thread_name", name=name if number == 0 else f"{name} ({number + 1})")
        yield _named(process, thread, "thread_sort_index", sort_index=thread)
        for bar in track:
            yield _bar_event(process, thread, bar, details)


def _bar_event(process: int, thread: int, bar: Bar, details: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": bar.name or bar.kind,
        "cat": bar.kind,
        "ph": "X",
        "ts": _microseconds(bar.start_s),
        "dur": _microseconds(bar.time_s),
        "pid": process,
        "tid": thread,
    }
    if bar.kind in _COLORS:
        event["cname"] = _COLORS[bar.kind]
    if bar.kind == TRANSFER and bar.transfer is not None and bar.transfer in details:
        event["args"] = details[bar.transfer]
    elif bar.kind == STALL and bar.cause is not None:
        event["args"] = {"waits for": bar.cause}
    return event


def _received_events(process: int, received: Sequence[tuple[float, int]]) -> Iterator[dict[str, Any]]:
    """What a worker has received so far, as a counter."""
    total = 0
    for time_s, size_bytes in received:
        total += size_bytes
        ts, args = _microseconds(time_s), {"received": total}
        yield {"name": "received [bytes]", "ph": "C", "ts": ts, "pid": process, "args": args}


def _named(process: int, thread: int, what: str, **value: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": value}


def _microseconds(time_s: float) -> float:
    return round(time_s * 1e6, 3)


def _milliseconds(time_s: float) -> float:
    return round(time_s * 1e3, 6)
