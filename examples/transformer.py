"""A small Transformer that learns to write Python's language reference, one character after the other.

The data is a tf.data pipeline, so the workers run it themselves.

Run it alone on one device:            python examples/transformer.py
The same file on 4 workers:            caramel run examples/transformer.py:program --workers 4 --steps 200
"""

import keras
import numpy as np
import tensorflow as tf

import text

CONTEXT, BATCH, WIDTH, HEADS, BLOCKS = 48, 48, 64, 4, 2
TEST = 20_000


def windows(codes, count, seed):
    """Random windows of the text and, for each character, the one that follows."""
    starts = np.random.default_rng(seed).integers(0, len(codes) - CONTEXT - 1, count)
    cut = codes[starts[:, None] + np.arange(CONTEXT + 1)]
    return cut[:, :-1], cut[:, 1:]


def dataset(codes):
    """Batches without end; every window is cut out where it is used."""
    text_tensor = tf.constant(codes)
    starts = tf.data.Dataset.random(seed=1).map(lambda n: tf.cast(n % (len(codes) - CONTEXT - 1), tf.int32))

    def window(start):
        cut = text_tensor[start : start + CONTEXT + 1]
        return tf.ensure_shape(cut[:-1], [CONTEXT]), tf.ensure_shape(cut[1:], [CONTEXT])

    return starts.map(window).batch(BATCH)


def transformer(size):
    """Blocks of masked attention and a dense network, as in "Attention is all you need"."""
    layers = keras.layers
    codes = keras.Input([CONTEXT], dtype="int32")
    positions = layers.Embedding(CONTEXT, WIDTH)(tf.range(CONTEXT)[None])
    hidden = layers.Embedding(size, WIDTH)(codes) + positions
    for _ in range(BLOCKS):
        norm = layers.LayerNormalization()(hidden)
        hidden += layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(norm, norm, use_causal_mask=True)
        norm = layers.LayerNormalization()(hidden)
        hidden += layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(norm))
    return keras.Model(codes, layers.Dense(size)(layers.LayerNormalization()(hidden)))


def program():
    """The training program for one device."""
    keras.utils.set_random_seed(1)
    codes, alphabet = text.characters()
    model = transformer(len(alphabet))
    optimizer = keras.optimizers.AdamW(2e-3, global_clipnorm=1.0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(given, following):
        with tf.GradientTape() as tape:
            loss = loss_of(following, model(given, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def evaluate(given, following):
        logits = model(given, training=False)
        hits = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), following)
        return {"accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)), "loss": loss_of(following, logits)}

    specs = [tf.TensorSpec([None, CONTEXT], tf.int32), tf.TensorSpec([None, CONTEXT], tf.int32)]
    return {
        "step": step,
        "inputs": specs,
        "data": dataset(codes[:-TEST]),
        "evaluation": {"function": evaluate, "inputs": specs, "data": windows(codes[-TEST:], 100, seed=2)},
    }


def main(steps=200):
    """Train on one device; returns the losses and the test accuracy."""
    parts = program()
    losses = [float(parts["step"](*batch)) for batch in parts["data"].take(steps)]
    accuracy = float(parts["evaluation"]["function"](*parts["evaluation"]["data"])["accuracy"])
    return losses, accuracy


if __name__ == "__main__":
    found, result = main()
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}, of unseen characters {result:.2%} are guessed")
