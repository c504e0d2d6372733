"""Knowledge of Keras' own losses and metrics: whether they work on one example at a time.

A loss or a metric of the user's own may do anything with a batch, so of these nothing is taken for granted.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import keras

_LOSS_MODULE = keras.losses.MeanSquaredError.__module__
"""Module of Keras' own losses."""

_METRIC_PACKAGE = keras.metrics.Mean.__module__.rpartition(".")[0] + "."
"""Package of Keras' own metrics, with a trailing dot."""

_BATCH_LOSSES = frozenset({"dice", "tversky", "circle"})
"""Names of functions of `keras.losses` that give one value for the batch, or compare its examples with each other."""


def is_per_example(function: Any, options: Mapping[str, Any]) -> bool:
    """Whether a function of targets and predictions is one of Keras' that gives one value for each example.

    Args:
        function: function such as ``keras.losses.mean_squared_error``.
        options: further arguments of the function, by name.
    """
    module = function.__module__ if inspect.isfunction(function) else ""
    return (
        (module == _LOSS_MODULE or module.startswith(_METRIC_PACKAGE))
        and function.__name__ not in _BATCH_LOSSES
        and options.get("axis", -1) == -1
    )


def is_additive(metric: Any, arguments: list[Any]) -> bool:
    """Whether a metric is one of Keras' whose variables only have sums over the examples added to them.

    Then each worker can count its own examples, and their counts are added up.

    Args:
        metric: metric of any kind.
        arguments: tensors that the metric gets.
    """
    if not type(metric).__module__.startswith(_METRIC_PACKAGE):
        return False
    if not arguments or any(_is_scalar_or_fixed(tensor) for tensor in arguments):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        # Of predictions without a second axis such functions take the mean over the batch.
        has_features = len(arguments) > 1 and (arguments[1].shape.rank or 0) > 1
        return has_features and is_per_example(metric._fn, metric._fn_kwargs)
    return True


def _is_scalar_or_fixed(tensor: Any) -> bool:
    """Whether a tensor is without an axis whose length is open, as that of the examples is."""
    return tensor.shape.rank is None or tensor.shape.rank == 0 or tensor.shape[0] is not None
