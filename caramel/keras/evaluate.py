"""`evaluate` and `predict`: a Keras model's own, on N workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.analyzers.servers.ordered_step import TIMED
from caramel.compiler.distributed_model import forward_pass
from caramel.compiler.options import CompileOptions
from caramel.compiler.server_tasks import server_tasks
from caramel.errors import EndOfData, InputError
from caramel.keras.callbacks import callback_list
from caramel.keras.captured_steps import captured_forward, check_model
from caramel.keras.config_limits import limited_steps
from caramel.keras.forward_values import ForwardValues
from caramel.keras.given_data import GivenData, given_data
from caramel.keras.kept_sessions import KeptSession, keep, purpose_of, servers_of, taken, using
from caramel.keras.train_step import leaf_metrics
from caramel.runtime.clusters.base import Cluster, workers_of
from caramel.runtime.clusters.in_process import cluster_or_default
from caramel.runtime.session import Session
from caramel.runtime.step_result import StepResult
from caramel.util.arguments import DEFAULT_STEP_TIMEOUT_S, refuse_unknown, whole_number


def evaluate(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    sharding: str | None = None,
    device_list: Sequence[str] | None = None,
    servers: int | None = None,
    ordering: str | None = None,
    pulls_in_flight: int | None = None,
    server_list: Sequence[str] | None = None,
    **unknown: Any,
) -> Any:
    """Evaluate a compiled Keras 3 model on N workers: each runs the model's ``test_step`` on its part of every batch.

    Args:
        model: a compiled model.
        x: inputs in arrays, a tf.data.Dataset of batches, or other data; see `caramel.fit`.
        y: targets in arrays; nothing with a dataset.
        batch_size: number of examples in a step of all workers, for arrays; default: 32.
        verbose: verbosity as in Keras.
        sample_weight: weights of the examples in arrays.
        steps: number of steps; default: a pass over the data.
        callbacks: Keras callbacks.
        return_dict: whether to return a dict.
        workers: number of workers, at least 1; default: as many as the cluster lists (`caramel.Servers`).
        cluster: the cluster to run on; default: `caramel.InProcess()`.
        step_timeout_s: seconds that a step may take.
        sharding: see `caramel.ARModel`.
        device_list: see `caramel.ARModel`.
        servers: number of parameter servers, from which workers pull the model's variables in every step; default:
            workers have them.
        ordering: order of these pulls, by a rule that needs no times: ``"tic"`` (the default), ``"tio"``, ``"read"``,
            ``"random"`` or ``"none"``; see `caramel.PSModel`.
        pulls_in_flight: see `caramel.PSModel`.
        server_list: see `caramel.PSModel`.
        unknown: nothing; other names are refused.

    Returns:
        The loss, or a list with it and the metrics, or a dict of these by name, as the model's own ``evaluate``.

    Raises:
        InputError: the model is not compiled, an argument does not fit, or there is no data.
        CaptureError: the model's ``test_step`` cannot be captured or replicated.
        DataError: the dataset fails.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> import caramel
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> round(caramel.evaluate(model, np.eye(2), np.ones((2, 1)), workers=2, verbose=0), 4)
        1.0
    """
    refuse_unknown(evaluate, unknown, instead=_INSTEAD)
    check_model(model, "evaluate")
    steps = _number_of_steps(steps)
    data = _data(x, y, sample_weight, batch_size, steps, "evaluate")
    pulls = _Pulls(servers, ordering, pulls_in_flight, server_list)
    place = _Place.of("test_step", workers, cluster, device_list, step_timeout_s, sharding, pulls)
    model.stop_evaluating = False
    with using(model) as use:
        use.kept = kept = place.session(model, data)
        hooks = callback_list(callbacks, model, verbose, 1, steps or data.length)
        counts, logs = kept.step.counts, {}
        values = ForwardValues.of(kept, callbacks, "test")
        kept.passes.epoch_ends()  # as Keras, after its first look at the data
        hooks.on_test_begin()
        values.after_hooks()
        model.reset_metrics()
        counts.reset(kept.session)
        for last, results in _in_turn(model, kept, data, steps, values.around(hooks.on_test_batch_begin)):
            for result in results:
                logs = counts.after(result)
            hooks.on_test_batch_end(last, logs)
            if model.stop_evaluating:
                break
        values.take()
        logs = _numbers(counts.logs(logs))
        hooks.on_test_end(logs)
        place.keep(model, data, kept)
    return dict(sorted(logs.items())) if return_dict else _in_order(model, logs)


def predict(
    model: Any,
    x: Any,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: Any = None,
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    sharding: str | None = None,
    device_list: Sequence[str] | None = None,
    servers: int | None = None,
    ordering: str | None = None,
    pulls_in_flight: int | None = None,
    server_list: Sequence[str] | None = None,
    **unknown: Any,
) -> Any:
    """Predict with a Keras 3 model on N workers: each runs the model's ``predict_step`` on its part of every batch.

    Args:
        model: a model.
        x: inputs in arrays, a tf.data.Dataset of batches, or other data; see `caramel.fit`.
        batch_size: number of examples in a step of all workers, for arrays; default: 32.
        verbose: verbosity as in Keras.
        steps: number of steps; default: a pass over the data.
        callbacks: Keras callbacks.
        workers: number of workers, at least 1; default: as many as the cluster lists (`caramel.Servers`).
        cluster: the cluster to run on; default: `caramel.InProcess()`.
        step_timeout_s: seconds that a step may take.
        sharding: see `caramel.ARModel`.
        device_list: see `caramel.ARModel`.
        servers: number of parameter servers, from which workers pull the model's variables in every step; default:
            workers have them.
        ordering: order of these pulls, by a rule that needs no times: ``"tic"`` (the default), ``"tio"``, ``"read"``,
            ``"random"`` or ``"none"``; see `caramel.PSModel`.
        pulls_in_flight: see `caramel.PSModel`.
        server_list: see `caramel.PSModel`.
        unknown: nothing; other names are refused.

    Returns:
        Arrays of the predictions for all examples in their order, in the structure of the model's outputs.

    Raises:
        InputError: an argument does not fit, or there is no data.
        CaptureError: the model's ``predict_step`` cannot be captured or replicated.
        DataError: the dataset fails.

    Examples:
        >>> import keras
        >>> import numpy as np
        >>> import caramel
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        >>> caramel.predict(model, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), workers=2, verbose=0).tolist()
        [[3.0], [7.0], [11.0]]
    """
    refuse_unknown(predict, unknown, instead=_INSTEAD)
    check_model(model, "predict", must_be_compiled=False)
    steps = _number_of_steps(steps)
    data = _data(x, None, None, batch_size, steps, "predict")
    pulls = _Pulls(servers, ordering, pulls_in_flight, server_list)
    place = _Place.of("predict_step", workers, cluster, device_list, step_timeout_s, sharding, pulls)
    predictions: list[Any] = []
    model.stop_predicting = False
    with using(model) as use:
        use.kept = kept = place.session(model, data)
        hooks = callback_list(callbacks, model, verbose, 1, steps or data.length)
        counts, structure = kept.step.counts, kept.step.prediction
        values = ForwardValues.of(kept, callbacks, "predict")
        hooks.on_predict_begin()
        values.after_hooks()
        for last, results in _in_turn(model, kept, data, steps, values.around(hooks.on_predict_batch_begin)):
            batch = [_predicted(counts, structure, result) for result in results]
            predictions += batch
            hooks.on_predict_batch_end(last, {"outputs": _joined(batch)})
            if model.stop_predicting:
                break
        values.take()
        hooks.on_predict_end()
        place.keep(model, data, kept)
    return _joined(predictions)


def _number_of_steps(steps: Any) -> int | None:
    """The number of steps to take; None for a pass over the data."""
    return limited_steps(None if steps is None else whole_number(steps, "steps"))


def _data(x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None, who: str) -> GivenData:
    return given_data(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=False,
        validation_split=0.0,
        class_weight=None,
        steps=steps,
        who=who,
    )


_OF_TRAINING = "leave it out: workers have the values of the model here, however it was trained"

_INSTEAD = dict.fromkeys(("network", "trace", "plan", "policy", "deterministic"), _OF_TRAINING)
"""What to do instead of an argument of training."""


@dataclass(frozen=True)
class _Pulls:
    """Parameter servers from which workers pull, if there are to be any.

    Attributes:
        servers: see `evaluate`.
        ordering: see `evaluate`.
        pulls_in_flight: see `evaluate`.
        server_list: see `evaluate`.

    Raises:
        InputError: the order goes by times.
    """

    servers: int | None
    ordering: str | None
    pulls_in_flight: int | None
    server_list: Sequence[str] | None

    def __post_init__(self) -> None:
        if self.ordering in TIMED:
            raise InputError(
                f"ordering={self.ordering!r} goes by times of a training step, and this is none: take 'tic', 'tio' or "
                "'read', which go by the graph alone"
            )


@dataclass(frozen=True)
class _Place:
    """Where and how workers run a method of a model.

    Attributes:
        method: name of the model's method.
        workers: number of workers.
        cluster: where they run.
        devices: device string of each worker; None for the default ones.
        step_timeout_s: seconds that a step may take.
        sharding: see `caramel.ARModel`.
        pulls: parameter servers.
    """

    method: str
    workers: int
    cluster: Cluster
    devices: tuple[str, ...] | None
    step_timeout_s: float
    sharding: str | None
    pulls: _Pulls

    @classmethod
    def of(
        cls,
        method: str,
        workers: Any,
        cluster: Cluster | None,
        devices: Sequence[str] | None,
        step_timeout_s: float,
        sharding: str | None,
        pulls: _Pulls,
    ) -> _Place:
        place = cluster_or_default(cluster)
        number, known = workers_of(place, workers, server_tasks(asdict(pulls)) or 0, has_devices=devices is not None)
        made = cls(method, number, place, known if devices is None else tuple(devices), step_timeout_s, sharding, pulls)
        made.options()  # refused before anything is captured
        return made

    def options(self) -> CompileOptions:
        """What the compiler has to know."""
        more = {"device_list": self.devices, "sharding": self.sharding, **asdict(self.pulls)}
        return CompileOptions(workers=self.workers, **more)

    def session(self, model: Any, data: GivenData) -> KeptSession:
        """A session with the model's present values: a new one, or one that was kept."""
        kept = taken(model, self.method, self._purpose(model, data), data)
        if kept is not None:
            return kept
        step = captured_forward(model, data, self.workers, self.method, {"sharding": self.sharding})
        distributed = forward_pass(step.context, self.options())
        servers = servers_of(model, self.cluster, distributed.plan)
        session = Session(distributed, servers, step_timeout_s=self.step_timeout_s)
        return KeptSession(step, distributed, session, data)

    def keep(self, model: Any, data: GivenData, kept: KeptSession) -> None:
        """Keep the session for the next call."""
        keep(model, self.method, self._purpose(model, data), kept)

    def _purpose(self, model: Any, data: GivenData) -> list[Any]:
        options = {"step_timeout_s": self.step_timeout_s, "sharding": self.sharding, "devices": self.devices}
        options |= asdict(self.pulls)
        return purpose_of(model, data, self.workers, self.cluster, options)


def _in_turn(
    model: Any, kept: KeptSession, data: GivenData, steps: int | None, begins: Callable[[int], None]
) -> Iterator[tuple[int, list[StepResult]]]:
    """The steps between two calls of callbacks, with the number of the last of them."""
    passes, length = kept.passes, data.length if steps is None else steps
    passes.epoch_begins()
    passes.begin()
    number, taken_batches, has_ended = 0, 0, False
    while not has_ended and (length is None or number < length) and taken_batches != data.length:
        begins(number)
        results: list[StepResult] = []
        while len(results) < model.steps_per_execution and taken_batches != data.length:
            try:
                found = passes.steps(1)
            except EndOfData:
                has_ended = True
                break
            results += found
            passes.took(len(found))
            taken_batches += len(found)
        if not results:
            break
        yield number + model.steps_per_execution - 1, results
        number += model.steps_per_execution
    if taken_batches == data.length:
        passes.leave_one_out()
    passes.epoch_ends()
    if taken_batches == 0:
        raise InputError("the data has no batch")


def _predicted(counts: Any, structure: Any, result: StepResult) -> Any:
    return keras.tree.map_structure(lambda leaf: _array(counts.whole(leaf, result)), structure)


def _array(value: Any) -> Any:
    return np.asarray(value) if hasattr(value, "shape") else value


def _joined(batches: Sequence[Any]) -> Any:
    """The predictions of batches, one after the other."""
    return keras.tree.map_structure(_concatenated, *batches)


def _concatenated(*parts: Any) -> Any:
    """One array; where batches differ in another size, as of padded texts, a tf.RaggedTensor, as Keras makes it."""
    if not hasattr(parts[0], "shape"):
        return parts[0]
    arrays = [np.atleast_1d(part) for part in parts]
    axes = [axis for axis in range(1, arrays[0].ndim) if len({array.shape[axis] for array in arrays}) > 1]
    if not axes:
        return np.concatenate(arrays)
    return tf.concat([tf.RaggedTensor.from_tensor(array, ragged_rank=axes[-1]) for array in arrays], 0)


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs as numbers, those in a dict of them by themselves, as Keras returns them."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found.update(_numbers(value))
        else:
            array = np.asarray(value)
            found[name] = float(array) if array.ndim == 0 else array
    return found


def _in_order(model: Any, logs: Mapping[str, Any]) -> Any:
    """Logs as Keras' ``evaluate`` returns them: the metrics in the model's order, then others by name."""
    known = [metric.name for metric in leaf_metrics(model)]  # two may have one name, in Keras, too
    values = [logs[name] for name in known if name in logs]
    values += [logs[name] for name in sorted(logs.keys() - set(known))]
    return values[0] if len(values) == 1 else values
