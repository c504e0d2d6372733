"""``caramel run``: train a program file on N workers."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from caramel import __version__
from caramel.cli.options import (
    checked_place,
    compiled,
    reporting_errors,
    with_cluster,
    with_collectives,
    with_devices,
    with_json,
    with_plan,
    with_policies,
)
from caramel.cli.pictures import with_report, with_timeline
from caramel.cli.places import Place
from caramel.cli.results import Results
from caramel.cli.scripts import ProgramCommand, run_script_on_workers
from caramel.errors import InputError
from caramel.frontend.program_file import arguments_of
from caramel.frontend.script_file import is_script
from caramel.report.pictures import Pictures
from caramel.runtime.held_directory import held_directory
from caramel.runtime.step_rate import StepRate
from caramel.runtime.steps_per_execution import AUTO
from caramel.util.arguments import DEFAULT_STEP_TIMEOUT_S, timeout_s
from caramel.util.interrupts import Interrupts
from caramel.util.units import format_ms

if TYPE_CHECKING:
    from caramel.armodel import ARModel
    from caramel.frontend.program_file import Program
    from caramel.prediction import Prediction
    from caramel.report.run_record import RunRecord
    from caramel.runtime.checkpoint_directory import CheckpointDirectory
    from caramel.runtime.session import Session
    from caramel.runtime.step_result import StepResult

_logger = logging.getLogger(__name__)


class _StepsInRun(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in some versions of click only
    """A number of steps, or ``auto``."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """See click.ParamType."""
        return AUTO if value == AUTO else click.IntRange(min=1).convert(value, param, ctx)


@click.command(cls=ProgramCommand)
@click.argument("program", metavar="FILE.py[:ENTRY]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@click.option("--workers", type=int, help="Number of workers; default: as many as the cluster lists.")
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
    "--steps-per-execution",
    type=_StepsInRun(),
    metavar="U|auto",
    help="Unroll U steps into one run, for less overhead where steps are short; auto chooses U after some steps, where "
    "their number is given. Checkpoints are saved between runs. Default: 1; a script says it itself.",
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
    default=DEFAULT_STEP_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Give up a step after this long.",
)
@with_timeline
@with_report
@with_json
@reporting_errors
def run(
    program: str,
    arguments: tuple[str, ...],
    workers: int | None,
    place: Place,
    steps: int | None,
    until_step: int | None,
    steps_per_execution: int | str | None,
    checkpoint: str | None,
    save_every: int | None,
    step_timeout: float,
    timeline: str | None,
    report: str | None,
    devices: tuple[str, ...],
    as_json: bool,
    **decisions: Any,
) -> None:
    """Train a program on N workers.

    FILE.py:ENTRY is a program file. FILE.py alone is a script that trains Keras models by their own fit: it runs as it
    is, with its ARGUMENTS, and fit, evaluate and predict run on the workers.
    """
    if is_script(program):
        _refuse_for_scripts(
            {
                "steps": steps,
                "until_step": until_step,
                "steps_per_execution": steps_per_execution,
                "checkpoint": checkpoint,
                "json": as_json or None,
            },
            "a script says itself how long it trains (fit's epochs= and steps_per_epoch=) and how many steps are one "
            "run (compile(steps_per_execution=)), prints what it likes, and saves by callbacks "
            "(keras.callbacks.BackupAndRestore goes on after an end)",
        )
    if steps is not None and until_step is not None:
        raise click.UsageError("--steps and --until-step exclude each other")
    if save_every is not None and checkpoint is None:
        raise click.UsageError("--save-every needs --checkpoint DIR")
    pictures = Pictures(program, timeline, report, __version__)
    timeout_s(step_timeout, "--step-timeout")
    workers, devices = checked_place(place, workers, devices, decisions, program)
    if is_script(program):
        chosen = place.cluster(workers, trains=True)
        files = {"timeline": timeline, "report": report}
        run_script_on_workers(program, arguments, workers, chosen, step_timeout, devices, decisions, files)
        return
    with ExitStack() as stack:
        if checkpoint is not None:
            stack.enter_context(held_directory(checkpoint))
        chosen = place.cluster(workers, trains=True)
        directory = None
        if checkpoint is not None:
            from caramel.runtime.checkpoint_directory import CheckpointDirectory

            directory = CheckpointDirectory(checkpoint)
            directory.tidy()
        loaded, armodel = compiled(program, arguments, workers, devices, decisions, shows_plan=not as_json)
        if steps is None and until_step is None and _is_endless(loaded, armodel):
            raise InputError("the dataset has no end: say how many steps, --steps N or --until-step N")
        session = stack.enter_context(armodel.session(chosen, step_timeout_s=step_timeout))
        results = Results(as_json, {"plan": armodel.plan.digest, "workers": workers})
        if directory is not None:
            _go_on(session, loaded, directory, results)
        if until_step is not None:
            steps = max(until_step - session.step_count, 0)
            if steps == 0:
                _logger.warning("step %d was made before, so nothing is trained", until_step)
        record = pictures.record(session)
        write_pictures = partial(pictures.write, armodel.plan, armodel.facts, chosen, record)
        prediction = armodel.plan.prediction
        _train(
            session,
            loaded,
            prediction,
            steps,
            steps_per_execution or 1,
            directory,
            save_every,
            results,
            record,
            write_pictures,
        )


def _refuse_for_scripts(values: Mapping[str, Any], reason: str) -> None:
    """Refuse options that a script has no use for.

    Args:
        values: values of options, by the name of their parameter; None for one that is not given.
        reason: what to do instead.

    Raises:
        click.UsageError: one is given.
    """
    for name, value in values.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(f"{option} belongs to FILE.py:ENTRY: {reason}")


class _Ended(Exception):
    """No further step is to be made."""


@dataclass
class _Made:
    """The steps of a run.

    Attributes:
        interrupts: the signals that came.
        rate: number of steps, and what they took.
        losses: that of the first step, and that of the last.
        saved: prefix of the checkpoint after a step, by its number.
    """

    interrupts: Interrupts
    rate: StepRate = field(default_factory=StepRate)
    losses: list[float] = field(default_factory=list)
    saved: dict[int, str] = field(default_factory=dict)


def _train(
    session: Session,
    program: Program,
    prediction: Prediction | None,
    steps: int | None,
    steps_per_execution: int | str,
    directory: CheckpointDirectory | None,
    save_every: int | None,
    results: Results,
    record: RunRecord | None,
    write_pictures: Callable[[], list[str]],
) -> None:
    """Train, save and draw; a signal ends it after the step that runs, with the exit status of the signal."""
    first = session.step_count
    made = _steps_made(session, program, steps, steps_per_execution, directory, save_every, record)
    results.values |= {"steps": made.rate.steps, "last_step": session.step_count}
    if made.losses:
        _say_steps(results, made, prediction)
    if directory is not None:  # before the evaluation, which may fail
        prefix = made.saved.get(session.step_count) or directory.save(session)
        results.add(f"saved {prefix}", saved=prefix)
    if written := write_pictures():
        results.add(f"written: {', '.join(written)}", written=written)
    if made.interrupts.number is not None:
        results.values["interrupted_by"] = signal.Signals(made.interrupts.number).name
        _say_how_to_go_on(results, directory, None if steps is None else first + steps)
        results.end()
        click.get_current_context().exit(made.interrupts.exit_status)
    if program.evaluation_data is not None:
        results.add_evaluation(session.evaluate(*arguments_of(program.evaluation_data)))
    results.end()


def _steps_made(
    session: Session,
    program: Program,
    steps: int | None,
    steps_per_execution: int | str,
    directory: CheckpointDirectory | None,
    save_every: int | None,
    record: RunRecord | None,
) -> _Made:
    """Make the steps, and save after some of them, until all are made or a signal comes."""
    if program.why_here is not None:
        _logger.warning("the data goes through this process: %s", program.why_here)
    batches = None if program.on_workers else program.batches(steps, taken=session.step_count)
    made = _Made(Interrupts(_logger.warning, ends_at_once=True))

    def on_run(of_run: Sequence[StepResult]) -> None:
        made.rate.note(sum(result.examples for result in of_run), len(of_run), session.data_wait_s)
        if record is not None:
            record.note(of_run)
        made.losses.extend(result.loss for result in of_run)
        del made.losses[1:-1]
        if directory is not None and save_every is not None and any(r.step % save_every == 0 for r in of_run):
            made.saved[session.step_count] = directory.save(session)
        if made.interrupts.number is not None:
            raise _Ended

    with made.interrupts, suppress(_Ended):
        session.run(batches, steps, steps_per_execution=steps_per_execution, on_run=on_run)
    return made


def _say_steps(results: Results, made: _Made, prediction: Prediction | None) -> None:
    """Say how long the steps took, and what became of the loss."""
    rate, first_loss, last_loss = made.rate, made.losses[0], made.losses[-1]
    results.add(
        f"\n{rate}: loss {first_loss:.6g} -> {last_loss:.6g}{_beside_prediction(prediction, rate)}",
        elapsed_s=rate.elapsed_s,
        step_s=rate.step_s,
        examples_per_s=rate.examples_per_s,
        first_loss=first_loss,
        last_loss=last_loss,
    )


def _beside_prediction(prediction: Prediction | None, rate: StepRate) -> str:
    """What was predicted for a step, as a line of its own; nothing where nothing was, or too few steps were made."""
    if prediction is None or rate.step_s is None:
        return ""
    beside = prediction.beside(rate.step_s, rate.steps_in_run, rate.data_wait_s)
    return f"\na step takes {format_ms(rate.step_s)}; {beside}"


def _say_how_to_go_on(results: Results, directory: CheckpointDirectory | None, last: int | None) -> None:
    """Say the command that goes on after an interrupted run.

    Args:
        results: what the run has to say.
        directory: directory with the checkpoints; None if nothing was saved.
        last: number of the last step that was to be made; None if the data would have ended it.
    """
    if directory is None:
        _logger.warning("nothing was saved: with --checkpoint DIR a run can go on where it was ended")
        return
    given = sys.argv[1:]
    own = given.index("--") if "--" in given else len(given)  # arguments of the program
    options = _without(given[:own], "--steps", "--until-step")
    until = [] if last is None else ["--until-step", str(last)]
    command = shlex.join(["caramel", *options, *until, *given[own:]])
    results.add(f"go on with: {command}", go_on_with=command)


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


def _is_endless(program: Program, armodel: ARModel) -> bool:
    """Whether the data is a dataset that is known to have no end."""
    import tensorflow as tf

    from caramel.data.components import is_dataset

    on_workers, data = armodel.distributed.signature.data, program.data
    if on_workers is not None:
        return on_workers.infinite
    return is_dataset(data) and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY  # type: ignore[union-attr]


def _go_on(session: Session, program: Program, directory: CheckpointDirectory, results: Results) -> None:
    """Restore the newest checkpoint, if there is one, and say where the data goes on.

    That it can be saved there is tried first: later the steps would be lost.
    """
    directory.check(session)
    found = directory.restore_latest(session)
    if found is None:
        return
    if found.note is not None:
        _logger.warning("note: %s", found.note)
    results.add(f"restored {found.prefix} (step {session.step_count})", restored=found.prefix)
    if not program.on_workers:
        results.add(f"the data goes on after the {session.step_count} batches of the steps so far, which are left out")
