"""What was measured, as plots: after Figures 8, 9, 11 and 12 of Caramel. A cell is a line of dots.

Few contenders are drawn: this library, the two peers with their best settings, and the best of all others. Tables have
all of them.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import colors
from benchmarks.training.findings import Rows
from benchmarks.training.names import ABLATIONS, HOROVOD, HOROVOD_BEST, MIRRORED, MIRRORED_BEST, OURS, PEERS
from benchmarks.training.records import Cell, Row, by_cell
from benchmarks.training.report import ablation_costs


@dataclass(frozen=True)
class Drawn:
    """Contenders that are drawn as one, by the best of them in each cell.

    Attributes:
        title: their name.
        names: names of the contenders.
        color: colour of their dots.
        marker: matplotlib's name of their shape.
    """

    title: str
    names: tuple[str, ...]
    color: str
    marker: str


_NAMED = (MIRRORED, MIRRORED_BEST, HOROVOD, HOROVOD_BEST)

DRAWN = (
    Drawn("this library", (OURS,), colors.OURS, "o"),
    Drawn("MultiWorkerMirroredStrategy, best settings", (MIRRORED, MIRRORED_BEST), colors.MIRRORED, "s"),
    Drawn("Horovod, best settings", (HOROVOD, HOROVOD_BEST), colors.HOROVOD, "D"),
    Drawn("best of all others", tuple(name for name in PEERS if name not in _NAMED), colors.OTHERS, "|"),
)
"""This library first."""

_WIDTH_IN = 9.0
_LINE_IN = 0.27
"""Height of a cell."""

_HEAD_IN = 1.3
"""Height of legend, axis and title."""


@dataclass(frozen=True)
class Dot:
    """A value with an interval.

    Attributes:
        value: where it is.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def write_plots(rows: Sequence[Row], folder: str | os.PathLike[str], kind: str = "training") -> list[Path]:
    """Draw what there are rows for, as PNG files.

    Args:
        rows: of all cells.
        folder: where to write them; made if it is not there.
        kind: of the cells, with which the files' names begin.

    Returns:
        The files.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    drawn = {
        "times": times_figure(rows),
        "utilisation": utilisation_figure(rows),
        "ablation": ablation_figure(rows),
    }
    made = []
    for name, figure in drawn.items():
        if figure is not None:
            made.append(Path(folder) / f"{kind}_{name}.png")
            figure.savefig(made[-1], dpi=120)
    return made


def times_figure(rows: Sequence[Row]) -> Any:
    """The time of a step in units of the shortest possible one, with quartiles (Caramel, Figure 8).

    Args:
        rows: of all cells.

    Returns:
        The figure; None without rows of a cell whose shortest possible step is known.
    """
    cells = {cell: those for cell, those in by_cell(rows).items() if _limit_s(those)}
    dots = _dots(cells, _time_over_limit)
    label = "time of a step / shortest possible step; at the right, the time of this library"
    figure, axis = _figure(dots, label, "{:g}×", "shortest possible step")
    if figure is not None:
        axis.axvline(1.0, color=colors.BOUND, linewidth=1.4, zorder=1)
        _write_beside(axis, dots, {cell: _ours_in_words(cells[cell]) for cell in dots})
    return figure


def _time_over_limit(row: Row, those: Rows) -> Dot | None:
    time, limit_s = _time(row), _limit_s(those)
    if time is None or not limit_s:
        return None
    return Dot(time.value / limit_s, time.low / limit_s, time.high / limit_s)


def _time(row: Row) -> Dot | None:
    if row.time_s is None:
        return None
    low_s, high_s = np.percentile(row.times_s, [25, 75])
    return Dot(row.time_s, float(low_s), float(high_s))


def _limit_s(rows: Rows) -> float | None:
    """That of this library, or else of whoever has one."""
    found = [row.limit_s for row in rows.values() if row.limit_s is not None]
    return rows[OURS].limit_s if OURS in rows else next(iter(found), None)


def _ours_in_words(rows: Rows) -> str:
    """What this library takes, in milliseconds."""
    time_s = rows[OURS].time_s if OURS in rows else None
    return "" if time_s is None else f"{time_s * 1e3:,.0f} ms"


def utilisation_figure(rows: Sequence[Row]) -> Any:
    """Computation alone over a step (Caramel, Figure 9).

    Args:
        rows: of all cells.

    Returns:
        The figure; None without rows.
    """
    dots = _dots(by_cell(rows), _utilisation)
    figure, axis = _figure(dots, "computation alone / time of a step", "{:.0%}", "nothing to wait for")
    if figure is not None:
        axis.axvline(1.0, color=colors.BOUND, linewidth=1.4, zorder=1)
    return figure


def _utilisation(row: Row, those: Rows) -> Dot | None:
    time = _time(row)
    if time is None or row.compute_s is None:
        return None
    return Dot(row.compute_s / time.value, row.compute_s / time.high, row.compute_s / time.low)


def ablation_figure(rows: Sequence[Row]) -> Any:
    """How much longer a step is without each optimisation, with 95 % bounds (after Caramel, Figures 11 and 12).

    Args:
        rows: of all cells.

    Returns:
        The figure, with a panel for each optimisation; None without rows.
    """
    costs = ablation_costs(rows)
    names = [name for name in ABLATIONS if any(name in each for each in costs.values())]
    if not names:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _LINE_IN * _height(list(costs)) + _HEAD_IN), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, sharex=True, squeeze=False)[0]
    places = _places(list(costs))
    for panel, name in zip(panels, names):
        panel.axvline(0.0, color=colors.OURS, linewidth=1.8, zorder=1)
        for cell, each in costs.items():
            if name in each:
                ratio = each[name]
                dot = Dot(ratio.median - 1, max(ratio.low, 0.5) - 1, min(ratio.high, 2.0) - 1)
                _draw_dot(panel, dot, places[cell], colors.SHADES[-1], "o")
        panel.set_title(textwrap.fill(ABLATIONS[name], 12), fontsize=9, loc="left")
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_major_formatter(lambda share, _: f"{share:+.0%}" if share else "0")
        panel.tick_params(axis="x", labelsize=8)
        panel.grid(axis="x", alpha=0.3)
    _name_cells(panels[0], list(costs))
    figure.supxlabel("longer than with all of them (orange line), median and 95 % bounds", fontsize=9)
    return figure


# -- lines of dots ---------------------------------------------------------------------------------


def _dots(
    cells: Mapping[Cell, Rows], dot: Callable[[Row, Rows], Dot | None]
) -> Mapping[Cell, Mapping[str, Dot | None]]:
    """By cell and title, the dot of the contender with the shortest step; None where all of them failed."""
    found: dict[Cell, dict[str, Dot | None]] = {}
    for cell, those in cells.items():
        for drawn in DRAWN:
            present = [those[name] for name in drawn.names if name in those]
            if present:
                best = min(present, key=lambda row: float("inf") if row.time_s is None else row.time_s)
                found.setdefault(cell, {})[drawn.title] = dot(best, those)
    return {cell: each for cell, each in found.items() if any(value is not None for value in each.values())}


def _groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells of one number of workers and rho."""
    found: dict[tuple[int, float], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.workers, cell.rho), []).append(cell)
    return [found[key] for key in sorted(found)]


def _places(cells: Sequence[Cell]) -> Mapping[Cell, float]:
    """Where each cell is from the top; a group has a line for its name."""
    places, line = {}, 0.0
    for group in _groups(cells):
        line += 1
        for cell in group:
            places[cell] = line
            line += 1
    return places


def _height(cells: Sequence[Cell]) -> float:
    return max(_places(cells).values()) + 1


def _name_cells(axis: Any, cells: Sequence[Cell]) -> None:
    """Names of cells and groups at the left of an axis."""
    places = _places(cells)
    ticks = [(place, cell.workload) for cell, place in places.items()]
    for group in _groups(cells):
        first = group[0]
        ticks.append((places[first] - 1, f"{first.workers} workers, sending / computing {first.rho:g}"))
    axis.set_yticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=8.5)
    for label, (_, text) in zip(axis.get_yticklabels(), ticks):
        label.set_fontweight("bold" if "workers" in text else "normal")
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(_height(cells) - 0.4, -0.6)


def _figure(dots: Mapping[Cell, Mapping[str, Dot | None]], label: str, said: str, limit: str) -> tuple[Any, Any]:
    """A line of dots for each cell.

    Args:
        dots: by cell and title.
        label: of the axis.
        said: format of the axis' values.
        limit: name of the black line.
    """
    if not dots:
        return None, None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, _LINE_IN * _height(list(dots)) + _HEAD_IN), layout="constrained")
    axis = figure.subplots()
    places = _places(list(dots))
    failed = False
    for cell, each in dots.items():
        values = [dot.value for dot in each.values() if dot is not None]
        axis.hlines(places[cell], min(values), max(values), colors=colors.SHADES[0], linewidth=1.2, zorder=1)
        for drawn in reversed(DRAWN):  # this library lies on top
            dot = each.get(drawn.title)
            if dot is not None:
                _draw_dot(axis, dot, places[cell], drawn.color, drawn.marker, is_ours=drawn is DRAWN[0])
            elif drawn.title in each:
                failed = True
                axis.plot([0.99], [places[cell]], "x", color=drawn.color, transform=axis.get_yaxis_transform())
    axis.xaxis.set_major_formatter(lambda value, _: said.format(value))
    axis.set_xlabel(label, fontsize=9)
    axis.tick_params(axis="x", labelsize=8.5)
    axis.grid(axis="x", alpha=0.3)
    _name_cells(axis, list(dots))
    _add_legend(figure, {title for each in dots.values() for title in each}, limit, failed)
    return figure, axis


def _draw_dot(axis: Any, dot: Dot, place: float, color: str, marker: str, is_ours: bool = False) -> None:
    axis.hlines(place, dot.low, dot.high, colors=color, linewidth=1.6, zorder=3)
    size = {"markersize": 8 if is_ours or marker == "|" else 5.5, "markeredgewidth": 2 if marker == "|" else 0}
    axis.plot([dot.value], [place], marker, color=color, zorder=4 if is_ours else 3.5, **size)


def _add_legend(figure: Any, titles: set[str], limit: str, failed: bool) -> None:
    from matplotlib.lines import Line2D

    def shown(drawn: Drawn) -> Any:
        edge = 2 if drawn.marker == "|" else 0
        return Line2D(
            [], [], color=drawn.color, marker=drawn.marker, linestyle="none", markeredgewidth=edge, label=drawn.title
        )

    handles = [shown(drawn) for drawn in DRAWN if drawn.title in titles]
    handles.append(Line2D([], [], color=colors.BOUND, linewidth=1.4, label=limit))
    if failed:
        handles.append(Line2D([], [], color=colors.BOUND, marker="x", linestyle="none", label="failed"))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=8.5)


def _write_beside(axis: Any, cells: Iterable[Cell], texts: Mapping[Cell, str]) -> None:
    """Texts at the right of an axis, in this library's colour."""
    places = _places(list(cells))
    for cell, text in texts.items():
        where = {"transform": axis.get_yaxis_transform(), "fontsize": 8, "color": colors.OURS}
        axis.text(1.01, places[cell], text, va="center", ha="left", **where)
