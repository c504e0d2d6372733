"""What TensorFlow makes one op of, and steps that would never end because of that; against TensorFlow itself."""

import numpy as np
import pytest
import tensorflow as tf

from caramel.errors import InvariantError
from caramel.graph.fusion import fused_groups, verify_fusible
from caramel.graph.graph import Graph

v1 = tf.compat.v1
ops = tf.raw_ops


def gradients(order, gradient, other=None):
    """The gradients of a filter and a bias, of which one waits for the other, by a way of edges or values."""
    x = v1.placeholder(tf.float32, [2, 8, 8, 3], name="x")
    where = {"filter_sizes": [3, 3, 3, 4], "strides": [1, 1, 1, 1], "padding": "VALID"}
    bias_gradient = ops.BiasAddGrad(out_backprop=gradient, name="bias")
    with tf.control_dependencies([bias_gradient] if order else []):
        waiting = tf.exp(x, name="waiting")
    ops.Conv2DBackpropFilter(input=waiting, out_backprop=gradient if other is None else other, name="filter", **where)


def same_gradient(order):
    gradients(order, v1.placeholder(tf.float32, [2, 6, 6, 4], name="dy"))


def two_outputs_of_one_op(order):
    """oneDNN's pass looks at the op that both have a gradient of, not at which output that is."""
    first, second = tf.unstack(v1.placeholder(tf.float32, [2, 2, 6, 6, 4], name="dy"))
    gradients(order, first, second)


def bias(order):
    x = v1.placeholder(tf.float32, [2, 8, 8, 3], name="x")
    made = ops.Conv2D(input=x, filter=tf.ones([3, 3, 3, 4]), strides=[1] * 4, padding="VALID", name="filter")
    with tf.control_dependencies([made] if order else []):
        waiting = tf.exp(tf.reduce_mean(x, [0, 1, 2]), name="waiting")
    ops.BiasAdd(value=made, bias=tf.tile(waiting, [2])[:4], name="bias")


def pad(order):
    padded = tf.pad(v1.placeholder(tf.float32, [2, 8, 8, 3], name="x"), [[0, 0], [1, 1], [1, 1], [0, 0]], name="bias")
    kernel = v1.placeholder(tf.float32, [3, 3, 3, 4], name="dy")
    with tf.control_dependencies([padded] if order else []):
        waiting = tf.exp(kernel, name="waiting")
    ops.Conv2D(input=padded, filter=waiting, strides=[1] * 4, padding="VALID", name="filter")


PROGRAMS = [same_gradient, two_outputs_of_one_op, bias, pad]


def ends(graph):
    """Whether TensorFlow gives values for both ops."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with v1.Session(graph=graph, config=config) as session:
        # Of joined ones only the last may be fetched, which counts as a reader.
        last = [op for op in map(graph.get_operation_by_name, ("bias", "filter")) if not op.outputs[0].consumers()]
        placeholders = [op for op in graph.get_operations() if op.type == "Placeholder"]
        feeds = {op.outputs[0]: np.zeros(op.outputs[0].shape, np.float32) for op in placeholders}
        try:
            session.run(
                ["waiting:0", *(op.outputs[0] for op in last)], feeds, options=v1.RunOptions(timeout_in_ms=10_000)
            )
        except tf.errors.OpError:
            return False
        return True


@pytest.mark.parametrize("program", PROGRAMS)
def test_edges_through_a_joined_op_are_found(program):
    for order in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            program(order)
        assert ends(graph) == (not order)  # what TensorFlow does; where that changes, so may fused_groups
    free = tf.Graph()
    with free.as_default():
        program(False)
    step = Graph.from_graph_def(free.as_graph_def())
    assert fused_groups(step) and {"bias", "filter"} <= set(fused_groups(step)[0])
    first = "filter" if program is bias else "bias"
    verify_fusible(step, [("waiting", "bias" if program is bias else "filter")], "serialize")
    with pytest.raises(InvariantError, match="after serialize: TensorFlow makes one op of .* order nothing between"):
        verify_fusible(step, [(first, "waiting")], "serialize")


def test_what_others_read_too_is_not_joined():
    graph = tf.Graph()
    with graph.as_default():
        padded = tf.pad(v1.placeholder(tf.float32, [2, 8, 8, 3]), [[0, 0], [1, 1], [1, 1], [0, 0]])
        made = ops.Conv2D(input=padded, filter=tf.ones([3, 3, 3, 4]), strides=[1] * 4, padding="VALID")
        tf.nn.relu(made)
        tf.nn.relu(padded)
        tf.nn.bias_add(made, tf.ones([4]))
    assert fused_groups(Graph.from_graph_def(graph.as_graph_def())) == ()
