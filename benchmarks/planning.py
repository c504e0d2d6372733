"""``python -m benchmarks.planning``: what steps are predicted to take on networks from 10 Mbit/s to 100 Gbit/s.

Two models are traced on this machine; everything else is planning and simulation.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import colors
from benchmarks.models import trace_to_file
from benchmarks.networks import NAMES, VGG_LIKE, make
from benchmarks.output import errors_for_click, markdown_table, write_json
from caramel.analyzers.analyzer import Analyzer, analyse
from caramel.analyzers.cost.bounds import lower_bounds
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.search import optimal_buckets
from caramel.analyzers.policies.batching import paper_batching, single
from caramel.analyzers.policies.best_packing import best_packing
from caramel.analyzers.policies.packing import backward_only, paper_packing
from caramel.analyzers.registry import automatic_analyzers
from caramel.facts import Boundaries, Schedule
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.simulator import simulate

COMPLETE = "complete"

POLICIES: Mapping[str, Sequence[Analyzer]] = {
    COMPLETE: (best_packing(),),
    "paper": (paper_batching(), paper_packing()),
    "no scheduling": (optimal_buckets(), backward_only()),
    "each gradient alone": (single(), backward_only()),
}
"""The analyzers of `automatic` for no options, ``policy="paper"``, ``scheduling=False``, and no batching, either."""

SLOWEST, FASTEST = 10e6, 100e9
"""Bits per second."""

RATES_BIT_PER_S = tuple(float(rate) for rate in np.geomspace(SLOWEST, FASTEST, 17))
"""Four in each decade."""

MOST_OVER_BOUND = 1.05
"""On the slowest network, where the channel alone decides."""

MOST_OVER_COMPUTE = 1.02
"""On the fastest one, where nothing should be left to see of communication."""


@dataclass(frozen=True)
class Point:
    """One model on one network.

    Attributes:
        rate_bit_per_s: of each worker's link, in each direction.
        lb1_s: what no plan is below.
        policies_s: predicted seconds of a step by policy.
    """

    rate_bit_per_s: float
    lb1_s: float
    policies_s: Mapping[str, float]


@dataclass(frozen=True)
class Curves:
    """One model on all networks.

    Attributes:
        model: its name.
        workers: number of workers.
        compute_s: computation of a step, updates included.
        gradient_bytes: of all gradients.
        basis: what the times are from.
        points: from the slowest network on.
    """

    model: str
    workers: int
    compute_s: float
    gradient_bytes: float
    basis: str
    points: tuple[Point, ...]

    def missed(self) -> list[str]:
        """What of the two limits the default policy does not keep."""
        slow, fast = self.points[0], self.points[-1]
        found = []
        for point, limit_s, most, what in (
            (slow, slow.lb1_s, MOST_OVER_BOUND, "LB1"),
            (fast, self.compute_s, MOST_OVER_COMPUTE, "computation"),
        ):
            ratio = point.policies_s[COMPLETE] / limit_s
            if ratio > most:
                rate = format_rate(point.rate_bit_per_s)
                found.append(f"{self.model} at {rate}: {ratio:.3f} times {what}, limit {most}")
        return found


def curves(model: str, boundaries: Boundaries, workers: int, rates: Sequence[float] = RATES_BIT_PER_S) -> Curves:
    """Predict a model's steps.

    Args:
        model: its name.
        boundaries: of its gradients.
        workers: number of workers.
        rates: of the networks, in bits per second.
    """
    size = sum(g.size_bytes for g in boundaries.gradients)
    points = tuple(_point(boundaries, _network(rate, workers), rate, size) for rate in rates)
    compute_s = boundaries.compute_s + boundaries.updates_s
    return Curves(model, workers, compute_s, size, boundaries.basis, points)


def _network(rate: float, workers: int) -> Network:
    return Network(CollectiveOptions(network=NetworkModel.from_link_rate(rate / 8)), workers)


def _point(boundaries: Boundaries, network: Network, rate: float, size: float) -> Point:
    found = {}
    for name, analyzers in POLICIES.items():
        schedule = analyse(analyzers, [boundaries, network], [Schedule])[Schedule]
        found[name] = simulate(boundaries, schedule, network.time_s).iteration_s
    return Point(rate, lower_bounds(boundaries, network.line_below(size)).lb1_s, found)


def traced_boundaries(name: str, trace_file: Path) -> Boundaries:
    """The boundaries of a network of `benchmarks.networks`.

    Args:
        name: of the network.
        trace_file: its trace.
    """
    import caramel
    from caramel.measure.trace_file import as_trace

    network = make(name)
    model = caramel.capture(network.step, network.inputs).model
    anything = _network(1e9, 2)  # boundaries do not depend on it
    chosen, _ = automatic_analyzers(anything, as_trace(trace_file, model))
    return analyse(chosen, [model, anything], [Boundaries])[Boundaries]


# -- what is shown ---------------------------------------------------------------------------------


def format_rate(rate_bit_per_s: float) -> str:
    """A rate for people.

    >>> [format_rate(rate) for rate in (1e7, 5.62e8, 1e11)]
    ['10 Mbit/s', '562 Mbit/s', '100 Gbit/s']
    """
    number, unit = (rate_bit_per_s / 1e9, "Gbit/s") if rate_bit_per_s > 0.9995e9 else (rate_bit_per_s / 1e6, "Mbit/s")
    return f"{number:.3g} {unit}"


def table(found: Curves) -> str:
    """Milliseconds by rate and policy."""
    head = ["rate", *(f"{name} [ms]" for name in POLICIES), "LB1 [ms]", "over LB1"]
    rows = []
    for point in found.points:
        times = [f"{point.policies_s[name] * 1e3:.4g}" for name in POLICIES]
        over = f"{point.policies_s[COMPLETE] / point.lb1_s:.3f}"
        rows.append([format_rate(point.rate_bit_per_s), *times, f"{point.lb1_s * 1e3:.4g}", over])
    return markdown_table(head, rows)


COLORS = {
    COMPLETE: colors.OURS,
    "paper": colors.TENSORFLOW[0],
    "no scheduling": colors.SHADES[2],
    "each gradient alone": colors.SHADES[0],
}
"""By policy."""


def plot(all_curves: Sequence[Curves], path: str) -> None:
    """Draw time over rate, and below it how much of it is over the bound.

    Args:
        all_curves: one column of panels for each.
        path: file to write; its ending says the format.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(5.4 * len(all_curves), 6.6), layout="constrained")
    panels = figure.subplots(
        2, len(all_curves), sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3, 2)}
    )
    for found, (above, below) in zip(all_curves, panels.T):
        _draw(found, above, below)
        below.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: format_rate(rate)))
    panels[0][0].set_ylabel("predicted step")
    panels[0][0].yaxis.set_major_formatter(FuncFormatter(lambda time_s, _: f"{time_s:g} s"))
    panels[1][0].set_ylabel("predicted step / LB1")
    handles, labels = panels[0][0].get_legend_handles_labels()
    own = len(POLICIES)  # these were drawn last to first
    panels[0][0].legend(handles[:own][::-1] + handles[own:], labels[:own][::-1] + labels[own:], frameon=False)
    figure.savefig(path, dpi=110)


def curves_of(record: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """The curves of a record.

    Args:
        record: written `Curves`.
    """
    return [Curves(**{**each, "points": tuple(Point(**point) for point in each["points"])}) for each in record]


def _draw(found: Curves, above: Any, below: Any) -> None:
    """One model: the two panels of its column."""
    rates = [point.rate_bit_per_s for point in found.points]
    bounds = np.array([point.lb1_s for point in found.points])
    for name in reversed(tuple(POLICIES)):  # the default on top
        style: dict[str, Any] = {"color": COLORS[name], "linewidth": 2.5 if name == COMPLETE else 1.5}
        times = np.array([point.policies_s[name] for point in found.points])
        above.plot(rates, times, marker="o", markersize=3, label=name, **style)
        below.plot(rates, times / bounds, marker="o", markersize=3, **style)
    above.plot(rates, bounds, "--", color=colors.BOUND, linewidth=1, label="lower bound LB1")
    above.axhline(found.compute_s, color="grey", linestyle=":", label="computation")
    mebibytes = found.gradient_bytes / 2**20
    above.set(xscale="log", yscale="log", title=f"{found.model}, {mebibytes:.0f} MiB, {found.workers} workers")
    below.axhline(1.0, color="k", linestyle="--", linewidth=1)
    below.set(xlabel="link of each worker")
    for panel in (above, below):
        panel.grid(alpha=0.3)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--model", "names", type=click.Choice([VGG_LIKE, *NAMES]), multiple=True, default=(VGG_LIKE, "ResNet50"),
    show_default=True,
)  # fmt: skip
@click.option("--workers", type=click.IntRange(min=2), default=8, show_default=True)
@click.option("--examples", type=click.IntRange(min=1), default=8, show_default=True, help="Of a worker's batch.")
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, help="Traced steps.")
@click.option("--traces", "folder", metavar="DIRECTORY", help="Take traces from here, and leave new ones here.")
@click.option("--json", "json_file", metavar="FILE", help="Write the times.")
@click.option("--plot", "plot_file", metavar="FILE.png", help="Draw them.")
@errors_for_click
def main(
    names: tuple[str, ...],
    workers: int,
    examples: int,
    runs: int,
    folder: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Predict the steps of models on networks from 10 Mbit/s to 100 Gbit/s."""
    found = []
    with tempfile.TemporaryDirectory() as own:
        directory = Path(folder or own)
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            file = directory / f"{name}.json"
            trace_to_file(name, file, examples, runs)
            found.append(curves(name, traced_boundaries(name, file), workers))
            click.echo(f"{name}: computation {found[-1].compute_s * 1e3:.4g} ms\n{table(found[-1])}\n")
    for miss in [each for made in found for each in made.missed()] or ["both limits are kept"]:
        click.echo(miss)
    if json_file is not None:
        write_json([asdict(each) for each in found], json_file)
    if plot_file is not None:
        plot(found, plot_file)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.planning"))
