"""Metrics while a model trains: what all workers have counted, and what is counted here with the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.errors import CaptureError
from caramel.graph.graph import node_of
from caramel.keras.train_step import Call, Result, Taken, Watched, leaf_metrics
from caramel.model import Combination, Model
from caramel.runtime.feeds import combined_value
from caramel.runtime.session import Session, StepResult


class Counts:
    """The metrics of a model that trains on workers.

    Args:
        model: the Keras model.
        step: its captured training step.
        watched: what the step does with metrics.
        names: the step's name of each of the model's variables, by the id of the tf.Variable.
        said: ``"mean"`` or ``"sum"`` where the caller or the losses say how they are reduced.

    Raises:
        CaptureError: it cannot be told what a value is for the whole batch.
    """

    def __init__(
        self, model: Any, step: Model, watched: Watched, names: Mapping[int, str], said: str | None = None
    ) -> None:
        self._model = model
        self._watched = watched
        self._combinations = dict(zip((name for name, _ in step.outputs), step.combinations))
        self._said = None if said is None else Combination(said)
        self._reported = None if step.reported is None else Combination(step.reported)
        self._counted = {names[id(v.value)]: _Counted(v, f"count_{n}") for n, v in enumerate(watched.variables)}
        self._check()
        self._check_uses(step, names)

    def _check_uses(self, step: Model, names: Mapping[int, str]) -> None:
        """What is counted here must not be written, and no count be used, in the step itself."""
        learning = step.graph.ancestors([node_of(g.tensor) for g in step.gradients], control=False)
        written = {name for name, _ in step.updates}
        for metric in leaf_metrics(self._model):
            for name in (names.get(id(variable.value)) for variable in metric.variables):
                if name in written and name not in self._counted:
                    raise CaptureError(
                        f"the training step writes {name!r} of metric {metric.name!r} otherwise than by its "
                        "update_state, so it cannot be told what all workers have counted: call that in train_step"
                    )
                if name is not None and step.variable_by_name[name].node in learning:
                    raise CaptureError(
                        f"the loss depends on {name!r} of metric {metric.name!r}, which each worker counts for itself: "
                        "keep what the loss needs in a variable of its own"
                    )

    def _check(self) -> None:
        for call in self._watched.calls:
            for leaf in keras.tree.flatten(call.arguments):
                if isinstance(leaf, Taken):
                    self._combination(leaf.output, f"metric {call.metric.name!r} is updated with")
        for name, given in (self._watched.logs or {}).items():
            for leaf in keras.tree.flatten(given):
                if isinstance(leaf, Taken):
                    self._combination(leaf.output, f"the training step returns {name!r},")

    def _combination(self, output: str, what: str) -> Combination:
        """How the workers' values of a result combine."""
        found = self._combinations.get(output, self._reported) or self._said  # as in `_of_workers`
        if found is None:
            tensor = self._watched.outputs[output]
            raise CaptureError(
                f"{what} a value of the whole batch ({tensor.op.type} {tensor.name!r}), and it cannot be told how "
                "those of the workers' parts of the batch make it: as a mean or a sum over the examples. Give values "
                "of each example to a metric instead, or say loss_reduction= if it is reduced as the loss is"
            )
        return found

    # -- in an epoch -------------------------------------------------------------------------

    def reset(self, session: Session) -> None:
        """Let the workers count anew; the model's metrics have just been reset."""
        empty = {name: counted.reset() for name, counted in self._counted.items()}
        session.assign(empty)

    def changed(self) -> None:
        """Go on from what the model's metrics hold now, which callbacks may have reset."""
        for counted in self._counted.values():
            counted.take_change()

    def after(self, result: StepResult) -> Any:
        """Take over a step; gives the logs as the model's training step returns them."""
        for counted in self._counted.values():
            counted.after(_of_workers(counted.output, result), result.worker_examples)
        for call in self._watched.calls:
            self._update(call, result)
        if self._watched.logs is None:
            return self._model.get_metrics_result()
        return keras.tree.map_structure(lambda leaf: self._log(leaf, result), self._watched.logs)

    def _update(self, call: Call, result: StepResult) -> None:
        args, kwargs = keras.tree.map_structure(lambda leaf: self._whole(leaf, result), call.arguments)
        call.metric.update_state(*args, **kwargs)

    def _log(self, leaf: Any, result: StepResult) -> Any:
        if isinstance(leaf, Result):
            given = leaf.metric.result()
            return given if leaf.key is None else given[leaf.key]
        return self._whole(leaf, result)

    def _whole(self, leaf: Any, result: StepResult) -> Any:
        """The value for the whole batch of what the workers' steps gave."""
        if not isinstance(leaf, Taken):
            return leaf
        tensor = tf.convert_to_tensor(self._value(leaf.output, result))
        if leaf.mask is not None:
            tensor._keras_mask = tf.convert_to_tensor(self._value(leaf.mask, result))
        return tensor

    def _value(self, output: str, result: StepResult) -> np.ndarray:
        combination = self._combination(output, "")
        dtype = self._watched.outputs[output].dtype.as_numpy_dtype
        values = _of_workers(output, result)
        shares = result.worker_examples
        counting = [v for v, examples in zip(values, shares) if examples or not any(shares)]
        if combination is Combination.SAME:
            return np.asarray(counting[0], dtype)
        if combination is Combination.EXAMPLES:
            return self._joined(counting, [s for s in shares if s], output)
        wide = [np.asarray(v, np.float64 if np.issubdtype(dtype, np.inexact) else None) for v in values]
        return np.asarray(combined_value(wide, shares, combination.value), dtype)

    def _joined(self, parts: Sequence[np.ndarray], shares: Sequence[int], output: str) -> np.ndarray:
        per_example = {len(part) / share for part, share in zip(parts, shares)}
        if len(per_example) > 1:
            tensor = self._watched.outputs[output]
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
        if self._watched.logs is not None and self._watched.logs.keys() != set(metrics):
            return list(self._watched.logs)
        return metrics


def _of_workers(output: str, result: StepResult) -> tuple[np.ndarray, ...]:
    """The workers' values of a result; what the step reports as its loss is not among its outputs."""
    if output in result.outputs:
        return result.outputs[output]
    return tuple(np.asarray(value) for value in result.worker_losses)


class _Counted:
    """A variable that all workers only add to: what they have added together.

    Args:
        variable: of a metric of the model.
        output: name of the step's result that is the workers' value of it.
    """

    def __init__(self, variable: Any, output: str) -> None:
        self._variable = variable
        self.output = output
        self._base = self._given = variable.numpy()
        self._start: Sequence[np.ndarray] = ()  # of each worker, when the model's variable was `_base`
        self._last: Sequence[np.ndarray] = ()
        self._repeated: dict[int, np.ndarray] = {}

    def reset(self) -> np.ndarray:
        """Begin with what the model's variable holds now, on the workers, too."""
        self._base = self._given = self._variable.numpy()
        self._start = self._last = ()
        self._repeated = {}
        return self._base

    def take_change(self) -> None:
        """Begin with what the model's variable holds now, if it was changed."""
        now = self._variable.numpy()
        if not np.array_equal(now, self._given, equal_nan=True):
            self._base = self._given = now
            self._start = self._last
            self._repeated = {}

    def after(self, states: Sequence[np.ndarray], examples: Sequence[int]) -> None:
        """Add up what the workers have counted.

        A worker without examples ran on one that it had before, which counts for nothing.

        Args:
            states: what each worker has of the variable.
            examples: number of examples of each in this step.
        """
        last = self._last or [self._base] * len(states)
        start = self._start or [self._base] * len(states)
        for rank, state in enumerate(states):
            if examples[rank] == 0 and any(examples):
                self._repeated[rank] = self._repeated.get(rank, 0) + (state - last[rank])
        self._last = states
        own = [s - start[rank] - self._repeated.get(rank, 0) for rank, s in enumerate(states)]
        self._given = np.asarray(self._base + sum(own), self._base.dtype)
        self._variable.assign(self._given)
