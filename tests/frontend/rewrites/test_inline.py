"""Functions made part of a graph: the same values, and a name for each node."""

import numpy as np
import tensorflow as tf

from caramel.frontend.rewrites.inline import inline
from caramel.graph.graph import Graph
from caramel.graph.verify import verify_structure

v1 = tf.compat.v1


def test_an_op_with_the_name_of_one_of_a_function():
    @tf.function
    def inner(x):
        return tf.tanh(x, name="mine")

    @tf.function
    def outer(x):
        return inner(x) + tf.square(x, name="PartitionedCall/mine")

    with tf.Graph().as_default() as graph:
        result = outer(tf.constant([0.5, 2.0]))
    nodes = Graph.from_graph_def(graph.as_graph_def(add_shapes=True))
    bodies = [{n.name for n in function.node_def} for function in nodes.library.function]
    assert any(names >= {"PartitionedCall", "PartitionedCall/mine"} for names in bodies)
    inlined = inline(nodes)
    verify_structure(inlined.graph, "inline")
    with tf.Graph().as_default() as graph, v1.Session() as session:
        tf.import_graph_def(inlined.graph.to_graph_def(), name="")
        found = session.run(inlined.tensor(result.name))
    np.testing.assert_allclose(found, np.tanh([0.5, 2.0]) + np.square([0.5, 2.0]), rtol=1e-6)
