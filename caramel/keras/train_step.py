"""The steps of a compiled Keras model, as functions to capture, and their outputs.

What metrics count cannot always be told from what each worker has counted: a maximum, the loss of a
whole batch. So while the step is traced, `update_state` of the metrics is watched. Keras' own metrics that
only add up over examples stay where they are. Of the others the arguments become results of the step,
and the metric is updated with those of the whole batch where `fit` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx

from caramel.errors import UnsupportedError
from caramel.frontend.recording.watching import note_number
from caramel.keras.batch_layout import BatchLayout
from caramel.keras.per_example import is_additive
from caramel.keras.python_attributes import PythonAttributes

NOTHING = "nothing"
"""Name of the result that stands for the loss of a step that trains nothing."""


@dataclass(frozen=True)
class StepOutput:
    """A tensor of the step that is one of its results.

    Attributes:
        output: name of the result.
        mask: name of the result that is its Keras mask, if it has one.
    """

    output: str
    mask: str | None = None


@dataclass(frozen=True)
class MetricUpdate:
    """A call of a metric's ``update_state`` with arguments of the whole batch.

    Attributes:
        metric: the metric.
        arguments: ``(args, kwargs)``, with `StepOutput` in place of tensors.
    """

    metric: Any
    arguments: Any


@dataclass(frozen=True)
class MetricResult:
    """A metric's ``result``, or one value of it where it is a dict."""

    metric: Any
    key: str | None = None


@dataclass
class StepRecord:
    """A record of what a traced training step does with its metrics and losses.

    Attributes:
        calls: updates of metrics with the whole batch, in order.
        on_workers: metrics that the workers count.
        logs: values that the training step returns, by name: `MetricResult`, `StepOutput` or plain; None if it
            returns no dict.
        outputs: results of the step, by name.
        graph: graph of the step.
        prediction: what a step predicts, with `StepOutput` in place of tensors; None in other steps.
    """

    calls: list[MetricUpdate] = field(default_factory=list)
    on_workers: dict[int, Any] = field(default_factory=dict)
    logs: dict[str, Any] | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    graph: Any = None
    prediction: Any = None
    _results: dict[int, tuple[Any, MetricResult]] = field(default_factory=dict)
    _output_names: dict[int, tuple[Any, str]] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin anew, where a step is traced, and not for the first time perhaps."""
        vars(self).update(vars(StepRecord(graph=tf.compat.v1.get_default_graph())))

    @property
    def variables(self) -> list[Any]:
        """Variables of the metrics that the workers count."""
        return [variable for metric in self.on_workers.values() for variable in metric.variables]

    def take(self, value: Any, taker: str) -> Any:
        """Make a tensor or a number a result of the step; other values stay what they are.

        Raises:
            UnsupportedError: the tensor is inside a function or a loop of the step, or no dense tensor.
        """
        if isinstance(value, (keras.Variable, tf.Variable)):
            value = tf.convert_to_tensor(value)
        if isinstance(value, (bool, int, float, np.number, np.bool_)):
            note_number(value)
            value = tf.convert_to_tensor(value)  # it may follow from the number of examples
        return self._step_output(value, taker) if tf.is_tensor(value) else value

    def _step_output(self, tensor: Any, taker: str) -> StepOutput:
        mask = getattr(tensor, "_keras_mask", None)
        return StepOutput(self._output(tensor, taker), None if mask is None else self._output(mask, taker))

    def _output(self, tensor: Any, taker: str) -> str:
        if not isinstance(tensor, tf.Tensor):
            raise UnsupportedError(
                f"{taker} takes a {type(tensor).__name__}, of which the workers' parts cannot be put together: make it "
                "dense, by to_tensor() or tf.sparse.to_dense"
            )
        if tensor.graph is not self.graph:
            raise UnsupportedError(
                f"{taker} takes {tensor!r}, which is in a function, branch or loop of the step, so its value for the "
                "whole batch cannot be had. Update it in train_step itself, or leave out the tf.function of the helper "
                "that updates it: the step is traced as a whole without it"
            )
        entry = self._output_names.get(id(tensor))
        if entry is None:
            entry = self._output_names[id(tensor)] = (tensor, f"taken_{len(self._output_names)}")
            self.outputs[entry[1]] = tensor
        return entry[1]

    def update(self, metric: Any, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Replacement of a metric's ``update_state``."""
        tensors = [leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf)]
        if is_additive(metric, tensors) and not any(c.metric is metric for c in self.calls):
            self.on_workers[id(metric)] = metric
            return original(*args, **kwargs)
        if id(metric) in self.on_workers:
            raise UnsupportedError(
                f"metric {metric.name!r} is updated with values of each example and, elsewhere in the step, with "
                "others (a scalar): use a metric for each"
            )

        arguments = (tuple(args), dict(kwargs))
        what = f"metric {metric.name!r}"
        self.calls.append(MetricUpdate(metric, keras.tree.map_structure(lambda leaf: self.take(leaf, what), arguments)))
        return None

    def result(self, metric: Any, original: Callable[..., Any]) -> Any:
        """Replacement of a metric's ``result``."""
        metric_result = original()
        for key, value in metric_result.items() if isinstance(metric_result, dict) else [(None, metric_result)]:
            self._results[id(value)] = (value, MetricResult(metric, key))
        return metric_result

    def returned(self, logs: Any) -> None:
        """Record the value that the training step returns."""
        if not isinstance(logs, Mapping):
            return

        def recorded(value: Any, what: str) -> Any:
            if value is None:  # also Python's word for a number of examples that is not known in this trace
                note_number(value)
            known = self._results.get(id(value))
            return self.take(value, what) if known is None else known[1]

        self.logs = {
            name: keras.tree.map_structure(lambda value, what=f"the log {name!r}": recorded(value, what), log)
            for name, log in logs.items()
        }


def leaf_metrics(model: Any) -> list[Any]:
    """The metrics of a model, those that it was compiled with one by one."""
    metrics: list[Any] = []
    for metric in model.metrics:
        metrics += metric.metrics if metric is model._compile_metrics else [metric]
    return metrics


def _own_step(model: Any, method: str) -> Callable[[Any], Any]:
    """A step of the model; of one under `tf.function` the Python function, as what it takes has to leave the step."""
    step = getattr(model, method)
    python_function: Callable[[Any], Any] | None = getattr(step, "python_function", None)
    if python_function is None or not getattr(step, "_autograph", True):
        return python_function or step
    enabled = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)

    def converted(data: Any) -> Any:
        with enabled:  # where the function has been traced, it is converted already, but only runs so with AutoGraph on
            return tf.__internal__.autograph.tf_convert(python_function, enabled, user_requested=True)(data)

    return converted


def watched_step(
    model: Any,
    record: StepRecord,
    layout: BatchLayout,
    method: str = "train_step",
    attributes: PythonAttributes | None = None,
) -> Any:
    """The model's own step, as a function to capture: a tf.function, since Keras traces it once, too.

    Args:
        model: compiled model whose variables exist.
        record: record that is filled when the step is traced.
        layout: how the step takes a batch.
        method: name of the model's method: ``"train_step"`` or ``"test_step"``.
        attributes: what the model has in Python before each trace; None for what it has then.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def step(*batch: Any) -> dict[str, Any]:
        record.begin()
        if attributes is not None:
            attributes.restore()
        restorers = [_replaced(metric, record) for metric in leaf_metrics(model)]
        try:
            record.returned(_own_step(model, method)(layout.given(batch)))
        finally:
            for restore in restorers:
                restore()
        counts = {f"count_{n}": tf.convert_to_tensor(v) for n, v in enumerate(record.variables)}
        nothing = {} if method == "train_step" else {NOTHING: tf.constant(0.0)}
        return {**record.outputs, **counts, **nothing}

    return tf.function(step)


def watched_prediction(model: Any, record: StepRecord, layout: BatchLayout) -> Any:
    """The model's ``predict_step``, as a function to capture.

    Args:
        model: model whose variables exist.
        record: record that is filled when the step is traced.
        layout: how the step takes a batch.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def step(*batch: Any) -> dict[str, Any]:
        record.begin()
        predicted = _own_step(model, "predict_step")(layout.given(batch))
        record.prediction = keras.tree.map_structure(lambda value: record.take(value, "predict_step"), predicted)
        return {**record.outputs, NOTHING: tf.constant(0.0)}

    return tf.function(step)


def _replaced(metric: Any, record: StepRecord) -> Callable[[], None]:
    """Watch a metric; the function that ends that."""
    update, result = metric.update_state, metric.result
    object.__setattr__(metric, "update_state", lambda *args, **kwargs: record.update(metric, update, args, kwargs))
    object.__setattr__(metric, "result", lambda: record.result(metric, result))

    def put_back() -> None:
        for name in ("update_state", "result"):
            object.__delattr__(metric, name)

    return put_back
