"""Arrays, a validation split, evaluate and predict."""

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
history = model.fit(x, y, batch_size=12, epochs=2, validation_split=0.25, shuffle=False, verbose=0)
results = [history.history["loss"], history.history["val_accuracy"], model.evaluate(x, y, verbose=0)]
results += [model.predict(x[:7], verbose=0), *model.get_weights()]

np.savez(sys.argv[1], *results)
