"""Scripts that train Keras models: `fit`, `evaluate` and `predict` of the models in them run on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import BoundArguments, signature
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from caramel.errors import CaptureError, CaramelError, OtherProgramError, ProgramError, in_one_line
from caramel.frontend.lines_to_change import ScriptParts, lines_to_change, script_parts
from caramel.frontend.program_file import Program
from caramel.frontend.script_file import run_script
from caramel.keras.captured_steps import captured_training, check_model
from caramel.keras.evaluate import evaluate, predict
from caramel.keras.fed_batches import tee_of_first
from caramel.keras.fit import fit
from caramel.keras.given_data import GivenData, data_of_fit
from caramel.keras.wrapped_methods import check_runs_on_workers, wrapped_methods
from caramel.runtime.clusters.base import Cluster
from caramel.util.user_warnings import warn_user

_SEVERAL_MODELS = (
    "A plan is for one model and its numbers: a script that trains several, or gets other arguments, takes --network "
    "FILE.json in place of --plan (caramel plan --measure writes it, too), and each is planned"
)


@dataclass(frozen=True)
class ScriptRun:
    """A script whose models train on workers.

    Attributes:
        workers: number of workers.
        cluster: where they run.
        step_timeout_s: seconds that a step may take.
        options: further options of `caramel.fit`.
        files: ``timeline`` and ``report`` of the first ``fit``; each further one writes files with its number.
    """

    workers: int
    cluster: Cluster
    step_timeout_s: float
    options: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)

    def run(self, file: str, arguments: Sequence[str]) -> None:
        """Run a script.

        Args:
            file: path of the script.
            arguments: its arguments.

        Raises:
            ProgramError: it raises an exception, trains in a way that workers cannot, or calls no method of a model.
            CaramelError: see `caramel.fit`.
            SystemExit: it exits: with an error, after training, or after its own help.
        """
        place: dict[str, Any] = {
            "workers": self.workers,
            "cluster": self.cluster,
            "step_timeout_s": self.step_timeout_s,
        }
        fit_there: Callable[..., Any] = partial(fit, **place, **self.options)
        devices = self.options.get("device_list")
        calls = fits = 0

        def train(model: Any, *given: Any, **named: Any) -> Any:
            nonlocal calls, fits
            calls += 1
            fits += 1
            check_runs_on_workers(model)
            files = {name: file and _numbered(file, fits) for name, file in self.files.items()}
            try:
                return fit_there(model, *given, **files, **named)
            except OtherProgramError as error:
                raise OtherProgramError(f"{error}. {_SEVERAL_MODELS}") from error

        def here_if_need_be(method: Any, original: Any) -> Any:
            def call(model: Any, *given: Any, **named: Any) -> Any:
                nonlocal calls
                calls += 1
                why_here = "the model runs eagerly" if model.run_eagerly else None
                there, here = _twice(original, model, given, named)
                if why_here is None:
                    try:
                        return method(*there.args, **there.kwargs, **place, device_list=devices)
                    except CaptureError as error:  # what it gives is the same here
                        why_here = str(error)
                warn_user(f"{method.__name__} runs in this process: {why_here}")
                return original(*here.args, **here.kwargs)

            return call

        instead = {
            "fit": train,
            "evaluate": here_if_need_be(evaluate, keras.Model.evaluate),
            "predict": here_if_need_be(predict, keras.Model.predict),
        }
        parts = _parts_of(file, self.workers)
        with wrapped_methods(instead):
            try:
                run_script(file, arguments)
            except SystemExit as error:
                if calls or _ends_for_a_reason(error, arguments):
                    raise
        if calls == 0:
            raise ProgramError(
                f"{file!r} has ended, and no Keras model was trained. "
                + lines_to_change(Path(file), parts, self.workers)
            )


def _twice(
    original: Any, model: Any, given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[BoundArguments, BoundArguments]:
    """The arguments of a call, for a method that may only look at its data, and for another one after it.

    The batches of a generator that the first one has read come first for the other.
    """
    first, second = (signature(original).bind(model, *given, **named) for _ in range(2))
    x = first.arguments.get("x")
    if isinstance(x, Iterator) and not isinstance(x, tf.data.Iterator):
        first.arguments["x"], second.arguments["x"] = tee_of_first(x)
    return first, second


def _numbered(file: str, number: int) -> str:
    """A file's path for the picture of a number: the first one as it is, the third of ``a.html`` is ``a.3.html``."""
    path = Path(file)
    return file if number == 1 else str(path.with_suffix(f".{number}{path.suffix}"))


class _FirstFit(BaseException):
    """The script has come to its first ``fit``; no ``except Exception`` of a script is to take it."""


def program_of_script(file: str, arguments: Sequence[str], workers: int, options: Mapping[str, Any]) -> Program:
    """The training of a script's first ``fit``, which is not trained: the script ends there.

    Args:
        file: path of the script.
        arguments: its arguments.
        workers: number of workers.
        options: ``loss_reduction`` and ``sharding`` of `caramel.fit`.

    Returns:
        The captured step, with its data.

    Raises:
        ProgramError: the script raises an exception, or calls no ``fit``.
        CaptureError: the step cannot be captured.
        SystemExit: it exits with an error, or after its own help.
    """
    found: list[Program] = []
    refused: list[CaramelError] = []

    def capture_it(model: Any, *given: Any, **named: Any) -> Any:
        if not found:
            try:
                found.append(_program_of_fit(model, given, named, workers, options))
            except CaramelError as error:  # the script may take it for itself
                refused.append(error)
                raise
        raise _FirstFit

    parts = _parts_of(file, workers)
    with wrapped_methods({"fit": capture_it}):
        try:
            run_script(file, arguments)
        except _FirstFit:
            pass
        except CaramelError:  # of what comes after the first fit, nothing matters
            if not found and not refused:
                raise
        except SystemExit as error:
            if not found and not refused and _ends_for_a_reason(error, arguments):
                raise
    if not found:
        unplanned = f"{file!r} has ended without a call of fit. {lines_to_change(Path(file), parts, workers)}"
        raise refused[0] if refused else ProgramError(unplanned)
    return found[0]


def _program_of_fit(
    model: Any, given: Sequence[Any], named: Mapping[str, Any], workers: int, options: Mapping[str, Any]
) -> Program:
    """The training of a call of ``fit``."""
    check_runs_on_workers(model)
    check_model(model, "fit")
    data = _data_of_fit(model, given, named)
    step = captured_training(model, data, workers, options)
    batch = data.a_batch()
    return Program(step.context, [tuple(batch)] if batch else None, None)


def _ends_for_a_reason(error: SystemExit, arguments: Sequence[str]) -> bool:
    """Whether a script that has trained nothing exits with an error, or because it was asked for its help."""
    return bool(error.code) or not {"-h", "--help"}.isdisjoint(arguments)


def _parts_of(file: str, workers: int) -> ScriptParts:
    """What a script has of a training program.

    Raises:
        ProgramError: it cannot be read, is no Python, or would train by itself in this process.
    """
    path = Path(file)
    if not path.is_file():
        raise ProgramError(f"there is no script {file!r}")
    try:
        parts = script_parts(path.read_bytes(), file)
    except (OSError, SyntaxError, ValueError) as error:
        raise ProgramError(f"script {file!r} cannot be read: {in_one_line(error)}") from error
    if parts.trains_by_itself:
        raise ProgramError(f"{file!r} would train in this process, by itself. {lines_to_change(path, parts, workers)}")
    return parts


def _data_of_fit(model: Any, given: Sequence[Any], named: Mapping[str, Any]) -> GivenData:
    """The data in the arguments of a ``fit``."""
    bound = signature(fit).bind(model, *given, **named, workers=1)
    bound.apply_defaults()
    return data_of_fit(**{name: bound.arguments[name] for name in signature(data_of_fit).parameters})
