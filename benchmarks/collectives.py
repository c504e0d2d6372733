"""``python -m benchmarks.collectives``: this library's all-reduces against TensorFlow's.

For each number of workers: first the network is measured as `caramel netbench` does, and a model
fitted; then, in rounds of their own, what the model chooses is timed in turn with TensorFlow's in-graph
all-reduces and MultiWorkerMirroredStrategy's ring.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks import colors
from benchmarks.output import errors_for_click, markdown_table, size_axis, write_json
from benchmarks.statistics import Ratio, geometric_mean, paired_ratio, worst_bound
from benchmarks.testbed import Testbed
from caramel.errors import ClusterError, InputError
from caramel.netmodel.model import NetworkModel
from caramel.runtime.host.namespaces import enter_network_namespace
from caramel.util.progress import progress_over
from caramel.util.units import format_size, format_time, parse_rate, parse_size

OURS = "caramel"
MIRRORED = "mwms_ring"


@dataclass(frozen=True)
class Row:
    """One contender at one size on one number of workers, as it is written.

    Attributes:
        workers: number of workers.
        bytes: bytes of the tensor.
        contender: its name.
        algorithm: what it ran; for the peers their name.
        depth: number of chunks.
        time_s: median seconds of one all-reduce.
        limit_s: seconds that the links need for the bytes; None if their rate is not known.
        rounds: number of rounds.
        times_s: seconds of one all-reduce in each round, in the order in which they ran.
    """

    workers: int
    bytes: int
    contender: str
    algorithm: str
    depth: int
    time_s: float
    limit_s: float | None
    rounds: int
    times_s: tuple[float, ...]


@dataclass(frozen=True)
class Cell:
    """All contenders at one size on one number of workers."""

    workers: int
    size_bytes: int
    algorithm: str
    depth: int
    limit_s: float | None
    times: dict[str, list[float]]

    def rows(self) -> list[Row]:
        """One row for each contender."""
        found = []
        for name, times in self.times.items():
            algorithm, depth = (self.algorithm, self.depth) if name == OURS else (name, 1)
            measured = (statistics.median(times), self.limit_s, len(times), tuple(times))
            found.append(Row(self.workers, self.size_bytes, name, algorithm, depth, *measured))
        return found

    def best_peer(self) -> str:
        """The TensorFlow contender with the least median."""
        peers = [name for name in self.times if name != OURS]
        return min(peers, key=lambda name: statistics.median(self.times[name]))

    def ratio(self) -> Ratio:
        """Ours over the best peer's."""
        return paired_ratio(self.times[OURS], self.times[self.best_peer()])


def measure(
    workers: int, sizes: Sequence[int], rounds: int, network: NetworkModel, testbed: Testbed | None, show: Any
) -> list[Cell]:
    """Time all contenders at all sizes."""
    from benchmarks.peers import MirroredWorkers, tensorflow_builds
    from caramel.collectives.algorithms import Schedules
    from caramel.measure.all_reduce_bench import AllReduceBench, build_for, elements_of, per_all_reduce, repetitions

    limit = None
    if testbed is not None and testbed.rate_bytes_per_s is not None:
        rate = testbed.measure_rate_bytes_per_s()
        limit = 2 * (workers - 1) / workers / rate
    schedules, cells = Schedules(), []
    with ExitStack() as stack:
        bench = stack.enter_context(AllReduceBench(cluster(workers, testbed), workers, uses_native=True))
        mirrored = stack.enter_context(MirroredWorkers(workers, testbed))
        for position, size in enumerate(sizes):
            choice = network.choose(size, workers)
            builds: dict[str, Any] = {OURS: build_for(schedules, bench, choice.algorithm, choice.depth, size)}
            builds.update(tensorflow_builds(bench.devices, elements_of(size)))
            bench.load(size, builds)
            repeats = repetitions(size)
            mirrored.load(size, repeats)
            theirs: list[float] = []
            empty: list[float] = []

            def after_round(done: int, position: int = position, size: int = size) -> None:
                empty.append(mirrored.empty_s())  # noqa: B023 - called before the next size
                theirs.append(mirrored.step_s())  # noqa: B023
                show(position * rounds + done, f"{workers} workers, {format_size(size)}")

            times = bench.measure(rounds, after_round, prune=False)
            times[MIRRORED] = per_all_reduce(theirs, empty, repeats)
            bench.unload()
            limit_s = None if limit is None else limit * size
            cells.append(Cell(workers, size, choice.algorithm, choice.depth, limit_s, times))
    return cells


def cluster(workers: int, testbed: Testbed | None) -> Any:
    """Server processes: on this machine's loopback device, or one on each host of a testbed."""
    from caramel.runtime.clusters.local_processes import Host, LocalProcesses

    if testbed is None:
        return LocalProcesses()
    return LocalProcesses(hosts=tuple(Host(h.namespace, h.address) for h in testbed.hosts[:workers]))


def table(cells: Sequence[Cell]) -> str:
    """Medians in ms, ratio to the best peer with its interval, share of the limit."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.times))
    head = [
        "workers",
        "size",
        "choice",
        *(f"{n} [ms]" for n in names),
        "best peer",
        "ratio",
        "95 % bounds",
        "of limit",
    ]
    rows = []
    for cell in cells:
        ratio = cell.ratio()
        medians = [f"{statistics.median(cell.times[n]) * 1e3:.3f}" if n in cell.times else "-" for n in names]
        share = "-" if cell.limit_s is None else f"{cell.limit_s / statistics.median(cell.times[OURS]):.1%}"
        choice = f"{cell.algorithm} {cell.depth}"
        fields = [str(cell.workers), format_size(cell.size_bytes), choice, *medians, cell.best_peer()]
        rows.append([*fields, f"{ratio.median:.2f}", ratio.bounds(2), share])
    lines = [markdown_table(head, rows), ""]
    for workers in dict.fromkeys(c.workers for c in cells):
        ratios = [c.ratio() for c in cells if c.workers == workers]
        mean = geometric_mean([r.median for r in ratios])
        lines.append(
            f"{workers} workers: {mean:.2f} of the best peer's time (geometric mean over sizes); "
            f"worst lower bound of a ratio {worst_bound(ratios, 2)}"
        )
    return "\n".join(lines)


def record_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a record says: medians in ms, and their ratio to the least of the peers'; the geometric means of the ratios.

    Args:
        rows: written `Row` instances, ours the first one of each size.
    """
    cells: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["workers"], row["bytes"]), []).append(row)
    has_limit = any(row["limit_s"] is not None for row in rows)
    names = list(dict.fromkeys(row["contender"] for row in rows))
    head = ["workers", "size", "choice", *(f"{name} [ms]" for name in names), "of the best peer"]
    lines, ratios = [], dict[int, list[float]]()
    for (workers, size), (ours, *peers) in cells.items():
        ratio = ours["time_s"] / min(peer["time_s"] for peer in peers)
        ratios.setdefault(workers, []).append(ratio)
        medians = [f"{row['time_s'] * 1e3:.3g}" for row in (ours, *peers)]
        choice = f"{ours['algorithm']}, {ours['depth']}"
        share = [f"{ours['limit_s'] / ours['time_s']:.0%}"] if has_limit else []
        lines.append([str(workers), format_size(size), choice, *medians, f"{ratio:.2f}", *share])
    means = (f"{geometric_mean(those):.2f} with {workers} workers" for workers, those in ratios.items())
    shown = markdown_table([*head, *(["of the limit"] if has_limit else [])], lines)
    return f"{shown}\n\nGeometric mean over sizes of the time in units of the best peer's: {', '.join(means)}."


def plot(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Time over size, one panel for each number of workers.

    Args:
        rows: written `Row` instances.
        path: file to write; its ending says the format.
    """
    from matplotlib.figure import Figure

    numbers = list(dict.fromkeys(row["workers"] for row in rows))
    figure = Figure(figsize=(max(3.6 * len(numbers), 6.5), 4.2), layout="constrained")
    panels = figure.subplots(1, len(numbers), squeeze=False, sharey=True)[0]
    for panel, workers in zip(panels, numbers):
        chosen = [row for row in rows if row["workers"] == workers]
        for label, contenders, style in _DRAWN:
            _draw_best(panel, [row for row in chosen if row["contender"] in contenders], label, style)
        limits = {row["bytes"]: row["limit_s"] * 1e3 for row in chosen if row["limit_s"] is not None}
        if limits:
            panel.plot(*zip(*sorted(limits.items())), ":", color=colors.BOUND, label="limit of the links")
        panel.set_title(f"{workers} workers", fontsize=10, loc="left")
        size_axis(panel, max(row["bytes"] for row in chosen))
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(lambda time_ms, _: format_time(time_ms / 1e3))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("time of one all-reduce")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(labels) if len(numbers) > 1 else 2,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=120)


_DRAWN: Sequence[tuple[str, Collection[str], Mapping[str, Any]]] = (
    ("this library", (OURS,), {"linewidth": 2.5, "color": colors.OURS, "zorder": 3}),
    ("the best of TensorFlow's in-graph three", ("tf_shuffle", "tf_ring", "tf_recursive_hd"), {"color": colors.OTHERS}),
    ("MultiWorkerMirroredStrategy's ring", ("mwms_ring",), {"color": colors.MIRRORED}),
)
"""The lines of the plot, this library first: label, contenders of which the best counts, and style."""


def _draw_best(panel: Any, rows: Sequence[Mapping[str, Any]], label: str, style: Mapping[str, Any]) -> None:
    best_ms: dict[int, float] = {}
    for row in rows:
        best_ms[row["bytes"]] = min(best_ms.get(row["bytes"], math.inf), row["time_s"] * 1e3)
    if best_ms:
        panel.plot(*zip(*sorted(best_ms.items())), marker="o", markersize=3, label=label, **{"linewidth": 1.4, **style})


def _network(
    workers: int, sizes: Sequence[int], rounds: int, file: str | None, rate: str | None, testbed: Testbed | None
) -> NetworkModel:
    """The model to choose by: that of the file, or else one that is measured now."""
    from caramel.measure.netbench import DEFAULT_SIZES, Settings, measure_network
    from caramel.netmodel.file import load

    if file is not None:
        network = load(file)
        network.require(workers)
        return network
    # A line needs two sizes; otherwise the model knows just the sizes that are compared.
    fitted = sizes if len(set(sizes)) > 1 else DEFAULT_SIZES
    where = f"benchmark, links of {rate or 'the loopback device'}"
    settings = Settings(tuple(fitted), rounds=rounds, contention=False)  # nothing is computed beside these
    return measure_network(cluster(workers, testbed), [workers], settings, where)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workers", "numbers", type=int, multiple=True, default=(2, 4, 8), show_default=True)
@click.option("--size", "sizes", multiple=True, help="Default: 64 B to 32 MiB.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="How often each contender is timed."
)
@click.option(
    "--fit-rounds", type=click.IntRange(min=1), default=7, show_default=True, help="The same for the network model."
)
@click.option("--network", "network_file", metavar="FILE", help="Use this model instead of measuring one.")
@click.option("--rate", metavar="RATE", help="Run on hosts with links of this rate (needs root), such as 500mbit.")
@click.option("--json", "json_file", metavar="FILE", help="Write the time of every round, and the medians.")
@click.option("--plot", "plot_file", metavar="FILE.png", help="Draw them.")
@click.option("--save-network", metavar="FILE", help="Write the network model.")
@errors_for_click
def main(
    numbers: tuple[int, ...],
    sizes: tuple[str, ...],
    rate: str | None,
    rounds: int,
    fit_rounds: int,
    network_file: str | None,
    json_file: str | None,
    plot_file: str | None,
    save_network: str | None,
) -> None:
    """Compare all-reduces on local server processes, or on hosts with shaped links."""
    numbers = tuple(sorted(set(numbers)))
    with ExitStack() as stack:
        testbed = None
        if rate is not None:
            testbed = stack.enter_context(Testbed(max(numbers), parse_rate(rate)))
        elif (refused := enter_network_namespace()) is not None:
            # The peers' servers, like all of TensorFlow's, would be open to the network.
            raise ClusterError(f"the benchmark needs a network namespace of its own: {refused}")
        from caramel.measure.all_reduce_bench import ELEMENT_BYTES
        from caramel.measure.netbench import DEFAULT_SIZES
        from caramel.netmodel.file import save

        wanted = tuple(sorted(parse_size(s) for s in sizes)) or DEFAULT_SIZES
        if min(wanted) < ELEMENT_BYTES or min(numbers) < 2:
            raise InputError(f"all-reduces are compared from {ELEMENT_BYTES} bytes and 2 workers on")
        measured: NetworkModel | None = None
        cells: list[Cell] = []
        for workers in numbers:
            network = _network(workers, wanted, fit_rounds, network_file, rate, testbed)
            if network_file is None:
                measured = network if measured is None else measured.merged(network)
            with progress_over(len(wanted) * rounds) as show:
                found = measure(workers, wanted, rounds, network, testbed, show)
            click.echo(table(found) + "\n")
            cells += found
            if json_file is not None:
                write_json([asdict(row) for cell in cells for row in cell.rows()], json_file)
        if len(numbers) > 1:
            click.echo(table(cells))
        if plot_file is not None:
            plot([asdict(row) for cell in cells for row in cell.rows()], plot_file)
        if save_network is not None and measured is not None:
            save(measured, save_network)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.collectives"))
