"""Whether a loss is a mean or a sum over the batch: concluded statically, checked by cutting the batch.

The oracle: two batches of different sizes, one by one and both as one. A mean of the whole is the
mean of the parts' weighted by their sizes, a sum is their sum.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.frontend.rewrites.inline import inline
from caramel.frontend.roles.tensor_reductions import Reductions
from caramel.graph.graph import Graph
from caramel.model import Input

v1 = tf.compat.v1
PARTS = (2, 4)


def analysed(loss, batch=None, variable=False):
    """(static conclusion, reason, values of two parts, value of the whole) of ``loss(x, y, w)``."""
    w = tf.constant(np.linspace(-1, 1, 12).reshape(3, 4), tf.float32)
    w = tf.Variable(w) if variable else w
    traced = tf.function(lambda x, y: loss(x, y, w)).get_concrete_function(
        tf.TensorSpec([batch, 3], name="x"), tf.TensorSpec([batch], tf.int64, name="y")
    )
    nodes = inline(Graph.from_graph_def(traced.graph.as_graph_def(add_shapes=True)))
    inputs = [Input("x", "x", "float32", (batch, 3), True), Input("y", "y", "int64", (batch,), True)]
    kind, reason = Reductions(nodes.graph, inputs).reduction_of(nodes.tensor(traced.graph.outputs[0].name))
    values = []
    if batch is None:
        rng = np.random.default_rng(0)
        images, labels = rng.uniform(0.1, 1, size=(6, 3)).astype(np.float32), np.array([0, 2, 3, 3, 2, 0])
        for part in (slice(0, 2), slice(2, 6), slice(0, 6)):
            values.append(np.sum(traced(tf.constant(images[part]), tf.constant(labels[part]))))
    return kind, reason, values


@functools.cache
def layer(kind, *arguments, **options):
    """A layer, once: a function that is traced may make variables only the first time."""
    return getattr(keras.layers, kind)(*arguments, **options)


def check(kind, values):
    """That the whole is what the parts say."""
    whole = np.dot(PARTS, values[:2]) / sum(PARTS) if kind == "mean" else sum(values[:2])
    np.testing.assert_allclose(values[2], whole, rtol=1e-4, atol=1e-6)


def per_example(x, y, w):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w))


def squares(x, y, w):
    return tf.square(tf.matmul(x, w) - tf.one_hot(y, 4))


def masked(x, y, w):
    weights = tf.ones_like(per_example(x, y, w))
    return tf.math.divide_no_nan(tf.reduce_sum(per_example(x, y, w) * weights), tf.reduce_sum(weights))


def scattered(x, w, offsets, first=0):
    """Three values of each example at places that begin with its number, if ``offsets`` of its number says so."""
    count, columns = tf.shape(x)[0], tf.range(3)
    first_of_all = tf.fill([3], first) if first else tf.zeros_like(columns)
    places = tf.tile(tf.expand_dims(tf.stack([first_of_all, columns], 1), 0), [count, 1, 1])
    return tf.scatter_nd(places + offsets(tf.range(count)[:, None])[:, None], x * w[0, 1], [count + first, 9])


def alignments(x, y, w, **options):
    """The loss of all alignments of two labels with three sounds."""
    sounds = tf.nn.tanh(x[:, :, None] * w[None]) * 3.0
    labels = tf.cast(tf.stack([y % 2 + 1, tf.minimum(y, 2) + 1], 1), tf.int32)
    count = tf.shape(x)[0]
    return tf.nn.ctc_loss(labels, sounds, tf.fill([count], 2), tf.fill([count], 3), logits_time_major=False, **options)


def row_written(x, y, w, axis):
    """Columns of the examples, of which one is written over; along axis 0, an example."""
    rows_of = x if axis == 0 else tf.transpose(x)
    return tf.tensor_scatter_nd_update(rows_of, [[1]], [2.0 * rows_of[0]]) * w[0, 0]


MEANS = {
    "scattered by the number of the example": lambda x, y, w: tf.reduce_mean(
        scattered(x, w, lambda numbers: numbers * (1, 0)) ** 2
    ),
    "alignments": lambda x, y, w: tf.reduce_mean(alignments(x, y, w, blank_index=0)),
    "alignments with another blank": lambda x, y, w: tf.reduce_mean(alignments(x, y, w, blank_index=-1)),
    "a column written": lambda x, y, w: tf.reduce_mean(row_written(x, y, w, 1) ** 2),
    "a column added to": lambda x, y, w: tf.reduce_mean(
        tf.tensor_scatter_nd_add(tf.transpose(x), [[0], [2]], tf.transpose(x)[:2]) ** 2
    ),
    "a column of a constant": lambda x, y, w: tf.reduce_mean(
        tf.tensor_scatter_nd_update(tf.zeros([3, tf.shape(x)[0]]), [[1]], tf.transpose(x)[:1]) * w[0, 0]
    ),
    "divided by the length of a range": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.size(tf.range(tf.shape(x)[0])), tf.float32)
    ),
    "reduce_mean": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)),
    "mean of all elements": lambda x, y, w: tf.reduce_mean(squares(x, y, w)),
    "mean, then sum": lambda x, y, w: tf.reduce_sum(tf.reduce_mean(squares(x, y, w), axis=0)),
    "sum over features, then mean": lambda x, y, w: tf.reduce_mean(tf.reduce_sum(squares(x, y, w), axis=1)),
    "sum over size": lambda x, y, w: tf.reduce_sum(squares(x, y, w)) / tf.cast(tf.shape(x)[0], tf.float32),
    "divided first": lambda x, y, w: tf.reduce_sum(per_example(x, y, w) / tf.cast(tf.size(y), tf.float32)),
    "with regulariser": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)) + 0.1 * tf.nn.l2_loss(w),
    "two means": lambda x, y, w: 0.3 * tf.reduce_mean(squares(x, y, w)) - tf.reduce_mean(per_example(x, y, w)),
    "transposed": lambda x, y, w: tf.reduce_sum(tf.reduce_mean(tf.transpose(squares(x, y, w)), axis=1)),
    "reshaped": lambda x, y, w: tf.reshape(tf.reduce_mean(squares(x, y, w)), []),
    "ones as weights": masked,
    "v1.losses": lambda x, y, w: v1.losses.sparse_softmax_cross_entropy(y, tf.matmul(x, w)),
    "v1.losses.mean_squared_error": lambda x, y, w: v1.losses.mean_squared_error(tf.one_hot(y, 4), tf.matmul(x, w)),
    "keras crossentropy": lambda x, y, w: keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
        y, tf.matmul(x, w)
    ),
    "keras mse": lambda x, y, w: keras.losses.MeanSquaredError()(tf.one_hot(y, 4), tf.matmul(x, w)),
    "keras huber": lambda x, y, w: keras.losses.Huber()(tf.one_hot(y, 4), tf.matmul(x, w)),
    "scaled": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)) * 1024.0,
    "keras cosine": lambda x, y, w: keras.losses.CosineSimilarity()(tf.one_hot(y, 4), tf.matmul(x, w)),
    "keras focal": lambda x, y, w: keras.losses.CategoricalFocalCrossentropy()(
        tf.one_hot(y, 4), tf.nn.softmax(tf.matmul(x, w))
    ),
    "keras kl": lambda x, y, w: keras.losses.KLDivergence()(tf.one_hot(y, 4), tf.nn.softmax(tf.matmul(x, w))),
    "keras sample weights": lambda x, y, w: keras.losses.MeanSquaredError()(
        tf.one_hot(y, 4), tf.matmul(x, w), sample_weight=x[:, 0]
    ),
    "keras mixed": lambda x, y, w: keras.losses.MeanAbsoluteError()(
        tf.one_hot(y, 4, dtype=tf.float16), tf.cast(tf.matmul(x, w), tf.float16)
    ),
    "embedding": lambda x, y, w: tf.reduce_mean(tf.nn.embedding_lookup(tf.transpose(w), y) * x),
    "class of each": lambda x, y, w: tf.reduce_mean(tf.gather(tf.nn.softmax(rows(x, w)), y, axis=1, batch_dims=1)),
    "attention": lambda x, y, w: tf.reduce_mean(
        tf.matmul(
            tf.nn.softmax(tf.matmul(x[:, :, None], rows(x, w)[:, None, :])),
            tf.tile(rows(x, w)[:, :, None], [1, 1, 2]),
        )
    ),
    "dense on sequences": lambda x, y, w: tf.reduce_mean(
        tf.tensordot(tf.tile(x[:, None, :], [1, 5, 1]), w, axes=[[2], [0]]) ** 2
    ),
    "convolution": lambda x, y, w: tf.reduce_mean(
        tf.nn.relu(tf.nn.conv1d(x[:, :, None], tf.reshape(w, [3, 1, 4]), 1, "SAME"))
    ),
    "dilated convolution": lambda x, y, w: tf.reduce_mean(
        tf.nn.relu(
            tf.nn.with_space_to_batch(
                tf.reshape(x, [-1, 3, 1, 1]),
                [2, 1],
                "VALID",
                lambda v, *_: tf.nn.conv2d(v, w[:2, :1, None, None], 1, "VALID"),
                filter_shape=[2, 1],
            )
        )
    ),
    "two batches as one": lambda x, y, w: tf.reduce_mean(tf.abs(rows(tf.concat([x, -x], 0), w))),
    "two batches as one and split": lambda x, y, w: tf.reduce_mean(
        tf.multiply(*tf.split(rows(tf.concat([x, 2.0 * x], 0), w), 2))
    ),
    "map over the examples": lambda x, y, w: tf.reduce_mean(
        tf.map_fn(lambda e: tf.reduce_max(tf.linalg.matvec(w, e, transpose_a=True)), x)
    ),
    "map over structures": lambda x, y, w: tf.reduce_mean(
        tf.map_fn(lambda e: e[0] * tf.cast(e[1], tf.float32), (x, y), fn_output_signature=tf.float32)
    ),
    "branch of a number": lambda x, y, w: tf.cond(
        tf.reduce_sum(w) > 4.0, lambda: tf.reduce_mean(x * w[0, :3]), lambda: 0.1 * tf.reduce_mean(squares(x, y, w))
    ),
    "loop of the program": lambda x, y, w: tf.reduce_mean(
        tf.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, tf.tanh(a + x)), [tf.constant(0), tf.zeros_like(x)])[1]
    ),
    "mean of means in a loop": lambda x, y, w: tf.while_loop(
        lambda i, a: i < 4, lambda i, a: (i + 1, a + tf.reduce_mean(x * w[0, 0])), [tf.constant(0), 0.0]
    )[1],
    "keras lstm": lambda x, y, w: tf.reduce_mean(layer("LSTM", 2)(x[:, :, None]) ** 2),
    "keras gru, sequences": lambda x, y, w: tf.reduce_mean(layer("GRU", 2, return_sequences=True)(x[:, :, None]) ** 2),
    "keras attention": lambda x, y, w: tf.reduce_mean(layer("MultiHeadAttention", 2, 3)(x[:, :, None], x[:, :, None])),
    "keras layer norm": lambda x, y, w: tf.reduce_mean(layer("LayerNormalization")(x) * x),
    "layer norm by moments": lambda x, y, w: tf.reduce_mean(
        tf.nn.batch_normalization(x, *tf.nn.moments(x, [1], keepdims=True), None, None, 1e-3) * x
    ),
    "batch norm of what does not depend on the batch": lambda x, y, w: (
        tf.reduce_mean(per_example(x, y, w))
        + tf.reduce_mean(v1.nn.fused_batch_norm(w[:, None, None, :], w[0], w[1], is_training=True)[0])
    ),
    "gradient penalty": lambda x, y, w: tf.reduce_mean(
        (tf.norm(tf.gradients(tf.reduce_sum(tf.tanh(rows(x, w)), 1), x)[0] + 1e-3, axis=1) - 1.0) ** 2
    ),
    "adversarial examples": lambda x, y, w: tf.reduce_mean(
        per_example(x + 0.1 * tf.sign(tf.gradients(tf.reduce_mean(per_example(x, y, w)), x)[0]), y, w)
    ),
    "divided by the larger of n and 1": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.maximum(tf.shape(x)[0], 1), tf.float32)
    ),
    "shape taken apart": lambda x, y, w: (
        tf.reduce_sum(squares(x, y, w)) / tf.cast(tf.reduce_prod(tf.shape(squares(x, y, w))), tf.float32)
    ),
    "columns counted": lambda x, y, w: (
        tf.reduce_mean(tf.reduce_sum(squares(x, y, w), 1)) / tf.cast(tf.shape(squares(x, y, w))[1], tf.float32)
    ),
    "time first": lambda x, y, w: tf.reduce_mean(tf.transpose(tf.reshape(tf.transpose(x), [3, -1, 1]), [1, 0, 2]) ** 2),
    "merged and taken apart": lambda x, y, w: tf.reduce_mean(
        tf.reduce_max(tf.reshape(tf.reshape(x, [-1, 1]) * w[0, 0], [tf.shape(x)[0], 3]), 1)
    ),
    "clipped examples": lambda x, y, w: tf.reduce_mean(tf.minimum(per_example(x, y, w), 1.0)),
}

SUMS = {
    "a size of chosen examples": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) * tf.cast(tf.shape(tf.boolean_mask(x, y > 1))[1], tf.float32)
    ),
    "reduce_sum": lambda x, y, w: tf.reduce_sum(per_example(x, y, w)),
    "l2_loss": lambda x, y, w: tf.nn.l2_loss(tf.matmul(x, w) - tf.one_hot(y, 4)),
    "keras sum": lambda x, y, w: keras.losses.MeanSquaredError(reduction="sum")(tf.one_hot(y, 4), tf.matmul(x, w)),
    "per example": per_example,
    "sum over a number": lambda x, y, w: tf.reduce_sum(squares(x, y, w)) / 7.0,
    "sum of means over features": lambda x, y, w: tf.reduce_sum(tf.reduce_mean(squares(x, y, w), axis=-1)),
}

UNKNOWN = {
    "root mean square": (lambda x, y, w: tf.sqrt(tf.reduce_mean(squares(x, y, w))), "Sqrt"),
    "sum with regulariser": (
        lambda x, y, w: tf.reduce_sum(per_example(x, y, w)) + tf.nn.l2_loss(w),
        "would count N times",
    ),
    "maximum": (lambda x, y, w: tf.reduce_max(per_example(x, y, w)), "Max"),
    "product of means": (
        lambda x, y, w: tf.reduce_mean(squares(x, y, w)) * tf.reduce_mean(per_example(x, y, w)),
        "not linear",
    ),
    "weights from the data": (
        lambda x, y, w: tf.reduce_sum(per_example(x, y, w) * x[:, 0]) / tf.reduce_sum(x[:, 0]),
        "not linear",
    ),
    "truth of the size": (
        lambda x, y, w: tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.cast(tf.shape(x)[0], tf.bool), tf.float32),
        "not linear",
    ),
    "all sizes": (
        lambda x, y, w: (
            tf.reduce_sum(squares(x, y, w)) / tf.cast(tf.reduce_prod(tf.shape(squares(x, y, w))[...]), tf.float32)
        ),
        "",
    ),
    "no input": (lambda x, y, w: tf.nn.l2_loss(w), "does not depend"),
}


def rows(x, w):
    return tf.matmul(x, w)


def size(x):
    return tf.shape(x)[0]


def number(x):
    return tf.cast(size(x), tf.float32)


def whole_number(value):
    return tf.cast(tf.cast(value, tf.int32), tf.float32)


def root(x, w):
    """Of what batch normalisation divides by."""
    return tf.sqrt(tf.reduce_mean(tf.square(rows(x, w)), 0))


NEITHER = {
    "an example written": lambda x, y, w: tf.reduce_mean(row_written(x, y, w, 0) ** 2),
    "scattered by a number that all have": lambda x, y, w: tf.reduce_mean(
        scattered(x, w, lambda numbers: numbers * (0, 0)) ** 2
    ),
    "scattered by the number in every coordinate": lambda x, y, w: tf.reduce_mean(
        scattered(x, w, lambda numbers: numbers * (1,)) * tf.range(9.0)
    ),
    "scattered by half of the number": lambda x, y, w: tf.reduce_mean(
        scattered(x, w, lambda numbers: tf.cast(tf.cast(numbers, tf.float32) * (1.0, 0.5), tf.int32)) * tf.range(9.0)
    ),
    "scattered to the next example": lambda x, y, w: tf.reduce_mean(
        scattered(x, w, lambda numbers: numbers * (1, 0), first=1)[:-1] ** 2
    ),
    "scattered by twice the number": lambda x, y, w: tf.reduce_sum(
        tf.scatter_nd(2 * tf.range(tf.shape(x)[0])[:, None], x * w[0, 1], [2 * tf.shape(x)[0], 3])[: tf.shape(x)[0]]
    ),
    "the number of chosen examples": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.shape(tf.boolean_mask(x, y > 1))[0], tf.float32)
    ),
    "all sizes of chosen examples": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.reduce_prod(tf.shape(tf.boolean_mask(x, y > 1))), tf.float32)
    ),
    "divided by the number of places in a mask": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.size(tf.where(y > 0)) + 1, tf.float32)
    ),
    "multiplied by places in a mask": lambda x, y, w: tf.reduce_sum(
        tf.gather(per_example(x, y, w), tf.where(y > 0)[:, 0]) * tf.cast(tf.where(y > 0)[:, 0], tf.float32)
    ),
    "beside places in a mask": lambda x, y, w: tf.reduce_sum(
        tf.stack([tf.gather(per_example(x, y, w), tf.where(y > 0)[:, 0]), tf.cast(tf.where(y > 0)[:, 0], tf.float32)])
    ),
    "looked up where places are not zero": lambda x, y, w: tf.reduce_sum(
        tf.gather(per_example(x, y, w), tf.cast(tf.cast(tf.where(y > 0)[:, 0], tf.bool), tf.int32))
    ),
    "divided by a size behind the examples": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.shape(tf.concat([y, [1, 2]], 0))[0], tf.float32)
    ),
    "masked mean": lambda x, y, w: tf.reduce_mean(tf.boolean_mask(per_example(x, y, w), y > 1)),
    "mean of gathered rows": lambda x, y, w: tf.reduce_mean(tf.gather(per_example(x, y, w), tf.where(y > 1)[:, 0])),
    "mean of a partition": lambda x, y, w: tf.reduce_mean(
        tf.dynamic_partition(per_example(x, y, w), tf.cast(y > 1, tf.int32), 2)[1]
    ),
    "hardest examples": lambda x, y, w: tf.reduce_mean(tf.math.top_k(per_example(x, y, w), 2)[0]),
    "contrastive": lambda x, y, w: tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.range(tf.shape(x)[0]), logits=tf.matmul(rows(x, w), rows(x, w), transpose_b=True)
        )
    ),
    "gram matrix": lambda x, y, w: tf.reduce_mean(tf.square(tf.matmul(rows(x, w), rows(x, w), transpose_a=True))),
    "einsum over the batch": lambda x, y, w: tf.reduce_sum(tf.square(tf.einsum("bi,bj->ij", rows(x, w), x))),
    "pairs": lambda x, y, w: tf.reduce_sum(tf.einsum("bi,ci->bc", rows(x, w), rows(x, w))),
    "softmax over the batch": lambda x, y, w: tf.reduce_sum(tf.nn.softmax(rows(x, w), 0) * x[:, :1]),
    "cumulative": lambda x, y, w: tf.reduce_mean(tf.cumsum(per_example(x, y, w))),
    "neighbours": lambda x, y, w: tf.reduce_mean(tf.abs(x[1:] - x[:-1]) * x[0, 0]),
    "reversed": lambda x, y, w: tf.reduce_mean(per_example(x, y, w) * x[::-1, 0]),
    "rolled": lambda x, y, w: tf.reduce_mean(per_example(x, y, w) * tf.roll(x, 1, 0)[:, 0]),
    "first example": lambda x, y, w: per_example(x, y, w)[0],
    "half of them": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)[: tf.shape(x)[0] // 2]),
    "by class": lambda x, y, w: tf.reduce_mean(tf.math.unsorted_segment_mean(per_example(x, y, w), y, 4)),
    "differences of all pairs": lambda x, y, w: tf.reduce_mean(tf.abs(x[:, None, 0] - x[None, :, 1])),
    "one column against one row": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)[:, None] * x[:, 0]),
    "own weights": lambda x, y, w: tf.reduce_mean(per_example(x, y, w) * x[:, 0] / tf.reduce_mean(x[:, 0])),
    "maximum over the batch": lambda x, y, w: tf.reduce_mean(tf.reduce_max(rows(x, w), 0)),
    "divided by n - 1": lambda x, y, w: tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.shape(x)[0] - 1, tf.float32),
    "divided by root n": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.sqrt(tf.cast(tf.shape(x)[0], tf.float32))
    ),
    "divided by n squared": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.shape(x)[0] ** 2, tf.float32)
    ),
    "divided by log n": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.math.log(tf.cast(tf.shape(x)[0], tf.float32))
    ),
    "divided by n, twice": lambda x, y, w: tf.reduce_mean(
        per_example(x, y, w) / tf.fill([tf.shape(x)[0]], tf.cast(tf.shape(x)[0], tf.float32))
    ),
    "two means stacked and added to a sum": lambda x, y, w: tf.reduce_sum(
        tf.stack([tf.reduce_mean(x * w[0, 0]), tf.reduce_sum(x * w[1, 1])])
    ),
    "pairs of examples": lambda x, y, w: (
        tf.reduce_mean(tf.reduce_max(tf.reshape(rows(x, w), [-1, 2, 4]), 1)) + tf.reduce_sum(per_example(x, y, w))
    ),
    "entropy of the mean": lambda x, y, w: (
        -tf.reduce_sum(
            tf.reduce_mean(tf.nn.softmax(rows(x, w)), 0) * tf.math.log(tf.reduce_mean(tf.nn.softmax(rows(x, w)), 0))
        )
    ),
    "moments matched": lambda x, y, w: tf.reduce_sum(tf.square(tf.reduce_mean(rows(x, w), 0) - 0.3)),
    "centred": lambda x, y, w: tf.reduce_mean(tf.square(rows(x, w) - tf.reduce_mean(rows(x, w), 0))),
    "normalised over the batch": lambda x, y, w: tf.reduce_mean(tf.math.l2_normalize(rows(x, w), 0)),
    "shuffled": lambda x, y, w: tf.reduce_mean(per_example(x, y, w) * tf.gather(x[:, 0], tf.argsort(x[:, 1]))),
    "sorted": lambda x, y, w: tf.reduce_sum(
        tf.sort(per_example(x, y, w)) * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    ),
    "the position in the batch": lambda x, y, w: tf.reduce_mean(
        per_example(x, y, w) * tf.cast(tf.range(tf.shape(x)[0]), tf.float32)
    ),
    "counted with a condition": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.reduce_sum(tf.cast(y > 1, tf.float32))
    ),
    "branch of the batch": lambda x, y, w: tf.cond(
        tf.reduce_sum(x) > 4.0,
        lambda: tf.reduce_mean(per_example(x, y, w)),
        lambda: 0.1 * tf.reduce_mean(squares(x, y, w)),
    ),
    "loop as long as an example says": lambda x, y, w: tf.while_loop(
        lambda i, a: i < tf.reduce_max(y), lambda i, a: (i + 1, a + tf.reduce_mean(x)), [tf.constant(0, tf.int64), 0.0]
    )[1],
    "scan over examples": lambda x, y, w: tf.reduce_mean(
        tf.scan(lambda a, e: 0.5 * a + e, per_example(x, y, w), initializer=0.0)
    ),
    "branches of the batch's mean": lambda x, y, w: tf.reduce_mean(
        tf.cond(tf.reduce_mean(x) > 0.55, lambda: tf.square(x @ w), lambda: tf.abs(x @ w))
    ),
    "branches of the size": lambda x, y, w: tf.reduce_mean(
        tf.cond(tf.shape(x)[0] > 3, lambda: tf.square(x @ w), lambda: tf.abs(x @ w))
    ),
    "several branches": lambda x, y, w: tf.reduce_mean(
        tf.switch_case(tf.shape(x)[0] // 3, [lambda: tf.square(x @ w), lambda: tf.abs(x @ w), lambda: x @ w])
    ),
    "a branch in a branch": lambda x, y, w: tf.cond(
        tf.reduce_sum(w) > -1.0,
        lambda: tf.cond(tf.reduce_mean(x) > 0.55, lambda: tf.reduce_mean(x @ w), lambda: tf.reduce_mean(tf.abs(x @ w))),
        lambda: tf.reduce_mean(tf.square(x @ w)),
    ),
    "one of two means, as the size says": lambda x, y, w: tf.where(
        tf.shape(x)[0] > 3, tf.reduce_mean(x @ w), tf.reduce_mean(tf.square(x @ w))
    ),
    "divided by a part of n, cut to an integer": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / whole_number(0.75 * number(x))
    ),
    "times a part of 1 / n, cut to an integer": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) * whole_number(9.0 / number(x))
    ),
    "times n in a dozen, cut to an integer": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) * tf.cast(15 // size(x), tf.float32)
    ),
    "divided by a part of n, divided as integers are": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w)) / tf.cast(tf.raw_ops.Div(x=3 * size(x), y=4), tf.float32)
    ),
    "divided by a part of some size and a half, cut to an integer": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w))
        / whole_number(number(x) * 0.3 + tf.cast(tf.size(x @ tf.boolean_mask(w, w[0] < 0.0, axis=1)), tf.float32))
    ),
    "a mean of integers": lambda x, y, w: tf.cast(tf.reduce_mean(tf.cast(10.0 * x, tf.int32)), tf.float32),
    "divided by a part of some size, cut to an integer": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w))
        / whole_number(0.3 * tf.cast(tf.size(x @ tf.boolean_mask(w, w[0] < 0.0, axis=1)), tf.float32))
    ),
    "a sum cut to an integer": lambda x, y, w: whole_number(tf.reduce_sum(1.3 * per_example(x, y, w))),
    "shifted by a root": lambda x, y, w: tf.reduce_mean(tf.abs(rows(x, w) - root(x, w))),
    "more than a root": lambda x, y, w: tf.reduce_mean(tf.where(rows(x, w) > root(x, w), rows(x, w), 0.0)),
    "times a root": lambda x, y, w: tf.reduce_mean(tf.abs(rows(x, w)) * root(x, w)),
    "normalised and shifted by a root": lambda x, y, w: tf.reduce_mean(tf.abs(rows(x, w) / root(x, w) - root(x, w))),
    "shifted by a normalised mean": lambda x, y, w: tf.reduce_mean(
        tf.abs(rows(x, w) - tf.reduce_mean(rows(x, w), 0) / root(x, w))
    ),
    "contrast of rows of pixels": lambda x, y, w: tf.reduce_mean(
        tf.abs(tf.image.adjust_contrast(rows(x, w)[:, None, :], 2.0))
    ),
    "a list with a term in the place of an example": lambda x, y, w: tf.reduce_sum(
        per_example(x, y, w) + tf.TensorArray(tf.float32, tf.shape(x)[0]).write(0, w[0, 0]).stack()
    ),
    "a list with terms in the places of two examples": lambda x, y, w: tf.reduce_sum(
        per_example(x, y, w)
        + tf.while_loop(
            lambda i, a: i < 2, lambda i, a: (i + 1, a.write(i, w[0, 0])), (0, tf.TensorArray(tf.float32, size(x)))
        )[1].stack()
    ),
    "a list with one example": lambda x, y, w: tf.reduce_sum(
        tf.TensorArray(tf.float32, size(x))
        .write(0, tf.TensorArray(tf.float32, size(x)).unstack(per_example(x, y, w)).read(0))
        .stack()
    ),
    "a list with the first two examples": lambda x, y, w: tf.reduce_sum(
        tf.while_loop(
            lambda i, a: i < 2,
            lambda i, a: (i + 1, a.write(i, tf.TensorArray(tf.float32, size(x)).unstack(x[:, 0]).read(i))),
            (0, tf.TensorArray(tf.float32, size(x))),
        )[1].stack()
    ),
    "a list of n - 1 entries": lambda x, y, w: (
        tf.reduce_mean(per_example(x, y, w))
        + tf.reduce_mean(tf.TensorArray(tf.float32, size(x) - 1, element_shape=()).write(0, w[0, 0]).stack())
    ),
    "a list of 2 n entries": lambda x, y, w: (
        tf.reduce_sum(per_example(x, y, w))
        + tf.reduce_sum(tf.TensorArray(tf.float32, 2 * size(x), element_shape=()).write(0, w[0, 0]).stack())
    ),
    "a sum with a term beside it": lambda x, y, w: tf.reduce_sum(
        tf.pad(tf.reduce_sum(squares(x, y, w), 0), [[0, 1]], constant_values=w[0, 0])
    ),
    "looked up with axes counted from the end": lambda x, y, w: tf.reduce_mean(
        tf.reduce_max(tf.raw_ops.GatherV2(params=w, indices=tf.stack([y, y, y]), axis=1, batch_dims=-1), 1)
    ),
    "correlation": lambda x, y, w: keras.losses.CosineSimilarity(axis=0)(x, tf.matmul(x, w)[:, :3]),
    "dice": lambda x, y, w: keras.losses.Dice()(tf.one_hot(y, 4), tf.sigmoid(tf.matmul(x, w))),
}

NORMALISED = {
    "moments": lambda x, y, w: tf.reduce_mean(
        tf.square(tf.nn.batch_normalization(rows(x, w), *tf.nn.moments(rows(x, w), [0]), None, w[0], 1e-3))
    ),
    "fused": lambda x, y, w: tf.reduce_mean(
        tf.square(v1.nn.fused_batch_norm(rows(x, w)[:, None, None, :], w[0], w[1], is_training=True)[0])
    ),
    "keras": lambda x, y, w: tf.reduce_mean(tf.square(layer("BatchNormalization")(rows(x, w), training=True))),
}

BY_HAND = {
    "written out": lambda x, y, w: tf.reduce_mean(
        tf.square((x - tf.reduce_mean(x, 0)) * tf.math.rsqrt(tf.math.reduce_variance(x, 0) + 1e-3) - 1.0)
    ),
    "divided by the root": lambda x, y, w: tf.reduce_mean(
        tf.tanh((rows(x, w) - tf.reduce_mean(rows(x, w), 0)) / (tf.math.reduce_std(rows(x, w), 0) + 1e-3))
    ),
    "divided by the larger of the root and a number": lambda x, y, w: tf.reduce_mean(
        tf.tanh(rows(x, w) / tf.maximum(root(x, w), 1e-3) + w[0])
    ),
    "times one over the root": lambda x, y, w: tf.reduce_mean(
        tf.tanh(rows(x, w) * (w[0] / root(x, w)) - tf.reduce_mean(rows(x, w), 0) / root(x, w))
    ),
}
"""What looks like batch normalisation, but is not that of TensorFlow: the statistics are those of the whole batch."""


@pytest.mark.parametrize("name", MEANS)
def test_means(name):
    kind, reason, values = analysed(MEANS[name])
    assert kind == "mean", reason
    check("mean", values)


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    kind, reason, values = analysed(SUMS[name])
    assert kind == "sum", reason
    check("sum", values)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_neither_is_asked_for(name):
    loss, why = UNKNOWN[name]
    kind, reason, _ = analysed(loss)
    assert kind is None
    assert why in reason


@pytest.mark.parametrize("name", [*NEITHER, *BY_HAND])
def test_what_is_neither_is_not_taken_for_one(name):
    kind, reason, values = analysed({**NEITHER, **BY_HAND}[name])
    assert kind is None, reason
    for wrong in ("mean", "sum"):  # it is not asked for without need
        with pytest.raises(AssertionError):
            check(wrong, values)


BRANCHES = [
    "branch of the batch",
    "branches of the batch's mean",
    "branches of the size",
    "several branches",
    "a branch in a branch",
]


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_that_the_batch_decides_may_touch_a_variable(name):
    """Such a branch is inlined: only a control edge leads from it to its condition."""
    kind, reason, _ = analysed(NEITHER[name], variable=True)
    assert kind is None
    assert "takes a branch that the examples decide" in reason


def test_a_branch_that_a_number_decides_may_touch_a_variable():
    kind, reason, values = analysed(
        lambda x, y, w: tf.cond(
            tf.reduce_sum(w) > 4.0, lambda: tf.reduce_mean(x @ w), lambda: 0.1 * tf.reduce_mean(squares(x, y, w))
        ),
        variable=True,
    )
    assert kind == "mean", reason
    check("mean", values)


@pytest.mark.parametrize("name", NORMALISED)
def test_normalised_by_the_batch(name):
    """As each worker normalises its own part, which a note says."""
    kind, reason, _ = analysed(NORMALISED[name])
    assert kind == "mean", reason


@pytest.mark.parametrize("name", ["keras crossentropy", "keras mse", "sum over size", "divided first", "reduce_mean"])
def test_a_static_batch_is_each_workers_own(name):
    kind, reason, _ = analysed(MEANS[name], batch=6)
    assert kind == "mean", reason


def trained(loss, variables, **options):
    """The reduction of a program that minimises ``loss(x, w, variables)`` as it is captured."""
    w = tf.Variable(np.linspace(-1, 1, 12).reshape(3, 4), dtype=tf.float32)

    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x, w, variables)
        w.assign_sub(0.1 * tape.gradient(value, w))
        return {"loss": value}

    return caramel.capture(step, inputs=[tf.TensorSpec([None, 3])], loss="loss", **options).model.reduction.kind


def by_what_was_seen(x, w, seen):
    seen.assign_add(tf.reduce_sum(tf.abs(x)))
    return tf.reduce_sum(tf.square(x @ w)) / seen


def test_a_variable_that_sums_write_in_a_loss():
    """It is that of all workers: the sums are made over them. See tests/exact/test_shared_statistics_exact.py."""

    def variable():
        return tf.Variable(1.0, trainable=False, name="seen")

    assert trained(by_what_was_seen, variable()) == "sum"
    assert trained(by_what_was_seen, variable(), loss_reduction="mean") == "mean"


def in_a_loop(x, w, seen):
    (_, total) = tf.while_loop(
        lambda i, a: i < 3,
        lambda i, a: (i + 1, a + tf.reduce_mean(tf.square(x @ w)) / seen[0]),
        (0, 0.0),
    )
    return total


@pytest.mark.parametrize("loss", [in_a_loop, lambda x, w, seen: tf.reduce_mean(tf.square(x @ w)) / seen[0]])
def test_a_variable_of_each_worker_in_a_loss(loss):
    def drawn(x, w, seen):
        seen.scatter_nd_update([[0]], tf.random.uniform([1], 1.0, 2.0))
        return loss(x, w, seen)

    with pytest.raises(caramel.CaptureError, match="variable 'seen.*has a value of its own on each worker"):
        trained(drawn, tf.Variable([1.0, 1.0], trainable=False, name="seen"))


def fused(x, w, averages):
    """As TensorFlow's layers call it: the op gets the moving averages and gives the new ones."""
    rows = (x @ w)[:, None, None, :]
    given, mean, variance = v1.nn.fused_batch_norm(
        rows, tf.ones(4), tf.zeros(4), *averages, is_training=True, exponential_avg_factor=0.1
    )
    averages[0].assign(mean)
    averages[1].assign(variance)
    return tf.reduce_mean(tf.abs(given))


def in_a_branch(x, w, averages):
    """Moving averages are written in a branch that the loss comes out of."""

    def training():
        mean, variance = tf.nn.moments(x @ w, [0])
        averages[0].assign(0.9 * averages[0] + 0.1 * mean)
        averages[1].assign(0.9 * averages[1] + 0.1 * variance)
        return tf.nn.batch_normalization(x @ w, mean, variance, None, None, 1e-3)

    return tf.reduce_mean(tf.abs(tf.cond(averages[2] > 0.0, training, lambda: x @ w)))


@pytest.mark.parametrize("loss", [fused, in_a_branch])
def test_moving_averages_that_a_loss_does_not_depend_on(loss):
    averages = [tf.Variable(value, trainable=False) for value in (tf.zeros(4), tf.ones(4), 1.0)]
    given = (lambda x, w, a: loss(x, w, a[:2])) if loss is fused else loss
    assert trained(given, averages) == "mean"


def test_moving_averages_that_stay_as_they_are():
    layer = keras.layers.BatchNormalization(trainable=False)
    layer.build([None, 4])
    assert trained(lambda x, w, _: tf.reduce_mean(tf.abs(layer(x @ w, training=True))), None) == "mean"


def test_a_branch_inside_a_loop_that_gets_a_variable_of_each_worker():
    """What a branch makes of such a variable is not what the loss has."""

    def loss(x, w, seen):
        seen.assign_add(tf.reduce_sum(tf.abs(x)))

        def again(i, a, b):
            a, b = tf.cond(i > 0, lambda: (tf.tanh(a), b + seen), lambda: (a, b))
            return i + 1, a, b

        return tf.reduce_mean(tf.while_loop(lambda i, a, b: i < 3, again, (0, x @ w, 0.0))[1])

    assert trained(loss, tf.Variable(1.0, trainable=False)) == "mean"
