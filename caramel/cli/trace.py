"""``caramel trace``: measure the ops of a program."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from caramel.cli.options import (
    arguments_of,
    check_cluster_options,
    check_writable,
    chosen_cluster,
    reporting_errors,
    with_cluster,
    with_devices,
)
from caramel.cli.pictures import check_pictures, draw_computation, with_timeline


@click.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers-on-host", "workers", type=int, default=1, show_default=True, metavar="K", help="Of one host.")
@click.option("--workers", "job_workers", type=int, metavar="N", help="Of the whole job; default: K.")
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
@reporting_errors
def trace(
    program: str,
    cluster: str,
    base_port: int | None,
    allow_open_ports: bool,
    devices: tuple[str, ...],
    out: str | None,
    timeline: str | None,
    **options: Any,
) -> None:
    """Measure the ops of a program's step on one host, without communication.

    Trace on a host of the cluster that will train, with as many workers as will share it: they compute all at
    once. The first batch of the program's data is taken, as a job of N workers takes it.
    """
    if out is None:
        raise click.UsageError("say where to write the trace: --out FILE.json")
    check_writable(out)
    check_pictures(timeline)
    check_cluster_options(cluster, base_port, options["workers"])
    chosen = chosen_cluster(cluster, base_port, allow_open_ports)
    from caramel.frontend.program_file import load_program
    from caramel.measure.trace_file import as_text, save_trace

    loaded = load_program(program)
    from caramel.measure.tracer import trace as measured

    batch = () if loaded.on_workers else arguments_of(next(loaded.batches(1)))
    draw = None if timeline is None else partial(draw_computation, timeline)
    measured_trace = measured(
        loaded.context, *batch, cluster=chosen, device_list=devices or None, on_traced=draw, **options
    )
    save_trace(measured_trace, out)
    click.echo(as_text(measured_trace))
    click.echo("\nwritten: " + ", ".join(file for file in (out, timeline) if file is not None))
