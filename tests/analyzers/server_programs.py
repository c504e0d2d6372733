"""Steps whose parts on workers and on servers are known by hand."""

import numpy as np
import tensorflow as tf

import caramel

SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def variable(name, shape, **options):
    values = np.random.default_rng(len(name)).normal(size=shape)
    return tf.Variable(values, dtype=tf.float64, name=name, **options)


def model_of(step, specs=SPECS, workers=2):
    """The Model of a step."""
    return caramel.capture(step, specs).for_workers(workers).model_for(workers)


def momentum_step(scale=lambda gradients: gradients, sizes=(4, 4)):
    """Two vectors with momentum, a count, a frozen rate, and the largest values that each worker has seen."""
    first, second = variable("first", sizes[:1]), variable("second", sizes[1:])
    slots = [variable(f"{v.name[:-2]}_momentum", v.shape, trainable=False) for v in (first, second)]
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)
    rate = tf.Variable(0.1, dtype=tf.float64, name="rate", trainable=False)
    largest = tf.Variable(tf.zeros([4], tf.float64), name="largest", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = tf.reduce_sum(first) * x
            loss = tf.reduce_mean((tf.reduce_sum(hidden, 1) * tf.reduce_sum(second) - y) ** 2)
        largest.assign(tf.maximum(largest, tf.reduce_max(x, 0)))
        count.assign_add(1)
        for v, slot, gradient in zip((first, second), slots, scale(tape.gradient(loss, (first, second)))):
            slot.assign(0.9 * slot + gradient)
            v.assign_sub(rate * slot)
        return loss

    return step


def clipped(gradients):
    """Scaled by the norm of all gradients."""
    norm = tf.sqrt(sum(tf.reduce_sum(g**2) for g in gradients))
    return [g / tf.maximum(norm, 1.0) for g in gradients]
