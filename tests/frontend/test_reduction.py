"""Whether a loss is a mean or a sum over the batch: concluded statically, checked by doubling the batch.

The oracle: feed a batch and the same batch twice over. A mean stays, a sum doubles.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from caramel.frontend.reduction import reduction_of
from caramel.graph.graph import Graph
from caramel.model import Input

v1 = tf.compat.v1


def analysed(loss, batch=None):
    """(static conclusion, reason, value of a batch, value of the batch twice) of ``loss(x, y, w)``."""
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [batch, 3], name="x")
        y = v1.placeholder(tf.int64, [batch], name="y")
        w = tf.constant(np.linspace(-1, 1, 12).reshape(3, 4), tf.float32)
        tensor = loss(x, y, w)
        nodes = Graph.from_graph_def(graph.as_graph_def(add_shapes=True))
        inputs = [Input("x", "x", "float32", (batch, 3), True), Input("y", "y", "int64", (batch,), True)]
        kind, reason = reduction_of(nodes, tensor.name, inputs)
        values = []
        if batch is None:
            rng = np.random.default_rng(0)
            images, labels = rng.normal(size=(6, 3)), rng.integers(0, 4, 6)
            with v1.Session() as session:
                for times in (1, 2):
                    feeds = {x: np.tile(images, (times, 1)), y: np.tile(labels, times)}
                    values.append(np.sum(session.run(tensor, feeds)))
    return kind, reason, values


def per_example(x, y, w):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w))


def squares(x, y, w):
    return tf.square(tf.matmul(x, w) - tf.one_hot(y, 4))


def masked(x, y, w):
    weights = tf.ones_like(per_example(x, y, w))
    return tf.math.divide_no_nan(tf.reduce_sum(per_example(x, y, w) * weights), tf.reduce_sum(weights))


MEANS = {
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
    "batch statistics inside": lambda x, y, w: tf.reduce_mean(
        tf.square((x - tf.reduce_mean(x, 0)) * tf.math.rsqrt(tf.math.reduce_variance(x, 0) + 1e-3) - 1.0)
    ),
    "scaled": lambda x, y, w: tf.reduce_mean(per_example(x, y, w)) * 1024.0,
    "clipped examples": lambda x, y, w: tf.reduce_mean(tf.minimum(per_example(x, y, w), 1.0)),
}

SUMS = {
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
    "no input": (lambda x, y, w: tf.nn.l2_loss(w), "does not depend"),
}


@pytest.mark.parametrize("name", MEANS)
def test_means(name):
    kind, reason, (once, twice) = analysed(MEANS[name])
    assert kind == "mean", reason
    np.testing.assert_allclose(twice, once, rtol=1e-5)


@pytest.mark.parametrize("name", SUMS)
def test_sums(name):
    kind, reason, (once, twice) = analysed(SUMS[name])
    assert kind == "sum", reason
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_neither_is_asked_for(name):
    loss, why = UNKNOWN[name]
    kind, reason, _ = analysed(loss)
    assert kind is None
    assert why in reason


@pytest.mark.parametrize("name", ["keras crossentropy", "keras mse", "sum over size", "divided first", "reduce_mean"])
def test_a_static_batch_is_each_workers_own(name):
    kind, reason, _ = analysed(MEANS[name], batch=6)
    assert kind == "mean", reason
