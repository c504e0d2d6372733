"""Functions under names that follow from what they do."""

import pytest
import tensorflow as tf

from caramel.errors import InvariantError
from caramel.graph.canonical_functions import canonical, merged_libraries


def traced(function):
    """The graph of a function with a While and a Cond in it, whose names have numbers of this process."""

    @tf.function
    def inner(x):
        return tf.while_loop(lambda v: tf.reduce_sum(v) < 100.0, lambda v: [function(v)], [x])[0]

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        tf.identity(tf.cond(tf.reduce_sum(x) > 0.0, lambda: inner(x), lambda: inner(-x)), name="result")
    return graph.as_graph_def()


def run(nodes, library, value):
    graph_def = tf.compat.v1.GraphDef()
    graph_def.node.extend(nodes)
    graph_def.library.CopyFrom(library)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        (x, result) = tf.import_graph_def(graph_def, return_elements=["x:0", "result:0"], name="")
        return session.run(result, {x: value}).tolist()


def test_the_same_code_has_the_same_names():
    first = canonical(*_parts(traced(lambda v: v * 2.0)))
    tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([]))  # moves TensorFlow's numbers on
    again = canonical(*_parts(traced(lambda v: v * 2.0)))
    assert [n.SerializeToString(deterministic=True) for n in first[0]] == [
        n.SerializeToString(deterministic=True) for n in again[0]
    ]
    assert first[1] == again[1]
    assert len(first[1].function) >= 4


def _parts(graph_def):
    return graph_def.node, graph_def.library


def test_renamed_functions_do_the_same():
    graph_def = traced(lambda v: v * 2.0)
    for value in ([3.0, 4.0], [-3.0, -4.0]):
        assert run(*canonical(*_parts(graph_def)), value) == run(*_parts(graph_def), value)


def test_what_differs_only_deep_inside_has_another_name():
    first = {f.signature.name for f in canonical(*_parts(traced(lambda v: v * 2.0)))[1].function}
    other = {f.signature.name for f in canonical(*_parts(traced(lambda v: v * 3.0)))[1].function}
    shared = first & other
    assert first - shared and other - shared
    calling = [name for name in first - shared if "inner" in name]
    assert calling  # it calls what differs


def test_functions_that_nothing_calls_are_left_out():
    graph_def = traced(lambda v: v * 2.0)
    nodes = [n for n in graph_def.node if n.name == "x"]
    assert len(canonical(nodes, graph_def.library)[1].function) == 0


def test_canonical_twice_is_canonical():
    nodes, library = canonical(*_parts(traced(lambda v: v * 2.0)))
    again, library_again = canonical(nodes, library)
    assert library == library_again
    assert nodes == again


def test_merged_libraries():
    doubling = canonical(*_parts(traced(lambda v: v * 2.0)))[1]
    tripling = canonical(*_parts(traced(lambda v: v * 3.0)))[1]
    assert len(merged_libraries(doubling, None, doubling).function) == len(doubling.function)
    both = {f.signature.name for f in merged_libraries(doubling, tripling).function}
    assert both == {f.signature.name for library in (doubling, tripling) for f in library.function}
    assert len(doubling.function) < len(both) < 2 * len(doubling.function)


def test_two_functions_of_one_name():
    library = canonical(*_parts(traced(lambda v: v * 2.0)))[1]
    other = type(library)()
    other.CopyFrom(library)
    other.function[0].signature.input_arg[0].name = "another"
    with pytest.raises(InvariantError, match=library.function[0].signature.name):
        merged_libraries(library, other)
