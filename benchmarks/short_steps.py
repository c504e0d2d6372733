"""``python -m benchmarks.short_steps``: what it costs to run a step in which there is next to nothing to compute.

Networks of narrow dense layers on hosts of a testbed with fast links, all on the machine's cores. Contenders run one
after the other, round by round, so that what disturbs the machine disturbs all of them.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.collectives import cluster
from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.short_driver import TimedRuns, driver
from benchmarks.statistics import paired_ratio
from benchmarks.testbed import Testbed
from benchmarks.training.spmd import HOROVOD, MIRRORED, Processes, SpmdContender
from benchmarks.training.workloads import SHORT, Workload
from caramel.errors import ClusterError
from caramel.measure.netbench import measure_network, quick_up_to
from caramel.netmodel.file import save

FED, ON_WORKERS = "caramel", "caramel_data"
"""This library: with batches from the driver, and with data on the workers."""

TITLES = {FED: "Caramel, fed", ON_WORKERS: "Caramel, data on workers", MIRRORED: "Mirrored", HOROVOD: "Horovod"}

_PORTS = {FED: 2222, ON_WORKERS: 2223}
_LINK_BYTES_PER_S = 10e9 / 8
_NETWORK = quick_up_to(2**20)
"""What is measured of the network: all gradients of the largest network together have 0.8 MB."""

_SETTLING_RUNS = 10


def _times_of(contender: SpmdContender, together: int, runs: int) -> list[float]:
    return [run_s / together for run_s in contender.run(runs).times_s]


@contextmanager
def _contenders(
    workload: Workload,
    workers: int,
    together: int,
    pythons: Mapping[str, str],
    testbed: Testbed,
    network: str,
) -> Iterator[dict[str, TimedRuns]]:
    """All contenders, ready to run so many steps in a run, by name."""
    with ExitStack() as opened:
        ready: dict[str, TimedRuns] = {}
        for name, port in _PORTS.items():
            own = driver(testbed, workers, port, workload, network, together, name == FED)
            ready[name] = opened.enter_context(own)
        for name, python in pythons.items():
            processes = Processes(name, testbed, workers, python)
            opened.callback(processes.close)
            contender = SpmdContender(name, processes, workload, {}, {}, together=together)
            ready[name] = partial(_times_of, contender, together)
        yield ready


def measure(
    workloads: Sequence[Workload],
    workers: Sequence[int],
    together: Sequence[int],
    rounds: int,
    runs: int,
    horovod: str | None = None,
) -> Iterator[dict[str, Any]]:
    """The median seconds of each contender's steps, round by round.

    Args:
        workloads: what is trained.
        workers: numbers of workers.
        together: numbers of steps in a run.
        rounds: how often each contender has its turn.
        runs: in a turn.
        horovod: Python of the environment that has Horovod; None leaves it out.

    Raises:
        ClusterError: a process of this library ended, or did not answer in time.
        UnavailableError: no testbed can be built here.
    """
    pythons = {MIRRORED: sys.executable, **({} if horovod is None else {HOROVOD: horovod})}
    for count in workers:
        with Testbed(max(count, 2), _LINK_BYTES_PER_S) as testbed, TemporaryDirectory() as directory:
            network = str(Path(directory, "network.json"))
            if count > 1:
                save(measure_network(cluster(count, testbed), [count], _NETWORK, "links of 10 Gbit/s"), network)
            for workload, steps in itertools.product(workloads, together):
                with _contenders(workload, count, steps, pythons, testbed, network) as contenders:
                    times_s = _times_in_turn(contenders, rounds, runs)
                yield {"workload": workload.name, "workers": count, "steps": steps, "times_s": times_s}


def _times_in_turn(contenders: dict[str, TimedRuns], rounds: int, runs: int) -> dict[str, list[float]]:
    """The median seconds of a step in each round; of peers that fail none."""
    times_s: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-1, rounds):
        for name, run in list(contenders.items()):
            try:
                found_s = run(_SETTLING_RUNS if number < 0 else runs)
            except ClusterError as error:
                if name in _PORTS:
                    raise
                click.echo(f"{TITLES[name]} is left out: {error}", err=True)
                del contenders[name], times_s[name]
                continue
            if number >= 0:
                times_s[name].append(statistics.median(found_s))
    return times_s


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The medians of all rounds, and of ratios in the same round; "-" for contenders that did not take part.

    Args:
        rows: what `measure` has found; a star stands at those of an older version, with a driver outside of the hosts.
    """
    names = [name for name in TITLES if any(name in row["times_s"] for row in rows)]
    titles = {workload.name: workload.title for workload in SHORT}
    lines = []
    for row in rows:
        times_s = row["times_s"]
        mark = " *" if row.get("driver_outside") else ""
        line = [titles[row["workload"]] + mark, str(row["workers"]), str(row["steps"])]
        line += [f"{statistics.median(times_s[name]) * 1e3:.2f}" if name in times_s else "-" for name in names]
        for ours, theirs in ((FED, MIRRORED), (ON_WORKERS, MIRRORED), (ON_WORKERS, FED)):
            ratio = paired_ratio(times_s[ours], times_s[theirs]) if theirs in times_s else None
            line.append("-" if ratio is None else f"{ratio.median:.2f} ({ratio.bounds(2)})")
        lines.append(line)
    head = ["network", "workers", "steps in a run", *(f"{TITLES[name]} [ms]" for name in names)]
    return markdown_table([*head, "fed / Mirrored", "data / Mirrored", "data / fed"], lines)


def _cell(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """What a row is of, in the order of the table."""
    return row["workers"], [workload.name for workload in SHORT].index(row["workload"]), row["steps"]


@click.command()
@click.option("--workload", "names", multiple=True, default=[w.name for w in SHORT], show_default=True)
@click.option("--workers", multiple=True, type=click.IntRange(min=1), default=(1, 2, 4, 8), show_default=True)
@click.option("--steps-per-execution", "together", multiple=True, type=click.IntRange(min=1), default=(1, 8))
@click.option("--rounds", type=click.IntRange(min=1), default=11, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), default=40, show_default=True, help="In each round.")
@click.option("--horovod", type=click.Path(exists=True, dir_okay=False), help="Python that has Horovod.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write all measurements to.")
@errors_for_click
def main(
    names: tuple[str, ...],
    workers: tuple[int, ...],
    together: tuple[int, ...],
    rounds: int,
    runs: int,
    horovod: str | None,
    path: str | None,
) -> None:
    """Measure, and print a table; of a record that is there, other cells stay."""
    chosen = [workload for workload in SHORT if workload.name in names]
    rows: list[dict[str, Any]] = []
    if path is not None and Path(path).exists():
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
    for row in measure(chosen, workers, together, rounds, runs, horovod):
        rows = sorted([*(each for each in rows if _cell(each) != _cell(row)), row], key=_cell)
        click.echo(table([row]).splitlines()[-1], err=True)
        if path is not None:
            write_json(rows, path)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
