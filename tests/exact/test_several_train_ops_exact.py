"""Several training ops of a TensorFlow 1 graph that are one step, as in `session.run([first, second])`."""

import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process, serial_config

import caramel
from caramel.errors import CaptureError

v1 = tf.compat.v1
BATCHES = [np.random.default_rng(seed).normal(size=(12, 3)) for seed in range(4)]


def build():
    """A generator and a discriminator, each with an optimizer of its own."""
    x = v1.placeholder(tf.float64, [None, 3], "x")
    with v1.variable_scope("G"):
        made = x @ v1.get_variable("w", initializer=np.full((3, 3), 0.1))
    with v1.variable_scope("D"):
        d = v1.get_variable("w", initializer=np.linspace(-1, 1, 3)[:, None])
    real, false = x @ d, made @ d
    losses = {
        "D": tf.reduce_mean(tf.nn.softplus(-real)) + tf.reduce_mean(tf.nn.softplus(false)),
        "G": tf.reduce_mean(tf.nn.softplus(-false)),
    }
    ops = [
        v1.train.AdamOptimizer(0.01, name=name).minimize(
            loss, var_list=v1.trainable_variables(name), name=f"train_{name}"
        )
        for name, loss in losses.items()
    ]
    return x, ops, losses["D"]


def one_device():
    with tf.Graph().as_default():
        x, ops, _ = build()
        with v1.Session(config=serial_config()) as session:
            session.run(v1.global_variables_initializer())
            for batch in BATCHES:
                session.run(ops, {x: batch})
            return {v.op.name: session.run(v) for v in v1.global_variables()}


@pytest.mark.parametrize("given", ["ops", "names", "attribute"])
@pytest.mark.parametrize("workers", [1, 3])
def test_several_ops_are_one_step(given, workers):
    with tf.Graph().as_default():
        with caramel.capture(**({"train_op": ["train_D", "train_G"]} if given == "names" else {})) as context:
            x, ops, loss = build()
            context.loss = loss
            if given != "names":
                context.train_op = ops
        with caramel.ARModel(context, workers).session(in_process()) as session:
            for batch in BATCHES:
                session.step({"x:0": batch})
            values = session.values()
    want = one_device()
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-9, err_msg=name)


def test_lists_that_do_not_fit():
    with tf.Graph().as_default(), caramel.capture() as context:
        build()
    for train_op, message in (
        ([], "empty list"),
        (["train_D", "nothing"], "'nothing' is not in the captured graph"),
        (None, "two training ops were found .*: say .* or give a list"),
    ):
        context = caramel.capture(context.graph, train_op=train_op, loss_reduction="mean")
        with pytest.raises(CaptureError, match=message):
            context.model  # noqa: B018
