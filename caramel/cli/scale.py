"""``caramel scale``: what training would do with other workers, links and policies."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.options import print_json, reporting_errors, with_json
from caramel.cli.quiet import load_quietly
from caramel.cli.scripts import ProgramCommand, check_program, loaded_program
from caramel.errors import InputError
from caramel.util.figures import check_plot
from caramel.util.progress import progress_over
from caramel.util.text_files import write_text
from caramel.util.units import parse_rate
from caramel.util.whole_files import check_writable

if TYPE_CHECKING:
    from caramel.facts import Trace
    from caramel.frontend.program_file import Program
    from caramel.scaling.policies import Policy
    from caramel.scaling.question import Batch, Link

_logger = logging.getLogger(__name__)


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", "counts", metavar="N,N,...", required=True, help="Such as 2,4,8, or 2,4,...,1024.")
@click.option("--link-rate", "rates", metavar="RATE,...", help="Of each host's link, such as 1Gbit/s,10Gbit/s.")
@click.option("--latency", type=float, metavar="SECONDS", help="--link-rate: of a message.")
@click.option("--alpha", type=float, metavar="SECONDS", help="Instead of --link-rate: of a message.")
@click.option("--beta", type=float, metavar="S/BYTE", help="With --alpha: of a byte on a link.")
@click.option("--gamma", type=float, metavar="S/BYTE", help="With --alpha: of adding a byte.")
@click.option(
    "--network",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Instead of --link-rate: a network that was measured (caramel netbench).",
)
@click.option(
    "--policy",
    default="optimal",
    show_default=True,
    metavar="NAME,...",
    help="Policies that are compared; all for every one, other libraries' ways of making buckets among them.",
)
@click.option(
    "--servers",
    metavar="K,...",
    help="Also parameter servers, so many, on hosts of their own; N for as many as workers.",
)
@click.option(
    "--ordering", metavar="RULE,...", help="--servers: orders in which parameters are pulled.  [default: best]"
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Measured times of the program's ops; several with different numbers of examples answer for other batches. "
    "Default: the program is traced here.",
)
@click.option("--global-batch", type=click.IntRange(min=1), metavar="B", help="Examples of a step of all workers.")
@click.option("--batch-per-worker", type=click.IntRange(min=1), metavar="B", help="Examples of a step of each worker.")
@click.option(
    "--workers-on-host", type=click.IntRange(min=1), default=1, metavar="K", help="Workers that share a host's link."
)
@click.option(
    "--straggler",
    metavar="lognormal:CV|RANK:FACTOR",
    help="How workers' computation differs: at random, or one worker that always takes longer.",
)
@click.option("--csv", "csv_file", metavar="FILE.csv", type=click.Path(dir_okay=False), help="Also write a table.")
@click.option("--plot", metavar="FILE.png", type=click.Path(dir_okay=False), help="Also draw the answers.")
@with_json
@reporting_errors
def scale(
    program: str,
    arguments: tuple[str, ...],
    counts: str,
    policy: str,
    servers: str | None,
    ordering: str | None,
    traces: tuple[str, ...],
    global_batch: int | None,
    batch_per_worker: int | None,
    workers_on_host: int,
    straggler: str | None,
    csv_file: str | None,
    plot: str | None,
    as_json: bool,
    **network: Any,
) -> None:
    """Predict steps with other numbers of workers, on other networks, under several policies.

    No graph is emitted, so this goes up to 10,000 workers. The program is traced on this machine, unless --trace has
    its times.
    """
    if csv_file is not None:
        check_writable(csv_file)
    if plot is not None:
        check_plot(plot)
    from caramel.scaling.lists import parse_counts
    from caramel.scaling.policies import policies_named, servers_named
    from caramel.scaling.question import Question
    from caramel.scaling.stragglers import Stragglers

    workers = parse_counts(counts)
    links = _links(**network)
    batch = _batch(global_batch, batch_per_worker)
    differing = Stragglers() if straggler is None else Stragglers.parsed(straggler)
    if ordering is not None and servers is None:
        raise click.UsageError("--ordering belongs to --servers")
    policies: list[Policy] = [
        *policies_named(policy),
        *([] if servers is None else servers_named(servers, ordering or "best")),
    ]
    question = Question(workers, links, policies, batch, differing, workers_on_host)
    check_program(program)
    load_quietly()
    from caramel.scaling.answers import answers
    from caramel.scaling.batches import TracedBatches
    from caramel.scaling.plots import save_plot
    from caramel.scaling.tables import as_csv, as_data, as_table

    loaded = loaded_program(program, arguments, workers[-1])
    traced = TracedBatches(_traces(loaded, traces, workers_on_host))
    with progress_over(question.count) as show:
        found = list(answers(loaded.context, traced, question, show))
    if csv_file is not None:
        write_text(csv_file, as_csv(found), "the table", InputError)
    written = [file for file in (csv_file, plot) if file is not None]
    if as_json:
        print_json({"answers": [as_data(answer) for answer in found], "written": written})
    else:
        click.echo(as_table(found, [program, *arguments], is_batch_given=batch is not None))
    if plot is not None:
        save_plot(found, plot)
    if written and not as_json:
        click.echo(f"\nwritten: {', '.join(written)}")


def _links(
    rates: str | None,
    latency: float | None,
    alpha: float | None,
    beta: float | None,
    gamma: float | None,
    network: str | None,
) -> list[Link]:
    """The networks that are asked about.

    Raises:
        InputError: one cannot be read.
    """
    from caramel.netmodel.file import load
    from caramel.netmodel.model import MESSAGE_LATENCY_S, NetworkModel
    from caramel.scaling.question import Link

    by_costs = any(value is not None for value in (alpha, beta, gamma))
    if [rates is not None, by_costs, network is not None].count(True) != 1:
        raise click.UsageError("say one thing about the network: --link-rate, --alpha and --beta, or --network")
    if latency is not None and rates is None:
        raise click.UsageError("--latency belongs to --link-rate")
    if network is not None:
        return [Link(network, load(network))]
    if rates is None:
        if alpha is None or beta is None:
            raise click.UsageError("--alpha and --beta belong together")
        return [Link("given", NetworkModel.from_costs(alpha, beta, gamma or 0.0))]
    latency_s = MESSAGE_LATENCY_S if latency is None else latency
    found = [(text.strip(), parse_rate(text)) for text in rates.split(",")]
    return [Link(name, NetworkModel.from_link_rate(rate, latency_s), rate) for name, rate in found]


def _batch(global_batch: int | None, batch_per_worker: int | None) -> Batch | None:
    from caramel.scaling.question import Batch

    if global_batch is not None and batch_per_worker is not None:
        raise click.UsageError("give --global-batch or --batch-per-worker, not both")
    if global_batch is not None:
        return Batch(global_batch, is_of_all=True)
    return None if batch_per_worker is None else Batch(batch_per_worker, is_of_all=False)


def _traces(loaded: Program, files: Sequence[str], workers_on_host: int) -> list[Trace]:
    """The traces of files; without any the program is traced, as its first batch is."""
    from caramel.measure.trace_file import as_trace

    model = loaded.context.for_workers(2).model_for(2)
    found = [as_trace(file, model) for file in files]
    if not found:
        from caramel.cli.workflows import traced_program

        found = [traced_program(loaded, workers_on_host, workers_on_host)]
    traces = [trace for trace in found if trace is not None]
    for doubt in dict.fromkeys(trace.doubt(workers_on_host) for trace in traces):
        if doubt is not None:
            _logger.warning("%s", doubt)
    return traces
