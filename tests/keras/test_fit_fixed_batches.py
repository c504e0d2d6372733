"""`caramel.fit`, `evaluate` and `predict` where batches have a fixed size that the model's own code uses as a number."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, FEATURES, arrays, same

import caramel

pytestmark = pytest.mark.usefixtures("double")

BATCH = 12


class OwnSteps(keras.Model):
    """A model with training and test steps of its own."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def call(self, x, training=None):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.seen.assign_add(float(x.shape[0]))
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        return {"loss": self.loss_of(x, y, self(x, training=False))}


class Counted(OwnSteps):
    """A loss that is divided by the number, and falls with the number of examples so far."""

    def loss_of(self, x, y, outputs):
        losses = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        return tf.reduce_sum(losses) / x.shape[0] * tf.exp(-0.01 * self.seen.value)


class Contrastive(OwnSteps):
    def loss_of(self, x, y, outputs):
        labels = tf.range(x.shape[0])
        losses = keras.losses.sparse_categorical_crossentropy(labels, 0.1 * outputs @ tf.transpose(outputs), True)
        return tf.reduce_mean(losses)


def dataset():
    x, y = arrays(5 * BATCH - 3)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)


def built(kind):
    keras.utils.set_random_seed(5)
    model = kind()
    model(np.zeros([2, FEATURES]))
    model.compile(keras.optimizers.Adam(0.02))
    return model


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("kind", [Counted, Contrastive])
def test_steps_of_its_own(kind, workers):
    alone, distributed = built(kind), built(kind)
    data, place = dataset(), {"workers": workers, "cluster": AS_WRITTEN}
    want = alone.fit(data, epochs=2, verbose=0)
    got = caramel.fit(distributed, data, epochs=2, verbose=0, **place)
    same((want, alone), (got, distributed))
    evaluated = caramel.evaluate(distributed, data, verbose=0, return_dict=True, **place)
    assert evaluated["loss"] == pytest.approx(alone.evaluate(data, verbose=0, return_dict=True)["loss"], rel=1e-9)


class Logged(OwnSteps):
    """Its optimizer has no variables before the first step, which uses the number after it has been applied."""

    def loss_of(self, x, y, outputs):
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "nothing": None, "number": x_of(data).shape[0], "as a float": float(x_of(data).shape[0])}


def x_of(data):
    return data[0]


def from_python():
    x, y = arrays(5 * BATCH - 3)
    types = (tf.TensorSpec([FEATURES], tf.float64), tf.TensorSpec([], tf.int64))
    examples = tf.data.Dataset.from_generator(lambda: zip(x, y), output_signature=types)
    # Else one device tries a step more than there is data for, of which it does what needs none.
    return examples.batch(BATCH, drop_remainder=True).apply(tf.data.experimental.assert_cardinality(4))


@pytest.mark.parametrize("data", [dataset, from_python])
def test_numbers_in_logs(data):
    alone, distributed = built(Logged), built(Logged)
    want = alone.fit(data(), epochs=2, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that data of Python goes through this process
        got = caramel.fit(distributed, data(), epochs=2, verbose=0, workers=3, cluster=AS_WRITTEN)
    assert got.history.pop("nothing") == want.history.pop("nothing") == [None, None]
    same((want, alone), (got, distributed))
    assert got.history["number"] == got.history["as a float"] == [BATCH, BATCH]


class OfItsBatch(keras.layers.Layer):
    def build(self, shape):
        self.scale = 1.0 / (shape[0] or 7)

    def call(self, x):
        return x * self.scale


def test_layers_that_are_built_for_a_batch():
    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([OfItsBatch(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    alone, distributed = make(), make()
    want = alone.fit(dataset(), verbose=0)
    got = caramel.fit(distributed, dataset(), verbose=0, workers=2, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed))


class TakenApart(keras.layers.Layer):
    """A layer that takes the shape apart, whatever is known of it."""

    def call(self, x):
        batch, features = x.shape
        return tf.reshape(x, [tf.shape(x)[0] if batch is None else batch, features, 1])[:, :, 0]


@pytest.mark.parametrize("workers", [3, 5])
def test_layers_that_handle_unknown_sizes(workers):
    def make():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((FEATURES,)), TakenApart(), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
        return model

    alone, distributed = make(), make()
    want = alone.fit(dataset(), epochs=1, verbose=0)
    got = caramel.fit(distributed, dataset(), epochs=1, verbose=0, workers=workers, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed))
    np.testing.assert_allclose(
        caramel.predict(distributed, dataset(), workers=workers, verbose=0, cluster=AS_WRITTEN),
        alone.predict(dataset(), verbose=0),
        rtol=1e-9,
    )


def test_a_number_that_does_not_divide():
    with pytest.raises(caramel.CaptureError, match="the 12 examples of a batch do not divide between 5 workers"):
        caramel.fit(built(Counted), dataset(), verbose=0, workers=5, cluster=AS_WRITTEN)
