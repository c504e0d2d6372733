"""What was measured, as plots: after Figures 8, 9, 11 and 12 of Caramel."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training.findings import Rows
from benchmarks.training.names import ABLATIONS, OURS, PEERS, TITLES
from benchmarks.training.records import Cell, Row, by_cell
from benchmarks.training.report import ablation_costs

COLORS: Mapping[str, str] = {
    # Okabe and Ito's palette, which all kinds of colour vision tell apart; defaults are paler than chosen settings.
    "mwms": "#9ecfee",
    "mwms_best": "#0072B2",
    "horovod": "#8fd6bd",
    "horovod_best": "#009E73",
    "tf_collectives": "#CC79A7",
    "ps_all": "#7a7a7a",
    "ps_half": "#c9c9c9",
    OURS: "#D55E00",
    # Of falling lightness.
    "caramel_paper": "#fde2a8",
    "caramel_no_order": "#feb078",
    "caramel_no_buckets": "#f1605d",
    "caramel_no_forward": "#b73779",
    "caramel_no_choice": "#721f81",
    "caramel_nothing": "#2c115f",
}
"""The same in all plots."""

BARS = (*PEERS, OURS)
"""What is compared with each other; the ablations have a plot of their own."""

_GROUP = 0.84
"""Width of a group of bars, where the next one is 1 away."""

_CUT = 2.5
"""Bars end at so many times the longest step of this library in their panel; their value then stands in them."""

_WIDTH_IN = 11.0
_HEIGHT_IN = 2.5


@dataclass(frozen=True)
class Bar:
    """A value with an interval.

    Attributes:
        value: its height.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


Bars = Mapping[Cell, Mapping[str, Bar | None]]
"""By cell and contender; None where a contender failed."""


def write_plots(rows: Sequence[Row], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw what there are rows for, as PNG files.

    Args:
        rows: of all cells.
        folder: where to write them; made if it is not there.

    Returns:
        The files.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    drawn = {
        "training_times": times_figure(rows),
        "training_utilisation": utilisation_figure(rows),
        "training_ablation": ablation_figure(rows),
    }
    made = []
    for name, figure in drawn.items():
        if figure is not None:
            made.append(Path(folder) / f"{name}.png")
            figure.savefig(made[-1], dpi=110)
    return made


def times_figure(rows: Sequence[Row]) -> Any:
    """Seconds of a step by contender, as bars with quartiles, and the limits as lines (Caramel, Figure 8).

    Args:
        rows: of all cells.

    Returns:
        The figure; None without rows.
    """
    bars = _bars(rows, _time)
    figure = _draw(bars, BARS, "step", lambda time_s: f"{time_s * 1e3:.0f} ms", also=(("limit", "black"),))
    cells = by_cell(rows)
    for axis, panel in _axes_of(figure, bars):
        for x, cell in enumerate(panel):
            limit_s = _limit_s(cells[cell])
            if limit_s is not None:
                axis.hlines(limit_s, x - _GROUP / 2, x + _GROUP / 2, colors="black", linewidth=1.8, zorder=4)
        ours = [bars[cell][OURS] for cell in panel if OURS in bars[cell]]
        _cut(axis, _CUT * max((bar.value for bar in ours if bar is not None), default=math.inf))
    return figure


def _time(row: Row) -> Bar | None:
    if row.time_s is None:
        return None
    low_s, high_s = np.percentile(row.times_s, [25, 75])
    return Bar(row.time_s, float(low_s), float(high_s))


def _limit_s(rows: Rows) -> float | None:
    """That of this library, or else of whoever has one."""
    found = [row.limit_s for row in rows.values() if row.limit_s is not None]
    return rows[OURS].limit_s if OURS in rows else next(iter(found), None)


def _cut(axis: Any, most: float) -> None:
    """End an axis, and say how long the bars are that it cuts."""
    if axis.get_ylim()[1] <= most:
        return
    axis.set_ylim(0, most)
    for bar in axis.patches:
        if bar.get_height() > most:
            x, said = bar.get_x() + bar.get_width() / 2, axis.yaxis.get_major_formatter()(bar.get_height())
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axis.text(x, 0.97 * most, said, rotation=90, ha="center", va="top", fontsize=7, zorder=5, bbox=box)


def utilisation_figure(rows: Sequence[Row]) -> Any:
    """Computation alone over a step, by contender (Caramel, Figure 9).

    Args:
        rows: of all cells.

    Returns:
        The figure; None without rows.
    """
    bars = _bars([row for row in rows if row.compute_s is not None or row.error is not None], _utilisation)
    figure = _draw(bars, BARS, "computation / step", lambda share: f"{share:.0%}")
    for axis, _ in _axes_of(figure, bars):
        axis.set_ylim(0, max(1.0, axis.get_ylim()[1]))
    return figure


def _utilisation(row: Row) -> Bar | None:
    time = _time(row)
    if time is None or row.compute_s is None:
        return None
    return Bar(row.compute_s / time.value, row.compute_s / time.high, row.compute_s / time.low)


def ablation_figure(rows: Sequence[Row]) -> Any:
    """How much longer a step is without each optimisation, with 95 % bounds (after Caramel, Figures 11 and 12).

    Args:
        rows: of all cells.

    Returns:
        The figure; None without rows.
    """
    bars = {
        cell: {name: Bar(r.median - 1, r.low - 1, r.high - 1) for name, r in costs.items()}
        for cell, costs in ablation_costs(rows).items()
    }
    figure = _draw(bars, tuple(ABLATIONS), "longer than complete", lambda share: f"{share:+.0%}")
    for axis, _ in _axes_of(figure, bars):
        axis.axhline(0, color=COLORS[OURS], linewidth=1.8, zorder=4)
    return figure


# -- bars in groups --------------------------------------------------------------------------------


def _bars(rows: Iterable[Row], bar: Callable[[Row], Bar | None]) -> Bars:
    found = {cell: {name: bar(each[name]) for name in BARS if name in each} for cell, each in by_cell(rows).items()}
    return {cell: bars for cell, bars in found.items() if bars}


def _panels(bars: Bars) -> list[list[Cell]]:
    """Cells that share an axis: those of one number of workers and rho."""
    found: dict[tuple[int, float], list[Cell]] = {}
    for cell in bars:
        found.setdefault((cell.workers, cell.rho), []).append(cell)
    return [found[key] for key in sorted(found)]


def _lines(panels: Sequence[Sequence[Cell]]) -> list[list[int]]:
    """The panels of each line of the figure, as many next to each other as the widest one has room for."""
    widest, lines, room = max(map(len, panels)), [], 0
    for number, panel in enumerate(panels):
        if len(panel) > room:
            lines.append([number])
            room = widest
        else:
            lines[-1].append(number)
        room -= len(panel)
    return lines


def _axes_of(figure: Any, bars: Bars) -> Iterable[tuple[Any, list[Cell]]]:
    return zip(figure.axes if figure is not None else (), _panels(bars))


def _draw(
    bars: Bars,
    names: Sequence[str],
    label: str,
    said: Callable[[float], str],
    also: Sequence[tuple[str, str]] = (),
) -> Any:
    """A panel for each number of workers and rho, with a group of bars for each workload.

    Args:
        bars: of all cells.
        names: of the contenders that may have bars, in order.
        label: of the vertical axes.
        said: a value for people.
        also: lines to name: (text, colour).
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter

    if not bars:
        return None
    panels = _panels(bars)
    lines = _lines(panels)
    present = [name for name in names if any(name in each for each in bars.values())]
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN * len(lines) + 0.8), layout="constrained")
    grid = figure.add_gridspec(len(lines), max(map(len, panels)))
    for number, line in enumerate(lines):
        column = 0
        for panel in (panels[each] for each in line):
            axis = figure.add_subplot(grid[number, column : column + len(panel)])
            column += len(panel)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: said(value)))
            axis.set_ylabel(label)
            _draw_panel(axis, panel, bars, present)
    handles: list[Any] = [
        Patch(facecolor=COLORS[n], edgecolor="black", linewidth=0.5, label=TITLES[n]) for n in present
    ]
    handles += [Line2D([], [], color=color, linewidth=1.8, label=text) for text, color in also]
    if any(bar is None for each in bars.values() for bar in each.values()):
        handles.append(Line2D([], [], color="black", marker="x", linestyle="none", label="failed"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_panel(axis: Any, panel: Sequence[Cell], bars: Bars, present: Sequence[str]) -> None:
    width = _GROUP / len(present)
    for x, cell in enumerate(panel):
        for place, name in enumerate(present):
            if name not in bars[cell]:
                continue
            middle, bar = x - _GROUP / 2 + (place + 0.5) * width, bars[cell][name]
            if bar is None:
                axis.plot([middle], [0.04], "x", color="black", markersize=5, transform=axis.get_xaxis_transform())
                continue
            axis.bar(middle, bar.value, width, color=COLORS[name], edgecolor="black", linewidth=0.5, zorder=2)
            axis.vlines(middle, bar.low, bar.high, colors="black", linewidth=1, zorder=3)
    axis.set_xlim(-0.5, len(panel) - 0.5)
    axis.set_xticks(range(len(panel)), [cell.workload for cell in panel])
    axis.tick_params(axis="x", length=0)
    axis.grid(axis="y", alpha=0.3, zorder=0)
    cell = panel[0]
    axis.set_title(f"{cell.workers} workers, sending / computing {cell.rho:g}", loc="left", fontsize=10)
