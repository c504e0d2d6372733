"""A frozen body, then all of it with a smaller rate."""

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


model = compiled()
model.layers[0].trainable = False
model.compile("adam", "binary_crossentropy")
model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
model.layers[0].trainable = True
model.compile(keras.optimizers.Adam(1e-4), "binary_crossentropy")
history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
results = [history.history["loss"], *model.get_weights()]

np.savez(sys.argv[1], *results)
