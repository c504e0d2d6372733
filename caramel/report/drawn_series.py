"""A number of each step of a training as a line for a page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_POINTS = 400
"""Largest number of points of a line; of more steps, a point is the mean of several, with a band from least to most."""

_LOGARITHMIC = 30.0
"""Ratio of the largest to the smallest value from which on the axis is logarithmic."""

_CUT = 4.0
"""Number of times their 98th percentile above which single values do not stretch an axis."""

WIDTH = 1000
HEIGHT = 200


@dataclass(frozen=True)
class DrawnSeries:
    """A line on a page.

    Attributes:
        title: name of the quantity, with its unit.
        line: data of an SVG path, in `WIDTH` x `HEIGHT`.
        band: data of the path around what the points leave out; empty if they leave out nothing.
        low: text at the lower end of the axis.
        high: text at the upper end.
        last: text of the last value.
        steps: number of steps.
        note: sentence about the axis or the points; empty if there is nothing to say.
    """

    title: str
    line: str
    band: str
    low: str
    high: str
    last: str
    steps: int
    note: str


def drawn_series(title: str, values: Sequence[float], is_cut: bool = False) -> DrawnSeries | None:
    """A line of values by step.

    Args:
        title: name of the quantity, with its unit.
        values: value of each step; what is no number is left out.
        is_cut: whether single values far above all others go beyond the upper end; otherwise, the axis is logarithmic
            where values differ much.

    Returns:
        The line; None if there is no value.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return None
    size = math.ceil(len(finite) / _MOST_POINTS)
    groups = [finite[first : first + size] for first in range(0, len(finite), size)]
    low, high = min(finite), _upper_end(finite) if is_cut else max(finite)
    is_logarithmic = not is_cut and low > 0 and high / low > _LOGARITHMIC
    notes = ["The axis is logarithmic."] if is_logarithmic else []
    notes += [f"Each point is the mean of {size} steps; the band goes from the least to the most."] if size > 1 else []
    notes += ["Single values are above the upper end."] if high < max(finite) else []
    notes += [f"{len(values) - len(finite)} steps have no finite value."] if len(finite) < len(values) else []

    def height(value: float) -> float:
        ends = (math.log(low), math.log(high), math.log(value)) if is_logarithmic else (low, high, value)
        share = (ends[2] - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5
        return round(HEIGHT * (1 - min(share, 1.0)), 1)

    across = [round(WIDTH * n / max(len(groups) - 1, 1), 1) for n in range(len(groups))]
    means = [height(statistics.fmean(group)) for group in groups]
    tops, bottoms = [height(max(group)) for group in groups], [height(min(group)) for group in groups]
    band = _path([*zip(across, tops), *zip(across[::-1], bottoms[::-1])]) + "z" if size > 1 else ""
    return DrawnSeries(
        title,
        _path(list(zip(across, means))),
        band,
        f"{low:.3g}",
        f"{high:.3g}",
        f"{finite[-1]:.4g}",
        len(values),
        " ".join(notes),
    )


def _upper_end(values: Sequence[float]) -> float:
    """The largest value, or less where single ones are far above all others."""
    ordered = sorted(values)
    usual = ordered[min(int(0.98 * len(ordered)), len(ordered) - 1)]
    return usual if usual > 0 and ordered[-1] > _CUT * usual else ordered[-1]


def _path(points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:  # a line across
        points = [(0.0, points[0][1]), (float(WIDTH), points[0][1])]
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
