"""Small programs of both kinds, and the randomness that a traced program must leave alone."""

import random

import numpy as np
import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1


def drawn():
    """The next numbers of every global source of randomness."""
    import keras

    return (
        random.random(),
        np.random.random(),
        float(tf.random.uniform([])),
        float(tf.random.get_global_generator().uniform([])),
        float(keras.random.uniform([])),
    )


def seed():
    """Give all of them a known state."""
    import keras

    keras.utils.set_random_seed(3)
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))


@pytest.fixture
def untouched():
    """Function that calls another one and checks that it drew nothing from global sources of randomness."""

    def check(function):
        seed()
        expected = drawn()
        seed()
        result = function()
        assert drawn() == expected
        return result

    return check


@pytest.fixture
def batch():
    """Eight examples."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)


@pytest.fixture
def mlp():
    """A captured TF1-style program of two layers, with Adam and a step counter."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 4], "x")
        y = v1.placeholder(tf.int64, [None], "y")
        w1 = v1.get_variable("w1", [4, 64], initializer=v1.random_normal_initializer(seed=1))
        w2 = v1.get_variable("w2", [64, 3], initializer=v1.random_normal_initializer(seed=2))
        hidden = tf.nn.relu(tf.matmul(x, w1, name="first"))
        logits = tf.matmul(tf.nn.dropout(hidden, rate=0.5, seed=3), w2, name="second")
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_or_create_global_step())
    return context


@pytest.fixture
def looping():
    """Function that captures a TF1-style program whose loss goes through a loop of three rounds."""

    def build():
        with caramel.capture() as context:
            x = v1.placeholder(tf.float32, [None, 4], "x")
            w = v1.get_variable("w", [4, 4], initializer=v1.ones_initializer())
            last = v1.while_loop(
                lambda n, v: n < 3,
                lambda n, v: (n + 1, tf.tanh(tf.matmul(v, w, name="inside"))),
                [0, x],
                name="loop",
            )[1]
            v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(last**2))
        return context

    return build
