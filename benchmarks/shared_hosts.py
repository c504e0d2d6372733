"""``python -m benchmarks.shared_hosts``: all-reduces where several workers share a host and its link.

The workers of a host are server processes in one network namespace of the testbed. All all-reduces are timed in turn,
the hierarchy for so many workers on a host among them. What links need at least is computed from the bytes that must
leave a host: 2 (H - 1) / H of the tensor, for H hosts.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.statistics import Ratio, paired_ratio
from benchmarks.testbed import Testbed
from caramel.errors import InputError
from caramel.util.progress import progress_over
from caramel.util.units import format_ms, format_size, parse_rate, parse_size


@dataclass(frozen=True)
class Cell:
    """One size on some hosts, as it is written.

    Attributes:
        hosts: number of hosts.
        workers_on_host: number of workers of each.
        rate_bytes_per_s: payload rate of a link, measured.
        size_bytes: bytes of the tensor.
        times_s: seconds of each round, by algorithm and number of chunks, as in ``ring, 1``.
    """

    hosts: int
    workers_on_host: int
    rate_bytes_per_s: float
    size_bytes: int
    times_s: Mapping[str, Sequence[float]]

    @property
    def limit_s(self) -> float:
        """Seconds that a host's link needs."""
        return 2 * (self.hosts - 1) / self.hosts * self.size_bytes / self.rate_bytes_per_s

    def best(self, is_hierarchy: bool) -> str:
        """The fastest hierarchy, or the fastest of the others."""
        names = (name for name in self.times_s if name.startswith("hierarchy_") == is_hierarchy)
        return min(names, key=lambda name: statistics.median(self.times_s[name]))

    @property
    def ratio(self) -> Ratio:
        """The fastest hierarchy over the fastest of the others."""
        return paired_ratio(self.times_s[self.best(True)], self.times_s[self.best(False)])


def table(record: Sequence[Mapping[str, Any]]) -> str:
    """Medians in ms of the fastest number of chunks of each algorithm, and ratios of the hierarchy.

    Args:
        record: written `Cell` instances.
    """
    cells = [Cell(**row) for row in record]
    names = list(dict.fromkeys(key.partition(",")[0] for cell in cells for key in cell.times_s))
    lines = []
    for cell in cells:
        medians = {key: statistics.median(times) for key, times in cell.times_s.items()}
        fastest = [min(s for key, s in medians.items() if key.partition(",")[0] == name) for name in names]
        where = [f"{cell.hosts} x {cell.workers_on_host}", format_size(cell.size_bytes)]
        times = [format_ms(time_s, 3).removesuffix(" ms") for time_s in (*fastest, cell.limit_s)]
        shown = [*times, cell.best(False)]
        lines.append([*where, *shown, f"{cell.ratio.median:.2f}", cell.ratio.bounds(2)])
    units = (f"{name} [ms]" for name in (*names, "limit"))
    return markdown_table(["hosts x workers", "size", *units, "best other", "ratio", "95 % bounds"], lines)


def measure(testbed: Testbed, hosts: int, on_host: int, sizes: Sequence[int], rounds: int, show: Any) -> list[Cell]:
    """Time all all-reduces at all sizes.

    Args:
        testbed: hosts.
        hosts: number of hosts to use.
        on_host: number of workers of each.
        sizes: bytes of the tensors.
        rounds: number of rounds.
        show: function that shows progress: number of rounds done, and what is done.
    """
    from caramel.collectives.algorithms import ALL_REDUCE_NAMES, NATIVE, Schedules
    from caramel.collectives.hierarchy import hierarchy_name
    from caramel.measure.all_reduce_bench import AllReduceBench, build_for
    from caramel.runtime.clusters.local_processes import Host, LocalProcesses

    places = tuple(Host(h.namespace, h.address) for h in testbed.hosts[:hosts] for _ in range(on_host))
    kinds = [(name, depth) for name in (*ALL_REDUCE_NAMES, hierarchy_name(on_host)) for depth in (1, 4)]
    rate = testbed.measure_rate_bytes_per_s()
    schedules, cells = Schedules(), []
    with AllReduceBench(LocalProcesses(hosts=places), len(places), uses_native=True) as bench:
        for position, size in enumerate(sizes):
            builds = {
                f"{name}_{depth}": build_for(schedules, bench, name, depth, size)
                for name, depth in kinds
                if name != NATIVE or depth == 1
            }
            bench.load(size, builds)

            def on_round(done: int, position: int = position, size: int = size) -> None:
                show(position * rounds + done, f"{hosts} x {on_host} workers, {format_size(size)}")

            times = bench.measure(rounds, on_round, prune=False)
            bench.unload()
            named = {", ".join(key.rsplit("_", 1)): seconds for key, seconds in times.items()}
            cells.append(Cell(hosts, on_host, rate, size, named))
    return cells


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hosts", type=click.IntRange(min=2), default=4, show_default=True)
@click.option("--workers-on-host", "on_hosts", type=int, multiple=True, default=(2,), show_default=True)
@click.option("--size", "sizes", multiple=True, default=("4KiB", "256KiB", "1MiB", "4MiB", "16MiB"), show_default=True)
@click.option("--rounds", type=click.IntRange(min=2), default=11, show_default=True)
@click.option("--rate", metavar="RATE", default="500mbit", show_default=True, help="Rate of the hosts' links.")
@click.option("--json", "json_file", metavar="FILE", help="Write the time of every round.")
@errors_for_click
def main(
    hosts: int, on_hosts: tuple[int, ...], sizes: tuple[str, ...], rounds: int, rate: str, json_file: str | None
) -> None:
    """Time all-reduces where several workers share a host and its link; needs root."""
    if min(on_hosts) < 2:
        raise InputError("workers share a host where it has 2 or more")
    wanted = sorted(parse_size(size) for size in sizes)
    cells: list[Cell] = []
    with Testbed(hosts, parse_rate(rate)) as testbed:
        for on_host in on_hosts:
            with progress_over(len(wanted) * rounds) as show:
                cells += measure(testbed, hosts, on_host, wanted, rounds, show)
            record = [asdict(cell) for cell in cells]
            if json_file is not None:
                write_json(record, json_file)
    click.echo(table(record))


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.shared_hosts"))
