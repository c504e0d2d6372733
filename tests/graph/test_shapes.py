"""What graphs say about sizes."""

import pytest
import tensorflow as tf

from caramel.graph.graph import Graph
from caramel.graph.shapes import static_size, with_inferred_shapes


@pytest.mark.parametrize(
    "shape, size", [([], 1), ([3], 3), ([2, 5], 10), ([0, 4], 0), ([None, 4], None), (None, None)], ids=str
)
def test_a_static_size_is_the_product_of_all_sizes(shape, size):
    graph = tf.Graph()
    with graph.as_default():
        tf.identity(tf.compat.v1.placeholder(tf.float32, shape), "x")
    assert static_size(with_inferred_shapes(Graph.from_graph_def(graph.as_graph_def())), "x:0") == size
