"""Which nodes are in loops and branches."""

import pytest
import tensorflow as tf

from caramel.graph.dynamic import dynamic_nodes
from caramel.graph.graph import Graph

v1 = tf.compat.v1


def of(build):
    graph = tf.Graph()
    with graph.as_default():
        build()
    return Graph.from_graph_def(graph.as_graph_def())


def straight():
    x = v1.placeholder(tf.float32, [2], "x")
    tf.add(x, 1.0, name="y")


def branching():
    x = v1.placeholder(tf.float32, [], "x")
    inside = v1.cond(x > 0, lambda: tf.add(x, 1.0, name="more"), lambda: tf.negative(x, name="less"))
    tf.identity(tf.multiply(inside, 2.0, name="after"))


def looping():
    x = v1.placeholder(tf.float32, [], "x")
    last = v1.while_loop(
        lambda v: v < 9.0, lambda v: tf.add(v, 1.0, name="round"), [tf.multiply(x, 3.0, name="before")]
    )
    tf.multiply(last, 2.0, name="after")


def looping_in_a_branch():
    x = v1.placeholder(tf.float32, [], "x")

    def loop():
        return tf.tanh(v1.while_loop(lambda v: v < 9.0, lambda v: v + 1.0, [x]), name="later")

    tf.multiply(v1.cond(x > 0, loop, lambda: x), 2.0, name="after")


def calling():
    x = v1.placeholder(tf.float32, [], "x")

    @tf.function
    def plain(v):
        return v + 1.0

    @tf.function
    def deciding(v):
        return plain(tf.cond(v > 0, lambda: v, lambda: -v))

    tf.add(plain(x), deciding(x), name="after")


def test_nothing():
    assert dynamic_nodes(of(straight)) == ()


@pytest.mark.usefixtures("old_control_flow")
def test_branches_of_tensorflow_1():
    found = dynamic_nodes(of(branching))
    assert {"cond/more", "cond/less", "cond/Merge"} <= set(found)
    assert not {"x", "after", "Greater"} & set(found)


@pytest.mark.usefixtures("old_control_flow")
def test_loops_of_tensorflow_1():
    found = dynamic_nodes(of(looping))
    assert {"while/round", "while/Exit", "while/Merge"} <= set(found)
    assert not {"x", "before", "after"} & set(found)


@pytest.mark.usefixtures("old_control_flow")
def test_a_loop_in_a_branch():
    found = dynamic_nodes(of(looping_in_a_branch))
    assert {"cond/while/Exit", "cond/later", "cond/Merge"} <= set(found)
    assert not {"x", "after"} & set(found)


def test_functional_control_flow():
    for build, op in ((branching, "If"), (looping, "While")):
        graph = of(build)
        names = [n.name for n in graph if n.op in (op, f"Stateless{op}")]
        assert names and list(dynamic_nodes(graph)) == names


def test_calls():
    graph = of(calling)
    calls = {n.name: n.attr["f"].func.name for n in graph if n.op.endswith("PartitionedCall")}
    assert len(calls) == 2
    assert dynamic_nodes(graph) == tuple(name for name, function in calls.items() if "deciding" in function)
