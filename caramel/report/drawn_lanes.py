"""Lanes as shapes for a page: paths and boxes in parts of the step's width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caramel.report.step_timeline import STALL, Bar, StepTimeline, merged_lane, tracks

_LEAST = 1 / 800
"""Fraction of the drawn time from which on a bar stays by itself."""

_MOST_TRACKS = 3
"""Largest number of rows of a lane; what overlaps more lies on the last one."""

_MOST_BOXES = 150
"""Largest number of transfers that a lane shows each by itself; of more, short ones beside each other become one."""

WIDTH = 10_000
"""Units of the drawn time's width in paths."""

ROW_HEIGHT = 10
"""Units of the height of a row in paths."""


@dataclass(frozen=True)
class Box:
    """A transfer on a page.

    Attributes:
        left: percent of the width.
        width: likewise.
        row: number of the row, from the top.
        bar: the transfer.
    """

    left: float
    width: float
    row: int
    bar: Bar


@dataclass(frozen=True)
class DrawnLane:
    """A lane on a page.

    Attributes:
        title: name of the lane.
        rows: number of its rows.
        paths: the shape of all bars of a kind, as data of an SVG path, by kind.
        boxes: transfers, which can be chosen one by one.
    """

    title: str
    rows: int
    paths: Mapping[str, str]
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class DrawnStep:
    """A step on a page.

    Attributes:
        title: name of the step.
        lanes: its lanes, from the top.
        end: percent of the width at which the step ends.
    """

    title: str
    lanes: tuple[DrawnLane, ...]
    end: float


def drawn_step(
    step: StepTimeline, title: str, length_s: float, most_workers: int, most_servers: int, whose: str | None = None
) -> DrawnStep:
    """A step as shapes.

    Args:
        step: the step.
        title: name of it.
        length_s: seconds of the whole width.
        most_workers: largest number of workers to show.
        most_servers: the same of parameter servers.
        whose: name of the worker, if the first one stands for all; default: their numbers.
    """
    merged = step.merged(_LEAST * length_s)
    lanes: list[DrawnLane] = []
    for number, worker in enumerate(merged.workers[:most_workers]):
        name = whose or f"worker {worker.rank}"
        lanes.append(_computation(f"{name} computes", worker.computation, length_s))
        lanes.append(_link(f"{name}: link", step.workers[number].link, length_s))
    for server in merged.servers[:most_servers]:
        lanes.append(_computation(f"server {server.rank} adds up and updates", server.computation, length_s))
    return DrawnStep(title, tuple(lanes), 100 * step.iteration_s / length_s)


def _computation(title: str, bars: Iterable[Bar], length_s: float) -> DrawnLane:
    rows = tracks(bars)
    shapes: dict[str, list[str]] = {}
    for number, row in enumerate(rows):
        top = min(number, _MOST_TRACKS - 1) * ROW_HEIGHT
        for bar in row:
            # A stall is one of the whole worker: no row has anything then.
            height = ROW_HEIGHT * min(len(rows), _MOST_TRACKS) if bar.kind == STALL else ROW_HEIGHT
            shapes.setdefault(bar.kind, []).append(_rectangle(bar, 0 if bar.kind == STALL else top, height, length_s))
    return DrawnLane(title, max(min(len(rows), _MOST_TRACKS), 1), {kind: "".join(of) for kind, of in shapes.items()})


def _rectangle(bar: Bar, top: int, height: int, length_s: float) -> str:
    """A rectangle as part of a path, at least a unit wide."""
    left = round(WIDTH * bar.start_s / length_s)
    width = max(round(WIDTH * bar.end_s / length_s) - left, 1)
    return f"M{left} {top}h{width}v{height}h-{width}z"


def _link(title: str, bars: Sequence[Bar], length_s: float) -> DrawnLane:
    least_s = 0.0
    rows = tracks(bars)
    while sum(map(len, rows)) > _MOST_BOXES and least_s < length_s:
        least_s = max(2 * least_s, _LEAST * length_s)
        rows = tracks(merged_lane(bars, least_s))
    boxes = tuple(
        Box(100 * bar.start_s / length_s, 100 * bar.time_s / length_s, min(number, _MOST_TRACKS - 1), bar)
        for number, row in enumerate(rows)
        for bar in row
    )
    ordered = tuple(sorted(boxes, key=lambda box: (box.left, box.row)))
    return DrawnLane(title, max(min(len(rows), _MOST_TRACKS), 1), {}, ordered)


def ticks(length_s: float) -> list[tuple[float, str]]:
    """Marks of an axis of time: percent of the width, and the text in milliseconds.

    >>> ticks(0.013)
    [(0.0, '0'), (38.5, '5'), (76.9, '10')]

    Args:
        length_s: seconds of the whole width.
    """
    length_ms = length_s * 1e3
    step_ms = 1e-9
    while length_ms / step_ms > 5:
        for factor in (2, 2.5, 2):  # 1, 2, 5, 10
            step_ms *= factor
            if length_ms / step_ms <= 5:
                break
    return [
        (round(100 * n * step_ms / length_ms, 1), f"{n * step_ms:.6g}") for n in range(int(length_ms / step_ms) + 1)
    ]
