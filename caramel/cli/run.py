"""``caramel run``: train a program file on N workers."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from caramel.cli.interrupts import Interrupts
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
from caramel.cli.pictures import RunPictures, with_report, with_timeline
from caramel.runtime.held_directory import held_directory
from caramel.runtime.step_rate import StepRate
from caramel.util.arguments import timeout_s

if TYPE_CHECKING:
    from caramel.frontend.program_file import Program
    from caramel.report.run_record import RunRecord
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
    "--until-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="Train until step N, those before a checkpoint counted, too: a job that is started again makes no more.",
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
@with_timeline
@with_report
@reporting_errors
def run(
    program: str,
    workers: int,
    cluster: str,
    steps: int | None,
    until_step: int | None,
    checkpoint: str | None,
    save_every: int | None,
    step_timeout: float,
    timeline: str | None,
    report: str | None,
    base_port: int | None,
    allow_open_ports: bool,
    devices: tuple[str, ...],
    **decisions: Any,
) -> None:
    """Train a program on N workers."""
    if steps is not None and until_step is not None:
        raise click.UsageError("--steps and --until-step exclude each other")
    if save_every is not None and checkpoint is None:
        raise click.UsageError("--save-every needs --checkpoint DIR")
    pictures = RunPictures(program, timeline, report)
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
        if directory is not None:
            _go_on(session, loaded, directory)
        if until_step is not None:
            steps = max(until_step - session.step_count, 0)
        record = pictures.record(session, armodel)
        _train(session, loaded, steps, directory, save_every, record, partial(pictures.write, armodel, chosen, record))


class _Ended(Exception):
    """No further step is to be made."""


def _train(
    session: Session,
    program: Program,
    steps: int | None,
    directory: CheckpointDirectory | None,
    save_every: int | None,
    record: RunRecord | None,
    write_pictures: Callable[[], None],
) -> None:
    """Train, save and draw; a signal ends it after the step that runs, with the exit status of the signal."""
    saved: dict[int, str] = {}  # prefix of the checkpoint after a step
    losses: list[float] = []
    rate = StepRate()
    first = session.step_count

    def on_step(result: StepResult) -> None:
        rate.note(result.examples)
        if record is not None:
            record.note(result)
        losses[1:] = [result.loss]
        if directory is not None and save_every is not None and result.step % save_every == 0:
            saved[result.step] = directory.save(session)
        if interrupts.number is not None:
            raise _Ended

    if program.why_here is not None:
        click.echo(f"the data goes through this process: {program.why_here}", err=True)
    batches = None if program.on_workers else program.batches(steps, taken=session.step_count)
    with Interrupts() as interrupts, suppress(_Ended):
        session.run(batches, steps, on_step=on_step)
    if losses:
        click.echo(f"\n{rate}: loss {losses[0]:.6g} -> {losses[-1]:.6g}")
    if directory is not None:  # before the evaluation, which may fail
        click.echo(f"saved {saved.get(session.step_count) or directory.save(session)}")
    write_pictures()
    if interrupts.number is not None:
        _say_how_to_go_on(directory, None if steps is None else first + steps)
        click.get_current_context().exit(interrupts.exit_status)
    if program.evaluation_data is not None:
        data = program.evaluation_data
        values = session.evaluate(*arguments_of(data))
        for name, value in _named(values):
            click.echo(f"evaluation {name}: {value}")


def _say_how_to_go_on(directory: CheckpointDirectory | None, last: int | None) -> None:
    """Print the command that goes on after an interrupted run.

    Args:
        directory: directory with the checkpoints; None if nothing was saved.
        last: number of the last step that was to be made; None if the data would have ended it.
    """
    if directory is None:
        click.echo("nothing was saved: with --checkpoint DIR a run can go on where it was ended", err=True)
        return
    options = _without(sys.argv[1:], "--steps", "--until-step")
    until = [] if last is None else ["--until-step", str(last)]
    click.echo(f"go on with: {shlex.join(['caramel', *options, *until])}")


def _without(arguments: Sequence[str], *options: str) -> list[str]:
    """Arguments of a command without some options and their values."""
    left: list[str] = []
    skips = False
    for argument in arguments:
        name, _, value = argument.partition("=")
        if skips:
            skips = False
        elif name in options:
            skips = not value
        else:
            left.append(argument)
    return left


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
