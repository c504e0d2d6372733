"""Steps of a model's own that call helpers under `tf.function`, which are traced before the step is captured."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

pytestmark = pytest.mark.usefixtures("double")

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(30, 4)), RNG.normal(size=(30, 1))
Y[RNG.random(30) < 0.3] = np.nan


class TwoNetworks(keras.Model):
    """Its second network is trained by a helper, on what the first one predicts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1)
        self.second.build((None, 1))
        self.other_optimizer = keras.optimizers.SGD(0.1)

    def call(self, x):
        return self.first(x)

    @tf.function
    def masked_loss(self, predicted, y):
        mask = tf.cast(tf.math.is_finite(y), predicted.dtype)
        return tf.reduce_sum(mask * (predicted - tf.where(mask > 0, y, 0.0)) ** 2) / tf.reduce_sum(mask)

    @tf.function
    def train_second(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.masked_loss(self.second(tf.stop_gradient(self(x))), y)
        self.other_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.second.trainable_variables), self.second.trainable_variables)
        )

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.masked_loss(self(x), y)
        variables = self.first.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.train_second(x, y)
        return {"loss": loss}


def trained(fit):
    keras.utils.set_random_seed(5)
    model = TwoNetworks()
    model.compile(keras.optimizers.SGD(0.05))
    fit(model)
    return model


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_helpers_of_a_step_train_as_on_one_device(workers):
    options = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    want = trained(lambda model: model.fit(X, Y, **options))
    got = trained(lambda model: caramel.fit(model, X, Y, workers=workers, **options))
    assert len(want.variables) == 4
    for mine, theirs in zip(got.variables, want.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
