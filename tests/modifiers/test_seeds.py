"""Functions that draw random numbers: every worker but the first has copies, however they are called."""

import pytest
import tensorflow as tf
from tensorflow.python.framework.function import Defun

from caramel.graph.graph import Graph, copied
from caramel.modifiers.seeds import DrawingFunctions


@pytest.mark.parametrize("draws", [True, False])
def test_a_function_that_is_called_by_its_name_as_an_op(draws):
    @Defun(tf.float32, func_name="noisy")
    def noisy(x):
        return x + (tf.random.uniform([], seed=3) if draws else 1.0)

    with tf.Graph().as_default() as built:
        noisy(tf.constant(1.0), name="call")
    graph = Graph.from_graph_def(built.as_graph_def())
    drawing = DrawingFunctions(graph)
    called = [drawing.renamed(copied(graph["call"]), rank).op for rank in range(2)]
    assert called == ["noisy", "noisy_worker_1" if draws else "noisy"]
    assert {f.signature.name for f in drawing.library(2).function} == set(called)
