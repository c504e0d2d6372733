"""Handwritten digits in mixed precision: float16 inside, float32 parameters, a loss scale, on N workers by `fit`.

Run it:                                python examples/digits_mixed.py [WORKERS]
"""

import sys

import keras
import tensorflow as tf

import caramel
import digits

BATCH = 96


def datasets():
    """The digits as (training, test)."""
    training, test = map(tf.data.Dataset.from_tensor_slices, digits.load())
    return training.shuffle(2000, seed=1).batch(BATCH), test.batch(BATCH)


def compiled():
    """A compiled model; Keras wraps its optimizer in a LossScaleOptimizer for the policy mixed_float16."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    finally:
        keras.config.set_dtype_policy("float32")
    return model


def main(workers=4, epochs=5, verbose=2):
    """Train on N workers; returns the history."""
    training, test = datasets()
    return caramel.fit(
        compiled(), training, workers=workers, epochs=epochs, validation_data=test, statistics="mean", verbose=verbose
    ).history


if __name__ == "__main__":
    history = main(*map(int, sys.argv[1:]))
    print(f"loss {history['loss'][-1]:.4f}, test accuracy {history['val_accuracy'][-1]:.2%}")
