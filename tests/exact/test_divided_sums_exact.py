"""Gradients of a sum over the batch that the step itself divides by the number of rows, before its optimizer reads them.

Each worker has another number of rows; all divide by that of the whole batch.
"""

import exact_steps
import numpy as np
import pytest
import tensorflow as tf
from exact_matrix import OPTIMIZERS
from variants import mostly_in_soak

SPECS = [tf.TensorSpec([None, 5], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]
RNG = np.random.default_rng(3)
KERNELS = [RNG.normal(size=(5, 4)), RNG.normal(size=(4, 1))]


def batches(*rows):
    return [(RNG.normal(size=(n, 5)), RNG.normal(size=n)) for n in rows]


def sum_of_errors(kernels, x, y):
    first, last = kernels
    return tf.reduce_sum((tf.squeeze(tf.tanh(x @ first) @ last, 1) - y) ** 2)


def gradients_of_sum(kernels, x, y):
    with tf.GradientTape() as tape:
        loss = sum_of_errors(kernels, x, y)
    return loss, tape.gradient(loss, kernels)


def at_once(kernels, x, y):
    return gradients_of_sum(kernels, x, y)


def in_two_parts(kernels, x, y):
    size = tf.shape(x)[0] // 2
    first, of_first = gradients_of_sum(kernels, x[:size], y[:size])
    last, of_last = gradients_of_sum(kernels, x[size:], y[size:])
    return first + last, [a + b for a, b in zip(of_first, of_last)]


def program_of(optimizer, summed=at_once, **options):
    def make():
        kernels = [tf.Variable(value, name=f"kernel_{n}") for n, value in enumerate(KERNELS)]
        own = OPTIMIZERS[optimizer](**options)
        own.build(kernels)

        def step(x, y):
            rows = tf.cast(tf.shape(x)[0], tf.float64)
            loss, gradients = summed(kernels, x, y)
            own.apply_gradients([(g / rows, v) for g, v in zip(gradients, kernels)])
            return loss / rows

        return exact_steps.Program(step, SPECS, {v.name: v for v in kernels})

    return make


@pytest.mark.parametrize("optimizer", mostly_in_soak(OPTIMIZERS, "sgd", "adam", "adagrad", "ftrl"))
def test_each_optimizer(optimizer):
    exact_steps.check(program_of(optimizer), batches(12, 13, 2), 3)


@pytest.mark.parametrize("options", [{"global_clipnorm": 0.2}, {"clipvalue": 0.05}, {"use_ema": True}], ids=str)
def test_what_an_optimizer_does_with_gradients_before(options):
    exact_steps.check(program_of("adam", **options), batches(12, 13), 2)


def test_sums_of_two_parts():
    exact_steps.check(program_of("adam", in_two_parts), batches(12, 13), 2)
