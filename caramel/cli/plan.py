"""``caramel plan``: decide, and predict."""

from __future__ import annotations

import json
from typing import Any

import click

from caramel.cli.options import (
    check_decisions,
    check_writable,
    reporting_errors,
    with_collectives,
    with_devices,
    with_policies,
)
from caramel.cli.pictures import check_pictures, with_report, with_timeline, write_plan_pictures
from caramel.cli.quiet import load_quietly
from caramel.errors import InputError


@click.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
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
    default=1,
    show_default=True,
    metavar="K",
    help="Without --trace, the program is traced here, with so many workers that compute at once.",
)
@with_devices
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write the plan to.")
@with_timeline
@with_report
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON, in SI units.")
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
    workers: int,
    analyzers: str | None,
    workers_on_host: int,
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

    The program is traced on this machine (unless --trace has its times); nothing of it changes. A prediction needs a
    model of the network: --network.
    """
    if out is not None:
        check_writable(out)
    check_pictures(timeline, report)
    if timeline is not None and decisions["network"] is None and workers > 1:
        raise InputError("a timeline shows the predicted step, which needs a network model: give --network FILE.json")
    check_decisions(workers, devices, decisions)
    load_quietly()  # the program imports Keras if it needs it
    from caramel.cli.workflows import planned

    armodel = planned(program, workers, devices, analyzers, workers_on_host, decisions)
    finished = armodel.plan
    if is_checked:
        from caramel.analyzers.plan_checks import verify_plan

        checked = verify_plan(finished, armodel.model)
    if out is not None:
        finished.save(out)
    write_plan_pictures(armodel, program, timeline, report)
    if as_json:
        if finished.prediction is None:
            raise InputError("nothing can be predicted without a network model: give --network FILE.json")
        click.echo(json.dumps(finished.prediction.as_dict(), indent=1))
        return
    click.echo(finished.table())
    if is_checked:
        click.echo("\n" + "\n".join(f"checked: {statement}" for statement in checked))
    for name in explained:
        click.echo(f"\n{finished.explain(name)}")
    if other is not None:
        from caramel.plan import Plan

        click.echo("\n" + (Plan.load(other).diff(finished) or f"no difference from {other}"))
    written = [file for file in (out, timeline, report) if file is not None]
    if written:
        click.echo(f"\nwritten: {', '.join(written)}")
