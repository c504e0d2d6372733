"""The next word of sentences of any length: padding is masked, in the loss and in the accuracy.

Both divide by the number of words in the whole batch, of which each worker has a part.

Run it:                                python examples/next_words.py [WORKERS]
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import caramel
import text

WORDS, LENGTH, COUNT, BATCH = 500, 16, 1024, 64


def sentences():
    """(words, next words), padded with 0 to one length."""
    found, _ = text.words(WORDS - 1)
    rng = np.random.default_rng(0)
    table = np.zeros((COUNT, LENGTH + 1), np.int32)
    for row in table:
        start, length = rng.integers(0, len(found) - LENGTH - 1), rng.integers(4, LENGTH + 2)
        row[:length] = found[start : start + length] + 1
    return table[:, :-1], table[:, 1:]


def masked_loss(words, logits):
    """The mean loss over the words that are not padding."""
    mask = tf.cast(words != 0, logits.dtype)
    losses = keras.losses.sparse_categorical_crossentropy(words, logits, from_logits=True)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def masked_accuracy(words, logits):
    """How many of these are right."""
    mask = tf.cast(words != 0, logits.dtype)
    right = tf.cast(tf.argmax(logits, axis=-1, output_type=words.dtype) == words, logits.dtype)
    return tf.reduce_sum(right * mask) / tf.reduce_sum(mask)


def compiled():
    """A recurrent network; padding comes last, so it changes nothing before it."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 32),
            keras.layers.LSTM(48, return_sequences=True),
            keras.layers.Dense(WORDS),
        ]
    )
    model.compile(keras.optimizers.Adam(5e-3), masked_loss, metrics=[masked_accuracy])
    return model


def main(workers=4, epochs=5, verbose=2):
    """Train on N workers; returns the history."""
    words, following = sentences()
    model = compiled()
    return caramel.fit(
        model, words, following, workers=workers, epochs=epochs, batch_size=BATCH, verbose=verbose
    ).history


if __name__ == "__main__":
    history = main(*map(int, sys.argv[1:]))
    print(f"loss {history['loss'][-1]:.4f}, accuracy {history['masked_accuracy'][-1]:.2%}")
