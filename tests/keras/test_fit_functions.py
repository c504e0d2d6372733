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


class StepsUnderFunctions(keras.Model):
    """Both steps are under `tf.function`, branch on a tensor and update a metric with the loss of the batch."""

    def __init__(self):
        super().__init__()
        self.dense, self.mean = keras.layers.Dense(1), keras.metrics.Mean(name="mean")
        self.count = tf.Variable(0, dtype=tf.int64, trainable=False)

    def call(self, x):
        return self.dense(x)

    @tf.function
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            if self.count > 1:
                loss = 3.0 * loss
        self.count.assign_add(1)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}

    @tf.function(autograph=False)
    def test_step(self, data):
        x, y = data
        self.mean.update_state(self.compute_loss(x, y, self(x)))
        return {"mean": self.mean.result()}


@pytest.mark.parametrize("workers", [1, 3])
def test_steps_under_functions_train_as_on_one_device(workers):
    options = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    y = np.nan_to_num(Y)
    histories, models = [], []
    for fit in (keras.Model.fit, lambda model, *data, **more: caramel.fit(model, *data, workers=workers, **more)):
        keras.utils.set_random_seed(5)
        model = StepsUnderFunctions()
        model.compile(keras.optimizers.SGD(0.05), "mse")
        histories.append(fit(model, X, y, validation_data=(X[:20], y[:20]), **options).history)
        models.append(model)
    assert set(histories[1]) == {"mean", "val_mean"} == set(histories[0])
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-9)
    for mine, theirs in zip(models[1].weights, models[0].weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
