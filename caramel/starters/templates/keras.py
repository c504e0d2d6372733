"""A compiled Keras model that reads the handwritten digits of scikit-learn.

By fit, on the workers that main() names:   python $file
By the command, on two workers:             caramel run $file:program --workers 2 --steps 200
"""

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import caramel

BATCH = 96  # examples in a step of all workers together


def data():
    """Change this: training and test examples, each as (inputs, targets)."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return (images[360:], labels[360:]), (images[:360], labels[:360])


def compiled_model():
    """Change this: your model, compiled for one device."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    return model


def program():
    """What the command trains: one step of the model, its data, and what to report at the end."""
    keras.utils.set_random_seed(1)
    model, (train, test) = compiled_model(), data()

    @tf.function
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=inputs, y=targets, y_pred=model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def evaluate(inputs, targets):
        outputs = model(inputs, training=False)
        right = tf.equal(tf.argmax(outputs, axis=1), targets)  # change this with the targets
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}

    batches = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=1).batch(BATCH, drop_remainder=True)
    specs = [tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in test]
    return {
        "step": step,
        "data": batches.repeat(),  # the workers run this pipeline; without end, so --steps says how long
        "evaluation": {"function": evaluate, "inputs": specs, "data": test},
        "checkpoint": tf.train.Checkpoint(model=model, optimizer=model.optimizer),
    }


def main(workers=2, epochs=5):
    """Train by fit, with all that Keras' own fit has; cluster=caramel.Servers([...]) trains on other machines."""
    keras.utils.set_random_seed(1)
    train, test = data()
    model = compiled_model()
    return caramel.fit(model, *train, batch_size=BATCH, epochs=epochs, validation_data=test, workers=workers)


if __name__ == "__main__":
    main()
