"""``python -m benchmarks.training``: training steps of this library and of its peers, on hosts with shaped links."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.output import errors_for_click
from benchmarks.training.effort import FULL, QUICK, Effort
from benchmarks.training.entry import Conditions
from benchmarks.training.grid import Sweep, cells, examples_for, link_rate, run_cell
from benchmarks.training.names import OURS
from benchmarks.training.ours import OurContender, limit_at
from benchmarks.training.plots import write_plots
from benchmarks.training.records import Cell, Record, Row, resume, save, versions_here
from benchmarks.training.report import report
from benchmarks.training.site import Site
from benchmarks.training.spmd import horovod_versions
from benchmarks.training.workloads import BY_NAME, Workload
from caramel.errors import CaramelError, InputError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.runtime.progress import progress_over

HOROVOD = Path(".venv-horovod/bin/python")
"""Where ``make horovod`` puts it."""

_COMPUTED_STEPS = 8


@dataclass(frozen=True)
class Prepared:
    """A workload as the cells of one number of hosts and one rho have it.

    Attributes:
        workload: with as many examples as make this rho.
        context: the captured step.
        trace: of it.
    """

    workload: Workload
    context: Context
    trace: Trace


class Preparations:
    """What several cells have in common, measured once.

    Args:
        site: the hosts.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._example_s: dict[str, float] = {}
        self._swept: dict[str, Mapping[str, Sweep | str]] = {}
        self._prepared: dict[tuple[str, int], Prepared] = {}

    def of(self, cell: Cell) -> Prepared:
        """The workload of a cell. The links have the cell's rate."""
        nominal = BY_NAME[cell.workload]
        examples = examples_for(nominal, cell.workers, self._measured_example_s(nominal), cell.rho)
        if (cell.workload, examples) not in self._prepared:
            workload = replace(nominal, examples=examples)
            self._prepared[cell.workload, examples] = Prepared(workload, *self._site.traced(workload))
        return self._prepared[cell.workload, examples]

    def _measured_example_s(self, workload: Workload) -> float:
        if workload.name not in self._example_s:
            alone = self._site.computation(workload)
            alone.run(2)
            step_s = statistics.median(alone.run(_COMPUTED_STEPS).times_s)
            alone.close()
            self._example_s[workload.name] = step_s / workload.examples
        return self._example_s[workload.name]

    def swept(self, workload: Workload) -> Mapping[str, Sweep | str]:
        """Settings of the peers, chosen in the first cell of a workload."""
        if workload.name not in self._swept:
            self._swept[workload.name] = self._site.swept(workload)
        return self._swept[workload.name]


def measure(site: Site, cell: Cell, preparations: Preparations, effort: Effort) -> list[Row]:
    """Measure a cell."""
    site.testbed.set_rate(link_rate(BY_NAME[cell.workload], cell.rho))
    _tell(cell, "computation and trace")
    prepared = preparations.of(cell)
    workload = prepared.workload
    _tell(cell, "settings of the peers")
    swept = preparations.swept(workload)
    _tell(cell, "network and contenders")
    contenders = site.contenders(workload, prepared.context, prepared.trace, swept)
    try:
        rate = max(site.testbed.measure_rate_bytes_per_s() for _ in range(2))  # others may have disturbed one
        ours = {c.name: c for c in contenders if isinstance(c, OurContender)}
        complete = ours.get(OURS)
        conditions = Conditions(
            workload.examples,
            rate,
            workload.sent_bytes(cell.workers),
            None if complete is None else limit_at(complete.model, rate),
            {name: c.predicted_s for name, c in ours.items() if c.predicted_s is not None},
        )
        _tell(cell, "rounds")
        with progress_over((effort.rounds + 1) * len(contenders), True) as show:
            return run_cell(cell, contenders, conditions, site.sent_bytes, effort.rounds, effort.steps, show)
    finally:
        site.end_cell()  # at once, where sessions take long
        for contender in contenders:
            with suppress(CaramelError):  # it failed before, and the cell says so
                contender.close()


def _tell(cell: Cell, what: str) -> None:
    """What comes next, for whoever waits: minutes at a time."""
    click.echo(f"{time.strftime('%H:%M:%S')} {cell}: {what}", err=True)


@click.command()
@click.option("--quick", is_flag=True, help="A few cells, in ten minutes.")
@click.option("--core", is_flag=True, help="Only 4 workers, where sending takes as long as computing and twice that.")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(list(BY_NAME)), help="Default: all.")
@click.option("--rounds", type=click.IntRange(min=1), help=f"Of all contenders.  [default: {FULL.rounds}]")
@click.option("--steps", type=click.IntRange(min=1), help=f"Of each in a round.  [default: {FULL.steps}]")
@click.option("--horovod", type=click.Path(dir_okay=False), help=f"Python that has Horovod.  [default: {HOROVOD}]")
@click.option(
    "--retry", is_flag=True, help="Measure cells that were disturbed, or in which somebody failed, once more."
)
@click.option("--results", type=click.Path(dir_okay=False), default="training.json", show_default=True)
@click.option("--plots", type=click.Path(file_okay=False), help="Write plots into this folder.")
@errors_for_click
def main(
    quick: bool,
    core: bool,
    workloads: tuple[str, ...],
    rounds: int | None,
    steps: int | None,
    horovod: str | None,
    retry: bool,
    results: str,
    plots: str | None,
) -> None:
    """Compare training steps. What is in the results already is not measured again."""
    expected = cells(quick, core, workloads or tuple(BY_NAME))
    python = horovod or (str(HOROVOD) if HOROVOD.exists() else None)
    peers = horovod_versions(python)
    if horovod is not None and "horovod" not in peers:
        raise InputError(f"{horovod!r} is no Python with Horovod: make horovod builds one, or leave out --horovod")
    usual = QUICK if quick else FULL
    effort = replace(usual, rounds=rounds or usual.rounds, steps=steps or usual.steps)
    record = resume(results, Record(versions_here(**peers), dict(effort.settings)))
    record = _measured(record, record.unfinished(expected, retry), python, effort, results)
    click.echo(report(record.rows, expected))
    if plots is not None:
        for path in write_plots(record.rows, plots):
            click.echo(f"{path}")


def _measured(record: Record, wanted: Sequence[Cell], python: str | None, effort: Effort, results: str) -> Record:
    """The record with these cells; each is saved when it is done."""
    for workers in dict.fromkeys(cell.workers for cell in wanted):
        with Site(workers, python, effort) as site:
            preparations = Preparations(site)
            for cell in (c for c in wanted if c.workers == workers):
                rows = measure(site, cell, preparations, effort)
                record = record.with_cell(rows)
                save(record, results)
                _tell(cell, f"done, on links of {rows[0].link_bytes_per_s * 8e-6:.4g} Mbit/s")
    return record


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.training"))
