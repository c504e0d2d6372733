"""Text that the model splits into words itself."""

import sys

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(3)
texts = tf.constant(["good day", "bad day", "good good night", "bad bad night"] * 6)
labels = np.array([1, 0, 1, 0] * 6, "float32")
words = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
words.adapt(texts)
model = keras.Sequential(
    [words, keras.layers.Embedding(20, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
)
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(8)
history = model.fit(data, epochs=2, verbose=0)
results = [history.history["loss"], model.predict(texts[:3], verbose=0)]
results += model.get_weights()

np.savez(sys.argv[1], *results)
