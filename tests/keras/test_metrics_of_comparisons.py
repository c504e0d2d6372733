"""Metrics that count what examples of a batch have in comparison with each other: what one device counts."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN
from variants import in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")

X = np.random.default_rng(0).normal(size=(26, 5))
"""Of which batches of eight have a last one of two, fewer than there are workers."""


class Views(keras.Model):
    """Two views of each example, which a loss tells from those of all others; or a loss of each example by itself."""

    def __init__(self, is_contrast=True):
        super().__init__()
        self.embed, self.is_contrast = keras.layers.Dense(4), is_contrast
        self.counts = {
            "mean": keras.metrics.Mean(name="mean"),
            "sum": keras.metrics.Sum(name="sum"),
            "hits": keras.metrics.TruePositives(name="hits"),
            "accuracy": keras.metrics.BinaryAccuracy(name="accuracy"),
            "of_each": keras.metrics.Mean(name="of_each"),
        }

    def call(self, x):
        return self.embed(x)

    @property
    def metrics(self):
        return list(self.counts.values())

    def found(self, x):
        """The loss, which views were found, and how sure that is."""
        views = tf.math.l2_normalize(tf.concat([self(x), self(1.1 * x + 0.1)], 0), 1)
        size = tf.shape(x)[0]
        logits = tf.matmul(views, views, transpose_b=True) / 0.5 - 1e9 * tf.eye(2 * size, dtype=views.dtype)
        own = tf.concat([tf.range(size, 2 * size), tf.range(size)], 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=own, logits=logits)
        if not self.is_contrast:
            losses = tf.reduce_sum(self(x) ** 2, 1)
        is_found = tf.cast(tf.argmax(logits, 1, output_type=tf.int32) == own, views.dtype)
        return tf.reduce_mean(losses), is_found, tf.reduce_max(tf.nn.softmax(logits), 1)

    def count(self, x, is_found, sureness):
        self.counts["mean"].update_state(sureness)
        self.counts["sum"].update_state(is_found)
        self.counts["hits"].update_state(is_found[:, None], sureness[:, None])
        self.counts["accuracy"].update_state(is_found[:, None], sureness[:, None])
        self.counts["of_each"].update_state(tf.reduce_sum(self(x) ** 2, 1))
        return {name: metric.result() for name, metric in self.counts.items()}

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss, *found = self.found(x)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return self.count(x, *found)

    def test_step(self, x):
        return self.count(x, *self.found(x)[1:])


def made(**options):
    keras.utils.set_random_seed(1)
    model = Views(**options)
    model(X)
    model.compile("sgd")
    return model


OPTIONS = {"batch_size": 8, "verbose": 0}


@pytest.mark.parametrize("workers", [1, 4, *in_soak(2, 3)])
def test_fit_and_evaluate(workers):
    alone, distributed = made(), made()
    want = alone.fit(X, shuffle=False, epochs=2, **OPTIONS)
    got = caramel.fit(distributed, X, shuffle=False, epochs=2, workers=workers, cluster=AS_WRITTEN, **OPTIONS)
    for name, values in want.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=1e-9, err_msg=name)
    want = alone.evaluate(X, return_dict=True, **OPTIONS)
    got = caramel.evaluate(distributed, X, return_dict=True, workers=workers, cluster=AS_WRITTEN, **OPTIONS)
    assert got == pytest.approx(want, rel=1e-9)


def test_a_loss_that_compares_nothing():
    """Its metrics would need all examples for themselves."""
    with pytest.raises(caramel.CaptureError, match="metric 'mean' is updated with values for which"):
        caramel.fit(made(is_contrast=False), X, workers=2, cluster=AS_WRITTEN, **OPTIONS)


class Centred(keras.Model):
    """Its outputs are those of the examples less their mean, for a metric alone."""

    def __init__(self):
        super().__init__()
        self.dense, self.spread = keras.layers.Dense(3), keras.metrics.Mean(name="spread")

    def call(self, x):
        return self.dense(x)

    @property
    def metrics(self):
        return [self.spread]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            outputs = self(x)
            loss = tf.reduce_mean(outputs**2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return self.count(outputs)

    def test_step(self, x):
        return self.count(self(x))

    def count(self, outputs):
        self.spread.update_state(tf.reduce_sum((outputs - tf.reduce_mean(outputs, 0)) ** 2, 1))
        return {"spread": self.spread.result()}


def test_metrics_of_what_is_centred():
    model = Centred()
    model(X)
    model.compile("sgd")
    want = model.evaluate(X, **OPTIONS)
    got = caramel.evaluate(model, X, workers=3, cluster=AS_WRITTEN, **OPTIONS)
    np.testing.assert_allclose(got, want, rtol=1e-9)
    weights = model.get_weights()
    want = model.fit(X, shuffle=False, **OPTIONS).history["spread"]
    model.set_weights(weights)
    got = caramel.fit(model, X, shuffle=False, workers=3, cluster=AS_WRITTEN, **OPTIONS).history["spread"]
    np.testing.assert_allclose(got, want, rtol=1e-9)
