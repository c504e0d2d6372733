"""The steps of a compiled Keras model, captured: the one that trains, and those that evaluate and predict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from caramel.errors import CaptureError, InputError, UnsupportedError
from caramel.frontend.capture_options import CaptureOptions
from caramel.frontend.context import Context
from caramel.frontend.programs.step_inputs import refusal_of_parts
from caramel.keras.building import after_building
from caramel.keras.given_data import GivenData
from caramel.keras.metrics import DistributedMetrics
from caramel.keras.python_attributes import PythonAttributes
from caramel.keras.train_step import (
    NOTHING,
    StepRecord,
    watched_prediction,
    watched_step,
)


@dataclass(frozen=True)
class CapturedStep:
    """A step of a model.

    Attributes:
        context: the captured step.
        counts: metrics of the model, as the step counts them.
        live: the step's tf.Variables by name, without those of metrics, which are counted in another way.
        prediction: structure of the predictions, with `StepOutput` in place of tensors; None in other steps.
    """

    context: Context
    counts: DistributedMetrics
    live: Mapping[str, Any]
    prediction: Any = None


def captured_training(model: Any, data: GivenData, workers: int, options: Mapping[str, Any]) -> CapturedStep:
    """The training step, and its metrics; the model's variables are made where they do not exist yet.

    Args:
        model: compiled model.
        data: batches.
        workers: number of workers.
        options: of the call: ``loss_reduction`` and ``sharding``.

    Raises:
        CaptureError: the step cannot be captured.
        InputError: the model cannot take such batches.
    """

    attributes = PythonAttributes(model)

    def captured(arguments: Mapping[str, Any]) -> CapturedStep:
        if workers > 1:
            _refuse_overwritten(model)
        reduction, record = options.get("loss_reduction"), StepRecord()
        step = watched_step(model, record, data.layout, attributes=attributes)
        context = _captured_from(step, arguments, workers, loss_reduction=reduction)
        return _captured(model, context, record, workers, reduction)

    ways = data.capture_arguments(workers, options.get("sharding"))
    whole = data.examples_in_batches
    made = partial(_first_of, captured, ways, whole, workers)
    return after_building(model, data.element_spec, data.layout, "train_step", made, whole)


def _refuse_overwritten(model: Any) -> None:
    """Refuse variables whose gradients are no gradients, in a model that has its variables."""
    overwritten = [v.path for v in model.trainable_variables if getattr(v, "overwrite_with_gradient", False)]
    if overwritten:
        raise UnsupportedError(
            f"the gradient of {overwritten[0]!r} is its new value, as of the scales of float8, and each worker would "
            "have that of its own part of the batch: train with another dtype, or with one worker"
        )


def captured_forward(
    model: Any, data: GivenData, workers: int, method: str, options: Mapping[str, Any]
) -> CapturedStep:
    """A step that trains nothing, and its metrics; the model's variables are made where they do not exist yet.

    Args:
        model: the model.
        data: batches.
        workers: number of workers.
        method: name of the model's method: ``"test_step"`` or ``"predict_step"``.
        options: of the call: ``sharding``.

    Raises:
        CaptureError: the step cannot be captured.
        InputError: the model cannot take such batches.
    """

    def captured(arguments: Mapping[str, Any]) -> CapturedStep:
        record = StepRecord()
        if method == "predict_step":
            watched = watched_prediction(model, record, data.layout)
        else:
            watched = watched_step(model, record, data.layout, method)
        context = _captured_from(watched, arguments, workers, loss=NOTHING, loss_reduction="mean", trains=False)
        return _captured(model, context, record, workers)

    ways = data.capture_arguments(workers, options.get("sharding"))
    whole = data.examples_in_batches
    made = partial(_first_of, captured, ways, whole, workers)
    return after_building(model, data.element_spec, data.layout, method, made, whole)


def _captured_from(step: Callable[..., Any], arguments: Mapping[str, Any], workers: int, **options: Any) -> Context:
    """A step captured in one of the ways of `GivenData.capture_arguments`."""
    rest = {name: value for name, value in arguments.items() if name not in ("inputs", "rows")}
    captured = CaptureOptions(**options, **rest)
    return Context(step, arguments.get("inputs"), captured, rows=arguments.get("rows"), workers=workers)


def _first_of(
    captured: Callable[[Mapping[str, Any]], CapturedStep],
    ways: Sequence[Mapping[str, Any]],
    examples: int | None,
    workers: int,
) -> CapturedStep:
    """The step as it can be captured in the first of several ways; if it can be in none, why.

    That is what the analysis says of a step that could be traced, rather than why one could not be.
    """
    errors: list[CaptureError] = []
    for arguments in ways:
        try:
            return captured(arguments)
        except CaptureError as error:
            errors.append(error)
    # What a step lacks without a number of examples is no reason where it may have one.
    told = [error for error in errors if not error.may_pass_later] or errors
    refusal = next((error for error in errors if error.wants_reduction), told[0])
    raise refusal if len(ways) > 1 else refusal_of_parts(refusal, examples, workers)


def _captured(
    model: Any, context: Context, record: StepRecord, workers: int, reduction: str | None = None
) -> CapturedStep:
    step = context.model_for(workers)  # traces the step, which fills the record
    names = {id(variable): name for name, variable in context.live_variables.items()}
    of_metrics = {id(variable.value) for metric in model.metrics for variable in metric.variables}
    live = {name: variable for name, variable in context.live_variables.items() if id(variable) not in of_metrics}
    counts = DistributedMetrics(model, step, record, names, workers, reduction)
    return CapturedStep(context, counts, live, record.prediction)


def check_model(model: Any, who: str, must_be_compiled: bool = True) -> None:
    """Check that workers can run the steps of a model.

    Args:
        model: what a caller gives.
        who: the function that takes it.
        must_be_compiled: whether it needs a loss and metrics.

    Raises:
        InputError: they cannot.
    """
    if not isinstance(model, keras.Model):
        raise InputError(f"{who} takes a compiled keras.Model, got {type(model).__name__}")
    if must_be_compiled and not model.compiled:
        raise InputError(f"model {model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
    if model.run_eagerly:
        raise InputError(
            f"model {model.name!r} is to run eagerly, which workers cannot: compile it without run_eagerly"
        )
