"""Differentiation from gradients that the program gives: what is reduced is their product with the target."""

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import CaptureError

v1 = tf.compat.v1


def captured(weights):
    """A step that differentiates one value for each example with given gradients of them."""
    w = tf.Variable(tf.ones([3]))

    def step(x):
        with tf.GradientTape() as tape:
            each = tf.linalg.matvec(x, w) ** 2
            mean = tf.reduce_mean(each)
        target, given = weights(x, each, mean)
        w.assign_sub(0.1 * tape.gradient(target, w, output_gradients=given))
        return mean

    return caramel.capture(step, inputs=[tf.TensorSpec([None, 3])])


KINDS = {
    "ones by number": (lambda x, each, mean: (each, tf.ones_like(each) / tf.cast(tf.size(each), tf.float32)), "mean"),
    "a number": (lambda x, each, mean: (mean, tf.constant(2.0)), "mean"),
    "of the examples": (lambda x, each, mean: (each, x[:, 0]), "sum"),
    "several": (lambda x, each, mean: ({"a": mean, "b": 2.0 * mean}, {"a": tf.constant(1.0), "b": None}), "mean"),
}


@pytest.mark.parametrize("name", KINDS)
def test_weights_count(name):
    weights, kind = KINDS[name]
    assert captured(weights).model.reduction.kind == kind


@pytest.mark.parametrize("name", ["ones by number", "of the examples"])
def test_exact(name):
    """Against the formula, over the whole batch."""
    weights, kind = KINDS[name]
    x = np.random.default_rng(0).uniform(0.5, 1.5, (6, 3)).astype(np.float32)
    model = caramel.ARModel(captured(weights), 3)
    with model.session(caramel.InProcess()) as session:
        session.step(x)
        (found,) = session.values().values()
    factor = np.full(6, 1 / 6) if kind == "mean" else x[:, 0]
    np.testing.assert_allclose(found, 1 - 0.1 * np.sum(2 * (x.sum(1) * factor)[:, None] * x, 0), rtol=1e-5)


def test_a_weight_that_is_a_mean_itself():
    with pytest.raises(CaptureError, match="caramel_weighted.* is not linear"):
        _ = captured(lambda x, each, mean: (mean, mean)).model


def test_in_a_finished_graph_it_is_asked_for():
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 3])
        w = v1.get_variable("w", [3], use_resource=True)
        each = tf.linalg.matvec(x, w) ** 2
        weights = tf.ones_like(each) / tf.cast(tf.size(each), tf.float32)
        (gradient,) = tf.gradients([each], [w], grad_ys=[weights])
        train = v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient, w)])
        loss = tf.reduce_mean(each)
    with pytest.raises(CaptureError, match="grad_ys"):
        _ = caramel.capture(graph, train_op=train, loss=loss).model
    assert caramel.capture(graph, train_op=train, loss=loss, loss_reduction="mean").model.reduction.kind == "mean"
