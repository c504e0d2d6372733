"""Scripts as the commands take them."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from caramel.errors import ProgramError
from caramel.frontend.script_file import is_script

if TYPE_CHECKING:
    from caramel.cli.places import Place
    from caramel.frontend.program_file import Program
    from caramel.runtime.clusters.base import Cluster

_logger = logging.getLogger(__name__)


class ProgramCommand(click.Command):
    """A command that takes a program, with a word about options that are those of a script, or of other commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; see click."""
        given = list(args)  # click takes them out
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hints = []
            if others := _commands_with(error.option_name, ctx):
                hints.append(f"It is an option of caramel {', '.join(others)}.")
            if "--" not in given and any(is_script(argument) for argument in given):
                hints.append("Arguments of the script come last, after two dashes: FILE.py ... -- ARGUMENTS")
            if not hints:
                raise
            said = error.message if others else error.format_message()  # with options of this command that are near
            raise click.UsageError(" ".join((said, *hints)), ctx) from error


def _commands_with(option: str, context: click.Context) -> list[str]:
    """The other commands that have an option, and take a program as well."""
    group = context.find_root().command
    commands = group.commands.values() if isinstance(group, click.Group) else ()
    programs = (each for each in commands if isinstance(each, ProgramCommand))
    return [str(each.name) for each in programs if any(option in (*p.opts, *p.secondary_opts) for p in each.params)]


def check_program(program: str) -> None:
    """Refuse a program that cannot be loaded, before TensorFlow is.

    Args:
        program: ``FILE.py:ENTRY``, or ``FILE.py`` for a script.

    Raises:
        ProgramError: there is no such file.
    """
    file = program if is_script(program) else program.rpartition(":")[0]
    if file and not Path(file).is_file():
        raise ProgramError(f"there is no {'script' if is_script(program) else 'program file'} {file!r}")


@contextmanager
def refusing_fit(program: str) -> Iterator[None]:
    """Let no program file train a Keras model in this process while it is loaded: that is what a script does.

    Args:
        program: ``FILE.py:ENTRY``.

    Raises:
        ProgramError: a model's ``fit`` is called.
    """
    file, _, entry = program.rpartition(":")
    if not Path(file).is_file() or "keras" not in Path(file).read_text(errors="ignore"):  # it takes a while to load
        yield
        return
    import keras

    from caramel.keras.wrapped_methods import replaced_attribute

    def fit(*_: Any, **__: Any) -> NoReturn:
        raise ProgramError(
            f"{program} calls fit, which would train in this process alone: name the file without an entry ({file}) if "
            f"it calls {entry}() under if __name__ == '__main__':, or let {entry} return a step; "
            "docs/how-to/program-files.md has examples"
        )

    with replaced_attribute(keras.Model, "fit", fit):
        yield


def next_command(
    program: str, arguments: Sequence[str], workers: int, place: Place, devices: Sequence[str], plan_file: str
) -> str:
    """The command that trains with a plan, where it was made for.

    Args:
        program: the program, as the command line has it.
        arguments: arguments of a script.
        workers: number of workers.
        place: where they run.
        devices: device of each worker; empty for the default.
        plan_file: path of the plan.
    """
    options = ["--workers", str(workers), *place.options, *(part for name in devices for part in ("--device", name))]
    own = ["--", *arguments] if arguments else []
    return shlex.join(["caramel", "run", program, *options, "--plan", plan_file, *own])


def run_script_on_workers(
    file: str,
    arguments: Sequence[str],
    workers: int,
    cluster: Cluster,
    step_timeout_s: float,
    devices: Sequence[str],
    decisions: Mapping[str, Any],
    files: Mapping[str, str | None],
) -> None:
    """Run a script whose models train on workers.

    Args:
        file: path of the script.
        arguments: its arguments.
        workers: number of workers.
        cluster: where they run.
        step_timeout_s: seconds that a step may take.
        devices: device of each worker; empty for the default.
        decisions: further options of `ARModel`.
        files: ``timeline`` and ``report`` of the first ``fit``; each further one writes files with its number.

    Raises:
        CaramelError: see `caramel.keras.scripts.ScriptRun.run`.
    """
    from caramel.keras.scripts import ScriptRun

    try:
        ScriptRun(workers, cluster, step_timeout_s, options_of_fit(devices, decisions), files).run(file, arguments)
    except KeyboardInterrupt:
        _logger.warning(
            "the script was interrupted. Where its fit has the callback keras.callbacks.BackupAndRestore(DIR), the "
            "same command goes on after the last epoch"
        )
        click.get_current_context().exit(128 + signal.SIGINT)


def loaded_program(program: str, arguments: Sequence[str], workers: int) -> Program:
    """The program that a command's argument names.

    Args:
        program: ``FILE.py:ENTRY``, or ``FILE.py`` for the first fit of a script.
        arguments: arguments of the program, which it finds in `sys.argv`.
        workers: number of workers.

    Raises:
        CaramelError: it cannot be captured.
    """
    if is_script(program):
        from caramel.keras.scripts import program_of_script

        return program_of_script(program, arguments, workers, {})
    from caramel.frontend.program_file import load_program

    with refusing_fit(program), _command_line([program.rpartition(":")[0], *arguments]):
        return load_program(program)


@contextmanager
def _command_line(words: list[str]) -> Iterator[None]:
    """Let the user's code find these words where it looks for its own command line."""
    before, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = before


def options_of_fit(devices: Sequence[str], decisions: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `caramel.fit` for what was decided by hand; it decides the rest by itself.

    Args:
        devices: device of each worker; empty for the default.
        decisions: options of `ARModel`, of which most have the values that they have by default.
    """
    from caramel.compiler.options import CompileOptions

    defaults = {field.name: field.default for field in fields(CompileOptions)}
    chosen = {name: value for name, value in decisions.items() if value != defaults[name]}
    return {**chosen, **({"device_list": list(devices)} if devices else {})}
