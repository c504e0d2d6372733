"""Data in which each example is a number, and a step that says which ones it saw."""

import numpy as np
import tensorflow as tf

import caramel


def numbers(count, bad=()):
    """(number, number as float32) one by one; those in `bad` fail."""

    forbidden = tf.constant([*bad, -1], tf.int64)

    def check(number):
        good = tf.debugging.Assert(tf.reduce_all(number != forbidden), [number], name="good_number")
        with tf.control_dependencies([good]):
            return tf.identity(number), tf.cast(number, tf.float32)

    return tf.data.Dataset.range(count).map(check)


def model(data, workers=2, **options):
    """A model that says which examples it saw."""
    variable = tf.Variable(0.0, name="w")

    def step(number, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(variable - x))
        variable.assign_sub(0.1 * tape.gradient(loss, variable))
        return {"loss": loss, "seen": tf.identity(number)}

    return caramel.ARModel(caramel.capture(step, data=data), workers, **options)


def seen(result):
    """The examples of each worker; a worker without any computes with one that is not its own."""
    shares = [len(share) for share in result.outputs["seen"]]
    return np.concatenate(result.outputs["seen"]).tolist() if sum(shares) == result.examples else None
