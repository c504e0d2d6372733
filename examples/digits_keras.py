"""A small convolutional network on handwritten digits: a Keras 3 model with its own training step.

Run it alone on one device:            python examples/digits_keras.py
The same file on 4 workers:            caramel run examples/digits_keras.py:program --workers 4 --steps 300
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

BATCH = 96
TEST = 360


def load():
    """The 1,797 digits that ship with scikit-learn, shuffled: (train images, labels), (test images, labels)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])


def batches(images, labels, seed=0):
    """Batches of one epoch after the other, forever, each epoch in an order of its own."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(labels))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield images[chosen], labels[chosen]


def program():
    """The training program for one device."""
    keras.utils.set_random_seed(1)
    train, test = load()
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(2e-3)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def evaluate(images, labels):
        logits = model(images, training=False)
        correct = tf.equal(tf.argmax(logits, axis=1), labels)
        return {"accuracy": tf.reduce_mean(tf.cast(correct, tf.float32)), "loss": loss_function(labels, logits)}

    specs = [tf.TensorSpec([None, 8, 8, 1], tf.float32), tf.TensorSpec([None], tf.int64)]
    return {
        "step": step,
        "inputs": specs,
        "data": lambda: batches(*train),
        "evaluation": {"function": evaluate, "inputs": specs, "data": test},
    }


def main(steps=300):
    """Train on one device; returns the losses and the test accuracy."""
    parts = program()
    losses = [float(parts["step"](*batch)) for batch, _ in zip(parts["data"](), range(steps))]
    accuracy = float(parts["evaluation"]["function"](*parts["evaluation"]["data"])["accuracy"])
    return losses, accuracy


if __name__ == "__main__":
    found, result = main()
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}, test accuracy {result:.2%}")
