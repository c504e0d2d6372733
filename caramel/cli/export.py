"""``caramel export``: write what trains with TensorFlow alone."""

from __future__ import annotations

from typing import Any

import click

from caramel.cli.options import (
    check_decisions,
    compiled,
    print_json,
    reporting_errors,
    with_collectives,
    with_devices,
    with_json,
    with_plan,
    with_policies,
)
from caramel.cli.quiet import load_quietly
from caramel.cli.scripts import ProgramCommand, check_program


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Directory to write.")
@with_devices
@with_plan
@with_collectives
@with_policies
@with_json
@reporting_errors
def export(
    program: str,
    arguments: tuple[str, ...],
    workers: int,
    out: str,
    devices: tuple[str, ...],
    as_json: bool,
    **decisions: Any,
) -> None:
    """Write the distributed graph, its values and a runner that needs TensorFlow alone."""
    check_decisions(workers, devices, decisions)
    check_program(program)
    load_quietly()
    _, armodel = compiled(program, arguments, workers, devices, decisions, shows_plan=not as_json)
    armodel.export(out)
    if as_json:
        print_json({"written": [out], "plan": armodel.plan.digest, "workers": workers})
        return
    click.echo(f"\nexported to {out}: see README.md there")
