"""A network model as a picture: measured times, fitted lines, and the choice."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from caramel.errors import InputError
from caramel.netmodel.model import NetworkModel
from caramel.util.figures import save_figure


def save_plot(network: NetworkModel, path: str | os.PathLike[str]) -> None:
    """Draw time over size for each number of workers that was measured, one panel each.

    Args:
        network: measured network model.
        path: file to write; its ending says the format.

    Raises:
        InputError: nothing was measured, or the file cannot be written.
    """
    if not network.workers:
        raise InputError("a network that was given by hand has no measurements to draw")
    from matplotlib.figure import Figure  # takes a second to import

    figure = Figure(figsize=(6.4 * len(network.workers), 4.8), layout="constrained")
    axes = figure.subplots(1, len(network.workers), squeeze=False)[0]
    for panel, workers in zip(axes, network.workers):
        _draw(panel, network, workers)
    axes[0].set_ylabel("time of one all-reduce [ms]")
    save_figure(figure, path)


def _draw(panel: Any, network: NetworkModel, workers: int) -> None:
    curves = [c for c in network.curves if c.workers == workers]
    colors = {name: f"C{n}" for n, name in enumerate(dict.fromkeys(c.algorithm for c in curves))}
    for curve in curves:
        sizes = np.array([s.size_bytes for s in curve.samples])
        style = {"color": colors[curve.algorithm], "alpha": 1.0 if curve.depth == 1 else 0.35}
        label = curve.algorithm if curve.depth == 1 else None
        panel.plot(sizes, [s.time_s * 1e3 for s in curve.samples], "o", markersize=3, **style)
        dense = np.geomspace(max(sizes[0], 1), sizes[-1], 100)
        panel.plot(dense, [curve.line.time_s(x) * 1e3 for x in dense], "-", linewidth=1, label=label, **style)
    first, last = curves[0].valid_bytes
    dense = np.geomspace(max(first, 1), last, 100)
    least = [network.choose(x, workers).prediction.time_s * 1e3 for x in dense]
    panel.plot(dense, least, "k--", linewidth=2, label="chosen")
    panel.set(xscale="log", yscale="log", xlabel="bytes", title=f"{workers} workers (pale: depth above 1)")
    panel.legend()
