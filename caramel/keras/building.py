"""Making the variables that Keras only makes at the first batch: of a model, its metrics and its optimizer.

Nothing runs, so no layer that draws random numbers or counts its calls is ahead when the training begins.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from caramel.data.components import arguments_of, arguments_of_rows
from caramel.errors import CaptureError, InputError, in_one_line
from caramel.frontend.programs.function_program import where_raised
from caramel.keras.batch_layout import BatchLayout

_T = TypeVar("_T")


def after_building(
    model: Any,
    element_spec: Any,
    layout: BatchLayout,
    method: str,
    captured: Callable[[], _T],
    examples: int | None = None,
) -> _T:
    """What a function captures once the model, its metrics and its optimizer have their variables.

    Args:
        model: the model.
        element_spec: structure of tf.TensorSpec of a batch.
        layout: how a step takes a batch.
        method: name of the model's method for a step.
        captured: function that captures the step.
        examples: number of examples of every batch, where that is known.

    Raises:
        CaptureError: the step cannot be captured.
        InputError: the model cannot take such batches.
    """
    if _build_from_output(model, element_spec, layout, method):
        try:
            return captured()
        except CaptureError as error:
            if not error.may_pass_later:
                raise
    _build_by_tracing(model, element_spec, layout, method, examples)
    return captured()


def _build_from_output(model: Any, element_spec: Any, layout: BatchLayout, method: str) -> bool:
    """Make what a step of Keras' own needs from what is known of the model's output; whether that can be done.

    It is the layers that take long to trace, and they have their variables already.
    """
    has_keras_step = getattr(type(model), method) is getattr(keras.Model, method) and method not in vars(model)
    output = _output(model) if has_keras_step else None
    if output is None:
        return False
    # Keras 3.2 has no such argument, nor have losses that were written for it.
    takes_training = "training" in inspect.signature(model.compute_loss).parameters
    mode = {"training": True} if takes_training else {}

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def results(predicted: Any, *parts: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(layout.given(parts))
        if method == "train_step":
            model.compute_loss(x, y, predicted, sample_weight, **mode)
        model.compute_metrics(x, y, predicted, sample_weight)

    try:
        if method != "predict_step":
            results.get_concrete_function(output, *arguments_of(element_spec))
        if method == "train_step" and not model.optimizer.built:
            # As in `apply`: variables of an optimizer inside of one that scales losses have the name of that one, too.
            with keras.name_scope(model.optimizer.name, caller=model.optimizer):
                model.optimizer.build(model.trainable_variables)
    except Exception:  # Keras and the user's losses and metrics raise what they like; tracing will raise it, too
        return False
    if method != "predict_step":
        model.reset_metrics()
    return True


def _output(model: Any) -> tf.TensorSpec | None:
    """What a model of layers predicts, if that is one tensor; None for other models.

    Losses and metrics keep the structure with which they are built: it must be the one that Keras gives them.
    """
    owner = next(kind for kind in type(model).__mro__ if "call" in vars(kind))
    if not model.built or "call" in vars(model) or not owner.__module__.startswith("keras."):  # it has one of its own
        return None
    if isinstance(model, keras.Sequential):
        output = model.outputs[0] if len(model.outputs) == 1 else None
    else:
        output = getattr(model, "output", None)
    if not isinstance(output, keras.KerasTensor) or output.sparse or getattr(output, "ragged", False):
        return None
    return tf.TensorSpec(output.shape, output.dtype)


def _build_by_tracing(model: Any, element_spec: Any, layout: BatchLayout, method: str, examples: int | None) -> None:
    """Make all that a step needs by tracing it.

    Args:
        model: the model.
        element_spec: structure of tf.TensorSpec of a batch.
        layout: how a step takes a batch.
        method: name of the model's method for a step.
        examples: number of examples of every batch, where that is known.

    Raises:
        InputError: the model cannot take such batches.
    """
    takes_anything = getattr(type(model), method) is not getattr(keras.Model, method)  # a step of the model's own
    if isinstance(element_spec, tuple) and len(element_spec) > 3 and not takes_anything:
        raise InputError(f"the dataset's elements have {len(element_spec)} parts: give (x, y) or (x, y, sample_weight)")
    try:
        try:  # as one device traces it; what fails half-way leaves variables of an optimizer that nobody can use
            specs = arguments_of(element_spec) if examples is None else arguments_of_rows(element_spec, examples)
            _trace(getattr(model, method), layout, specs)
        except Exception:
            if examples is None:
                raise
            _trace(getattr(model, method), layout, arguments_of(element_spec))
    except Exception as error:  # Keras and the user's layers raise what they like
        hint = " Elements are batches: is dataset.batch(size) missing?" if _seems_unbatched(model, element_spec) else ""
        has_targets = isinstance(element_spec, tuple) and len(element_spec) > 1
        if "None values not supported" in str(error) and not has_targets:
            hint = " There are no targets: give y=, or batches (x, y)"
        text = in_one_line(error).rstrip(".")
        if takes_anything and (where := where_raised(error)):
            what = f"{method} of model {model.name!r} raises {type(error).__name__}{where}"
            raise InputError(f"{what}, for batches {element_spec}: {text}") from error
        raise InputError(
            f"model {model.name!r} cannot take batches {element_spec}: {type(error).__name__}: {text}.{hint}"
        ) from error
    model.reset_metrics()


def _seems_unbatched(model: Any, element_spec: Any) -> bool:
    """Whether a dataset's elements lack a dimension: that of the batch, probably."""
    ranks = [spec.shape.rank for spec in tf.nest.flatten(element_spec) if hasattr(spec, "shape")]
    x = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    inputs = zip(tf.nest.flatten(x), getattr(model, "inputs", None) or (), strict=False)
    return 0 in ranks or any(spec.shape.rank == len(tensor.shape) - 1 for spec, tensor in inputs if spec.shape.rank)


def _trace(method: Any, layout: BatchLayout, arguments: Sequence[Any]) -> None:
    """Trace a step, which makes the variables that it needs; nothing of it runs."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(*parts: Any) -> None:
        method(layout.given(parts))

    step.get_concrete_function(*arguments)
