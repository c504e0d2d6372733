"""The command ``caramel``. TensorFlow is imported only by the subcommands that need it."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from caramel import __version__
from caramel.errors import CaramelError, InputError
from caramel.util.units import parse_rate, parse_size

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.frontend.program_file import Program
    from caramel.netmodel.model import NetworkModel
    from caramel.runtime.clusters.base import Cluster
    from caramel.runtime.host.membership import Membership
    from caramel.runtime.session import Session, StepResult

_TF_CONFIG = "tf-config"


def _reporting_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the library's errors into a message and exit code 1."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        context = click.get_current_context()
        try:
            return command(*args, **kwargs)
        except CaramelError as error:
            if context.obj["debug"]:
                raise
            raise click.ClickException(str(error)) from error

    return wrapped


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Compile a single-device TensorFlow training program for N workers, and run or export it.

    FILE.py:ENTRY names a function without arguments that builds a TF1-style graph, or returns
    {'step': function, 'inputs': [tf.TensorSpec, ...], 'data': batches, ...}.
    """
    context.obj = {"debug": debug}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up messages are of no use here


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Several options as one decorator; the help lists them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _with_cluster(default: str) -> Callable[..., Any]:
    """Options about where to run."""
    return _options(
        click.option(
            "--cluster",
            metavar="CLUSTER",
            default=default,
            show_default=True,
            help="in-process: virtual devices of this process. processes: a TensorFlow server process for each worker. "
            "HOST:PORT,HOST:PORT,...: servers that run already (caramel worker). tf-config: the servers that the "
            "environment variable TF_CONFIG names; this must be its chief or worker 0.",
        ),
        click.option("--base-port", type=int, help="processes: task r listens on this port + r; default: free ports."),
        click.option(
            "--allow-open-ports",
            is_flag=True,
            help="processes: start even where the kernel allows no network namespace. The servers then listen on every "
            "interface, and anyone who reaches them can run any graph.",
        ),
    )


_with_devices = click.option(
    "--device", "devices", multiple=True, help="Device of each worker, in order; default /job:worker/task:R."
)


_with_collectives = _options(
    click.option(
        "--network",
        metavar="FILE.json",
        type=click.Path(dir_okay=False),
        help="Choose algorithms and depths by this model of the network (caramel netbench makes one).",
    ),
    click.option("--algorithm", metavar="NAME", help="One all-reduce algorithm for all gradients instead."),
    click.option("--depth", type=int, help="Number of chunks of every all-reduce instead."),
    click.option("--deterministic", is_flag=True, help="Add gradients in rank order only."),
    click.option("--wire", metavar="DTYPE", help="Send gradients rounded to bfloat16 or float16."),
)
"""Options about the all-reduces."""


_with_policies = _options(
    click.option(
        "--trace",
        metavar="FILE.json",
        type=click.Path(dir_okay=False),
        help="Measured times of the program's ops (caramel trace makes them).",
    ),
    click.option(
        "--policy",
        type=click.Choice(["optimal", "paper"]),
        default="optimal",
        show_default=True,
        help="How to make buckets and put them into windows: as well as can be, or by Caramel's own rules.",
    ),
    click.option("--serialization/--no-serialization", default=True, help="Enforce one order of computation."),
    click.option("--batching/--no-batching", default=True, help="Send small gradients together."),
    click.option("--scheduling/--no-scheduling", default=True, help="Send gradients in the next forward pass, too."),
)
"""Options about what is decided; each switch takes one of the paper's optimisations away."""


_with_plan = click.option(
    "--plan",
    metavar="FILE.json",
    type=click.Path(dir_okay=False),
    help="Apply this plan (caramel plan --out) as it is, instead of making one.",
)


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@_with_plan
@_with_collectives
@_with_policies
@_with_cluster("in-process")
@_with_devices
@click.option("--steps", type=click.IntRange(min=0), help="Steps to train; default: one pass over the data.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Go on from the latest checkpoint in DIR, if any, and save there at the end; the newest five are kept.",
)
@click.option("--save-every", type=click.IntRange(min=1), metavar="K", help="Also save after every K steps.")
@click.option(
    "--step-timeout",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up a step after this long.",
)
@_reporting_errors
def run(
    program: str,
    workers: int,
    cluster: str,
    steps: int | None,
    checkpoint: str | None,
    save_every: int | None,
    step_timeout: float,
    base_port: int | None,
    allow_open_ports: bool,
    devices: tuple[str, ...],
    **decisions: Any,
) -> None:
    """Train a program on N workers."""
    if save_every is not None and checkpoint is None:
        raise click.UsageError("--save-every needs --checkpoint DIR")
    chosen = _cluster(cluster, base_port, allow_open_ports)
    loaded, armodel = _compiled(program, workers, devices, decisions)
    with armodel.session(chosen, step_timeout_s=step_timeout) as session:
        _train(session, loaded, steps, checkpoint, save_every)


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Directory to write.")
@_with_devices
@_with_plan
@_with_collectives
@_with_policies
@_reporting_errors
def export(program: str, workers: int, out: str, devices: tuple[str, ...], **decisions: Any) -> None:
    """Write the distributed graph, its values and a runner that needs TensorFlow alone."""
    _, armodel = _compiled(program, workers, devices, decisions)
    armodel.export(out)
    click.echo(f"\nexported to {out}: see README.md there")


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@_with_collectives
@_with_policies
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
@_with_devices
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write the plan to.")
@click.option("--json", "as_json", is_flag=True, help="Print the prediction as JSON, in SI units.")
@click.option("--explain", "explained", metavar="GRADIENT", multiple=True, help="Also say why for this gradient.")
@click.option("--diff", "other", metavar="FILE.json", type=click.Path(dir_okay=False), help="Also compare with a plan.")
@_reporting_errors
def plan(
    program: str,
    workers: int,
    analyzers: str | None,
    workers_on_host: int,
    devices: tuple[str, ...],
    out: str | None,
    as_json: bool,
    explained: tuple[str, ...],
    other: str | None,
    **decisions: Any,
) -> None:
    """Decide how a program's gradients travel, and predict what a step will take.

    The program is traced on this machine (unless --trace has its times); nothing of it changes. A prediction needs a
    model of the network: --network.
    """
    from caramel.runtime.host.environment import load_tensorflow

    load_tensorflow()  # the program imports Keras if it needs it
    from caramel.cli.workflows import planned

    armodel = planned(program, workers, devices, analyzers, workers_on_host, decisions)
    made = armodel.plan
    if out is not None:
        made.save(out)
    if as_json:
        if made.prediction is None:
            raise InputError("nothing can be predicted without a network model: give --network FILE.json")
        click.echo(json.dumps(made.prediction.as_dict(), indent=1))
        return
    click.echo(made.table())
    for name in explained:
        click.echo(f"\n{made.explain(name)}")
    if other is not None:
        from caramel.plan import Plan

        click.echo("\n" + (Plan.load(other).diff(made) or f"no difference from {other}"))
    if out is not None:
        click.echo(f"\nwritten: {out}")


@main.command()
@click.option("--workers", "numbers", multiple=True, type=int, help="Number of workers; several to predict others.")
@_with_cluster("processes")
@click.option("--out", metavar="FILE.json", type=click.Path(dir_okay=False), help="File to write.")
@click.option("--plot", metavar="FILE.png", type=click.Path(dir_okay=False), help="Also draw the measurements.")
@click.option("--size", "sizes", multiple=True, metavar="SIZE", help="Bytes of a tensor; default: 64 B to 32 MiB.")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="What to measure; default: all.")
@click.option("--depth", "depths", multiple=True, type=int, help="Numbers of chunks; default: 1, 2, 4 and 8.")
@click.option("--rounds", type=int, default=7, show_default=True, help="How often each is timed.")
@click.option("--link-rate", metavar="RATE", help="Measure nothing: links of this rate, such as 10Gbit/s.")
@click.option("--latency", type=float, metavar="SECONDS", help="link-rate: time of a message.")
@click.option("--alpha", type=float, metavar="SECONDS", help="Measure nothing: time of a message.")
@click.option("--beta", type=float, metavar="S/BYTE", help="With --alpha: time of a byte on a link.")
@click.option("--gamma", type=float, metavar="S/BYTE", help="With --alpha: time of adding a byte.")
@click.option("--description", default="", help="Where this is, for the reader of the file.")
@_reporting_errors
def netbench(
    numbers: tuple[int, ...],
    cluster: str,
    base_port: int | None,
    allow_open_ports: bool,
    out: str | None,
    plot: str | None,
    description: str,
    **options: Any,
) -> None:
    """Measure all-reduces on a cluster and fit a model of its network.

    Measure on the cluster that will train: between processes of one machine, this machine is measured.
    """
    if out is None:
        raise click.UsageError("say where to write the model: --out FILE.json")
    for file in (out, plot):
        if file is not None:
            _check_writable(file)
    from caramel.netmodel.file import save
    from caramel.netmodel.report import as_text

    given = {name: options.pop(name) for name in ("link_rate", "latency", "alpha", "beta", "gamma")}
    if any(value is not None for value in given.values()):
        if plot is not None or description or any(options[name] for name in ("sizes", "algorithms", "depths")):
            raise click.UsageError("a network given by hand is not measured: leave out --plot, --size and the like")
        network = _given_network(**given)
        text = as_text(network, numbers)
        save(network, out)
    elif not numbers:
        raise click.UsageError("say how many workers to measure: --workers N (several times for several numbers)")
    else:
        where = description or f"{cluster} cluster on {platform.node()}"
        network = _measured_network(_cluster(cluster, base_port, allow_open_ports), numbers, where, out, **options)
        text = as_text(network)
        if plot is not None:
            from caramel.netmodel.plot import save_plot

            save_plot(network, plot)
    click.echo(text)
    click.echo("\nwritten: " + ", ".join(name for name in (out, plot) if name is not None))


def _check_writable(file: str) -> None:
    if not os.access(os.path.dirname(os.path.abspath(file)), os.W_OK):
        raise InputError(f"{file!r} cannot be written: there is no such directory, or it is not yours to write to")


def _measured_network(
    cluster: Cluster, numbers: tuple[int, ...], description: str, out: str, **options: Any
) -> NetworkModel:
    """Measure one number of workers after the other; what is done is saved, whatever happens to the next."""
    from caramel.measure.netbench import Settings, measure_network
    from caramel.netmodel.file import save

    sizes = tuple(parse_size(text) for text in options.pop("sizes"))
    chosen = {"sizes": sizes, **options}
    settings = Settings(**{name: value for name, value in chosen.items() if value != ()})
    return measure_network(cluster, numbers, settings, description, on_network=lambda network: save(network, out))


def _given_network(
    link_rate: str | None, latency: float | None, alpha: float | None, beta: float | None, gamma: float | None
) -> NetworkModel:
    from caramel.netmodel.model import MESSAGE_LATENCY_S, NetworkModel

    if link_rate is not None:
        if alpha is not None or beta is not None or gamma is not None:
            raise click.UsageError("give either --link-rate or --alpha and --beta")
        return NetworkModel.from_link_rate(parse_rate(link_rate), MESSAGE_LATENCY_S if latency is None else latency)
    if alpha is None or beta is None or latency is not None:
        raise click.UsageError("--alpha and --beta belong together, --latency belongs to --link-rate")
    return NetworkModel.from_costs(alpha, beta, gamma or 0.0)


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers-on-host", "workers", type=int, default=1, show_default=True, metavar="K", help="Of one host.")
@click.option("--workers", "job_workers", type=int, metavar="N", help="Of the whole job; default: K.")
@_with_cluster("in-process")
@_with_devices
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
@click.option("--description", default="", help="Where this is, for the reader of the file.")
@_reporting_errors
def trace(
    program: str,
    cluster: str,
    base_port: int | None,
    allow_open_ports: bool,
    devices: tuple[str, ...],
    out: str | None,
    **options: Any,
) -> None:
    """Measure the ops of a program's step on one host, without communication.

    Trace on a host of the cluster that will train, with as many workers as will share it: they compute all at
    once. The first batch of the program's data is taken, as a job of N workers takes it.
    """
    if out is None:
        raise click.UsageError("say where to write the trace: --out FILE.json")
    _check_writable(out)
    chosen = _cluster(cluster, base_port, allow_open_ports)
    from caramel.frontend.program_file import load_program
    from caramel.measure.trace_file import as_text, save_trace

    loaded = load_program(program)
    from caramel.measure.tracer import trace as measured

    batch = () if loaded.on_workers else _arguments(next(loaded.batches(1)))
    found = measured(loaded.context, *batch, cluster=chosen, device_list=devices or None, **options)
    save_trace(found, out)
    click.echo(as_text(found))
    click.echo(f"\nwritten: {out}")


@main.command()
@click.option(
    "--cluster", default="tf-config", metavar="HOST:PORT,...", help="Address of every worker, in order; see below."
)
@click.option("--task", type=int, help="Which of them this is, from 0.")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of virtual CPU devices, for as many replicas in this process.",
)
@_reporting_errors
def worker(cluster: str, task: int | None, devices: int) -> None:
    """Start the server of one worker, on the machine with that address, and keep it running.

    Without --cluster and --task, the environment variable TF_CONFIG says both, as orchestrators set it.

    A TensorFlow server listens on every interface and runs any graph for anyone who reaches it: start it in a
    network that only you can reach.
    """
    from caramel.runtime.host.membership import Membership, checked_addresses

    if cluster == _TF_CONFIG:
        if task is not None:
            raise click.UsageError("--task belongs to --cluster HOST:PORT,...; without it, TF_CONFIG says the task")
        there = _from_tf_config()
    else:
        there = Membership(checked_addresses(cluster.split(",")), task)
    last = len(there.addresses) - 1
    if there.task is None:
        raise click.UsageError(
            f"say which server this is: --task 0 to {last}"
            if cluster != _TF_CONFIG
            else "TF_CONFIG has no 'task', so which server this is is not known: add it, or give --cluster and --task"
        )
    if not 0 <= there.task <= last:
        raise click.UsageError(f"--task must be between 0 and {last}, got {there.task}")
    from caramel.runtime.host.server import serve_forever

    click.echo(f"anyone who reaches {there.addresses[there.task]} can run any graph here", err=True)
    serve_forever(there.addresses, there.task, devices)


def _compiled(
    program: str, workers: int, devices: tuple[str, ...], decisions: dict[str, Any]
) -> tuple[Program, ARModel]:
    """Capture and compile a program file, and print the plan."""
    from caramel.frontend.program_file import load_program

    loaded = load_program(program)
    from caramel.armodel import ARModel

    armodel = ARModel(loaded.context, workers, device_list=devices or None, **decisions)
    click.echo(armodel.plan.table())
    return loaded, armodel


def _cluster(kind: str, base_port: int | None, allow_open_ports: bool) -> Cluster:
    if ":" not in kind and kind not in ("in-process", "processes", _TF_CONFIG):
        raise click.UsageError(
            f"--cluster takes in-process, processes, {_TF_CONFIG} or HOST:PORT,HOST:PORT,..., got {kind!r}"
        )
    there = _from_tf_config() if kind == _TF_CONFIG else None  # before TensorFlow is loaded, for it may be wrong
    from caramel.runtime.host.environment import load_tensorflow

    load_tensorflow()  # the program imports Keras if it needs it
    from caramel.runtime.clusters.existing import Servers
    from caramel.runtime.clusters.in_process import InProcess
    from caramel.runtime.clusters.local_processes import LocalProcesses

    if kind == "in-process":
        return InProcess()
    if kind == "processes":
        return LocalProcesses(allow_open_ports=allow_open_ports, base_port=base_port)
    if there is None:
        return Servers(tuple(kind.split(",")))
    servers = Servers(there.addresses, task=there.task)
    servers.check_drives()
    if there.task == 0:
        click.echo(f"anyone who reaches {there.addresses[0]} can run any graph there", err=True)
    return servers


def _from_tf_config() -> Membership:
    from caramel.runtime.host.membership import from_tf_config

    found = from_tf_config()
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    return found


def _train(
    session: Session, program: Program, steps: int | None, checkpoint: str | None, save_every: int | None
) -> None:
    from caramel.runtime.checkpoint_directory import CheckpointDirectory

    directory = CheckpointDirectory(checkpoint) if checkpoint is not None else None
    if directory is not None and (latest := directory.latest()) is not None:
        session.restore(latest)
        click.echo(f"restored {latest} (step {session.step_count})")

    saved: dict[int, str] = {}  # prefix of the checkpoint after a step

    def on_step(result: StepResult) -> None:
        if directory is not None and save_every is not None and result.step % save_every == 0:
            saved[result.step] = directory.save(session)

    started = time.perf_counter()
    if program.why_here is not None:
        click.echo(f"the data goes through this process: {program.why_here}", err=True)
    batches = None if program.on_workers else program.batches(steps)
    results = session.run(batches, steps, on_step=on_step)
    elapsed = time.perf_counter() - started
    if results:
        click.echo(
            f"\n{len(results)} steps in {elapsed:.1f} s ({elapsed / len(results) * 1e3:.1f} ms each): "
            f"loss {results[0].loss:.6g} -> {results[-1].loss:.6g}"
        )
    if directory is not None:  # before the evaluation, which may fail
        click.echo(f"saved {saved.get(session.step_count) or directory.save(session)}")
    if program.evaluation_data is not None:
        data = program.evaluation_data
        values = session.evaluate(*_arguments(data))
        for name, value in _named(values):
            click.echo(f"evaluation {name}: {value}")


def _arguments(batch: Any) -> tuple[Any, ...]:
    """The arguments of a step, or of an evaluation, for a batch of the program's."""
    return batch if isinstance(batch, tuple) else (batch,)


def _named(values: Any, path: str = "") -> list[tuple[str, str]]:
    """Name and printable value of every array in a structure."""
    if isinstance(values, dict):
        return [item for key, value in values.items() for item in _named(value, f"{path}{key}/")]
    if isinstance(values, (list, tuple)):
        return [item for n, value in enumerate(values) for item in _named(value, f"{path}{n}/")]
    return [(path.rstrip("/") or "result", _shown(values))]


def _shown(value: Any) -> str:
    import numpy as np

    array = np.asarray(value)
    if array.shape:
        return f"array of shape {list(array.shape)}"
    if isinstance(value, bytes):  # TensorFlow's strings
        return value.decode(errors="replace")
    return f"{float(array):.6g}" if array.dtype.kind in "biuf" else str(array)


if __name__ == "__main__":
    sys.exit(main())
