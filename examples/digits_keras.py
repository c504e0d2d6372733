"""A small convolutional network on handwritten digits: a Keras 3 model with its own training step.

Run it alone on one device:            python examples/digits_keras.py
The same file on 4 workers:            caramel run examples/digits_keras.py:program --workers 4 --steps 300
"""

import keras
import tensorflow as tf

import digits

BATCH = 96


def program():
    """The training program for one device."""
    keras.utils.set_random_seed(1)
    train, test = digits.load()
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
        "data": lambda: digits.batches(*train, BATCH),
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
