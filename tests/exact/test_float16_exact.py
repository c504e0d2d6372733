"""Gradients in float16: what one device can hold each worker can, so updates are skipped in the same steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import mostly_in_soak

import caramel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 8)).astype(np.float32)
Y = (3 * X[:, :1]).astype(np.float32)
SPECS = [tf.TensorSpec([None, 8]), tf.TensorSpec([None, 1])]


def program(scale):
    """A step with a loss scale, and the optimizer."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, "relu", dtype="mixed_float16"), keras.layers.Dense(1)]
    network = keras.Sequential([keras.Input((8,)), *layers])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=scale)
    optimizer.build(network.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x, training=True) - y) ** 2)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients(zip(tape.gradient(scaled, network.trainable_variables), network.trainable_variables))
        return loss

    return step, network, optimizer


def after_a_step(scale, examples, workers):
    """Weights, number of updates and loss scale after a step; of one device without workers."""
    step, network, optimizer = program(scale)
    x, y = X[:examples], Y[:examples]
    if workers == 0:
        step(tf.constant(x), tf.constant(y))
    else:
        with caramel.ARModel(caramel.capture(step, SPECS), workers).session() as session:
            session.step(x, y)
            session.write_back()
    made = int(optimizer.inner_optimizer.iterations.numpy())
    return network.get_weights(), made, float(optimizer.dynamic_scale.numpy())


@pytest.mark.parametrize("examples", [64, 61])
@pytest.mark.parametrize("scale", mostly_in_soak([2.0**13, 2.0**14, 2.0**15, 2.0**16], 2.0**15, 2.0**16))
def test_as_many_updates_as_on_one_device(scale, examples):
    """With 2^15 a part's mean is too large where that of all examples is not; with 2^16 that is, too."""
    want, updates, scaled = after_a_step(scale, examples, 0)
    assert updates == (scale < 2**16)
    for workers in (2, 8, 16):
        found, *state = after_a_step(scale, examples, workers)
        assert state == [updates, scaled], workers
        for theirs, ours in zip(want, found):
            np.testing.assert_allclose(ours, theirs, atol=2e-3 * np.abs(theirs).max())


def test_a_sum_that_float16_does_not_hold_is_infinite():
    """Each worker's part of a gradient is small enough; that of one device is the sum, and is not."""
    weight = tf.Variable(tf.ones([1, 1]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(tf.matmul(tf.cast(x, tf.float16), tf.cast(weight, tf.float16)), tf.float32))
        weight.assign(tape.gradient(loss, weight))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 1])])
    large, small = np.full([4, 1], 60000.0, np.float32), np.full([4, 1], 100.0, np.float32)
    for batch, want in ((large, 60000.0), (small, 100.0)):
        with caramel.ARModel(context, 4).session() as session:
            session.step(batch)
            np.testing.assert_allclose(session.values()["w"], want, rtol=1e-3)

    def added(x):
        with tf.GradientTape() as tape:
            loss = (
                tf.reduce_mean(tf.cast(tf.matmul(tf.cast(x, tf.float16), tf.cast(weight, tf.float16)), tf.float32)) * 4
            )
        weight.assign(tape.gradient(loss, weight))
        return loss

    weight.assign(tf.ones([1, 1]))
    added(tf.constant(large))
    assert np.isinf(weight.numpy()).all()
    weight.assign(tf.ones([1, 1]))
    with caramel.ARModel(caramel.capture(added, [tf.TensorSpec([None, 1])]), 4).session() as session:
        session.step(large)
        assert np.isinf(session.values()["w"]).all()


def test_updates_of_rounded_gradients_are_not_sharded():
    layer = keras.layers.Dense(200, dtype="mixed_float16")
    network = keras.Sequential([keras.Input((8,)), layer])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.cast(network(x), tf.float32) ** 2)
        for variable, gradient in zip(network.trainable_variables, tape.gradient(loss, network.trainable_variables)):
            variable.assign_sub(0.1 * gradient)
        return loss

    plan = caramel.ARModel(caramel.capture(step, SPECS[:1]), 2, shard_updates=True).plan
    assert not plan.sharded and any("rounded to float16" in note for note in plan.notes)


def test_programs_without_float16_begin_as_ever():
    weight = tf.Variable(tf.ones([3]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weight) ** 2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 3])])
    assert context.model_for(2).seeds == ()
    assert not any("seed" in node.name for node in context.model_for(2).graph)
