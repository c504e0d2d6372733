"""Metrics while a model trains: those that all workers count, and those that are computed here on the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.graph.graph import node_of
from caramel.keras.train_step import MetricResult, MetricUpdate, StepOutput, StepRecord, leaf_metrics
from caramel.model import Combination, Model, VariableClass
from caramel.runtime.feeds import combined_value
from caramel.runtime.session import Session
from caramel.runtime.step_result import StepResult


class DistributedMetrics:
    """The metrics of a model that trains on workers.

    Args:
        model: the Keras model.
        step: captured training step of the model.
        record: record of what the step does with metrics.
        names: name in the step of each of the model's variables, by the id of the tf.Variable.
        workers: number of workers. What one of them has is that of the whole batch.
        reduction: ``"mean"`` or ``"sum"`` where the caller declares a reduction.

    Raises:
        CaptureError: the value for the whole batch cannot be told.
    """

    def __init__(
        self,
        model: Any,
        step: Model,
        record: StepRecord,
        names: Mapping[int, str],
        workers: int,
        reduction: str | None = None,
    ) -> None:
        self._model = model
        self._record = record
        self._combinations = dict(zip((name for name, _ in step.outputs), step.combinations))
        untold = Combination.SAME if workers == 1 else None
        self._declared = untold if reduction is None else Combination(reduction)
        self._reported = None if step.reported is None else Combination(step.reported)
        self._summed_variables = {
            names[id(v.value)]: _SummedVariable(v, f"count_{n}", step.variable_by_name[names[id(v.value)]].kind)
            for n, v in enumerate(record.variables)
        }
        self._advice = (
            "Give values of each example to a metric instead"
            if step.gradients
            else "Give values of each example to a metric instead, or evaluate with model.evaluate, on one device"
        )
        self._check()
        self._check_uses(step, names)
        if workers > 1:
            self._check_counts(step, names)

    def _check_uses(self, step: Model, names: Mapping[int, str]) -> None:
        """Check that the step itself neither writes metrics that are computed here, nor uses metrics in its loss."""
        learning = step.graph.ancestors([node_of(g.tensor) for g in step.gradients], control=False)
        written = {name for name, _ in step.updates}
        for metric in leaf_metrics(self._model):
            for name in (names.get(id(variable.value)) for variable in metric.variables):
                if name in written and name not in self._summed_variables:
                    raise CaptureError(
                        f"the training step writes {name!r} of metric {metric.name!r} otherwise than by its "
                        "update_state, so it cannot be told what all workers have counted: call that in train_step"
                    )
                if name is not None and step.variable_by_name[name].node in learning:
                    raise CaptureError(
                        f"the loss depends on {name!r} of metric {metric.name!r}, which each worker counts for itself: "
                        "keep what the loss needs in a variable of its own"
                    )

    def _check_counts(self, step: Model, names: Mapping[int, str]) -> None:
        """Check that what workers count are sums over their examples, or the same for all of them."""
        mixed = dict(step.mixed)
        for metric in leaf_metrics(self._model):
            for variable in metric.variables:
                name = names.get(id(variable.value))
                if name in self._summed_variables and name in mixed:
                    raise CaptureError(
                        f"metric {metric.name!r} is updated with values for which {mixed[name]}: what workers count of "
                        f"their parts of the batch is not what one device counts. {self._advice}"
                    )

    def _check(self) -> None:
        for call in self._record.calls:
            for leaf in keras.tree.flatten(call.arguments):
                if isinstance(leaf, StepOutput):
                    self._combination(leaf.output, f"metric {call.metric.name!r} is updated with")
        for name, value in (self._record.logs or {}).items():
            for leaf in keras.tree.flatten(value):
                if isinstance(leaf, StepOutput):
                    self._combination(leaf.output, f"the step returns {name!r},")
        for leaf in keras.tree.flatten(self._record.prediction):
            if isinstance(leaf, StepOutput):
                self._combination(leaf.output, "predict_step returns", "Predict with model.predict, on one device")

    def _combination(
        self,
        output: str,
        user: str,
        advice: str | None = None,
    ) -> Combination:
        """The combination of the workers' values of a result."""
        advice = advice or self._advice
        combination = self._combinations.get(output, self._reported) or self._declared  # as in `_of_workers`
        if combination is None:
            tensor = self._record.outputs[output]
            raise CaptureError(
                f"{user} a value of the whole batch ({tensor.op.type} {tensor.name!r}), and it cannot be told how "
                f"those of the workers' parts of the batch make it: as a mean, a sum or an extreme over the examples. "
                f"{advice}"
            )
        return combination

    # -- in an epoch -------------------------------------------------------------------------

    def reset(self, session: Session) -> None:
        """Let the workers count anew; the model's metrics have just been reset."""
        empty = {name: variable.reset() for name, variable in self._summed_variables.items()}
        session.assign(empty)

    def changed(self) -> None:
        """Go on from the present values of the model's metrics, which callbacks may have reset."""
        for variable in self._summed_variables.values():
            variable.take_change()

    def after(self, result: StepResult) -> Any:
        """Take over a step; the logs as the model's training step returns them."""
        for variable in self._summed_variables.values():
            variable.after(_of_workers(variable.output, result), result.worker_examples)
        for call in self._record.calls:
            self._update(call, result)
        if self._record.logs is None:
            return self._model.get_metrics_result()
        return keras.tree.map_structure(lambda leaf: self._log(leaf, result), self._record.logs)

    def _update(self, call: MetricUpdate, result: StepResult) -> None:
        args, kwargs = keras.tree.map_structure(lambda leaf: self.whole(leaf, result), call.arguments)
        call.metric.update_state(*args, **kwargs)

    def _log(self, leaf: Any, result: StepResult) -> Any:
        if isinstance(leaf, MetricResult):
            metric_result = leaf.metric.result()
            return metric_result if leaf.key is None else metric_result[leaf.key]
        return self.whole(leaf, result)

    def whole(self, leaf: Any, result: StepResult) -> Any:
        """The value for the whole batch of a result of the workers' steps."""
        if not isinstance(leaf, StepOutput):
            return leaf
        tensor = tf.convert_to_tensor(self._value(leaf.output, result))
        if leaf.mask is not None:
            tensor._keras_mask = tf.convert_to_tensor(self._value(leaf.mask, result))
        return tensor

    def _value(self, output: str, result: StepResult) -> np.ndarray:
        combination = self._combination(output, "")
        dtype = self._record.outputs[output].dtype.as_numpy_dtype
        values = _of_workers(output, result)
        shares = result.worker_examples
        counting = [v for v, examples in zip(values, shares) if examples or not any(shares)]
        if combination is Combination.SAME:
            return np.asarray(counting[0], dtype)
        if combination is Combination.EXAMPLES:
            return self._joined(counting, [s for s in shares if s], output)
        if combination in (Combination.MAX, Combination.MIN):
            extreme = np.max if combination is Combination.MAX else np.min
            return np.asarray(extreme(np.stack(counting), axis=0), dtype)
        wide = [np.asarray(v, np.float64 if np.issubdtype(dtype, np.inexact) else None) for v in values]
        return np.asarray(combined_value(wide, shares, combination.value), dtype)

    def _joined(self, parts: Sequence[np.ndarray], shares: Sequence[int], output: str) -> np.ndarray:
        per_example = {len(part) / share for part, share in zip(parts, shares)}
        if len(per_example) > 1:
            tensor = self._record.outputs[output]
            raise CaptureError(
                f"{tensor.op.type} {tensor.name!r}, which a metric takes, has {[len(p) for p in parts]} entries on "
                f"workers with {list(shares)} examples: metrics other than Keras' own take values of each example"
            )
        return np.concatenate(parts)

    def logs(self, last: Any) -> dict[str, Any]:
        """Logs of an epoch: the metrics', or those of its last step where these have other names."""
        metrics: dict[str, Any] = self._model.get_metrics_result()
        if isinstance(last, Mapping) and last.keys() != metrics.keys():
            return dict(last)
        return metrics

    @property
    def names(self) -> list[str]:
        """Names of the logs of an epoch."""
        metrics = list(self._model.get_metrics_result())
        if self._record.logs is not None and self._record.logs.keys() != set(metrics):
            return names_of_logs(self._record.logs)
        return metrics


def names_of_logs(logs: Mapping[str, Any]) -> list[str]:
    """The names under which Keras gives callbacks the logs that a step returns: those in a dict of them stand alone.

    >>> names_of_logs({"loss": 1.0, "compile_metrics": {"accuracy": 0.5}})
    ['loss', 'accuracy']
    """
    names: list[str] = []
    for name, value in logs.items():
        names += names_of_logs(value) if isinstance(value, Mapping) else [name]
    return names


def _of_workers(output: str, result: StepResult) -> tuple[np.ndarray, ...]:
    """The workers' values of a result; what the step reports as its loss is not among its outputs."""
    if output in result.outputs:
        return result.outputs[output]
    return tuple(np.asarray(value) for value in result.worker_losses)


class _SummedVariable:
    """A metric's variable to which workers only add, as the sum of what all workers have added.

    Where all add the same, as what is counted is of the whole batch, that is what one of them has added.

    Args:
        variable: variable of a metric of the model.
        output: name of the step's result with the workers' values of the variable.
        kind: class of the variable in the step; of a total, all workers but one begin with zero.
    """

    def __init__(self, variable: Any, output: str, kind: VariableClass) -> None:
        self._variable = variable
        self._is_total = kind is VariableClass.TOTAL
        self._is_same = kind not in (VariableClass.TOTAL, VariableClass.STATISTICS)
        self.output = output
        self._begun = self._base = self._assigned = variable.numpy()  # on the workers; in the model, then and now
        self._start: Sequence[np.ndarray] = ()  # of each worker, when the model's variable was `_base`
        self._last: Sequence[np.ndarray] = ()
        self._repeated: dict[int, np.ndarray] = {}

    def reset(self) -> np.ndarray:
        """Begin with the present value of the model's variable, on the workers, too."""
        self._begun = self._base = self._assigned = self._variable.numpy()
        self._start = self._last = ()
        self._repeated = {}
        return self._base

    def take_change(self) -> None:
        """Begin with the present value of the model's variable, if it was changed."""
        now = self._variable.numpy()
        if not np.array_equal(now, self._assigned, equal_nan=True):
            self._base = self._assigned = now
            self._start = self._last
            self._repeated = {}

    def after(self, states: Sequence[np.ndarray], examples: Sequence[int]) -> None:
        """Add up the workers' counts.

        A worker without examples computed with an example that it had before, which must not count.

        Args:
            states: value of the variable on each worker.
            examples: number of examples of each worker in this step.
        """
        if self._is_same:
            states, examples = states[:1], examples[:1]
        others = np.zeros_like(self._begun) if self._is_total else self._begun
        given = [self._begun, *[others] * (len(states) - 1)]
        last, start = self._last or given, self._start or given
        for rank, state in enumerate(states):
            if examples[rank] == 0 and any(examples):
                self._repeated[rank] = self._repeated.get(rank, 0) + _more(state, last[rank])
        self._last = states
        own = [_more(s - start[rank], self._repeated.get(rank, 0)) for rank, s in enumerate(states)]
        self._assigned = np.asarray(self._base + sum(own), self._base.dtype)
        self._variable.assign(self._assigned)


def _more(now: Any, before: Any) -> Any:
    """The difference of two counts; none between infinite ones, whose worker has nothing else to add."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(now) & (now == before), 0, now - before).astype(np.asarray(now).dtype)
