"""The training step of a compiled Keras model, as a function to capture, and what it hands out.

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
import tensorflow as tf

from caramel.errors import UnsupportedError
from caramel.keras.per_example import adds_up, is_per_example_loss


@dataclass(frozen=True)
class Taken:
    """A tensor that the step gives.

    Attributes:
        output: name of the step's result.
        mask: name of the result that is its Keras mask, if it has one.
    """

    output: str
    mask: str | None = None


@dataclass(frozen=True)
class Call:
    """A call of a metric's ``update_state`` with arguments of the whole batch.

    Attributes:
        metric: the metric.
        arguments: ``(args, kwargs)``, with `Taken` in place of tensors.
    """

    metric: Any
    arguments: Any


@dataclass(frozen=True)
class Result:
    """A metric's ``result``, or one value of it where it is a dict."""

    metric: Any
    key: str | None = None


@dataclass
class Watched:
    """What a traced training step does with its metrics and losses.

    Attributes:
        calls: updates of metrics with the whole batch, in order.
        on_workers: metrics that the workers count.
        logs: what the training step returns by name: a `Result`, a `Taken` or a plain value; None if it
            returns no dict.
        outputs: the step's results by name.
        losses: for each computation of the compiled losses whether they are all of it; see `said_reduction`.
        graph: that of the step.
    """

    calls: list[Call] = field(default_factory=list)
    on_workers: dict[int, Any] = field(default_factory=dict)
    logs: dict[str, Any] | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    losses: list[bool] = field(default_factory=list)
    graph: Any = None
    _results: dict[int, tuple[Any, Result]] = field(default_factory=dict)
    _taken: dict[int, tuple[Any, str]] = field(default_factory=dict)

    @property
    def variables(self) -> list[Any]:
        """Variables of the metrics that the workers count."""
        return [variable for metric in self.on_workers.values() for variable in metric.variables]

    def take(self, value: Any, what: str) -> Any:
        """Make a tensor a result of the step; other values stay what they are.

        Raises:
            UnsupportedError: it is inside a function or a loop of the step, or no dense tensor.
        """
        if isinstance(value, (keras.Variable, tf.Variable)):
            value = tf.convert_to_tensor(value)
        return self._taken_as(value, what) if tf.is_tensor(value) else value

    def _taken_as(self, tensor: Any, what: str) -> Taken:
        mask = getattr(tensor, "_keras_mask", None)
        return Taken(self._output(tensor, what), None if mask is None else self._output(mask, what))

    def _output(self, tensor: Any, what: str) -> str:
        if not isinstance(tensor, tf.Tensor) or tensor.graph is not self.graph:
            raise UnsupportedError(
                f"{what} takes {tensor!r}, which is in a function, branch or loop of the training step, or no dense "
                "tensor, so its value for the whole batch cannot be had. Update it in train_step itself"
            )
        known = self._taken.get(id(tensor))
        if known is None:
            known = self._taken[id(tensor)] = (tensor, f"taken_{len(self._taken)}")
            self.outputs[known[1]] = tensor
        return known[1]

    def update(self, metric: Any, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """In place of a metric's ``update_state``."""
        tensors = [leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf)]
        if adds_up(metric, tensors) and not any(c.metric is metric for c in self.calls):
            self.on_workers[id(metric)] = metric
            return original(*args, **kwargs)
        if id(metric) in self.on_workers:
            raise UnsupportedError(
                f"metric {metric.name!r} is updated with values of each example and, elsewhere in the step, with "
                "others (a scalar): use a metric for each"
            )

        arguments = (tuple(args), dict(kwargs))
        what = f"metric {metric.name!r}"
        self.calls.append(Call(metric, keras.tree.map_structure(lambda leaf: self.take(leaf, what), arguments)))
        return None

    def result(self, metric: Any, original: Callable[..., Any]) -> Any:
        """In place of a metric's ``result``."""
        given = original()
        for key, value in given.items() if isinstance(given, dict) else [(None, given)]:
            self._results[id(value)] = (value, Result(metric, key))
        return given

    def returned(self, logs: Any) -> None:
        """What the training step returns."""
        if not isinstance(logs, Mapping):
            return

        def found(value: Any, what: str) -> Any:
            known = self._results.get(id(value))
            return self.take(value, what) if known is None else known[1]

        self.logs = {
            name: keras.tree.map_structure(lambda value, what=f"the log {name!r}": found(value, what), given)
            for name, given in logs.items()
        }


def leaf_metrics(model: Any) -> list[Any]:
    """The metrics of a model, those that it was compiled with one by one."""
    found: list[Any] = []
    for metric in model.metrics:
        found += metric.metrics if metric is model._compile_metrics else [metric]
    return found


def watched_step(model: Any, watched: Watched) -> Any:
    """The model's own training step, as a function to capture.

    Args:
        model: a compiled model whose variables exist.
        watched: what it does is added here when the step is traced.
    """

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def step(*batch: Any) -> dict[str, Any]:
        watched.graph = tf.compat.v1.get_default_graph()
        replaced = [_replaced(metric, watched) for metric in leaf_metrics(model)]
        try:
            with _WatchedLosses(model, watched):
                watched.returned(model.train_step(batch if len(batch) > 1 else batch[0]))
        finally:
            for put_back in replaced:
                put_back()
        counts = {f"count_{n}": tf.convert_to_tensor(v) for n, v in enumerate(watched.variables)}
        return {**watched.outputs, **counts}

    return step


def _replaced(metric: Any, watched: Watched) -> Callable[[], None]:
    """Watch a metric; gives what ends that."""
    update, result = metric.update_state, metric.result
    object.__setattr__(metric, "update_state", lambda *args, **kwargs: watched.update(metric, update, args, kwargs))
    object.__setattr__(metric, "result", lambda: watched.result(metric, result))

    def put_back() -> None:
        for name in ("update_state", "result"):
            object.__delattr__(metric, name)

    return put_back


class _WatchedLosses:
    """Sees what Keras' own ``compute_loss`` is called with."""

    def __init__(self, model: Any, watched: Watched) -> None:
        self._model = model
        self._watched = watched
        self._is_own = (
            type(model).train_step is keras.Model.train_step
            and type(model).compute_loss is keras.Model.compute_loss
            and not {"train_step", "compute_loss"} & vars(model).keys()
        )

    def __enter__(self) -> None:
        if self._is_own:
            original = self._model.compute_loss

            def compute_loss(*args: Any, **kwargs: Any) -> Any:
                given = original(*args, **kwargs)
                self._watched.losses.append(_is_plain(self._model, *args, **kwargs))
                return given

            object.__setattr__(self._model, "compute_loss", compute_loss)

    def __exit__(self, *error: object) -> None:
        if self._is_own:
            object.__delattr__(self._model, "compute_loss")


def _is_plain(
    model: Any, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
) -> bool:
    """Whether the loss is only made of what the compiled losses say of each example.

    Terms of other kinds (regularisers, add_loss) are not reduced as these are. With a mask, the mean divides by
    the number of what is not masked.
    """
    predicted = keras.tree.flatten(y_pred)
    return not model.losses and all(
        tensor.shape.rank is not None
        and tensor.shape.rank > 1
        and tensor.shape[0] is None
        and getattr(tensor, "_keras_mask", None) is None
        for tensor in predicted
    )


def said_reduction(model: Any, watched: Watched) -> str | None:
    """Whether the loss is a mean or a sum over the batch, where the compiled losses leave no doubt.

    Keras' own training step takes Keras' own losses, each of which has one value for each example and a
    word for how these are reduced.
    """
    if not watched.losses or not all(watched.losses):
        return None
    losses = [entry.loss for entry in model._compile_loss._flat_losses if entry is not None]
    if not losses or not all(is_per_example_loss(loss) for loss in losses):
        return None
    kinds = {loss.reduction for loss in losses}
    if kinds <= {"sum_over_batch_size", "mean"}:
        return "mean"
    return "sum" if kinds == {"sum"} else None
