"""Sparse tensors in data: batches of them are made dense where they are read.

Keras trains on SciPy's sparse matrices and on tf.SparseTensor. A layer gives the same for a batch that
is dense, and its gradients have the size of its variables anyway. All of the data stays sparse.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from caramel.data.components import is_dataset
from caramel.data.dataset import sample_dataset
from caramel.errors import InputError


def is_sparse(x: Any) -> bool:
    """Whether this is a tf.SparseTensor, or a sparse matrix of SciPy."""
    return isinstance(x, tf.SparseTensor) or hasattr(x, "tocsr")


def sparse_tensor(x: Any, name: str) -> tf.SparseTensor:
    """The tf.SparseTensor of sparse examples, in the order of its places; floats become Keras' floatx.

    Args:
        x: a tf.SparseTensor, or a sparse matrix of SciPy.
        name: the argument that it is, for messages.

    Raises:
        InputError: it has another number of dimensions than a matrix has, or more; or places that it does not have.
    """
    if len(x.shape) < 2:
        raise InputError(f"{name} is sparse and has {len(x.shape)} dimensions: make it dense")
    if isinstance(x, tf.SparseTensor):
        places, values, shape = x.indices.numpy(), x.values.numpy(), tuple(x.dense_shape.numpy())
    else:
        entries = x.tocoo()
        places = np.stack(entries.coords if hasattr(entries, "coords") else (entries.row, entries.col), axis=-1)
        values, shape = entries.data, entries.shape
    if ((places < 0) | (places >= shape)).any():
        raise InputError(f"{name} is sparse and has entries outside of its shape {list(map(int, shape))}")
    if values.dtype.kind == "f":
        values = values.astype(keras.config.floatx())
    if values.dtype.kind in "iufc":  # entries of one place are added up, as in a product with a matrix
        places, numbers = np.unique(places, axis=0, return_inverse=True)
        added = np.zeros(len(places), values.dtype)
        np.add.at(added, numbers.ravel(), values)
        values = added
    return tf.sparse.reorder(tf.SparseTensor(places.astype(np.int64), values, np.asarray(shape, np.int64)))


def some_rows(x: tf.SparseTensor, rows: slice) -> tf.SparseTensor:
    """Consecutive examples."""
    first, after, _ = rows.indices(int(x.shape[0]))
    return tf.sparse.slice(x, [first] + [0] * (len(x.shape) - 1), [after - first, *x.shape[1:]])


def held(x: tf.SparseTensor) -> tuple[Any, Any, Any]:
    """What `rows_of` looks up examples in: where the entries of each begin, their places in it, and their values."""
    counts = np.bincount(x.indices.numpy()[:, 0], minlength=int(x.shape[0]))
    return tf.constant(np.append(0, np.cumsum(counts)), tf.int64), x.indices[:, 1:], x.values


def rows_of(examples: tuple[Any, Any, Any], shape: tuple[int, ...], numbers: Any) -> Any:
    """A dense batch of some examples.

    Args:
        examples: see `held`.
        shape: shape of an example.
        numbers: numbers of the examples in the batch.
    """
    splits, places, values = examples
    places = tf.gather(tf.RaggedTensor.from_row_splits(places, splits, validate=False), numbers)
    values = tf.gather(tf.RaggedTensor.from_row_splits(values, splits, validate=False), numbers)
    places_in_batch = tf.concat([values.value_rowids()[:, None], places.flat_values], axis=1)
    size = tf.size(numbers, tf.int64)
    return _dense(tf.SparseTensor(places_in_batch, values.flat_values, tf.stack([size, *shape])), (None, *shape))


def dense_batch(part: Any) -> Any:
    """A part of a batch that Python code has made: an array, where it is sparse."""
    if isinstance(part, tf.SparseTensor):
        return _dense(part, part.shape).numpy()
    return part.toarray() if is_sparse(part) else part


def with_dense_batches(dataset: Any) -> Any:
    """A dataset whose batches have dense tensors for sparse ones; the same one if it has none.

    Args:
        dataset: a tf.data.Dataset, or a function that makes each worker's own.
    """
    if not any(isinstance(spec, tf.SparseTensorSpec) for spec in tf.nest.flatten(sample_dataset(dataset).element_spec)):
        return dataset
    if is_dataset(dataset):
        return _with_dense_batches(dataset)
    return lambda workers, rank: _with_dense_batches(sample_dataset(dataset, workers, rank))


def _with_dense_batches(dataset: Any) -> Any:
    def dense(tensor: Any) -> Any:
        return _dense(tensor, tensor.shape) if isinstance(tensor, tf.SparseTensor) else tensor

    def each_dense(*parts: Any) -> Any:
        batch = tf.nest.map_structure(dense, parts)
        return batch if isinstance(dataset.element_spec, tuple) else batch[0]

    return dataset.map(each_dense)


def _dense(tensor: tf.SparseTensor, shape: Any) -> Any:
    """The dense tensor, in which entries of one place are added up."""
    if tensor.dtype in (tf.bool, tf.string):
        return tf.ensure_shape(tf.sparse.to_dense(tf.sparse.reorder(tensor)), shape)
    return tf.ensure_shape(tf.scatter_nd(tensor.indices, tensor.values, tensor.dense_shape), shape)
