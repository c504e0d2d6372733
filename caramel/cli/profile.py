"""``caramel profile``: what real steps do with their time."""

from __future__ import annotations

from typing import Any

import click

from caramel.cli.options import (
    checked_place,
    print_json,
    reporting_errors,
    with_cluster,
    with_collectives,
    with_devices,
    with_json,
    with_plan,
    with_policies,
)
from caramel.cli.places import Place
from caramel.cli.scripts import ProgramCommand, loaded_program
from caramel.util.progress import say


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", type=int, help="Number of workers; default: as many as the cluster lists.")
@with_plan
@with_collectives
@with_policies
@with_cluster("processes")
@with_devices
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Number of traced steps.")
@with_json
@reporting_errors
def profile(
    program: str,
    arguments: tuple[str, ...],
    workers: int | None,
    place: Place,
    devices: tuple[str, ...],
    steps: int,
    as_json: bool,
    **decisions: Any,
) -> None:
    """Run steps of a program on N workers, and say what they do with their time.

    That is how much they compute, send, and do both at once; how good the order of what they do is, what a better one
    could gain, and how long workers wait for slower ones. What is trained meanwhile is thrown away.

    FILE.py alone is a script that trains a Keras model: it runs as far as its first fit.
    """
    workers, devices = checked_place(place, workers, devices, decisions, program)
    chosen = place.cluster(workers)
    loaded = loaded_program(program, arguments, workers)
    from caramel.armodel import ARModel
    from caramel.report.profile import profile as profiled

    armodel = ARModel(loaded.context, workers, device_list=devices or None, **decisions)
    say(f"running steps on {workers} workers, {steps} of them traced")
    with armodel.session(chosen) as session:
        found = profiled(session, None if loaded.on_workers else loaded.batches, steps)
    if as_json:
        print_json({"plan": armodel.plan.digest, **found.as_dict()})
        return
    click.echo(found.table())
