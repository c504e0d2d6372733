"""``caramel run``: train a program file on N workers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.options import (
    arguments_of,
    check_cluster_options,
    check_decisions,
    chosen_cluster,
    compiled,
    reporting_errors,
    with_cluster,
    with_collectives,
    with_devices,
    with_plan,
    with_policies,
)
from caramel.runtime.held_directory import held_directory
from caramel.util.arguments import timeout_s

if TYPE_CHECKING:
    from caramel.frontend.program_file import Program
    from caramel.runtime.checkpoint_directory import CheckpointDirectory
    from caramel.runtime.session import Session, StepResult


@click.command()
@click.argument("program", metavar="FILE.py:ENTRY")
@click.option("--workers", type=int, required=True, help="Number of workers.")
@with_plan
@with_collectives
@with_policies
@with_cluster("in-process")
@with_devices
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    help="Steps of this run, also where it goes on from a checkpoint; default: one pass over the data.",
)
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
@reporting_errors
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
    check_cluster_options(cluster, base_port, workers)
    timeout_s(step_timeout, "--step-timeout")
    check_decisions(workers, devices, decisions)
    with ExitStack() as stack:
        if checkpoint is not None:
            stack.enter_context(held_directory(checkpoint))
        chosen = chosen_cluster(cluster, base_port, allow_open_ports)
        directory = None
        if checkpoint is not None:
            from caramel.runtime.checkpoint_directory import CheckpointDirectory

            directory = CheckpointDirectory(checkpoint)
            directory.tidy()
        loaded, armodel = compiled(program, workers, devices, decisions)
        session = stack.enter_context(armodel.session(chosen, step_timeout_s=step_timeout))
        _train(session, loaded, steps, directory, save_every)


def _train(
    session: Session, program: Program, steps: int | None, directory: CheckpointDirectory | None, save_every: int | None
) -> None:
    if directory is not None:
        _go_on(session, program, directory)

    saved: dict[int, str] = {}  # prefix of the checkpoint after a step

    def on_step(result: StepResult) -> None:
        if directory is not None and save_every is not None and result.step % save_every == 0:
            saved[result.step] = directory.save(session)

    started = time.perf_counter()
    if program.why_here is not None:
        click.echo(f"the data goes through this process: {program.why_here}", err=True)
    batches = None if program.on_workers else program.batches(steps, taken=session.step_count)
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
        values = session.evaluate(*arguments_of(data))
        for name, value in _named(values):
            click.echo(f"evaluation {name}: {value}")


def _go_on(session: Session, program: Program, directory: CheckpointDirectory) -> None:
    """Restore the newest checkpoint, if there is one, and say where the data goes on.

    That it can be saved there is tried first: later the steps would be lost.
    """
    directory.check(session)
    found = directory.restore_latest(session)
    if found is None:
        return
    if found.note is not None:
        click.echo(f"note: {found.note}", err=True)
    click.echo(f"restored {found.prefix} (step {session.step_count})")
    if not program.on_workers:
        click.echo(f"the data goes on after the {session.step_count} batches of the steps so far, which are left out")


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
