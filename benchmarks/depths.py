"""``python -m benchmarks.depths``: what cutting a transfer in chunks gains (Caramel, figure 13).

First every depth is timed on a ladder of sizes and the network model fitted: it is what the adaptive
depth is chosen by. Then every depth is timed on the sizes of the figure, half of which the model has not
seen; these runs say which fixed depth is the best at each size. At last, in runs of their own, all fixed
depths and the adaptive one are timed in turn.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks import colors
from benchmarks.collectives import cluster
from benchmarks.output import errors_for_click, markdown_table, size_axis, write_json
from benchmarks.statistics import Ratio, paired_ratio, worst_bound
from benchmarks.testbed import Testbed
from caramel.netmodel.model import MEASURED_DEPTHS, NetworkModel
from caramel.util.progress import progress_over
from caramel.util.units import format_size, parse_rate, parse_size

FITTED = (64, *(2**k for k in range(12, 26, 2)), 10**8)
SHOWN = (64, 2**12, 2**15, 2**17, 2**18, 2**19, 2**20, 2**21, 2**22, 2**23, 2**25, 10**8)
"""64 B to 100 MB, as in the figure."""


@dataclass(frozen=True)
class Cell:
    """One size.

    Attributes:
        size_bytes: bytes of the tensor.
        adaptive_depth: what the model chooses.
        best_depth: the fixed depth that was fastest in runs for that purpose.
        times: seconds of each round by depth; those of the adaptive one by 0.
    """

    size_bytes: int
    adaptive_depth: int
    best_depth: int
    times: dict[int, list[float]]

    @property
    def ratio(self) -> Ratio:
        """Adaptive over the best fixed depth."""
        return paired_ratio(self.times[0], self.times[self.best_depth])

    def as_json(self) -> dict[str, Any]:
        """All of it, and the number of rounds."""
        return {**asdict(self), "rounds": len(self.times[0])}


def cells_of(record: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """The cells of a record; in JSON depths are texts.

    Args:
        record: what `Cell.as_json` made.
    """
    found = []
    for row in record:
        times = {int(depth): list(times) for depth, times in row["times"].items()}
        found.append(Cell(row["size_bytes"], row["adaptive_depth"], row["best_depth"], times))
    return found


def measure(
    workers: int, algorithm: str, network: NetworkModel, selection: NetworkModel, rounds: int, testbed: Testbed | None
) -> list[Cell]:
    """Time the fixed depths and the adaptive one at every size of the selection."""
    from caramel.collectives.algorithms import Schedules
    from caramel.measure.all_reduce_bench import AllReduceBench, build_for

    schedules, cells = Schedules(), []
    curves = {c.depth: c for c in selection.curves}
    sizes = sorted({s.size_bytes for c in curves.values() for s in c.samples})
    with ExitStack() as stack:
        bench = stack.enter_context(AllReduceBench(cluster(workers, testbed), workers))
        show = stack.enter_context(progress_over(len(sizes) * rounds))
        for position, size in enumerate(sizes):
            measured = {d: s.time_s for d, c in curves.items() for s in c.samples if s.size_bytes == size}
            best = min(measured, key=lambda d: measured[d])
            adaptive = network.choose(size, workers, allowed=[algorithm]).depth
            depths = {0: adaptive, **{d: d for d in MEASURED_DEPTHS}}
            bench.load(size, {f"depth_{k}": build_for(schedules, bench, algorithm, d, size) for k, d in depths.items()})
            times = bench.measure(
                rounds,
                lambda n, position=position, size=size: show(position * rounds + n, format_size(size)),  # type: ignore[misc]
                prune=False,
            )
            bench.unload()
            cells.append(Cell(size, adaptive, best, {k: times[f"depth_{k}"] for k in depths}))
    return cells


def table(cells: Sequence[Cell]) -> str:
    """Medians in ms and the ratio of adaptive to the best fixed depth."""
    head = [
        "size",
        *(f"depth {d} [ms]" for d in MEASURED_DEPTHS),
        "adaptive [ms]",
        "chosen",
        "best fixed",
        "ratio",
        "95 % bounds",
    ]
    rows = []
    for cell in cells:
        medians = [f"{statistics.median(cell.times[d]) * 1e3:.3f}" for d in (*MEASURED_DEPTHS, 0)]
        ratio = cell.ratio
        ends = [
            str(cell.adaptive_depth),
            str(cell.best_depth),
            f"{ratio.median:.3f}",
            ratio.bounds(3),
        ]
        rows.append([format_size(cell.size_bytes), *medians, *ends])
    gains = [1 - statistics.median(c.times[0]) / statistics.median(c.times[1]) for c in cells]
    worst = worst_bound([c.ratio for c in cells], 3)
    said = f"Adaptive gains {max(gains):.0%} over depth 1 at most. The largest lower bound of a ratio is {worst}."
    return f"{markdown_table(head, rows)}\n\n{said}"


def plot(cells: Sequence[Cell], path: str, title: str) -> None:
    """Time over size, relative to depth 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    panel = figure.subplots()
    base = [statistics.median(c.times[1]) for c in cells]
    lines: list[tuple[int, str, dict[str, Any]]] = [
        (0, "adaptive", {"color": colors.OURS, "linewidth": 2.5, "zorder": 3})
    ]
    shades = dict(zip(MEASURED_DEPTHS, colors.SHADES))
    lines += [(depth, f"depth {depth}", {"color": shades[depth], "linewidth": 1.6}) for depth in MEASURED_DEPTHS]
    for depth, label, style in lines:
        ratios = [statistics.median(c.times[depth]) / b for c, b in zip(cells, base)]
        panel.plot([c.size_bytes for c in cells], ratios, marker="o", markersize=3, label=label, **style)
    size_axis(panel, max(c.size_bytes for c in cells))
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}×")
    panel.set_ylabel("time / time at depth 1")
    panel.set_title(title, fontsize=10, loc="left")
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=120)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workers", type=int, default=4, show_default=True)
@click.option("--algorithm", default="ring", show_default=True)
@click.option("--size", "sizes", multiple=True, help="Default: 64 B to 100 MB.")
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--fit-rounds", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--rate", metavar="RATE", help="Run on hosts with links of this rate (needs root), such as 500mbit.")
@click.option("--json", "json_file", metavar="FILE", help="Write the times.")
@click.option("--plot", "plot_file", metavar="FILE.png", help="Draw them.")
@errors_for_click
def main(
    workers: int,
    algorithm: str,
    sizes: tuple[str, ...],
    rounds: int,
    fit_rounds: int,
    rate: str | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Time an all-reduce at fixed depths and at the adaptive one."""
    with ExitStack() as stack:
        testbed = None if rate is None else stack.enter_context(Testbed(workers, parse_rate(rate)))
        from caramel.measure.netbench import Settings, measure_network

        shown = tuple(sorted(parse_size(s) for s in sizes)) or SHOWN
        where = cluster(workers, testbed)
        network, selection = (
            measure_network(where, [workers], Settings(chosen, (algorithm,), rounds=fit_rounds, prune=False))
            for chosen in (FITTED, shown)
        )
        cells = measure(workers, algorithm, network, selection, rounds, testbed)
    click.echo(table(cells))
    if json_file is not None:
        write_json([cell.as_json() for cell in cells], json_file)
    if plot_file is not None:
        where = "loopback" if rate is None else f"links of {rate}"
        plot(cells, plot_file, f"{algorithm} on {workers} workers, {where}")


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.depths"))
