"""Arrays as Keras' own `fit` takes them, and the dataset of batches that the workers read instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.data.components import EXAMPLES_ATTRIBUTE
from caramel.data.serialise import SEED_ATTRIBUTE, VALUES_ATTRIBUTE
from caramel.errors import InputError
from caramel.keras.batch_layout import BatchLayout, template_of, without_none
from caramel.keras.sparse_tensors import held, is_sparse, rows_of, some_rows, sparse_tensor
from caramel.util.arguments import shown, whole_number

_SEED_LIMIT = 2**62

DEFAULT_BATCH_SIZE = 32
"""Number of examples in a batch where nobody says one, as in Keras."""


@dataclass(frozen=True)
class Arrays:
    """Examples in arrays, the first dimension of each of which counts the examples.

    Attributes:
        x: inputs: an array, or a structure of arrays.
        y: targets, likewise; None for none.
        sample_weight: weights of the examples, likewise; None for none.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None

    @classmethod
    def of(cls, x: Any, y: Any, sample_weight: Any) -> Arrays:
        """The examples of what a user gives: arrays, tensors, tables of pandas, sparse ones, or structures of these.

        Raises:
            InputError: something is no array, or the numbers of examples differ.
        """
        arrays = cls(*(_tensors(value, name) for value, name in ((x, "x"), (y, "y"), (sample_weight, "sample_weight"))))
        counts = {
            name: sorted({_length(array) for array in _leaves(value)})
            for name, value in (("x", arrays.x), ("y", arrays.y), ("sample_weight", arrays.sample_weight))
        }
        if len({count for of_one in counts.values() for count in of_one}) != 1:
            said = "; ".join(f"{name} has {' and '.join(map(str, n))}" for name, n in counts.items() if n)
            raise InputError(f"all arrays must have the same number of examples, their first dimension, but {said}")
        if isinstance(arrays.y, (tuple, dict)) and sample_weight is not None:
            arrays = cls(arrays.x, arrays.y, _weights_of_outputs(arrays.y, arrays.sample_weight))
        if arrays.examples == 0:
            raise InputError("the arrays are empty: they have no example to train on")
        return arrays

    @property
    def parts(self) -> tuple[Any, ...]:
        """``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        given = (self.x, self.y, self.sample_weight)
        return given if self.sample_weight is not None else given[: 1 if self.y is None else 2]

    @property
    def layout(self) -> BatchLayout:
        """How a model's step takes a batch of them: inputs alone stand for themselves, if they are no tuple."""
        is_alone = len(self.parts) == 1 and not isinstance(self.x, tuple)
        return BatchLayout(is_alone, template_of(self.parts))

    @cached_property
    def examples(self) -> int:
        """Number of examples."""
        return _length(_leaves(self.x)[0])

    def split(self, fraction: Any) -> tuple[Arrays, Arrays]:
        """The examples to train on, and the last ones, to validate on.

        Args:
            fraction: ``validation_split`` of Keras: the part of the last ones, between 0 and 1.

        Raises:
            InputError: it is no such number, or nothing is left on one side.
        """
        if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 < float(fraction) < 1:
            raise InputError(f"validation_split is a fraction between 0 and 1, got {shown(fraction)}")
        first = math.floor(self.examples * (1.0 - float(fraction)))
        if first in (0, self.examples):
            raise InputError(
                f"validation_split={fraction} of {self.examples} examples leaves none on one side: give another "
                "fraction, or more examples"
            )
        return self._part(slice(None, first)), self._part(slice(first, None))

    def _part(self, examples: slice) -> Arrays:
        def some(array: Any) -> Any:
            if array is None:
                return None
            return some_rows(array, examples) if is_sparse(array) else array[examples]

        parts = (getattr(self, name) for name in ("x", "y", "sample_weight"))
        return Arrays(*(tf.nest.map_structure(some, part) for part in parts))

    def dataset(self, batch_size: int, shuffle: Any) -> tf.data.Dataset:
        """Batches of the examples; a pass has each once.

        The pipeline shuffles numbers of examples, and looks the examples up batch by batch. The seed of the shuffle is
        beside the pipeline, so that another call on such arrays has the same one.

        Args:
            batch_size: number of examples in a batch; the last one may have fewer.
            shuffle: whether a pass has them in another order; ``"batch"`` for another order in each batch alone.
        """
        numbers = tf.data.Dataset.range(self.examples)
        if shuffle == "batch":
            seeds = tf.data.Dataset.random(rerandomize_each_iteration=True)
            numbers = tf.data.Dataset.zip(numbers.batch(batch_size), seeds).map(
                lambda batch, seed: tf.random.experimental.stateless_shuffle(batch, [seed, 0])
            )
        else:
            numbers = (numbers.shuffle(self.examples) if shuffle else numbers).batch(batch_size)
        # Beside the function and not in it, so that arrays with other values make the same function.
        parts = without_none(self.parts)
        leaves = tf.nest.flatten(parts)
        shapes = [tuple(leaf.shape[1:]) if is_sparse(leaf) else None for leaf in leaves]
        all_held = tuple(held(leaf) if is_sparse(leaf) else leaf for leaf in leaves)
        held_examples = tf.data.Dataset.from_tensors(all_held).repeat()

        def looked_up(batch: Any, examples: Any) -> Any:
            found = [
                tf.gather(of_leaf, batch) if shape is None else rows_of(of_leaf, shape, batch)
                for of_leaf, shape in zip(examples, shapes)
            ]
            return tf.nest.pack_sequence_as(parts, found)

        # The end of an iterator may wait for the thread that tunes its pipeline, and there is nothing to tune.
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = tf.data.Dataset.zip((numbers, held_examples)).map(looked_up).with_options(options)
        setattr(batches, VALUES_ATTRIBUTE, True)
        if self.examples % batch_size == 0:
            setattr(batches, EXAMPLES_ATTRIBUTE, batch_size)
        if shuffle:
            seed = tf.random.uniform([], 1, _SEED_LIMIT, tf.int64)  # follows from keras.utils.set_random_seed
            setattr(batches, SEED_ATTRIBUTE, int(seed))
        return batches


def are_arrays(x: Any) -> bool:
    """Whether this is an array or a structure of arrays, sparse ones included, and no dataset or the like."""
    if isinstance(x, (tf.data.Dataset, keras.utils.PyDataset)):
        return False
    if is_sparse(x):
        return True
    if isinstance(x, (list, tuple, Mapping)):  # of a model with an optional input one may be None
        parts = [part for part in (x.values() if isinstance(x, Mapping) else x) if part is not None]
        return len(parts) > 0 and all(map(are_arrays, parts))
    return hasattr(x, "shape") and hasattr(x, "__getitem__")


def _tensors(value: Any, name: str) -> Any:
    """The structure with NumPy arrays and sparse tensors in it: lists become tuples, floats Keras' floatx.

    Raises:
        InputError: something in it is no array.
    """
    if is_sparse(value):
        return sparse_tensor(value, name)
    if isinstance(value, (list, tuple)):
        return tuple(_tensors(part, name) for part in value)
    if isinstance(value, Mapping):
        return {key: _tensors(part, name) for key, part in value.items()}
    if value is None or isinstance(value, tf.RaggedTensor):
        return value
    array = _column(value)
    if array.ndim == 0:
        raise InputError(f"{name} must be an array whose first dimension counts the examples, got {shown(value)}")
    if array.dtype.kind in "mM":
        raise InputError(f"{name} is an array of {array.dtype}: make it one of numbers, such as seconds")
    if array.dtype.kind in "OSU":
        if not all(isinstance(text, (str, bytes)) for text in array.flat):
            raise InputError(f"{name} is an array of Python objects: make it one of numbers or of strings")
        return array.astype(object)
    floats = keras.config.floatx()
    return array.astype(floats) if tf.as_dtype(array.dtype).is_floating else array


def _column(value: Any) -> np.ndarray:
    """The array; of a column of a pandas table a matrix with one column, as in Keras."""
    array = np.asarray(value)
    is_column = type(value).__module__.startswith("pandas.") and type(value).__name__ == "Series"
    return array[:, None] if is_column else array


def _leaves(value: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(value) if leaf is not None]


def _length(array: Any) -> int:
    return int(array.shape[0])


def _weights_of_outputs(y: Any, weights: Any) -> Any:
    """Weights for each of several outputs; those of one array count for all.

    Raises:
        InputError: the weights are for other outputs.
    """
    if not isinstance(weights, (tuple, dict)):
        if weights.ndim > 2 or (weights.ndim == 2 and weights.shape[1] != 1):
            raise InputError("sample_weight has several weights of an example: give one array for each output")
        return tf.nest.map_structure(lambda target: None if target is None else weights, y)
    try:
        tf.nest.assert_same_structure(y, weights)
    except (ValueError, TypeError) as error:
        raise InputError("sample_weight must have one array for each output of y, in the same structure") from error
    return weights


def batch_size_of(batch_size: Any, examples: int, steps: int | None) -> int:
    """The number of examples in a batch: as given, or so that they make so many steps, or Keras' default."""
    if batch_size is not None:
        return whole_number(batch_size, "batch_size")
    return DEFAULT_BATCH_SIZE if steps is None else math.ceil(examples / steps)
