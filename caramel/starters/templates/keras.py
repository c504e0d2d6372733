"""A Keras model that reads the handwritten digits of scikit-learn: a script for one device.

On one device:    python $file
On two workers:   caramel run $file --workers 2
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

BATCH = 96  # examples in a step: of all workers together


def data():
    """Change this: training and test examples, each as (inputs, targets)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def compiled_model():
    """Change this: your model, compiled."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    return model


def main(epochs=5):
    """Train; with `caramel run`, fit trains on the workers."""
    keras.utils.set_random_seed(1)
    train, test = data()
    model = compiled_model()
    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=1).batch(BATCH)
    history = model.fit(batches, epochs=epochs, shuffle=False, validation_data=test, verbose=2)  # shuffled already
    model.save("digits.keras")
    return history.history


if __name__ == "__main__":
    main()
