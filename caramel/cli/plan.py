"""``caramel plan``: decide, and predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from caramel import __version__
from caramel.cli.options import (
    check_decisions,
    print_json,
    reporting_errors,
    with_cluster,
    with_collectives,
    with_devices,
    with_json,
    with_policies,
)
from caramel.cli.pictures import with_report, with_timeline
from caramel.cli.places import Place
from caramel.cli.quiet import load_quietly
from caramel.cli.results import compared
from caramel.cli.scripts import ProgramCommand, check_program, loaded_program, next_command
from caramel.errors import InputError
from caramel.report.pictures import Pictures
from caramel.util.arguments import MOST_WORKERS
from caramel.util.progress import say
from caramel.util.tables import wrapped_lines
from caramel.util.whole_files import check_writable, file_beside

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.cli.measured_plan import TriedPlan
    from caramel.cli.workflows import PlannedProgram
    from caramel.plan import Plan

_MEASURED = ("network", "trace")
"""What is measured for a plan, and written beside it."""

_NO_NETWORK = "nothing can be predicted without a network model: give --network FILE.json, or --measure"
_LOCAL = "nothing is predicted with --sync-every: no gradient travels, and what an exchange takes is in the plan"


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", type=int, help="Number of workers; default: as many as the cluster lists.")
@click.option(
    "--measure",
    "is_measured",
    is_flag=True,
    help="Measure the network (in less than a minute) and the program on --cluster, plan, and try the plan there.",
)
@with_cluster("processes")
@with_collectives
@with_policies
@click.option(
    "--analyzers",
    metavar="NAME,NAME,...",
    help="Exactly these analyzers, by the names that a plan prints, or FILE.py:NAME for one of your own.",
)
@click.option(
    "--workers-on-host",
    type=click.IntRange(min=1),
    metavar="K",
    help="Without --trace and --measure, the program is traced here, with so many workers that compute at once; "
    "default: 1.",
)
@with_devices
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write the plan to.")
@with_timeline
@with_report
@with_json
@click.option("--explain", "explained", metavar="GRADIENT", multiple=True, help="Also say why for this gradient.")
@click.option("--diff", "other", metavar="FILE.json", type=click.Path(dir_okay=False), help="Also compare with a plan.")
@click.option(
    "--check",
    "is_checked",
    is_flag=True,
    help="Verify the plan, the emitted graph and the lower bound of the step; exit status 1 if anything is wrong.",
)
@reporting_errors
def plan(
    program: str,
    arguments: tuple[str, ...],
    workers: int | None,
    is_measured: bool,
    place: Place,
    analyzers: str | None,
    workers_on_host: int | None,
    devices: tuple[str, ...],
    out: str | None,
    timeline: str | None,
    report: str | None,
    as_json: bool,
    explained: tuple[str, ...],
    other: str | None,
    is_checked: bool,
    **decisions: Any,
) -> None:
    """Decide how a program's gradients travel, and predict what a step will take.

    FILE.py alone is a script that trains a Keras model: it runs as far as its first fit, which is planned.

    The program is traced on this machine (unless --trace has its times); nothing of it changes. A prediction needs a
    model of the network: --network, or --measure, which does everything on the cluster that will train. A network
    that was measured with two or more numbers of workers predicts others, too, up to four times the largest.
    """
    if out is not None:
        for file in [out, *(file_beside(out, part) for part in _MEASURED if is_measured)]:
            check_writable(file)
    if is_measured:
        _refuse_with_measure(analyzers=analyzers, workers_on_host=workers_on_host, sync_every=decisions["sync_every"])
    place.check(workers or 1)
    workers, devices = place.size(workers, devices)
    pictures = Pictures(program, timeline, report, __version__)
    if decisions["sync_every"] is not None:
        _refuse_predictions(timeline, as_json, _LOCAL)
    elif not (decisions["network"] is not None or workers == 1 or is_measured):
        _refuse_predictions(timeline, as_json, _NO_NETWORK)
    if not is_measured and _is_beyond(decisions["network"], workers):
        _refuse_graph(workers, out, is_checked)
        decisions["is_what_if"] = True
    check_decisions(workers, devices, decisions)
    check_program(program)
    earlier = None if other is None else _loaded_plan(other)
    if place.serves:
        place.serve(devices)
    tried: TriedPlan | None = None
    if is_measured:
        from caramel.cli.measured_plan import measured_plan

        loaded = loaded_program(program, arguments, workers)
        tried = measured_plan(loaded, workers, place.cluster(workers), devices, decisions, pictures.are_wanted, say)
        made: ARModel | PlannedProgram = tried.armodel
    else:
        load_quietly()  # the program imports Keras if it needs it
        from caramel.cli.workflows import planned

        loaded = loaded_program(program, arguments, workers)
        made = planned(loaded, workers, devices, analyzers, workers_on_host or 1, decisions)
    written = [] if out is None else [out, *([] if tried is None else _save_measured(tried, out))]
    explanations, unknown = _explanations(made.plan, explained)
    if unknown is not None and tried is None:
        raise unknown  # before files are written; what was measured is saved and shown first
    checked = _checked(made) if is_checked else None
    if as_json and made.plan.predicted is None:
        raise InputError(_NO_NETWORK)
    if out is not None:
        made.plan.save(out)
    if tried is None:
        pictures.write_plan(made.plan, made.facts)
    else:
        pictures.write(made.plan, made.facts, tried.cluster, tried.record)
    if as_json:
        _print_figures(made.plan, tried, checked)
    else:
        written += [file for file in (timeline, report) if file is not None]
        after = [
            *explanations,
            "" if earlier is None else compared(other, "this plan", earlier.diff(made.plan)),
            f"written: {', '.join(written)}" if written else "",
            "" if tried is None or tried.network is None or out is None else _of_so_many(workers),
            "" if out is None else f"next: {next_command(program, arguments, workers, place, devices, out)}",
        ]
        _print_paragraphs(made.plan, tried, checked, after)
    if unknown is not None:
        raise unknown


def _checked(made: ARModel | PlannedProgram) -> Sequence[str]:
    """What was verified of a plan.

    Raises:
        CaramelError: something is wrong.
    """
    from caramel.analyzers.plan_checks import verify_plan

    return verify_plan(made.plan, made.model)


def _print_figures(finished: Plan, tried: TriedPlan | None, checked: Sequence[str] | None) -> None:
    """Print what was predicted, measured and verified as JSON."""
    measured = {} if tried is None else tried.as_dict()
    statements = {} if checked is None else {"checked": list(checked)}
    assert finished.predicted is not None
    print_json({**finished.predicted.as_dict(), **measured, **statements})


def _print_paragraphs(
    finished: Plan, tried: TriedPlan | None, checked: Sequence[str] | None, after: Sequence[str]
) -> None:
    """Print a plan, what was measured and verified, and further paragraphs, of which some may be empty."""
    verified = "\n".join(f"checked: {statement}" for statement in checked or ())
    paragraphs = [finished.table(), "" if tried is None else str(tried), verified, *after]
    click.echo("\n\n".join(paragraph for paragraph in paragraphs if paragraph))


def _explanations(finished: Plan, gradients: Sequence[str]) -> tuple[list[str], InputError | None]:
    """Why gradients travel as they do; and the error of a name that the plan does not have, if there is one."""
    try:
        return [wrapped_lines(finished.explain(name)) for name in gradients], None
    except InputError as error:
        return [], error


def _of_so_many(workers: int) -> str:
    return (
        f"note: the network that was written is known for {workers} workers: measure it for other numbers with caramel "
        "netbench --workers N"
    )


def _refuse_predictions(timeline: str | None, as_json: bool, why: str) -> None:
    """Refuse what shows a prediction, where there will be none.

    Raises:
        InputError: a timeline or figures are wanted.
    """
    if timeline is not None or as_json:
        raise InputError(f"a timeline shows the predicted step, and {why}" if timeline is not None else why)


def _is_beyond(network: str | None, workers: int) -> bool:
    """Whether no graph is made of so many workers: too many, or the network was not measured with them."""
    if network is None:
        return False
    if workers > MOST_WORKERS:
        return True
    from caramel.netmodel.file import as_network

    found = as_network(network)
    return found is not None and not found.is_known_for(workers)


def _refuse_graph(workers: int, out: str | None, is_checked: bool) -> None:
    """Refuse what needs a graph, where none is made.

    Raises:
        InputError: a file of the plan is wanted, or a check.
    """
    for option, is_given in (("--out", out is not None), ("--check", is_checked)):
        if is_given:
            raise InputError(
                f"{option} is for plans that can run. With {workers} workers a step is only predicted: the network was "
                f"not measured with so many (caramel netbench --workers {workers}), or they are too many for a graph "
                f"(at most {MOST_WORKERS}). Leave out {option}"
            )


def _loaded_plan(file: str) -> Plan:
    from caramel.plan import Plan

    return Plan.load(file)


def _refuse_with_measure(**values: Any) -> None:
    for name, value in values.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with --measure")


def _save_measured(tried: TriedPlan, out: str) -> list[str]:
    """Save what was measured beside the plan; the files."""
    from caramel.measure.trace_file import save_trace
    from caramel.netmodel.file import save

    files = []
    if tried.network is not None:
        files.append(file_beside(out, "network"))
        save(tried.network, files[-1])
    if tried.trace is not None:
        files.append(file_beside(out, "trace"))
        save_trace(tried.trace, files[-1])
    return files
