"""Checkpoints by a callback, and training that goes on with the model that was loaded."""

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


file = sys.argv[1] + ".keras"
model = compiled()
saving = keras.callbacks.ModelCheckpoint(file, monitor="val_loss", save_best_only=True)
split = {"validation_data": (x[:9], y[:9]), "shuffle": False, "verbose": 0}
model.fit(x, y, batch_size=16, epochs=2, callbacks=[saving], **split)
loaded = keras.models.load_model(file)
history = loaded.fit(x, y, batch_size=16, initial_epoch=2, epochs=3, **split)
results = [history.history["val_loss"], history.epoch, *loaded.get_weights()]

np.savez(sys.argv[1], *results)
