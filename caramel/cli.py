"""The command ``caramel``. TensorFlow is imported only by the subcommands that need it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from caramel import __version__
from caramel.errors import CaramelError

if TYPE_CHECKING:
    from caramel.program import Program
    from caramel.runtime.cluster import Cluster
    from caramel.runtime.session import Session, StepResult


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


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@click.option(
    "--cluster",
    type=click.Choice(["in-process", "processes"]),
    default="in-process",
    show_default=True,
    help="Virtual devices of this process, or a TensorFlow server process for each worker.",
)
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
@click.option("--base-port", type=int, help="processes: worker r listens on this port + r; default: free ports.")
@click.option(
    "--allow-open-ports",
    is_flag=True,
    help="processes: start even where the kernel allows no network namespace. The servers then listen on every "
    "interface, and anyone who reaches them can run any graph.",
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
) -> None:
    """Train a program on N workers."""
    if save_every is not None and checkpoint is None:
        raise click.UsageError("--save-every needs --checkpoint DIR")
    loaded = _load(program)
    chosen = _cluster(cluster, base_port, allow_open_ports)
    from caramel.armodel import ARModel

    armodel = ARModel(loaded.context, workers)
    click.echo(armodel.plan.table())
    with armodel.session(chosen, step_timeout_s=step_timeout) as session:
        _train(session, loaded, steps, checkpoint, save_every)


@main.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False), help="Directory to write.")
@click.option("--device", "devices", multiple=True, help="Device of each worker, in order; default /job:worker/task:R.")
@_reporting_errors
def export(program: str, workers: int, out: str, devices: tuple[str, ...]) -> None:
    """Write the distributed graph, its values and a runner that needs TensorFlow alone."""
    loaded = _load(program)
    from caramel.armodel import ARModel

    armodel = ARModel(loaded.context, workers, device_list=devices or None)
    armodel.export(out)
    click.echo(armodel.plan.table())
    click.echo(f"\nexported to {out}: see README.md there")


def _load(program: str) -> Program:
    from caramel.program import load_program

    return load_program(program)


def _cluster(kind: str, base_port: int | None, allow_open_ports: bool) -> Cluster:
    from caramel.runtime.cluster import InProcess, LocalProcesses

    if kind == "in-process":
        return InProcess()
    return LocalProcesses(allow_open_ports=allow_open_ports, base_port=base_port)


def _train(
    session: Session, program: Program, steps: int | None, checkpoint: str | None, save_every: int | None
) -> None:
    from caramel.runtime.checkpoint import Directory

    directory = Directory(checkpoint) if checkpoint is not None else None
    if directory is not None and (latest := directory.latest()) is not None:
        session.restore(latest)
        click.echo(f"restored {latest} (step {session.step_count})")

    def on_step(result: StepResult) -> None:
        if directory is not None and save_every is not None and result.step % save_every == 0:
            directory.save(session)

    started = time.perf_counter()
    results = session.run(program.batches(steps), on_step=on_step)
    elapsed = time.perf_counter() - started
    if results:
        click.echo(
            f"\n{len(results)} steps in {elapsed:.1f} s ({elapsed / len(results) * 1e3:.1f} ms each): "
            f"loss {results[0].loss:.6g} -> {results[-1].loss:.6g}"
        )
    if program.evaluation_data is not None:
        data = program.evaluation_data
        values = session.evaluate(*data) if isinstance(data, tuple) else session.evaluate(data)
        for name, value in _named(values):
            click.echo(f"evaluation {name}: {value}")
    if directory is not None:
        click.echo(f"saved {directory.save(session)}")


def _named(values: Any, path: str = "") -> list[tuple[str, Any]]:
    """Name and printable value of every array in a structure."""
    if isinstance(values, dict):
        return [item for key, value in values.items() for item in _named(value, f"{path}{key}/")]
    if isinstance(values, (list, tuple)):
        return [item for n, value in enumerate(values) for item in _named(value, f"{path}{n}/")]
    shown = f"{float(values):.6g}" if getattr(values, "shape", None) == () else f"array of shape {list(values.shape)}"
    return [(path.rstrip("/") or "result", shown)]


if __name__ == "__main__":
    sys.exit(main())
