"""`fit`: train a compiled Keras model on N workers, as its own `fit` does on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.armodel import ARModel
from caramel.checks import positive_integer
from caramel.errors import CaptureError, EndOfData, InputError, in_one_line, listed
from caramel.frontend.context import Context, capture
from caramel.runtime.cluster import Cluster, InProcess
from caramel.runtime.session import Session, StepResult

_ONLY_LOGS = (
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TerminateOnNaN,
    keras.callbacks.History,
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
)
"""Callbacks that look at nothing but logs after a batch."""

_BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def fit(
    model: Any,
    dataset: Any,
    *,
    workers: int,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    validation_steps: int | None = None,
    validation_freq: int = 1,
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
        steps_per_epoch: steps in an epoch; default: a pass over the dataset. With a number, the dataset
            goes on from one epoch to the next, and begins again when it ends.
        validation_data: what the model's ``evaluate`` takes; it runs in this process.
        validation_steps: steps of a validation.
        validation_freq: epochs from one validation to the next.
        callbacks: Keras callbacks. Their hooks around batches get the logs; values are in the model
            there only for callbacks that may look at them, which costs a transfer of all variables.
        initial_epoch: number of the epoch at which to begin.
        verbose: as in Keras.
        cluster: where to run; default: `caramel.InProcess()`.
        step_timeout_s: how long a step may take.
        options: of `caramel.ARModel`, such as ``network`` or ``statistics``; and ``loss_reduction`` of
            `caramel.capture`, where the loss does not say whether it is a mean or a sum.

    Returns:
        The keras.callbacks.History.

    Raises:
        InputError: the model is not compiled or not as said, or an argument does not fit.
        CaptureError: the model's training step cannot be captured or replicated.
        DataError: the dataset is empty, or fails.
    """
    _check(model, dataset, epochs, steps_per_epoch, validation_freq)
    number = positive_integer(workers, "workers")
    _build(model, dataset)
    _check_monitors(model, callbacks, validation_data is not None)
    hooks = keras.callbacks.CallbackList(
        list(callbacks),
        add_history=True,
        add_progbar=verbose != 0,
        model=model,
        epochs=epochs,
        steps=_steps_of(dataset, steps_per_epoch),
        verbose=1 if verbose == "auto" else verbose,
    )
    model.stop_training = False
    hooks.on_train_begin()  # may load values
    model.reset_metrics()
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    context = _captured(model, metrics, dataset, options.pop("loss_reduction", None))
    armodel = ARModel(context, number, **options)
    with armodel.session(cluster or InProcess(), step_timeout_s=step_timeout_s) as session:
        training = _Training(model, session, context.live_variables, metrics, hooks)
        logs: dict[str, Any] = {}
        for epoch in range(getattr(model, "_initial_epoch", None) or initial_epoch, epochs):
            hooks.on_epoch_begin(epoch)
            training.take_changes()  # a learning rate, or values put back at the end of the epoch before
            logs = training.epoch(steps_per_epoch)
            if validation_data is not None and (epoch + 1) % validation_freq == 0:
                validated = model.evaluate(
                    validation_data, steps=validation_steps, verbose=0, callbacks=hooks, return_dict=True
                )
                logs.update((f"val_{name}", value) for name, value in validated.items())
            hooks.on_epoch_end(epoch, logs)
            if model.stop_training:
                break
    if epochs > 0:
        model.optimizer.finalize_variable_values(model.trainable_weights)
    hooks.on_train_end(logs)
    return model.history


def _check(model: Any, dataset: Any, epochs: int, steps_per_epoch: int | None, validation_freq: int) -> None:
    if not isinstance(model, keras.Model):
        raise InputError(f"fit takes a compiled keras.Model, got {type(model).__name__}")
    if not model.compiled:
        raise InputError(f"model {model.name!r} is not compiled: call model.compile(optimizer=..., loss=...) first")
    if model.run_eagerly:
        raise InputError(
            f"model {model.name!r} is to run eagerly, which workers cannot: compile it without run_eagerly"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise InputError(f"epochs must be a whole number of at least 0, got {epochs!r}")
    positive_integer(validation_freq, "validation_freq")
    if steps_per_epoch is not None:
        positive_integer(steps_per_epoch, "steps_per_epoch")
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


def _check_monitors(model: Any, callbacks: Sequence[Any], is_validated: bool) -> None:
    """Refuse callbacks that would wait for a value that never comes; Keras warns and goes on without them."""
    there = [*model.get_metrics_result(), "learning_rate"]
    if is_validated:
        there += [f"val_{name}" for name in model.get_metrics_result()]
    for callback in callbacks:
        wanted = getattr(callback, "monitor", None)
        if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
            continue  # saves whatever the value is
        if isinstance(wanted, str) and wanted not in there:
            advice = "pass validation_data=" if wanted.startswith("val_") and not is_validated else "name one of these"
            raise InputError(
                f"callback {type(callback).__name__} monitors {wanted!r}, which is not there "
                f"({listed(there, 8)}): {advice}"
            )


def _steps_of(dataset: Any, steps_per_epoch: int | None) -> int | None:
    """Steps in an epoch, where they are known."""
    if steps_per_epoch is not None or not isinstance(dataset, tf.data.Dataset):
        return steps_per_epoch
    cardinality = int(dataset.cardinality())
    return cardinality if cardinality >= 0 else None


def _build(model: Any, dataset: Any) -> None:
    """Make what is only made at the first batch: the model's, its metrics' and its optimizer's variables."""
    first = dataset if isinstance(dataset, tf.data.Dataset) else dataset(1, 0)
    batch = next(iter(first.take(1)), None)
    if batch is None:
        raise InputError("the dataset is empty: it has no batch to train on")
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) > 3:
        raise InputError(f"the dataset's elements have {len(parts)} parts: give (x, y) or (x, y, sample_weight)")
    try:
        model.test_on_batch(*parts)
    except Exception as error:  # Keras and the user's layers raise what they like
        raise InputError(
            f"model {model.name!r} cannot take the dataset's elements {first.element_spec}: "
            f"{type(error).__name__}: {in_one_line(error)}"
        ) from error
    model.reset_metrics()
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _step_of(model: Any, metrics: Sequence[Any]) -> Any:
    """The model's own training step; what it gives are the metrics' variables."""

    def step(*batch: Any) -> dict[str, Any]:
        model.train_step(batch if len(batch) > 1 else batch[0])
        return {f"metric_{number}": tf.convert_to_tensor(v) for number, v in enumerate(metrics)}

    return step


def _captured(model: Any, metrics: Sequence[Any], dataset: Any, loss_reduction: str | None) -> Context:
    """The training step. What the compiled losses say of their reduction counts where the graph does not tell."""
    context = capture(_step_of(model, metrics), data=dataset, loss_reduction=loss_reduction)
    try:
        context.model  # noqa: B018 - made when first used
    except CaptureError:
        said = _reduction_of(model)
        if loss_reduction is not None or said is None:
            raise
        context = capture(_step_of(model, metrics), data=dataset, loss_reduction=said)
    return context


def _reduction_of(model: Any) -> str | None:
    """Whether the compiled losses are means or sums over the batch, if the training step is Keras' own."""
    compiled = getattr(model, "_compile_loss", None)
    if type(model).train_step is not keras.Model.train_step or compiled is None:
        return None
    losses = [loss for loss in tf.nest.flatten(compiled._user_loss) if loss is not None]
    kinds = {getattr(loss, "reduction", "sum_over_batch_size") for loss in losses}
    if kinds and kinds <= {"sum_over_batch_size", "mean"}:
        return "mean"
    return "sum" if kinds == {"sum"} else None


def _may_look_at_values(callback: Any) -> bool:
    """Whether a callback is called around batches and may want the model's values there."""
    if isinstance(callback, _ONLY_LOGS):
        return False
    if isinstance(callback, (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)):
        return bool(getattr(callback, "save_freq", "epoch") != "epoch")
    for hook in _BATCH_HOOKS:
        given = getattr(callback, hook)
        if getattr(given, "__func__", given) is not getattr(keras.callbacks.Callback, hook):
            return True
    return False


class _Training:
    """The steps of epochs, and the way of values between the workers and the model."""

    def __init__(
        self, model: Any, session: Session, live: Mapping[str, Any], metrics: Sequence[Any], hooks: Any
    ) -> None:
        self._model = model
        self._session = session
        self._hooks = hooks
        names = {id(v): name for name, v in live.items()}
        self._metrics = {names[id(v.value)]: (n, v) for n, v in enumerate(metrics) if id(v.value) in names}
        self._live = {name: v for name, v in live.items() if name not in self._metrics}
        self._known = {name: v.numpy() for name, v in self._live.items()}
        self._looks_at_values = any(_may_look_at_values(c) for c in hooks.callbacks)
        self._counted: dict[str, _Counted] = {}

    def epoch(self, steps: int | None) -> dict[str, Any]:
        """Train for an epoch; returns its logs."""
        self._model.reset_metrics()
        empty = {name: np.asarray(v) for name, (_, v) in self._metrics.items()}
        self._session.assign(empty)
        self._counted = {name: _Counted(value) for name, value in empty.items()}
        done = 0
        while (steps is None or done < steps) and not self._model.stop_training:
            try:
                result = self._session.step()
            except EndOfData:
                if steps is None and done > 0:
                    break
                continue  # the pass had ended already; the next step begins another
            self._hooks.on_train_batch_begin(done)
            self._after(result, done)
            done += 1
        self._bring_back()
        return {name: float(value) for name, value in self._model.get_metrics_result().items()}

    def _after(self, result: StepResult, number: int) -> None:
        for name, (position, variable) in self._metrics.items():
            states = result.outputs[f"metric_{position}"]
            variable.assign(self._counted[name].together(states, result.worker_examples, variable.aggregation))
        if self._looks_at_values:
            self._bring_back()
        self._hooks.on_train_batch_end(number, self._model.get_metrics_result())
        if self._looks_at_values:
            self.take_changes()

    def _bring_back(self) -> None:
        """Give the model what the workers have."""
        values = self._session.values()
        for name, variable in self._live.items():
            variable.assign(values[name])
            self._known[name] = values[name]

    def take_changes(self) -> None:
        """Give the workers what callbacks have changed in the model."""
        now = {name: v.numpy() for name, v in self._live.items()}
        changed = {n: value for n, value in now.items() if not np.array_equal(value, self._known[n], equal_nan=True)}
        self._session.assign(changed)
        self._known.update(changed)


class _Counted:
    """A variable of a metric: what all workers have counted in an epoch.

    Args:
        empty: its value before the first batch.
    """

    def __init__(self, empty: np.ndarray) -> None:
        self._empty = empty
        self._before: list[np.ndarray] = []
        self._repeated: dict[int, np.ndarray] = {}

    def together(self, states: Sequence[np.ndarray], examples: Sequence[int], aggregation: str) -> np.ndarray:
        """One value from those of all workers.

        Args:
            states: of each worker, after a step.
            examples: of each worker in that step. One without any ran on an example of before, which counts
                for nothing.
            aggregation: how Keras says that the variable is combined.
        """
        before = self._before or [self._empty] * len(states)
        for rank, state in enumerate(states):
            if examples[rank] == 0 and any(examples):
                self._repeated[rank] = self._repeated.get(rank, 0) + (state - before[rank])
        self._before = list(states)
        own = [state - self._repeated.get(rank, 0) for rank, state in enumerate(states)]
        if aggregation == "sum":
            return np.asarray(self._empty + sum(value - self._empty for value in own), self._empty.dtype)
        if aggregation == "mean":
            return np.asarray(sum(own) / len(own), self._empty.dtype)
        return np.asarray(own[0])
