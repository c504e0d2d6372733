"""Digits without labels: two noisy views of each image are to be alike, and unlike all others of the batch.

The loss compares the examples of all workers; an own `train_step` and `fit` are all there is to it.

Run it:                                python examples/digits_pairs.py [WORKERS]
"""

import sys

import keras
import tensorflow as tf

import caramel
import digits

BATCH = 96
TEMPERATURE = 0.2


class Pairs(keras.Model):
    """An encoder that learns from pairs of views."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(32),
            ]
        )
        self.mean_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        """What Keras resets before each epoch."""
        return [self.mean_loss]

    def call(self, images):
        """Vectors of length 1."""
        return tf.math.l2_normalize(self.encoder(images), axis=1)

    def train_step(self, data):
        """One step, on two views of each image."""
        first, second = data
        with tf.GradientTape() as tape:
            alike = tf.matmul(self(first), self(second), transpose_b=True) / TEMPERATURE
            own = tf.range(tf.shape(alike)[0])
            losses = keras.losses.sparse_categorical_crossentropy(own, alike, from_logits=True)
            loss = tf.reduce_mean(losses)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


def views(images):
    """A view with noise, and the image shifted by a pixel."""
    noise = 0.1 * tf.random.stateless_normal(tf.shape(images), (1, 2))
    return images + noise, tf.roll(images, 1, axis=2)


def batches():
    """Pairs of views, in batches of one size."""
    (images, _), _ = digits.load()
    return tf.data.Dataset.from_tensor_slices(images).batch(BATCH, drop_remainder=True).map(views)


def main(workers=4, epochs=5, verbose=2):
    """Train on N workers; returns the history and the trained model."""
    keras.utils.set_random_seed(1)
    model = Pairs()
    model.compile(keras.optimizers.Adam(2e-3))
    return caramel.fit(model, batches(), workers=workers, epochs=epochs, verbose=verbose).history, model


if __name__ == "__main__":
    history, _ = main(*map(int, sys.argv[1:]))
    print(f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}")
