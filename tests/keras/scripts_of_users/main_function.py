"""A main function with arguments, of which the exit status is the last word."""

import argparse
import sys

import keras
import numpy as np


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    keras.utils.set_random_seed(3)
    x = np.linspace(-1, 1, 40, dtype="float32").reshape(20, 2)
    inputs = {"a": keras.Input([1], name="a"), "b": keras.Input([1], name="b")}
    outputs = keras.layers.Dense(1)(keras.layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, outputs)
    model.compile("rmsprop", "mse")
    weights = np.linspace(0, 1, 20)
    history = model.fit(
        {"a": x[:, :1], "b": x[:, 1:]}, x.sum(axis=1), 8, options.epochs, 0, shuffle=False, sample_weight=weights
    )
    np.savez(options.out, history.history["loss"], *model.get_weights())
    return 0


if __name__ == "__main__":
    sys.exit(main())
