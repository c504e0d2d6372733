"""`fit`: train a compiled Keras model on N workers, as its own `fit` does on one device."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import signature
from typing import Any

import keras
import tensorflow as tf

from caramel.armodel import ARModel
from caramel.compiler.options import CompileOptions
from caramel.data.components import arguments_of
from caramel.data.dataset import sample_dataset
from caramel.errors import CaptureError, InputError, in_one_line
from caramel.frontend.context import Context, capture
from caramel.keras.callbacks import check_monitors, may_look_at_values
from caramel.keras.class_weights import with_class_weights
from caramel.keras.data_passes import DataPasses, note_evaluation
from caramel.keras.epochs import EpochLoop, ModelValues
from caramel.keras.metrics import DistributedMetrics
from caramel.keras.train_step import StepRecord, declared_reduction, watched_step
from caramel.keras.trainable import check_trainable, remember_trainable
from caramel.runtime.clusters.base import Cluster
from caramel.util.arguments import whole_number


def fit(
    model: Any,
    dataset: Any = None,
    *,
    workers: int,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[Any] = (),
    initial_epoch: int = 0,
    verbose: int | str = "auto",
    cluster: Cluster | None = None,
    step_timeout_s: float = 600.0,
    **options: Any,
) -> Any:
    """Train a compiled Keras 3 model on N workers.

    The model's own ``train_step`` is what every worker runs, on its part of every batch. The dataset's
    pipeline runs on the workers, too. At the end of each epoch the trained values are in the model, so
    that validation and callbacks find them there; what callbacks change then goes to the workers.

    Args:
        model: a compiled model.
        dataset: a tf.data.Dataset of batches ``(x, y)`` or ``(x, y, sample_weight)``: the batch of all
            workers together. Or a function ``(workers, rank) -> dataset`` that makes each worker's own.
        workers: number of workers, at least 1.
        epochs: number of the epoch at which to stop.
        steps_per_epoch: number of steps in an epoch; default: a pass over the dataset. With a number, the dataset
            goes on from one epoch to the next; an epoch in which it ends is shorter.
        validation_data: validation data as for the model's own ``fit``; the validation runs in this process.
        validation_steps: number of steps of a validation.
        validation_batch_size: number of examples in a step of a validation, for arrays.
        validation_freq: number of epochs from one validation to the next, or numbers (from 1) of epochs with one.
        class_weight: weight of each class by its number, for targets that are classes or one-hot.
        callbacks: Keras callbacks. Their hooks around batches get the logs; values are in the model
            there only for callbacks that may look at them, which costs a transfer of all variables.
        initial_epoch: number of the epoch at which to begin.
        verbose: verbosity as in Keras.
        cluster: the cluster to run on; default: `caramel.InProcess()`.
        step_timeout_s: seconds that a step may take.
        options: options of `caramel.ARModel`, such as ``network`` or ``statistics``; and ``loss_reduction`` of
            `caramel.capture`, where the loss does not say whether it is a mean or a sum.

    Returns:
        The keras.callbacks.History.

    Raises:
        InputError: the model is not compiled or not as said, an argument does not fit, or the dataset is empty.
        CaptureError: the model's training step cannot be captured or replicated.
        DataError: the dataset fails.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> import tensorflow as tf
        >>> import caramel
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> dataset = tf.data.Dataset.from_tensor_slices((np.eye(2), np.ones((2, 1)))).batch(2)
        >>> history = caramel.fit(model, dataset, workers=2, epochs=2, verbose=0)
        >>> [round(loss, 4) for loss in history.history["loss"]]
        [1.0, 0.9409]
    """
    _refuse_unknown(options)
    _check(model, dataset, epochs, initial_epoch, steps_per_epoch, validation_freq)
    number = whole_number(workers, "workers")
    given_dataset = dataset
    if class_weight is not None:
        dataset = with_class_weights(dataset, class_weight)
    if model.built:
        check_trainable(model)  # before Keras' optimizer meets a variable that it does not know
    _build(model, dataset)
    remember_trainable(model)
    context, counts = _captured(model, dataset, options.pop("loss_reduction", None))
    check_monitors(counts.names, callbacks, validation_data is not None)
    armodel = ARModel(context, number, **options)
    validation = _Validation(validation_data, validation_batch_size, validation_steps, validation_freq)
    length = _length(dataset)
    hooks = _hooks(model, callbacks, epochs, steps_per_epoch or length, verbose)
    model.stop_training = False
    hooks.on_train_begin()  # may load values, and say at which epoch they were
    first = getattr(model, "_initial_epoch", None) or initial_epoch
    with armodel.session(cluster, step_timeout_s=step_timeout_s) as session:
        values = ModelValues(session, _without_metrics(model, context.live_variables), context.model.values.load())
        looks_at_values = any(may_look_at_values(c) for c in hooks.callbacks)
        passes = DataPasses(session, given_dataset)
        training = EpochLoop(model, session, hooks, counts, values, looks_at_values, length, passes)
        logs = _trained(training, validation, range(first, epochs), steps_per_epoch)
    if epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    hooks.on_train_end(logs)
    return model.history


@dataclass(frozen=True)
class _Validation:
    """The data on which a model is validated, and the epochs after which it is.

    Attributes:
        data: ``validation_data`` as for the model's own ``fit``; None for no validation.
        batch_size: number of examples in a step, for arrays.
        steps: number of steps.
        frequency: number of epochs from one validation to the next, or numbers (from 1) of epochs with one.
    """

    data: Any
    batch_size: int | None
    steps: int | None
    frequency: int | Collection[int]

    def is_due(self, epoch: int) -> bool:
        """Whether there is one after the epoch of this number (from 0)."""
        if self.data is None:
            return False
        if isinstance(self.frequency, Collection):
            return epoch + 1 in self.frequency
        return (epoch + 1) % self.frequency == 0

    def logs(self, model: Any, hooks: Any) -> dict[str, Any]:
        """Validate the model as it is now; the logs to add to those of the epoch."""
        note_evaluation(self.data, self.steps, model.steps_per_execution)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(self.data)
        values = model.evaluate(
            x, y, self.batch_size, "auto", weights, steps=self.steps, callbacks=hooks, return_dict=True
        )
        return {f"val_{name}": value for name, value in values.items()}


def _hooks(model: Any, callbacks: Sequence[Any], epochs: int, steps: int | None, verbose: int | str) -> Any:
    """The keras.callbacks.CallbackList of a training."""
    return keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        epochs=epochs,
        steps=steps,
        verbose=verbose,
    )


def _trained(
    training: EpochLoop, validation: _Validation, epochs: Iterable[int], steps: int | None
) -> dict[str, Any] | None:
    """Train and validate epoch by epoch, until a callback ends the training; the logs of the last epoch."""
    model, hooks = training.model, training.hooks
    logs = None
    for epoch in epochs:
        logs = training.run(epoch, steps)
        if validation.is_due(epoch):
            logs.update(validation.logs(model, hooks))
        hooks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    return logs


_OPTIONS = ("loss_reduction", *(field.name for field in fields(CompileOptions) if field.name != "workers"))
"""What `fit` takes besides its own arguments."""

_INSTEAD = {
    **dict.fromkeys(("x", "y", "batch_size"), "give tf.data.Dataset.from_tensor_slices((x, y)).batch(size)"),
    "sample_weight": "give a dataset of (x, y, sample_weight)",
    "shuffle": "give dataset.shuffle(size), before it is batched",
    "validation_split": "give the rest of the data as validation_data=",
    "number_of_workers": "the number of workers is workers=",
}
"""What to do instead of an argument that Keras' own ``fit`` has, or that a user may expect."""


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name in _OPTIONS:
            continue
        known = [p.name for p in signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
        near = get_close_matches(name, [*known, *_OPTIONS], 1)
        hint = _INSTEAD.get(name) or (f"did you mean {near[0]!r}?" if near else "see help(caramel.fit)")
        raise InputError(f"fit() has no argument {name!r}: {hint}")


def _check(
    model: Any, dataset: Any, epochs: int, initial_epoch: int, steps_per_epoch: int | None, validation_freq: Any
) -> None:
    if not isinstance(model, keras.Model):
        raise InputError(f"fit takes a compiled keras.Model, got {type(model).__name__}")
    if not model.compiled:
        raise InputError(f"model {model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
    if model.run_eagerly:
        raise InputError(
            f"model {model.name!r} is to run eagerly, which workers cannot: compile it without run_eagerly"
        )
    whole_number(epochs, "epochs", 0)
    whole_number(initial_epoch, "initial_epoch", 0)
    if not isinstance(validation_freq, Collection) or isinstance(validation_freq, str):
        whole_number(validation_freq, "validation_freq")
    if steps_per_epoch is not None:
        whole_number(steps_per_epoch, "steps_per_epoch")
    if not isinstance(dataset, tf.data.Dataset):
        if callable(dataset):
            return
        raise InputError(
            f"fit takes a tf.data.Dataset of batches, got {type(dataset).__name__}; arrays become one by "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(size)"
        )
    cardinality = int(dataset.cardinality())
    if cardinality == tf.data.INFINITE_CARDINALITY and steps_per_epoch is None:
        raise InputError("the dataset has no end: say how long an epoch is, steps_per_epoch=")
    if cardinality == 0:
        raise InputError("the dataset is empty: it has no batch to train on")


def _length(dataset: Any) -> int | None:
    """Number of batches, if it is known."""
    cardinality = int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else -1
    return cardinality if cardinality >= 0 else None


def _build(model: Any, dataset: Any) -> None:
    """Make the variables of the model, its metrics and its optimizer, which Keras only makes at the first batch.

    Nothing runs, so no layer that draws random numbers or counts its calls is ahead when the training begins.
    """
    element_spec = sample_dataset(dataset).element_spec
    if isinstance(element_spec, tuple) and len(element_spec) > 3:
        raise InputError(f"the dataset's elements have {len(element_spec)} parts: give (x, y) or (x, y, sample_weight)")
    try:
        _trace(model, arguments_of(element_spec))
    except Exception as error:  # Keras and the user's layers raise what they like
        hint = " Elements are batches: is dataset.batch(size) missing?" if _seems_unbatched(model, element_spec) else ""
        raise InputError(
            f"model {model.name!r} cannot take the dataset's elements {element_spec}: "
            f"{type(error).__name__}: {in_one_line(error)}.{hint}"
        ) from error
    model.reset_metrics()


def _seems_unbatched(model: Any, element_spec: Any) -> bool:
    """Whether a dataset's elements lack a dimension: that of the batch, probably."""
    ranks = [spec.shape.rank for spec in tf.nest.flatten(element_spec) if hasattr(spec, "shape")]
    x = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    inputs = zip(tf.nest.flatten(x), getattr(model, "inputs", None) or (), strict=False)
    return 0 in ranks or any(spec.shape.rank == len(tensor.shape) - 1 for spec, tensor in inputs if spec.shape.rank)


def _trace(model: Any, arguments: Sequence[Any]) -> None:
    """Trace the training step, which makes the variables that it needs; nothing of it runs."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(*parts: Any) -> None:
        model.train_step(parts if len(parts) > 1 else parts[0])

    step.get_concrete_function(*arguments)


def _without_metrics(model: Any, live: Mapping[str, Any]) -> dict[str, Any]:
    """The step's variables without those of metrics, which are counted in another way."""
    of_metrics = {id(variable.value) for metric in model.metrics for variable in metric.variables}
    return {name: variable for name, variable in live.items() if id(variable) not in of_metrics}


def _captured(model: Any, dataset: Any, reduction: str | None) -> tuple[Context, DistributedMetrics]:
    """The training step, and its metrics.

    The reduction that the compiled losses declare counts where the graph does not tell, and it is unambiguous.
    """
    record = StepRecord()
    context = capture(watched_step(model, record), data=dataset, loss_reduction=reduction)
    try:
        context.model  # noqa: B018 - made when first used
    except CaptureError as error:
        reduction = declared_reduction(model, record) if error.wants_reduction else None
        if reduction is None:
            raise
        record = StepRecord()
        context = capture(watched_step(model, record), data=dataset, loss_reduction=reduction)
        context.model  # noqa: B018
    names = {id(variable): name for name, variable in context.live_variables.items()}
    return context, DistributedMetrics(model, context.model, record, names, reduction)
