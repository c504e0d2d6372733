"""Results of a step that are functions of sums over the batch: those of one device, on every worker."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from variants import in_soak

import caramel

SIZES = {"even": 12, "uneven": 13, "fewer examples than workers": 2}


def batches(size):
    rng = np.random.default_rng(size)
    for _ in range(2):
        x = rng.normal(size=(size, 4)) + np.arange(size)[:, None] / 4  # workers see other means
        yield x, (np.arange(size) % 2).astype(np.float64), (np.arange(size) % 3 != 1)


def results(x, y, mask, outputs):
    """Metrics as people compute them in a step."""
    errors = (outputs - y) ** 2
    weights = tf.cast(mask, errors.dtype)
    guessed = tf.cast(outputs > 0, errors.dtype)
    hits, wrong = tf.reduce_sum(guessed * y), tf.reduce_sum(tf.abs(guessed - y))
    centred = y - tf.reduce_mean(y)
    return {
        "share": tf.reduce_sum(weights * tf.cast(guessed == y, errors.dtype)) / tf.reduce_sum(weights),
        "share, safely": tf.math.divide_no_nan(tf.reduce_sum(weights * errors), tf.reduce_sum(weights)),
        "rms": tf.sqrt(tf.reduce_mean(errors)),
        "f1": 2 * hits / (2 * hits + wrong),
        "perplexity": tf.exp(tf.reduce_mean(errors)),
        "r2": 1 - tf.reduce_sum(errors) / tf.reduce_sum(centred**2),
        "norm of the mean": tf.norm(tf.reduce_mean(x, 0)),
    }


def captured(reduce=tf.reduce_mean):
    w = tf.Variable(np.linspace(-1, 1, 4), name="w")

    def step(x, y, mask):
        with tf.GradientTape() as tape:
            outputs = tf.linalg.matvec(x, w)
            loss = reduce((outputs - y) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return {"loss": loss, **results(x, y, mask, outputs)}

    specs = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None], tf.float64), tf.TensorSpec([None], tf.bool)]
    return step, caramel.capture(step, specs, loss="loss"), w


@pytest.mark.parametrize("reduce", [tf.reduce_mean, *in_soak(tf.reduce_sum)])
@pytest.mark.parametrize(
    "workers, size", [(3, "uneven"), (4, "even"), *in_soak((1, "even"), (4, "fewer examples than workers"))]
)
def test_they_are_those_of_one_device(workers, size, reduce):
    step, context, w = captured(reduce)
    with caramel.ARModel(context, workers).session(in_process()) as session:
        got = [session.step(*batch) for batch in batches(SIZES[size])]
        value = session.values()["w"]
    want = [step(*map(tf.constant, batch)) for batch in batches(SIZES[size])]
    np.testing.assert_allclose(value, w.numpy(), rtol=1e-9)
    for mine, theirs in zip(got, want):
        for name, expected in theirs.items():
            if name != "loss":
                np.testing.assert_allclose(mine.outputs[name], [expected] * workers, rtol=1e-9, err_msg=name)


class Masked(keras.Model):
    """A model with a loss and an accuracy of its own, in both of its steps."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.share = keras.metrics.Mean(name="share")

    def call(self, x):
        return self.dense(x)[:, 0]

    @property
    def metrics(self):
        return [self.share]

    def _measured(self, data, outputs):
        x, (y, mask) = data
        weights = tf.cast(mask, outputs.dtype)
        right = tf.cast((outputs > 0) == (y > 0), outputs.dtype)
        self.share.update_state(tf.reduce_sum(right * weights) / tf.reduce_sum(weights))
        return tf.reduce_mean((outputs - tf.cast(y, outputs.dtype)) ** 2)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._measured(data, self(data[0], training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss, "share": self.share.result()}

    def test_step(self, data):
        loss = self._measured(data, self(data[0]))
        return {"loss": loss, "share": self.share.result()}


@pytest.mark.parametrize("workers", [3, *in_soak(1, 2)])
def test_a_metric_of_keras_that_is_updated_with_a_share(workers):
    x, y, mask = (np.concatenate(parts) for parts in zip(*batches(12), *batches(7)))
    data = tf.data.Dataset.from_tensor_slices((x, (y, mask))).batch(10)

    def made():
        keras.utils.set_random_seed(2)
        model = Masked()
        model.compile(keras.optimizers.SGD(0.1))
        return model

    plain, ours = made(), made()
    want = plain.fit(data, epochs=2, validation_data=data, verbose=0, shuffle=False)
    got = caramel.fit(ours, data, epochs=2, validation_data=data, verbose=0, workers=workers, cluster=in_process())
    assert got.history.keys() == want.history.keys()
    for name, values in want.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=1e-5, err_msg=name)
    evaluated = caramel.evaluate(ours, data, workers=workers, verbose=0, return_dict=True, cluster=in_process())
    for name, value in plain.evaluate(data, verbose=0, return_dict=True).items():
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-5, err_msg=name)
