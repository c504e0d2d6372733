"""A small program with several gradients, distributed, and made-up steps of any size."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.facts import Trace
from caramel.report.step_timeline import Bar, Lanes, StepTimeline


@pytest.fixture(scope="session")
def context():
    """A captured step: two layers, squared error, gradient descent by hand."""
    first = tf.Variable(tf.ones([8, 16]), name="first")
    second = tf.Variable(tf.ones([16, 4]), name="second")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.relu(x @ first) @ second - 1.0) ** 2)
        for variable, gradient in zip((first, second), tape.gradient(loss, (first, second))):
            variable.assign_sub(0.01 * gradient)
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, 8])])


@pytest.fixture(scope="session")
def batch():
    """A batch of it."""
    return np.ones([12, 8], np.float32)


@pytest.fixture(scope="session")
def planned(context):
    """The program planned for three workers, with a prediction from made-up times."""
    op_s = {node.name: 1e-3 for node in context.model.graph if node.op in ("MatMul", "ReluGrad", "AssignSubVariableOp")}
    step_s = sum(op_s.values())
    trace = Trace(context.model.digest, op_s, {}, step_s, step_s, 1, 1, 4, "made up")
    return caramel.ARModel(context, 3, trace=trace, network=caramel.NetworkModel.from_link_rate(2e5))


@pytest.fixture
def large_step():
    """Function that makes a measured step of so many ops on each of so many workers, on two threads each."""

    def make(ops, workers, transfers=40):
        kinds = itertools.cycle(["forward pass", "backward pass", "update"])
        computation = tuple(
            Bar(kind, f"model/layer_{n}/some/long/name/of/an/op_{n}", n * 1e-5, n * 1e-5 + 1.7e-5)
            for n, kind in zip(range(ops), kinds)
        )
        step_s = ops * 1e-5
        link = tuple(
            Bar("transfer", f"transfer {n}", n * step_s / transfers, (n + 1) * step_s / transfers, n)
            for n in range(transfers)
        )
        received = tuple((n * step_s / 5000, 1000) for n in range(5000))
        lanes = tuple(Lanes(rank, computation, link, received) for rank in range(workers))
        return StepTimeline("measured", step_s + 1e-5, lanes, ("a note",))

    return make
