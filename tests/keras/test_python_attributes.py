"""What a `train_step` changes in Python is changed once, as Keras traces it once."""

import keras
import numpy as np
import pytest

import caramel

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 4)), RNG.normal(size=(32, 1))


class Counting(keras.Model):
    """A model that counts its steps in Python."""

    made = 0
    seen: tuple[int, ...] = ()

    def train_step(self, data):
        self.made += 1
        self.seen = [*self.seen, self.made]
        return self.scaled_step(data, float(self.made * len(self.seen)))

    def scaled_step(self, data, scale):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = scale * self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Given(Counting):
    """The same, with attributes that are there before."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.made, self.seen = 3, [1]


@pytest.mark.parametrize("kind", [Counting, Given])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_count_of_steps_is_that_of_keras(kind, workers):
    def fitted(fit, **options):
        keras.utils.set_random_seed(1)
        inputs = keras.Input([4], dtype="float64")
        model = kind(inputs, keras.layers.Dense(1, dtype="float64")(inputs))
        model.compile(keras.optimizers.SGD(0.01), "mean_squared_error")
        history = fit(model, X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0, **options)
        return history.history["loss"], model.get_weights(), model.made, list(model.seen)

    losses, want, *counted = fitted(keras.Model.fit)
    found_losses, found, *found_counted = fitted(caramel.fit, workers=workers)
    assert found_counted == counted
    np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
    for ours, theirs in zip(found, want):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


class BuiltLate(keras.Model):
    """A model that works out numbers when it is built, and when it is called for the first time."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1, dtype="float64")
        self.scale = None

    def build(self, shape):
        self.width, self.scale = shape[-1], 2.0
        self.layer.build(shape)
        self.built = True

    def call(self, x):
        if not hasattr(self, "seen_width"):
            self.seen_width = x.shape[-1]
        return self.layer(x) * self.scale / self.width / self.seen_width


@pytest.mark.parametrize("rows", [32, 25])
def test_what_a_model_has_worked_out_stays(rows):
    def fitted(fit, **options):
        keras.utils.set_random_seed(1)
        model = BuiltLate()
        model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
        history = fit(model, X[:rows], Y[:rows], batch_size=16, shuffle=False, verbose=0, **options)
        return history.history["loss"]

    np.testing.assert_allclose(fitted(caramel.fit, workers=2), fitted(keras.Model.fit), rtol=1e-6)
