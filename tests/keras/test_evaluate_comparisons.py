"""`caramel.evaluate` and `caramel.predict` of models that compare the examples of a batch with each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN
from variants import in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")

X = np.random.default_rng(0).normal(size=(31, 5))
Y = np.random.default_rng(1).integers(0, 3, 31)


def contrast(z, y):
    """Each example with its other view, among those of all others."""
    z = tf.math.l2_normalize(z, 1)
    logits = tf.matmul(z, tf.math.l2_normalize(1.1 * z + 0.1, 1), transpose_b=True) / 0.2
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(tf.shape(z)[0]), logits=logits)
    return tf.reduce_mean(losses)


def hardest(z, y):
    """The farthest of an example's class, and the nearest of others."""
    distances = tf.reduce_sum((z[:, None] - z[None]) ** 2, -1)
    is_same = y[:, None] == y[None]
    far = tf.reduce_max(tf.where(is_same, distances, tf.zeros_like(distances)), 1)
    near = tf.reduce_min(tf.where(is_same, tf.fill(tf.shape(distances), tf.constant(1e9, z.dtype)), distances), 1)
    return tf.reduce_mean(tf.nn.relu(far - near + 0.3))


def of_classes(z, y):
    z = tf.math.l2_normalize(z, 1)
    logits = tf.matmul(z, z, transpose_b=True) / 0.5 - 1e9 * tf.eye(tf.shape(z)[0], dtype=z.dtype)
    is_same = tf.cast(y[:, None] == y[None], z.dtype) * (1 - tf.eye(tf.shape(z)[0], dtype=z.dtype))
    log_of = logits - tf.reduce_logsumexp(logits, 1, keepdims=True)
    return -tf.reduce_mean(tf.reduce_sum(is_same * log_of, 1) / (tf.reduce_sum(is_same, 1) + 1e-9))


def rank_of_its_own(z, y):
    """A share of examples, and not a loss."""
    order = tf.math.top_k(-tf.reduce_sum((z[:, None] - 1.1 * z[None] - 0.1) ** 2, -1), 1).indices[:, 0]
    return tf.reduce_mean(tf.cast(order == tf.range(tf.shape(z)[0]), z.dtype))


def different_classes(z, y):
    return tf.cast(tf.size(tf.unique(y)[0]), z.dtype)


def largest_of_classes(z, y):
    return tf.reduce_sum(tf.math.unsorted_segment_max(z, y, 3))


LOSSES = {
    f.__name__: f for f in (contrast, hardest, of_classes, rank_of_its_own, different_classes, largest_of_classes)
}


class Compares(keras.Model):
    def __init__(self, loss_of):
        super().__init__()
        self.embed, self.loss_of = keras.layers.Dense(4, "tanh"), loss_of
        self.mean, self.classes = keras.metrics.Mean(name="mean"), keras.metrics.Mean(name="classes")

    def call(self, x):
        return self.embed(x)

    def test_step(self, data):
        x, y = data
        loss = self.loss_of(self(x), y)
        self.mean.update_state(loss)
        self.classes.update_state(tf.unique(y)[0])
        return {"mean": self.mean.result(), "last": loss, "classes": self.classes.result()}

    def predict_step(self, x):
        z = self(x)
        nearest = tf.math.top_k(-tf.reduce_sum((z[:, None] - z[None]) ** 2, -1), 2).indices
        return {"centred": z - tf.reduce_mean(z, 0), "nearest": nearest}


def model_of(loss_of):
    keras.utils.set_random_seed(4)
    model = Compares(loss_of)
    model.compile()
    model(X)
    return model


@pytest.mark.parametrize("workers", [3, *in_soak(2, 4)])
@pytest.mark.parametrize("name", LOSSES)
def test_an_evaluation_is_that_of_one_device(name, workers):
    """Of batches of 13, 13 and 5 examples."""
    model = model_of(LOSSES[name])
    want = model.evaluate(X, Y, batch_size=13, verbose=0, return_dict=True)
    got = caramel.evaluate(model, X, Y, batch_size=13, workers=workers, verbose=0, return_dict=True, cluster=AS_WRITTEN)
    assert want["mean"] not in (0.0, 1.0)
    assert got == pytest.approx(want, rel=1e-9)


def test_predictions_are_those_of_one_device():
    model = model_of(contrast)
    want = model.predict(X, batch_size=13, verbose=0)
    got = caramel.predict(model, X, batch_size=13, workers=3, verbose=0, cluster=AS_WRITTEN)
    np.testing.assert_allclose(got["centred"], want["centred"], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(got["nearest"], want["nearest"])
