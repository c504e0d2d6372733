"""``caramel trace``: measure the ops of a program."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

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
from caramel.scaling.lists import parse_counts
from caramel.util.whole_files import check_writable, file_beside

if TYPE_CHECKING:
    from caramel.facts import Trace


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers-on-host", type=int, default=1, show_default=True, metavar="K", help="Of one host.")
@click.option("--workers", type=int, metavar="N", help="Of the whole job; default: as the cluster, or K.")
@with_cluster("in-process")
@with_devices
@click.option(
    "--examples",
    metavar="B,B,...",
    help="Trace with each of these numbers of examples of a worker, for caramel scale; of several each has a "
    "file of its own. Default: as in the first batch.",
)
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
    examples: str | None,
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
    counts = _counts(examples, timeline, options["workers"])
    files = [out] if len(counts) < 2 else [file_beside(out, str(count)) for count in counts]
    for file in files:
        check_writable(file)
    if timeline is not None:
        check_writable(timeline)
    place.check(options["workers_on_host"])
    _, devices = place.size(options["workers_on_host"], devices)
    if counts:
        options["workers"] = options["workers_on_host"]  # whose batch it is
    elif options["workers"] is None and place.membership is not None:
        options["workers"], _ = place.size(None)
    check_program(program)
    if place.serves:
        place.serve(devices)
    chosen = place.cluster(options["workers_on_host"])
    from caramel.measure.trace_file import as_text, save_trace

    loaded = loaded_program(program, arguments, options["workers"] or options["workers_on_host"])
    from caramel.measure.tracer import trace as measured
    from caramel.measure.tracer import with_examples

    draw = None if timeline is None else partial(draw_computation, timeline)
    options |= {"cluster": chosen, "device_list": devices or None, "on_traced": draw}
    first, of_host = loaded.first_batch(), options["workers_on_host"]
    batches = [with_examples(loaded.context, first, of_host, count) for count in counts] or [first]
    found = []
    for file, batch in zip(files, batches):
        found.append(measured(loaded.context, *batch, **options))
        save_trace(found[-1], file)
    if as_json:
        print_json({"written": files, **(_figures(found[0]) if not counts else {"traces": list(map(_figures, found))})})
        return
    click.echo("\n\n".join(map(as_text, found)))
    click.echo("\nwritten: " + ", ".join(file for file in (*files, timeline) if file is not None))


def _counts(examples: str | None, timeline: str | None, workers: int | None) -> list[int]:
    """The numbers of examples that are asked for.

    Raises:
        InputError: they cannot be read.
    """
    if examples is None:
        return []
    for option, value in (("--timeline", timeline), ("--workers", workers)):
        if value is not None:
            raise click.UsageError(f"{option} does not go with --examples, which traces several batches")
    counts = parse_counts(examples)
    if counts[0] < 1:
        raise click.UsageError("--examples: a worker has at least one")
    return counts


def _figures(trace: Trace) -> dict[str, Any]:
    names = ("step_s", "predicted_s", "workers", "examples", "runs")
    figures = {name: getattr(trace, name) for name in names}
    return {**figures, "ops": len(trace.op_s), "warnings": trace.warnings}
