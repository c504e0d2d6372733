"""The order in which gradients become ready, read off the traces of real steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.policies.order import computing_ops_with_fused
from caramel.facts import Dependencies
from caramel.measure.step_stats import ready_orders, traced_step
from caramel.runtime.host.run_options import RunOptions

WORKERS, STEPS = 3, 25
layers = keras.layers


def mixed(x, width):
    """Branches of different depths, as in an Inception network."""
    one = layers.Conv2D(width, 1, activation="relu")(x)
    three = layers.Conv2D(width, 3, padding="same")(layers.Conv2D(width, 1, activation="relu")(x))
    pooled = layers.Conv2D(width, 1)(layers.AveragePooling2D(3, 1, "same")(x))
    return layers.Concatenate()([one, layers.BatchNormalization()(three), pooled])


@pytest.fixture(scope="module")
def program():
    keras.utils.set_random_seed(5)
    inputs = keras.Input((8, 8, 3))
    outputs = layers.Dense(10)(layers.Flatten()(mixed(mixed(inputs, 4), 4)))
    network, optimizer = keras.Model(inputs, outputs), keras.optimizers.SGD(1e-3)

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = network(x, training=True)
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True))
        trained = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    context = caramel.capture(step, inputs=[tf.TensorSpec([None, 8, 8, 3]), tf.TensorSpec([None], tf.int32)])
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(16, 8, 8, 3)).astype(np.float32), rng.integers(0, 10, 16)
    return (
        context,
        batch,
        caramel.trace(context, *batch, workers=WORKERS, workers_on_host=1, runs=2, steps=2, orders=False),
    )


def orders(program, serialization, count):
    context, batch, trace = program
    armodel = caramel.ARModel(context, WORKERS, trace=trace, serialization=serialization, batching=False)
    found = computing_ops_with_fused(context.model, armodel.facts[Dependencies])
    order = {name: found[name] for name in armodel.plan.order}
    with armodel.session(caramel.InProcess(RunOptions(optimize_graph=False))) as session:
        steps = (traced_step(session, *batch) for _ in range(count))
        return armodel.plan, ready_orders(steps, order, WORKERS)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [STEPS, pytest.param(8 * STEPS, marks=pytest.mark.soak)])
def test_one_order_on_every_worker(program, steps):
    plan, found = orders(program, True, steps)
    assert plan.edges and not any(found.missing)
    assert found.distinct == (1,) * WORKERS
    assert found.common == plan.order


@pytest.mark.slow
def test_many_without(program):
    plan, found = orders(program, False, STEPS)
    assert not plan.edges and not any(found.missing)
    assert max(found.distinct) > 1 and found.common is None
