"""A step waits for collectives of its forward pass: boundaries come later by what these take."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.order import order_by_cost
from caramel.analyzers.step.boundaries import find_boundaries
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.facts import ControlEdges, Trace
from caramel.graph import ops
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

START_S = 1e-3


def model(loss):
    w = tf.Variable(np.ones(3), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            value = loss(tf.linalg.matvec(x, w))
        w.assign_sub(0.1 * tape.gradient(value, w))
        return value

    return caramel.capture(step, inputs=[tf.TensorSpec([None, 3], tf.float64)]).model


def boundaries(step_model, runs=1):
    op_s = {n.name: 0.0 if n.op in ops.ZERO_COST_OPS else 1e-4 for n in step_model.graph}
    trace = Trace(step_model.digest, op_s, {}, sum(op_s.values()), sum(op_s.values()), runs, 1, None, "by hand")
    network = Network(CollectiveOptions("ring", 1, network=NetworkModel.from_costs(START_S / 2, 0.0)), 2)
    found = find_dependencies(step_model)
    order = order_by_cost(step_model, found, op_s, "by hand")
    return find_boundaries(step_model, found, trace, order, ControlEdges((), "none", ""), network)


@pytest.mark.parametrize(
    ("loss", "waits"),
    [
        (lambda y: tf.sqrt(tf.reduce_mean(y**2)), 1),
        (lambda y: tf.reduce_sum(y * tf.abs(y)) / tf.reduce_sum(tf.abs(y)), 2),
        # The gradient by the mean differs between workers, so that it is summed as well.
        (lambda y: tf.reduce_mean(tf.sqrt(y**2 / tf.reduce_mean(y**2) + 1)), 2),
    ],
    ids=["root", "ratio", "relative"],
)
def test_waits(loss, waits):
    step_model = model(loss)
    without = boundaries(replace(step_model, forward_sums=()))
    found = boundaries(step_model)
    assert found.compute_s - without.compute_s == pytest.approx(waits * START_S)
    (mine,), (before,) = found.gradients, without.gradients
    assert mine.ready_s - before.ready_s == pytest.approx(waits * START_S)


def test_nothing_is_known_without_measurements():
    step_model = model(lambda y: tf.sqrt(tf.reduce_mean(y**2)))
    assert boundaries(step_model, runs=0) == boundaries(replace(step_model, forward_sums=()), runs=0)
