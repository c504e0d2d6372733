"""The search for what to sum ends, also where nothing helps."""

import pytest
import tensorflow as tf

import caramel
from caramel.frontend.roles import forward_search


def test_a_loop_until_all_examples_have_settled_is_refused_at_once(monkeypatch):
    """Its rounds follow the examples. Sizes that are those of all examples already are not made so once more."""
    w = tf.Variable(0.1 * tf.ones([3, 3]))

    def step(x):
        with tf.GradientTape() as tape:
            z, change = tf.zeros_like(x), tf.constant(1.0)
            while change > 1e-3:
                after = tf.tanh(x + z @ w)
                change, z = tf.reduce_max(tf.abs(after - z)), after
            loss = tf.reduce_mean(tf.square(z))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    rounds, original = [], forward_search.with_size
    monkeypatch.setattr(forward_search, "with_size", lambda *args: rounds.append(args) or original(*args))
    context = caramel.capture(step, [tf.TensorSpec([None, 3])])
    with pytest.raises(caramel.CaptureError, match="a loop that runs as often as the examples say"):
        caramel.ARModel(context, 2)
    assert 0 < len(rounds) < 20
