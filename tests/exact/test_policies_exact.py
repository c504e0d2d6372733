"""Gradients in pieces, by priority and within a credit: the bits of a training in which nothing is scheduled."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, trained

import caramel
from caramel.facts import BACKWARD, FORWARD, Trace

WORKERS = 3
SIZES = (300, 200, 160, 10)
SPECS = [tf.TensorSpec([None, SIZES[0]]), tf.TensorSpec([None, SIZES[-1]])]


def layers() -> Program:
    """Three layers with momentum, of 240, 128 and 6 kB and biases."""
    rng = np.random.default_rng(3)
    weights = [
        tf.Variable(rng.normal(size=shape).astype(np.float32) / shape[0] ** 0.5, name=f"w{n}")
        for n, shape in enumerate(zip(SIZES, SIZES[1:]))
    ]
    biases = [tf.Variable(tf.zeros([size]), name=f"b{n}") for n, size in enumerate(SIZES[1:])]
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    parameters = [*weights, *biases]
    optimizer.build(parameters)

    def step(x, y):
        with tf.GradientTape() as tape:
            for w, b in zip(weights, biases):
                x = tf.tanh(tf.matmul(x, w) + b)
            loss = tf.reduce_mean((x - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, parameters), parameters))
        return loss

    slots = {v.path: v for v in optimizer.variables if "momentum" in v.path}
    return Program(step, SPECS, {v.name: v for v in parameters} | slots)


def batches(steps=5):
    rng = np.random.default_rng(5)
    return [
        tuple(rng.normal(size=(12, size)).astype(np.float32) for size in (SIZES[0], SIZES[-1])) for _ in range(steps)
    ]


def options_of(policy):
    def options(context):
        model = context.model
        op_s = {node.name: 1e-3 if node.op == "MatMul" else 1e-5 for node in model.graph}
        step_s = sum(op_s.values())
        trace = Trace(model.digest, op_s, {}, step_s, step_s, 1, 1, 4, "made up")
        # All gradients take about as long to send as the computation, so they need both windows.
        network = caramel.NetworkModel.from_link_rate(5e7, 1e-5)
        return {"trace": trace, "network": network, "policy": policy, "deterministic": True}

    return options


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("policy", ["bytescheduler", "p3"])
def test_a_policy_changes_no_bit(policy, together):
    losses, values, armodel = trained(layers, batches(), WORKERS, options_of(policy), together=together)
    plan = armodel.plan
    assert {t.window for t in plan.transfers} == {FORWARD, BACKWARD}
    assert max(map(len, plan.pieces.values())) > 1 and plan.in_flight.credit_bytes is not None
    assert any(t.reason.startswith("backward window: the first to be read") for t in plan.transfers)
    assert any(note.startswith("schedule: by priority of the next read within a credit") for note in plan.notes)
    plain = {"deterministic": True, "scheduling": False, "serialization": False}
    want_losses, want, unscheduled = trained(layers, batches(), WORKERS, lambda context: plain)
    assert {t.window for t in unscheduled.plan.transfers} == {BACKWARD}
    assert losses == want_losses
    assert set(values) == set(want) and len(want) == 12
    for name, value in want.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)
