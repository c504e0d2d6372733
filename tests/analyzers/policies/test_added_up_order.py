"""Orders of gradients that are read from variables, in which several steps add them up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.policies.control_edges import ORDER_KINDS, control_edges
from caramel.analyzers.policies.order import order_by_cost
from caramel.analyzers.step.dependencies import find_dependencies

BATCH = np.ones([6, 5], np.int32), np.ones(6, np.float32)


def capture():
    """An embedding and a dense layer, whose gradients of two steps are applied at once."""
    net = keras.Sequential([keras.Input([5], dtype="int32"), keras.layers.Embedding(10, 8), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(net.trainable_variables)
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False, name=f"sum_{n}") for n, v in enumerate(net.variables)]
    count = tf.Variable(0, trainable=False, name="count")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(net(x) - y[:, None, None]))
        for total, gradient in zip(sums, tape.gradient(loss, net.trainable_variables)):
            total.assign_add(tf.convert_to_tensor(gradient) / 2)
        count.assign_add(1)

        def update():
            optimizer.apply_gradients([(s.read_value(), v) for s, v in zip(sums, net.trainable_variables)])
            for total in sums:
                total.assign(tf.zeros_like(total))
            return 1

        tf.cond(count % 2 == 0, update, lambda: 0)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 5], tf.int32), tf.TensorSpec([None])])


@pytest.fixture(scope="module")
def context():
    return capture()


@pytest.mark.parametrize("kind", ORDER_KINDS)
def test_no_variable_waits(context, kind):
    """Values are set between steps, when nothing is fed."""
    model = context.model
    needs = find_dependencies(model)
    edges = control_edges(model, needs, order_by_cost(model, needs, {}, ""), kind).edges
    assert edges and all(model.graph[after].op != "VarHandleOp" for _, after in edges)


@pytest.mark.slow
def test_it_is_traced_in_either_order(context):
    trace = caramel.trace(context, *BATCH, workers=2, runs=1, steps=2, progress=False)
    assert set(trace.ordered_step_s) == {"none", *ORDER_KINDS}
