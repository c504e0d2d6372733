"""As a tuner does: a new model for each rate, and the best one goes on."""

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


tried = {}
for rate in (0.01, 0.1, 0.3):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    model = compiled(rate)
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_data=(x[:9], y[:9]))
    tried[history.history["val_loss"][-1]] = model
best = tried[min(tried)]
best.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
results = [sorted(tried), *best.get_weights()]

np.savez(sys.argv[1], *results)
