"""Batches from a keras.utils.PyDataset, and predictions for a generator."""

import sys

import keras
import numpy as np

keras.utils.set_random_seed(3)
x = np.random.default_rng(1).normal(size=(48, 4)).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")


def compiled(rate=0.05):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "binary_crossentropy", metrics=["accuracy"])
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        rows = slice(12 * number, 12 * number + 12)
        return x[rows], y[rows]


model = compiled()
history = model.fit(Batches(), epochs=2, shuffle=False, verbose=0)
results = [history.history["loss"], model.predict(((x[n : n + 4],) for n in range(0, 12, 4)), steps=3, verbose=0)]
results += model.get_weights()

np.savez(sys.argv[1], *results)
