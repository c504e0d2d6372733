"""``caramel trace``: measure the ops of a program."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from caramel.cli.options import (
    print_json,
    reporting_errors,
    with_cluster,
    with_devices,
    with_json,
)
from caramel.cli.pictures import draw_computation, with_timeline
from caramel.cli.places import Place
from caramel.cli.scripts import ProgramCommand, check_program, loaded_program
from caramel.util.whole_files import check_writable


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers-on-host", type=int, default=1, show_default=True, metavar="K", help="Of one host.")
@click.option("--workers", type=int, metavar="N", help="Of the whole job; default: as the cluster, or K.")
@with_cluster("in-process")
@with_devices
@click.option("--runs", type=int, default=10, show_default=True, help="Number of traced steps.")
@click.option("--steps", type=int, default=30, show_default=True, help="Number of plain steps.")
@click.option(
    "--orders/--no-orders",
    default=True,
    show_default=True,
    help="Also measure what it costs to enforce an order of the gradients.",
)
@click.option(
    "--statistic",
    type=click.Choice(["mean", "least"]),
    default="mean",
    show_default=True,
    help="An op's time out of those of all runs.",
)
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write.")
@with_timeline
@click.option("--description", default="", help="Where this is, for the reader of the file.")
@with_json
@reporting_errors
def trace(
    program: str,
    arguments: tuple[str, ...],
    place: Place,
    devices: tuple[str, ...],
    out: str | None,
    timeline: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure the ops of a program's step on one host, without communication.

    Trace on a host of the cluster that will train, with as many workers as will share it: they compute all at
    once. The first batch of the program's data is taken, as a job of N workers takes it. FILE.py alone is a script
    that trains a Keras model: it runs as far as its first fit, which is traced.
    """
    if out is None:
        raise click.UsageError("say where to write the trace: --out FILE.json")
    check_writable(out)
    if timeline is not None:
        check_writable(timeline)
    place.check(options["workers_on_host"])
    _, devices = place.size(options["workers_on_host"], devices)
    if options["workers"] is None and place.membership is not None:
        options["workers"], _ = place.size(None)
    check_program(program, arguments)
    if place.serves:
        place.serve(devices)
    chosen = place.cluster(options["workers_on_host"])
    from caramel.measure.trace_file import as_text, save_trace

    loaded = loaded_program(program, arguments, options["workers"] or options["workers_on_host"])
    from caramel.measure.tracer import trace as measured

    draw = None if timeline is None else partial(draw_computation, timeline)
    measured_trace = measured(
        loaded.context, *loaded.first_batch(), cluster=chosen, device_list=devices or None, on_traced=draw, **options
    )
    save_trace(measured_trace, out)
    if as_json:
        figures = {
            name: getattr(measured_trace, name) for name in ("step_s", "predicted_s", "workers", "examples", "runs")
        }
        print_json({"written": [out], **figures, "ops": len(measured_trace.op_s), "warnings": measured_trace.warnings})
        return
    click.echo(as_text(measured_trace))
    click.echo("\nwritten: " + ", ".join(file for file in (out, timeline) if file is not None))
