"""Weights of classes, as weights of examples in the dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.data.components import is_dataset
from caramel.data.dataset import sample_dataset
from caramel.errors import InputError
from caramel.util.arguments import shown


def with_class_weights(dataset: Any, class_weight: Mapping[int, float]) -> Any:
    """A dataset of batches ``(x, y)`` with the weight of each example, by its class.

    Args:
        dataset: a tf.data.Dataset, or a function that makes each worker's own.
        class_weight: weight of each class by its number, which may be negative; other classes have the weight 1.

    Raises:
        InputError: a class or a weight is no number, or the elements are no ``(x, y)`` with one tensor of classes.
    """
    by_class = _checked(class_weight)
    if is_dataset(dataset):
        return _weighted(dataset, by_class)
    return lambda workers, rank: _weighted(sample_dataset(dataset, workers, rank), by_class)


def class_weighting(class_weight: Mapping[int, float]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that adds the weight of each example to a batch ``(x, y)``; see `with_class_weights`.

    Raises:
        InputError: a class or a weight is no number.
    """
    by_class = _checked(class_weight)

    def weighted(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        _check_spec(tuple(tf.nest.map_structure(tf.type_spec_from_value, part) for part in batch))
        x, y = batch
        return x, y, _weights(tf.convert_to_tensor(y), by_class).numpy()

    return weighted


def _checked(class_weight: Any) -> dict[int, float]:
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight must give the weight of each class by its number (0, 1, ...), got {class_weight!r}"
        )
    for number, weight in class_weight.items():
        if isinstance(weight, bool) or not isinstance(weight, Real):
            raise InputError(
                f"the weight of class {shown(number)} in class_weight must be a number, got {shown(weight)}"
            )
    return {_number_of(name): weight for name, weight in class_weight.items()}


def _number_of(name: Any) -> int:
    """The number of a class, which may be a float or a truth value that is equal to it, as in Keras.

    Raises:
        InputError: it is no whole number.
    """
    if not isinstance(name, (Real, np.bool_)) or name != name // 1:
        raise InputError(f"a class in class_weight must be a whole number, got {shown(name)}")
    return int(float(name))


def _weighted(dataset: Any, by_class: Mapping[int, float]) -> Any:
    _check_spec(dataset.element_spec)
    return dataset.map(lambda x, y: (x, y, _weights(y, by_class)))


def _check_spec(spec: Any) -> None:
    if not isinstance(spec, tuple) or len(spec) != 2 or not isinstance(spec[1], tf.TensorSpec):
        raise InputError(
            "class_weight goes with batches (x, y) with one tensor y of classes, and without sample weights; these are "
            f"{spec}"
        )


def _weights(y: Any, by_class: Mapping[int, float]) -> Any:
    first = min(by_class, default=0)
    known = max(by_class, default=first - 1) + 1 - first
    weights = [float(by_class.get(first + number, 1.0)) for number in range(known + 1)]  # the last for all others
    classes, others = _classes(y) - first, tf.constant(known, tf.int64)
    return tf.gather(tf.constant(weights), tf.where((classes < 0) | (classes > others), others, classes))


def _classes(targets: Any) -> Any:
    """The class of each example, from its number, or from a one-hot vector."""
    if targets.shape.rank is not None and targets.shape.rank >= 2:
        if targets.shape[-1] != 1:
            return tf.argmax(targets, -1)
        targets = tf.squeeze(targets, -1)
    return tf.cast(tf.round(targets) if targets.dtype.is_floating else targets, tf.int64)
