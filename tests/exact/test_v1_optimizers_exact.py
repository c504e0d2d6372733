"""Optimizers of TensorFlow 1 in a step function of TensorFlow 2: their ops take handles of slots that nothing reads."""

import numpy as np
import pytest
import tensorflow as tf
from exact_common import CLASSES, INPUTS, assert_close, assert_moved, batches, in_process, train
from variants import each_once

import caramel

OPTIMIZERS = {
    "adam": lambda train: train.AdamOptimizer(0.01),
    "momentum": lambda train: train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adagrad": lambda train: train.AdagradOptimizer(0.05),
    "adadelta": lambda train: train.AdadeltaOptimizer(0.5),
    "ftrl": lambda train: train.FtrlOptimizer(0.05),
    "rmsprop": lambda train: train.RMSPropOptimizer(0.01, momentum=0.9, centered=True),
}


def program(name):
    """Variables and a step of a classifier with a table, whose gradient is sparse."""
    rng = np.random.default_rng(3)
    table = tf.Variable(rng.normal(size=(CLASSES, 5)), name="table")
    kernel = tf.Variable(rng.normal(size=(INPUTS + 5, CLASSES)) / 4, name="kernel")
    optimizer = OPTIMIZERS[name](tf.compat.v1.train)

    def step(x, y):
        with tf.GradientTape() as tape:
            features = tf.concat([x, tf.gather(table, tf.argmax(x[:, :CLASSES], 1))], 1)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(features, kernel))
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients(zip(tape.gradient(loss, [table, kernel]), [table, kernel]))
        return loss

    return [table, kernel], step


@pytest.mark.parametrize("name, workers", each_once([*OPTIMIZERS], [3, 1]))
def test_an_optimizer_of_tensorflow_1_in_a_step_function(name, workers):
    data = batches(12, "float64")
    variables, step = program(name)
    start, device = {v.name[:-2]: v.numpy() for v in variables}, tf.function(step)
    losses = [float(device(*batch)) for batch in data]
    want = {v.name[:-2]: v.numpy() for v in variables}
    assert_moved(start, want)
    _, step = program(name)
    specs = [tf.TensorSpec([None, INPUTS], tf.float64), tf.TensorSpec([None], tf.int64)]
    with caramel.ARModel(caramel.capture(step, inputs=specs), workers).session(in_process()) as session:
        got = train(session, data)
    np.testing.assert_allclose(got.losses, losses, rtol=1e-9)
    assert_close({key: got.values[key] for key in want}, want)
    assert len(got.values) > len(want)  # slots, of which there are as many as on one device
