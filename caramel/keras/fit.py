"""`fit`: train a compiled Keras model on N workers, as its own `fit` does on one device."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import keras

from caramel import __version__
from caramel.armodel import ARModel
from caramel.compiler.options import OPTION_NAMES
from caramel.compiler.server_tasks import server_tasks
from caramel.errors import InputError, listed
from caramel.frontend.context import Context, capture
from caramel.keras.callbacks import (
    callback_list,
    check_monitors,
    has_batch_hooks,
    listed_callbacks,
    may_look_at_values,
)
from caramel.keras.captured_steps import CapturedStep, captured_training, check_model
from caramel.keras.config_limits import limited_epochs, limited_steps
from caramel.keras.epochs import EpochLoop, ModelValues
from caramel.keras.given_data import GivenData, data_of_fit
from caramel.keras.kept_sessions import KeptSession, keep, purpose_of, servers_of, taken, using
from caramel.keras.planning import one_line, traced_options
from caramel.keras.trainable import check_still_trainable, check_trainable, remember_trainable
from caramel.keras.validation import Validation, check_validation, validation_names
from caramel.netmodel.file import as_network
from caramel.report.pictures import Pictures
from caramel.runtime.clusters.base import Cluster, workers_of
from caramel.runtime.clusters.in_process import InProcess, cluster_or_default
from caramel.runtime.session import Session
from caramel.runtime.steps_per_execution import AUTO, StepsInRun, within_epochs
from caramel.util.arguments import DEFAULT_STEP_TIMEOUT_S, refuse_unknown, shown, whole_number
from caramel.util.interrupts import Interrupts
from caramel.util.progress import note_said
from caramel.util.text_files import path_text
from caramel.util.units import format_ms

if TYPE_CHECKING:
    from caramel.report.run_record import RunRecord

_logger = logging.getLogger(__name__)

_METHOD = "train_step"
"""Method of a model that the workers run."""


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Collection[int] = 1,
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    steps_per_execution: str | None = None,
    timeline: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Train a compiled Keras 3 model on N workers.

    The model's own ``train_step`` is what every worker runs, on its part of every batch. The dataset's
    pipeline runs on the workers, too. At the end of each epoch the trained values are in the model, so
    that validation and callbacks find them there; what callbacks change then goes to the workers.

    Args:
        model: a compiled model.
        x: inputs in arrays, as for the model's own ``fit``; batches of sparse ones are made dense. Or a tf.data.Dataset
            of batches ``(x, y)`` or ``(x, y, sample_weight)``: the batch of all workers together. Or a function
            ``(workers, rank) -> dataset`` that makes each worker's own.
        y: targets in arrays; nothing with a dataset.
        batch_size: number of examples in a step of all workers, for arrays; default: 32.
        epochs: number of the epoch at which to stop.
        verbose: verbosity as in Keras.
        callbacks: Keras callbacks: a list, one, or a CallbackList. Their hooks around batches get the logs; values are
            in the model there only for callbacks that may look at them, which costs a transfer of all variables.
        validation_split: fraction of the arrays to validate on, their last examples.
        validation_data: validation data as for the model's own ``fit``; the validation runs in this process.
        shuffle: whether the arrays' examples have another order in each epoch, which follows from
            `keras.utils.set_random_seed` and is not that of Keras; ``"batch"`` for orders within batches. A dataset
            shuffles itself.
        class_weight: weight of each class by its number, for targets that are classes or one-hot.
        sample_weight: weights of the examples in arrays.
        initial_epoch: number of the epoch at which to begin.
        steps_per_epoch: number of steps in an epoch; default: a pass over the data. With a number, the data
            goes on from one epoch to the next; an epoch in which a dataset ends is shorter.
        validation_steps: number of steps of a validation.
        validation_batch_size: number of examples in a step of a validation, for arrays; default: that of a step.
        validation_freq: number of epochs from one validation to the next, or numbers (from 1) of epochs with one.
        workers: number of workers, at least 1; default: as many as the cluster lists (`caramel.Servers`).
        cluster: the cluster to run on; default: `caramel.InProcess()`.
        step_timeout_s: seconds that a step may take.
        steps_per_execution: ``"auto"`` to choose, after some steps, how many of the following are one run of the graph:
            more than one where running it is much of a step, if no callback but Keras' progress bar has hooks around
            batches, and where the number of steps is known. Default: as the model was compiled.
        timeline: path of a file for a drawn step, worker by worker, for Perfetto or chrome://tracing; a few steps are
            traced for it.
        report: path of an HTML file for a report of the training: where the time of a step goes, what would help, the
            plan, loss and throughput; the same steps are traced for it.
        options: options of `caramel.ARModel`, such as ``statistics``. With ``network`` alone the step is traced on the
            workers, and planned, before the training; ``trace`` may also be one of the captured ``train_step``. And
            ``loss_reduction`` of `caramel.capture`, where the loss does not say whether it is a mean or a sum.

    Returns:
        The keras.callbacks.History, with the `caramel.Plan` as its ``plan``.

    Raises:
        InputError: the model is not compiled or not as said, an argument does not fit, a file cannot be written, or the
            dataset is empty.
        CaptureError: the model's training step cannot be captured or replicated.
        StepError: a step fails.
        ClusterError: the servers cannot be reached, one of them ends, or a step takes longer than ``step_timeout_s``.
        DataError: the dataset fails.
        KeyboardInterrupt: SIGINT came. The step that ran then was the last one, and the model has its values; a second
            one ends it at once, and the model has those of the last epoch.
        SystemExit: SIGTERM came; the same.

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
    refuse_unknown(fit, options, _OPTIONS, _INSTEAD)
    check_model(model, "fit")
    _check(epochs, initial_epoch, steps_per_epoch, validation_freq, steps_per_execution)
    epochs, steps_per_epoch = limited_epochs(epochs), limited_steps(steps_per_epoch)
    pictures = Pictures(model.name, _path(timeline, "timeline"), _path(report, "report"), __version__)
    place = cluster_or_default(cluster)
    number, devices = workers_of(place, workers, server_tasks(options) or 0, has_devices="device_list" in options)
    if devices is not None:
        options.setdefault("device_list", devices)
    if options.get("network") is not None:  # before anything is traced for it
        as_network(options["network"])
    data = data_of_fit(
        x=x,
        y=y,
        sample_weight=sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        validation_split=validation_split,
        validation_data=validation_data,
        class_weight=class_weight,
        steps_per_epoch=steps_per_epoch,
    )
    if model.built:
        check_trainable(model)  # before Keras' optimizer meets a variable that it does not know
    kept_for = {**options, "step_timeout_s": step_timeout_s}
    validation_data = data.validation if validation_data is None else validation_data
    check_validation(validation_data, validation_steps, data.element_spec)
    validation = Validation(validation_data, validation_batch_size or batch_size, validation_steps, validation_freq)
    with using(model) as use:
        use.kept = taken(model, _METHOD, purpose_of(model, data, number, place, kept_for), data)
        if use.kept is None:
            step = captured_training(model, data, number, options)
        else:
            step = use.kept.step
            model.reset_metrics()
        remember_trainable(model)
        names = step.counts.names
        say = _sayer(is_silent=verbose == 0)
        listed = listed_callbacks(callbacks)
        check_monitors(names, listed, validation_names(model, validation_data, names, listed))
        if use.kept is None:
            use.kept = _opened(model, step, data, number, place, step_timeout_s, options, say)
        steps = steps_per_epoch or data.length
        hooks = callback_list(callbacks, model, verbose, epochs, steps, add_history=True)
        model.stop_training = False
        use.kept.passes.epoch_ends()  # Keras calls it once more, after its first look at the data
        record = pictures.record(use.kept.session)
        hooks.on_train_begin()  # may load values, and say at which epoch they were
        first = getattr(model, "_initial_epoch", None) or initial_epoch
        in_run = _steps_in_run(steps_per_execution, model, hooks, use.kept.session, steps, epochs - first, say)
        training = _epoch_loop(model, use.kept, hooks, data.length, record, in_run, say)
        logs = _trained(training, validation, range(first, epochs), steps_per_epoch, is_silent=verbose == 0)
        if epochs > 0 and isinstance(model.optimizer, keras.optimizers.Optimizer):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        hooks.on_train_end(logs)
        plan = use.kept.distributed.plan
        if written := pictures.write(plan, use.kept.facts, place, record):
            say(f"caramel: written: {', '.join(written)}")
        if plan.prediction is not None and training.step_s is not None:
            beside = plan.prediction.beside(training.step_s, training.steps_in_run, training.data_wait_s)
            say(f"caramel: a step took {format_ms(training.step_s)}; {beside}")
        keep(model, _METHOD, purpose_of(model, data, number, place, kept_for), use.kept)
        model.history.plan = plan
        return model.history


def _path(file: str | os.PathLike[str] | None, argument: str) -> str | None:
    """The path of a file that is to be written; None where none is wanted."""
    return None if file is None else path_text(file, f"the {argument}", InputError)


def _epoch_loop(
    model: Any,
    kept: KeptSession,
    hooks: Any,
    length: int | None,
    record: RunRecord | None,
    in_run: StepsInRun | None,
    say: Callable[[str], None],
) -> EpochLoop:
    """What trains epoch by epoch; says what makes its steps or its start longer than they need be.

    Args:
        model: the model.
        kept: its session, open.
        hooks: its callbacks, which have begun.
        length: number of steps in a pass over the data, where it is known.
        record: what notes the steps for pictures, if some are wanted.
        in_run: how many steps become one run while the training goes on; None for as many as the model says.
        say: function that takes a line for the user.
    """
    looking = [type(callback).__name__ for callback in hooks.callbacks if may_look_at_values(callback)]
    if looking:
        exchanged = ", after an exchange" if kept.session.distributed.plan.local is not None else ""
        say(
            f"caramel: {', '.join(looking)} may look at the model in each batch, so all of its values are copied "
            f"to it there{exchanged}; hooks of an epoch (on_epoch_end) cost less"
        )
    loop = EpochLoop(
        model,
        kept.session,
        hooks,
        kept.step.counts,
        ModelValues(kept.session, kept.step.live, kept.taken_values()),
        bool(looking),
        length,
        kept.passes,
        (lambda results: None) if record is None else record.note,
        in_run,
        partial(check_still_trainable, model),
    )
    if (ready_s := loop.ready_s) >= 1:
        say(f"caramel: {loop.steps_in_run} steps are one run; TensorFlow takes about {ready_s:.0f} s for its first")
    return loop


def _steps_in_run(
    wanted: str | None,
    model: Any,
    hooks: Any,
    session: Session,
    steps: int | None,
    epochs: int,
    say: Callable[[str], None],
) -> StepsInRun | None:
    """How many steps become one run while the training goes on; None for as many as the model was compiled with."""
    if wanted is None:
        return None
    looking = [type(callback).__name__ for callback in hooks.callbacks if has_batch_hooks(callback)]
    reasons = (
        ("it is not known how many steps there are", steps is None),
        ("the model was compiled with a number", model.steps_per_execution > 1),
        (f"{', '.join(looking)} may act in each batch", bool(looking)),
    )
    reason = next((text for text, holds in reasons if holds), None)
    if reason is not None or steps is None:
        say(f"caramel: no number of steps in a run is chosen, as {reason}")
        return None

    def choose(step_s: float, steps_left: int) -> int:
        count = within_epochs(session.worthwhile_steps(step_s, steps_left), steps)
        if count > 1:
            say(
                f"caramel: a step takes {format_ms(step_s)}; {count} steps are one run from now on, for whose first "
                f"TensorFlow takes about {session.ready_s(count):.1f} s"
            )
        else:
            say(f"caramel: a step takes {format_ms(step_s)}; each stays a run, as several in one would not pay here")
        return count

    return StepsInRun(wanted, steps * epochs, choose)


def _sayer(is_silent: bool) -> Callable[[str], None]:
    """A function that takes a line for the user, who may want none; log files have it in any case."""

    def say(line: str) -> None:
        if is_silent:
            _logger.info("%s", line)
        else:
            note_said(line)
            click.echo(line)

    return say


def _opened(
    model: Any,
    step: CapturedStep,
    data: GivenData,
    workers: int,
    cluster: Cluster,
    step_timeout_s: float,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> KeptSession:
    """A session of the captured step for all workers: planned where the network is known, which is said in a line."""

    def own_step() -> Context:
        arguments, *_ = data.capture_arguments(workers)
        return capture(lambda *batch: model.train_step(data.layout.given(batch)), **arguments)

    began_s = time.perf_counter()
    chosen = {name: value for name, value in options.items() if name != "loss_reduction"}
    traced = traced_options(step.context, chosen, workers, cluster, data.a_batch, own_step, say)
    armodel = ARModel(step.context, workers, **traced)
    if armodel.plan.local is not None:
        say(f"caramel: {armodel.plan.local}")
    elif armodel.plan.servers is not None:
        predicted = armodel.plan.servers.prediction
        say(f"caramel: {armodel.plan.servers}{'' if predicted is None else f'; {predicted}'}")
    elif traced.get("trace") is not None or traced.get("plan") is not None:
        say(one_line(armodel, time.perf_counter() - began_s))
    else:
        examples = data.examples_in_batches
        of_a_step = "" if examples is None else f", {examples} example{'s' * (examples != 1)} in a step"
        say(f"caramel: {workers} worker{'s' * (workers != 1)} {_place(cluster, armodel.plan.devices)}{of_a_step}")
    servers = servers_of(model, cluster, armodel.plan, armodel.plan.transfer_threads)
    session = armodel.session(servers, step_timeout_s=step_timeout_s)
    return KeptSession(step, armodel.distributed, session, data, armodel.facts)


def _place(cluster: Cluster, devices: Sequence[str]) -> str:
    """Where workers are, for people."""
    if isinstance(cluster, InProcess):
        return "in this process"
    hosts = dict.fromkeys(cluster.hosts_of(devices))
    return f"on {listed(list(hosts), 4)}" if hosts else "on servers"


def _trained(
    training: EpochLoop, validation: Validation, epochs: Iterable[int], steps: int | None, is_silent: bool
) -> dict[str, Any] | None:
    """Train and validate epoch by epoch, until a callback ends the training; the logs of the last epoch.

    Raises:
        KeyboardInterrupt: SIGINT came; the model has the values of the step that ran then.
        SystemExit: SIGTERM came; the same.
    """
    model, hooks = training.model, training.hooks
    logs = None

    def say(text: str) -> None:
        if not is_silent:
            _logger.warning("%s", text)

    for epoch in epochs:
        with Interrupts(say) as signals:
            logs = training.run(epoch, steps, lambda: signals.number is not None)
        if signals.number is not None:
            say(f"ended in epoch {epoch + 1}: the model has the weights of its last step")
        signals.raise_ended()
        if validation.is_due(epoch):
            logs.update(validation.logs(model, hooks))
        hooks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    return logs


_OPTIONS = ("loss_reduction", *OPTION_NAMES)
"""What `fit` takes besides its own arguments."""

_INSTEAD = {
    "dataset": "the data is x",
    "number_of_workers": "the number of workers is workers=",
}
"""What to do instead of an argument that a user may expect."""


def _check(
    epochs: int, initial_epoch: int, steps_per_epoch: int | None, validation_freq: Any, steps_per_execution: Any
) -> None:
    whole_number(epochs, "epochs", 0)
    whole_number(initial_epoch, "initial_epoch", 0)
    if not isinstance(validation_freq, Collection) or isinstance(validation_freq, str):
        whole_number(validation_freq, "validation_freq")
    if steps_per_epoch is not None:
        whole_number(steps_per_epoch, "steps_per_epoch")
    if steps_per_execution not in (None, AUTO):
        raise InputError(
            f"fit takes steps_per_execution='auto', got {shown(steps_per_execution)}: a number is the model's, "
            "compile(steps_per_execution=)"
        )
