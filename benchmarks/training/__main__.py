"""``python -m benchmarks.training``: training steps of this library and of its peers, on hosts with shaped links."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.output import errors_for_click
from benchmarks.training.entry import Conditions
from benchmarks.training.grid import Sweep, cells, link_rate, run_cell
from benchmarks.training.ours import COMPLETE, OurContender, limit_at
from benchmarks.training.plots import write_plots
from benchmarks.training.records import Cell, Record, Row, resume, save, versions_here
from benchmarks.training.report import report
from benchmarks.training.site import Site
from benchmarks.training.workloads import BY_NAME
from caramel.errors import CaramelError
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.runtime.progress import progress_over

HOROVOD = Path(".venv-horovod/bin/python")
"""Where ``make horovod`` puts it."""

_COMPUTED_STEPS = 8


@dataclass(frozen=True)
class Prepared:
    """What is measured once for a workload on a number of hosts.

    Attributes:
        compute_s: seconds of computation alone.
        context: the captured step.
        trace: of it.
        swept: settings of the peers, chosen where sending takes as long as computing.
    """

    compute_s: float
    context: Context
    trace: Trace
    swept: Mapping[str, Sweep | str]


def prepare(site: Site, name: str) -> Prepared:
    """Measure what the cells of a workload have in common."""
    workload = BY_NAME[name]
    alone = site.computation(workload)
    alone.run(2)
    compute_s = statistics.median(alone.run(_COMPUTED_STEPS).times_s)
    alone.close()
    context, trace = site.traced(workload)
    site.testbed.set_rate(link_rate(workload, site.workers, 1.0, compute_s))
    return Prepared(compute_s, context, trace, site.swept(workload))


def measure(site: Site, cell: Cell, prepared: Prepared, rounds: int, steps: int) -> list[Row]:
    """Measure a cell."""
    workload = BY_NAME[cell.workload]
    site.testbed.set_rate(link_rate(workload, cell.workers, cell.rho, prepared.compute_s))
    rate = site.testbed.measure_rate_bytes_per_s()
    contenders = site.contenders(workload, prepared.context, prepared.trace, prepared.swept)
    try:
        ours = {c.name: c for c in contenders if isinstance(c, OurContender)}
        complete = ours.get(COMPLETE)
        conditions = Conditions(
            rate,
            workload.sent_bytes(cell.workers),
            None if complete is None else limit_at(complete.model, rate),
            {name: c.predicted_s for name, c in ours.items() if c.predicted_s is not None},
        )
        with progress_over((rounds + 1) * len(contenders), True) as show:
            return run_cell(cell, contenders, conditions, site.sent_bytes, rounds, steps, show)
    finally:
        for contender in contenders:
            with suppress(CaramelError):  # it failed before, and the cell says so
                contender.close()


@click.command()
@click.option("--quick", is_flag=True, help="A few cells, in ten minutes.")
@click.option("--core", is_flag=True, help="Only 4 workers, where sending takes as long as computing and twice that.")
@click.option("--workload", "workloads", multiple=True, type=click.Choice(list(BY_NAME)), help="Default: all.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of all contenders.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Of each in a round.")
@click.option("--horovod", type=click.Path(dir_okay=False), help=f"Python that has Horovod.  [default: {HOROVOD}]")
@click.option("--retry", is_flag=True, help="Measure cells in which somebody failed once more.")
@click.option("--results", type=click.Path(dir_okay=False), default="training.json", show_default=True)
@click.option("--plots", type=click.Path(file_okay=False), help="Write plots into this folder.")
@errors_for_click
def main(
    quick: bool,
    core: bool,
    workloads: tuple[str, ...],
    rounds: int,
    steps: int,
    horovod: str | None,
    retry: bool,
    results: str,
    plots: str | None,
) -> None:
    """Compare training steps. What is in the results already is not measured again."""
    expected = cells(quick, core, workloads or tuple(BY_NAME))
    python = horovod or (str(HOROVOD) if HOROVOD.exists() else None)
    record = resume(results, Record(versions_here(), {"rounds": rounds, "steps": steps}))
    record = _measured(record, record.unfinished(expected, retry), python, rounds, steps, results)
    click.echo(report(record.rows, expected))
    if plots is not None:
        for path in write_plots(record.rows, plots):
            click.echo(f"{path}")


def _measured(
    record: Record, wanted: Sequence[Cell], python: str | None, rounds: int, steps: int, results: str
) -> Record:
    """The record with these cells; each is saved when it is done."""
    for workers in dict.fromkeys(cell.workers for cell in wanted):
        prepared: dict[str, Prepared] = {}
        with ExitStack() as stack:
            site = stack.enter_context(Site(workers, python))
            for cell in (c for c in wanted if c.workers == workers):
                if cell.workload not in prepared:
                    prepared[cell.workload] = prepare(site, cell.workload)
                rows = measure(site, cell, prepared[cell.workload], rounds, steps)
                record = record.with_cell(rows)
                save(record, results)
                click.echo(f"{cell}, links of {rows[0].link_bytes_per_s * 8e-6:.4g} Mbit/s: done", err=True)
    return record


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.training"))
