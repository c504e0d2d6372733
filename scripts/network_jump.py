"""Draws docs/images/network_jump.png: published all-reduce times, the fitted lines, and where they do not fit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks import colors
from benchmarks.output import size_axis
from caramel.netmodel.line import Curve, Sample
from caramel.util.units import format_time

ROOT = Path(__file__).parent.parent
DATA = ROOT / "benchmarks" / "data" / "allreduce_10gbe_mpi.csv"


def main() -> None:
    """Fit a line for each number of workers and draw it with the measurements."""
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    panel = figure.subplots()
    for color, workers in zip(colors.SHADES[1:], (2, 4, 8)):
        samples = [Sample(int(r["bytes"]), float(r["latency_us"]) * 1e-6) for r in rows if int(r["workers"]) == workers]
        curve = Curve.fitted(workers, "ring", 1, samples)
        panel.plot([s.size_bytes for s in samples], [s.time_s * 1e3 for s in samples], ".", color=color, markersize=4)
        dense = np.geomspace(*curve.valid_bytes, 200)
        worst, residual = curve.worst
        label = f"{workers} workers: line, worst {residual:+.0%} at {worst.size_bytes} bytes"
        panel.plot(dense, [curve.line.time_s(x) * 1e3 for x in dense], "-", color=color, label=label)
        panel.plot(dense, [curve.time_s(x) * 1e3 for x in dense], ":", color=color, linewidth=1)
    panel.set(xscale="log", yscale="log", ylabel="time of one all-reduce")
    panel.yaxis.set_major_formatter(lambda time_ms, _: format_time(time_ms / 1e3))
    size_axis(panel, 2**20)
    panel.set_title("MPI over 10 Gbit/s Ethernet, measured by the authors of MG-WFBP (figure 5b)", fontsize=10)
    panel.legend(fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "network_jump.png", dpi=110)


if __name__ == "__main__":
    main()
