"""What graphs say about sizes."""

import pytest
import tensorflow as tf

from caramel.graph.graph import Graph
from caramel.graph.shapes import SHAPES_ATTRIBUTE, static_shape, static_size, with_inferred_shapes


@pytest.mark.parametrize(
    "shape, size", [([], 1), ([3], 3), ([2, 5], 10), ([0, 4], 0), ([None, 4], None), (None, None)], ids=str
)
def test_a_static_size_is_the_product_of_all_sizes(shape, size):
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(tf.compat.v1.placeholder(tf.float32, shape), "x")
    assert static_size(with_inferred_shapes(Graph.from_graph_def(graph.as_graph_def())), "x:0") == size


@tf.function
def rows_twice(value):
    return tf.concat([value, value], 0)


def example():
    """Nodes whose shapes follow from constants, functions and each other, without their shapes."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 6], "x")
        parts = tf.split(rows_twice(x), 2, axis=1, name="parts")
        tf.reshape(parts[1], [-1, 3, 1], "reshaped")
        tf.reshape(x, tf.compat.v1.placeholder(tf.int32, [None], "shape"), "open")
        tf.no_op("nothing")
    return graph.as_graph_def()


def test_shapes_are_those_that_tensorflow_gives():
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(example(), name="")
    expected = {node.name: node for node in imported.as_graph_def(add_shapes=True).node}
    found = with_inferred_shapes(Graph.from_graph_def(example()))
    assert static_shape(found, "reshaped:0") == (None, 3, 1) and static_shape(found, "parts:1") == (None, 3)
    assert static_shape(found, "open") is None and SHAPES_ATTRIBUTE not in found["nothing"].attr
    for node in found:
        assert (SHAPES_ATTRIBUTE in node.attr) == (SHAPES_ATTRIBUTE in expected[node.name].attr)
        if SHAPES_ATTRIBUTE in node.attr:
            assert node.attr[SHAPES_ATTRIBUTE] == expected[node.name].attr[SHAPES_ATTRIBUTE], node.name


@pytest.mark.parametrize(("keep", "shape"), [(True, (2, None)), (False, None)])
def test_what_the_program_says_of_a_shape_can_be_kept(keep, shape):
    stated = example()
    (node,) = (node for node in stated.node if node.name == "open")
    node.attr[SHAPES_ATTRIBUTE].list.shape.append(tf.TensorShape([2, None]).as_proto())
    graph = Graph.from_graph_def(stated)
    found = with_inferred_shapes(graph, keep=keep)
    assert static_shape(found, "open") == shape
    assert static_shape(graph, "open") == (2, None)  # the graph itself stays as it is


def test_nodes_whose_shapes_are_known_are_the_same():
    first = with_inferred_shapes(Graph.from_graph_def(example()))
    for keep in (False, True):
        second = with_inferred_shapes(first, keep=keep)
        assert all(second[name] is node for name, node in first.nodes.items())
