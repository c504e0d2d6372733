"""``python -m benchmarks.training``: training steps of this library and of its peers, on hosts with shaped links."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.output import errors_for_click
from benchmarks.testbed.commands import TestbedError, check_system
from benchmarks.training.contender import SETTLING_STEPS, Contender
from benchmarks.training.effort import EMULATED as EFFORT_EMULATED
from benchmarks.training.effort import FULL, QUICK, Effort
from benchmarks.training.entry import Conditions, checked_burst, step_time_s
from benchmarks.training.evidence import Evidence, folder_of, keep
from benchmarks.training.findings import ACCELERATED, COMPUTED
from benchmarks.training.grid import (
    MULTIPLE,
    cells,
    emulated_cells,
    fitted_times,
    link_rate,
    on_links,
    run_cell,
    with_rho,
)
from benchmarks.training.names import COMPUTE, COMPUTE_IN_GRAPH, OURS, TITLES
from benchmarks.training.ours import OPTIONS, limits_at, predicted_at_s, predicted_s
from benchmarks.training.plots import write_plots
from benchmarks.training.profiles import EMULATED
from benchmarks.training.records import (
    Cell,
    Origin,
    Record,
    Row,
    Tried,
    commit_here,
    load,
    now,
    program_here,
    resume,
    save,
    versions_here,
)
from benchmarks.training.report import report
from benchmarks.training.shared import Member
from benchmarks.training.site import Failed, Site
from benchmarks.training.spmd import horovod_versions
from benchmarks.training.timeline import Step
from benchmarks.training.workloads import BY_NAME, Workload
from caramel.armodel import ARModel
from caramel.errors import CaramelError, InputError, in_one_line
from caramel.facts import Trace
from caramel.frontend.context import Context
from caramel.util.progress import progress_over

HOROVOD = Path(".venv-horovod/bin/python")
"""Where ``make horovod`` puts it."""

_COMPUTED_STEPS = 3
"""Of a burst of the computation alone, before a workload's first cell, after one that does not count."""

_FIRST_PART = 8
"""So many times as many examples has the usual batch as the one that is computed first."""

_COMPUTED_S = 1.0
"""So long a step of the larger batch may take, by the first one: then machines that compute slowly need no longer."""


class Preparations:
    """What several cells have in common, measured once.

    Args:
        site: the hosts.
        sweeps: settings of the peers that were tried already, by workload and contender.
        bursts: of the computation alone, with batches of either size, before a workload's first cell.

    Attributes:
        sweeps: the same with those that were tried since.
    """

    def __init__(self, site: Site, sweeps: Mapping[str, Mapping[str, tuple[Tried, ...]]], bursts: int) -> None:
        self.sweeps = dict(sweeps)
        self._bursts = bursts
        self._site = site
        self._computing_s: dict[str, tuple[float, float]] = {}
        self._traced: dict[tuple[str, int], tuple[Context, Trace]] = {}  # links make no difference

    def workload(self, cell: Cell) -> Workload:
        """That of a cell, with examples and links that make its rho."""
        if cell.workload in EMULATED:
            return on_links(EMULATED[cell.workload], cell.workers, cell.rho)
        nominal = BY_NAME[cell.workload]
        if cell.workload not in self._computing_s:
            self._computing_s[cell.workload] = self._measured_times(nominal)
        return with_rho(nominal, cell.workers, *self._computing_s[cell.workload], cell.rho)

    def _measured_times(self, workload: Workload) -> tuple[float, float]:
        """Seconds of a step without examples, and those of each, of all workers side by side."""
        largest = self._largest(workload)
        sizes = (largest // 2, largest)
        found: dict[int, list[float]] = {size: [] for size in sizes}
        with ExitStack() as open_:
            alone = {size: self._site.computation(replace(workload, examples=size)) for size in sizes}
            for each in alone.values():
                open_.callback(each.close)
                each.run(SETTLING_STEPS)
            for _ in range(self._bursts):  # in turn: a machine may be slower for a while
                for size, each in alone.items():
                    found[size].append(step_time_s(checked_burst(each, _COMPUTED_STEPS + 1)))
        small, large = ((size, statistics.median(found[size])) for size in sizes)
        return fitted_times(small, large)

    def _largest(self, workload: Workload) -> int:
        """Of the batches that are computed: the workload's own, or a smaller one where that takes long."""
        unit = 2 * MULTIPLE  # half of it is to be a batch, too
        few = max(workload.examples // _FIRST_PART // unit, 1) * unit
        first = self._site.computation(replace(workload, examples=few))
        try:
            first.run(SETTLING_STEPS)
            step_s = step_time_s(checked_burst(first, _COMPUTED_STEPS + 1))
        finally:
            first.close()
        return min(max(int(few * _COMPUTED_S / step_s) // unit * unit, few), workload.examples)

    def plans(self, workload: Workload) -> Mapping[str, ARModel | str]:
        """This library's; where there is none, why."""
        try:
            key = workload.name, workload.examples
            if key not in self._traced:
                self._traced[key] = self._site.traced(workload)
            return self._site.plans(*self._traced[key])
        except TestbedError:
            raise
        except CaramelError as error:
            return dict.fromkeys(OPTIONS, in_one_line(error))

    def predicted_at_s(
        self, workload: Workload, plans: Mapping[str, ARModel | str], computation_s: float
    ) -> Mapping[str, float]:
        """What the plans of this library say where computation takes so long.

        Args:
            workload: of the cell.
            plans: of this library.
            computation_s: seconds of a step of all workers in one graph, without communication.
        """
        _, trace = self._traced[workload.name, workload.examples]
        made = {name: plan for name, plan in plans.items() if not isinstance(plan, str)}
        return {name: predicted_at_s(plan, trace, computation_s) for name, plan in made.items()}

    def keep_evidence(
        self,
        workload: Workload,
        plans: Mapping[str, ARModel | str],
        contenders: Sequence[Contender],
        folder: Path,
    ) -> None:
        """Keep what the steps of a cell were predicted from, and a timeline of each plan, which is traced now.

        Args:
            workload: of the cell.
            plans: of this library.
            contenders: that did not fail.
            folder: for all of it.
        """
        if all(isinstance(plan, str) for plan in plans.values()):
            return
        timelines: dict[str, Step] = {}
        for contender in contenders:
            if isinstance(contender, Member) and contender.name in plans:
                with suppress(CaramelError):  # its times are there all the same
                    timelines[contender.name] = contender.traced_step()
        made = {name: plan.plan for name, plan in plans.items() if not isinstance(plan, str)}
        _, trace = self._traced[workload.name, workload.examples]
        keep(Evidence(trace, self._site.network(), made, timelines), folder)

    def swept(self, cell: Cell, workload: Workload) -> Mapping[str, tuple[Tried, ...]]:
        """Settings of the peers, tried in the first cell of a workload; those of a peer again if none of them worked.

        A peer that cannot run is left out.
        """
        found = dict(self.sweeps.get(cell.workload, {}))
        wanted = [n for n in self._site.sweepable if all(each.error is not None for each in found.get(n, ()))]
        if wanted:
            for name, tried in self._site.swept(workload, wanted).items():
                found[name] = tuple(replace(each, cell=cell.key) for each in tried)
            self.sweeps[cell.workload] = found
        return found


def measure(
    site: Site, cell: Cell, preparations: Preparations, effort: Effort, program: str, folder: Path
) -> list[Row]:
    """Measure a cell.

    Args:
        site: the hosts.
        cell: which.
        preparations: what it has in common with others.
        effort: how much is measured.
        program: which measures it.
        folder: for what its steps were predicted from, and a timeline of each plan.

    Raises:
        CaramelError: nothing of it can be measured.
    """
    _tell(cell, "computation, trace and network")
    workload = preparations.workload(cell)
    site.testbed.set_rate(link_rate(workload, cell.rho))
    plans = preparations.plans(workload)
    _tell(cell, "settings of the peers")
    swept = preparations.swept(cell, workload)
    _tell(cell, "contenders")
    contenders = site.contenders(workload, plans, swept)
    try:
        rates = site.link_rates_bytes_per_s()
        rate = statistics.median(rates)
        complete = plans.get(OURS, "it takes no part")
        limits = None if isinstance(complete, str) else limits_at(complete, rate)
        predicted = {name: predicted_s(plan) for name, plan in plans.items() if not isinstance(plan, str)}
        conditions = Conditions(
            workload.examples,
            program,
            rates,
            workload.sent_bytes(cell.workers) / rate if limits is None else limits.network_s,
            None if limits is None else limits.step_s,
            {name: each for name, each in predicted.items() if each is not None},
        )
        _tell(cell, "rounds")
        with progress_over((effort.rounds + 1) * len(contenders), True) as show:
            rows = run_cell(cell, contenders, conditions, site.meter(), effort.rounds, effort.steps, show)
        _tell(cell, "a timeline of each plan")
        failed = {row.contender for row in rows if row.error is not None}
        preparations.keep_evidence(workload, plans, [c for c in contenders if c.name not in failed], folder)
        computation_s = next((row.time_s for row in rows if row.contender == COMPUTE_IN_GRAPH), None)
        at_s = {} if computation_s is None else preparations.predicted_at_s(workload, plans, computation_s)
        swept_in = {name: next((each.cell for each in tried), None) for name, tried in swept.items()}
        return [
            replace(row, swept_in=swept_in.get(row.contender), predicted_at_computation_s=at_s.get(row.contender))
            for row in rows
        ]
    finally:
        site.end_cell()  # at once, where sessions take long
        for contender in contenders:
            with suppress(CaramelError):  # it failed before, and the cell says so
                contender.close()


def _failed(site: Site, cell: Cell, program: str, error: CaramelError) -> list[Row]:
    """The rows of a cell of which nothing can be measured."""
    workload = {**BY_NAME, **EMULATED}[cell.workload]
    conditions = Conditions(workload.examples, program, [link_rate(workload, cell.rho)], 0.0)
    failed = [Failed(name, {}, in_one_line(error)) for name in site.taking_part]
    return run_cell(cell, failed, conditions, site.meter(), 1, 1)


def _tell(cell: Cell, what: str) -> None:
    """What comes next, for whoever waits: minutes at a time."""
    click.echo(f"{time.strftime('%H:%M:%S')} {cell}: {what}", err=True)


@click.command()
@click.option("--quick", is_flag=True, help="A few cells, in ten minutes.")
@click.option("--emulated", is_flag=True, help="Networks whose computation takes time and no processor.")
@click.option("--core", is_flag=True, help="Only 4 workers, where sending takes as long as computing and twice that.")
@click.option("--workload", "workloads", multiple=True, type=click.Choice([*BY_NAME, *EMULATED]), help="Default: all.")
@click.option("--workers", multiple=True, type=int, help="Only cells with so many.")
@click.option("--rho", "rhos", multiple=True, type=float, help="Only cells with such communication / computation.")
@click.option(
    "--only",
    "contenders",
    multiple=True,
    type=click.Choice(list(TITLES)),
    help="Contenders that take part; computation alone always does.",
)
@click.option("--rounds", type=click.IntRange(min=1), help=f"Of all contenders.  [default: {FULL.rounds}]")
@click.option("--steps", type=click.IntRange(min=1), help=f"Of each in a round.  [default: {FULL.steps}]")
@click.option("--horovod", type=click.Path(dir_okay=False), help=f"Python that has Horovod.  [default: {HOROVOD}]")
@click.option(
    "--retry",
    is_flag=True,
    help="Measure cells that were disturbed, or in which somebody failed who can run here, once more.",
)
@click.option(
    "--any-program",
    is_flag=True,
    help="Keep cells that another version of this program has measured, or another processor or kernel.",
)
@click.option("--results", type=click.Path(dir_okay=False), default="training.json", show_default=True)
@click.option("--plots", type=click.Path(file_okay=False), help="Write plots into this folder.")
@errors_for_click
def main(
    quick: bool,
    emulated: bool,
    core: bool,
    workloads: tuple[str, ...],
    workers: tuple[int, ...],
    rhos: tuple[float, ...],
    contenders: tuple[str, ...],
    rounds: int | None,
    steps: int | None,
    horovod: str | None,
    retry: bool,
    any_program: bool,
    results: str,
    plots: str | None,
) -> None:
    """Compare training steps. What is in the results already is not measured again."""
    if emulated and (quick or core):
        raise InputError("--emulated has cells of its own: choose with --workers, --rho and --workload")
    others = [name for name in workloads if (name in EMULATED) != emulated]
    if others:
        raise InputError(f"{others[0]} is {'no' if emulated else 'an'} emulated workload: measure these by themselves")
    everything = emulated_cells() if emulated else cells(quick, core, workloads or tuple(BY_NAME))
    chosen = (c for c in everything if not workloads or c.workload in workloads)
    expected = [c for c in chosen if (not workers or c.workers in workers) and (not rhos or c.rho in rhos)]
    if not expected:
        raise InputError(f"no cell is such; there are {', '.join(map(str, everything))}")
    python = horovod or (str(HOROVOD) if HOROVOD.exists() else None)
    peers = horovod_versions(python)
    if horovod is not None and "horovod" not in peers:
        raise InputError(f"{horovod!r} is no Python with Horovod: make horovod builds one, or leave out --horovod")
    usual = QUICK if quick else EFFORT_EMULATED if emulated else FULL
    effort = replace(usual, rounds=rounds or usual.rounds, steps=steps or usual.steps)
    if contenders:
        effort = replace(effort, contenders=tuple(n for n in TITLES if n == COMPUTE or n in contenders))
    new, program = Record(versions_here(**peers), dict(effort.settings)), program_here()
    known = load(results) if Path(results).exists() else new
    if known.unfinished(expected, retry):
        check_system()  # before a record is made of which nothing comes
    record = resume(results, new, program, any_program)
    wanted = record.unfinished(expected, retry)
    origin = Origin(None, None, new.versions, commit_here())
    record = _measured(record, wanted, python, effort, program, origin, results)
    click.echo(report(record.rows, expected, ACCELERATED if emulated else COMPUTED))
    if plots is not None:
        for path in write_plots(record.rows, plots):
            click.echo(f"{path}")


def _measured(
    record: Record,
    wanted: Sequence[Cell],
    python: str | None,
    effort: Effort,
    program: str,
    origin: Origin,
    results: str,
) -> Record:
    """The record with these cells, which have an origin with the time besides; each is saved when it is done."""
    began_at, began_s = now(), time.monotonic()
    for workers in dict.fromkeys(cell.workers for cell in wanted):
        accelerated = all(cell.workload in EMULATED for cell in wanted)
        with Site(workers, python, effort, accelerated) as site:
            preparations = Preparations(site, record.sweeps, effort.computed_bursts)
            for cell in (c for c in wanted if c.workers == workers):
                try:
                    rows = measure(site, cell, preparations, effort, program, folder_of(results, cell))
                except TestbedError:  # nor can any other cell be measured
                    raise
                except CaramelError as error:
                    site.end_cell()
                    rows = _failed(site, cell, program, error)
                timed = replace(origin, began_at=began_at, took_s=time.monotonic() - began_s)
                lost = {row.contender for row in rows if row.error is not None}
                absent = lost & {*site.absent}
                rows = [replace(row, origin=timed, is_absent=row.contender in absent) for row in rows]
                record = replace(record, sweeps=preparations.sweeps).with_cell(rows)
                save(record, results)
                told = f"{len(lost - absent)} of {len(rows)} failed" if lost - absent else "none failed"
                _tell(cell, f"done, {told}" + (f"; cannot run: {', '.join(sorted(absent))}" if absent else ""))
                began_at, began_s = now(), time.monotonic()
    return record


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.training"))
