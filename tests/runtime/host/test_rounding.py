"""Deterministic mode is refused where TensorFlow rewrites graphs so that they round otherwise."""

import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError
from caramel.runtime.host.rounding import rounding_rewrites


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, []),
        ({"TF_XLA_FLAGS": "--tf_xla_auto_jit=0 --tf_xla_cpu_global_jit"}, []),
        ({"TF_XLA_FLAGS": "--tf_xla_auto_jit=-1"}, []),
        ({"TF_ENABLE_AUTO_MIXED_PRECISION": "0"}, []),
        ({"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit --tf_xla_auto_jit=2"}, ["XLA", "--tf_xla_auto_jit=2"]),
        ({"TF_XLA_FLAGS": "--tf_xla_auto_jit=fusible"}, ["XLA"]),
        ({"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}, ["mixed precision", "TF_ENABLE_AUTO_MIXED_PRECISION=1"]),
        ({"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "1"}, ["mixed precision"]),
    ],
)
def test_what_is_switched_on(environment, words):
    found = rounding_rewrites(environment)
    assert len(found) == bool(words) and all(word in found[0] for word in words)


def compiled(**options):
    w = tf.Variable([1.0, 2.0])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 2])]), 2, **options)


def test_deterministic_mode_is_refused_and_says_why(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE", "1")
    with pytest.raises(InputError, match="rank order.*mixed precision.*switch it off"):
        compiled(deterministic=True).session()
    compiled().session().close()  # without the promise it is the user's choice
    monkeypatch.undo()
    compiled(deterministic=True).session().close()


def test_the_rewrite_of_tensorflow_1_counts():
    v1 = tf.compat.v1.train.experimental
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    v1.enable_mixed_precision_graph_rewrite(optimizer)
    try:
        with pytest.raises(InputError, match="enable_mixed_precision_graph_rewrite"):
            compiled(deterministic=True).session()
    finally:
        v1.disable_mixed_precision_graph_rewrite()
