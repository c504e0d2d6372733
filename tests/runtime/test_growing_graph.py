"""Graphs that grow with the runs: the same values as from the whole graph, whatever was there before."""

import numpy as np
import pytest
import tensorflow as tf

from caramel.runtime.growing_graph import GrowingGraph

v1 = tf.compat.v1


@tf.function
def tripled(value):
    return 3.0 * value


def whole():
    """A graph with a variable, a loop, a function, and ops that only wait for others."""
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [], name="x")
        variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="v", name="v")
        assign = tf.raw_ops.AssignVariableOp(resource=variable, value=x)
        with tf.control_dependencies([assign]):
            init = tf.no_op("init")
            first = tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32, name="first")
        with tf.control_dependencies([init]), v1.colocate_with(variable):
            more = tf.raw_ops.AssignAddVariableOp(resource=variable, value=tf.constant(1.0))
        with tf.control_dependencies([more, init]):
            tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32, name="second")
        was_new = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()  # a loop of Switch, Merge and NextIteration is a circle
        try:
            v1.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + first), [0, x])
        finally:
            if was_new:
                v1.enable_control_flow_v2()
        tf.identity(tripled(first) + x, "called")
        tf.split(tf.stack([first, x]), 2, name="parts")
        tf.add(first, x, name="outer")
        with tf.name_scope("outer/"):
            tf.multiply(first, x, name="inner")
    return graph.as_graph_def()


def results(grows, names):
    """Values of tensors, each from a run of its own, in one session; None for an op."""
    graph_def = whole()
    found = {}
    if grows:
        growing = GrowingGraph(graph_def)
        graph = growing.graph
    else:
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
    with v1.Session(graph=graph) as session:
        for name in names:
            if grows:
                growing.take_in([name, "x:0"])
            found[name] = session.run(graph.as_graph_element(name), {"x:0": np.float32(5.0)})
    return found


NAMES = ["init", "first:0", "called:0", "parts:1", "while/Exit_1:0", "second:0", "outer/inner:0", "outer:0"]


@pytest.mark.parametrize("turns", range(len(NAMES)))
def test_the_order_of_runs_does_not_matter(turns):
    """Whatever was there before what waits for it, or comes with it."""
    order = NAMES[turns:] + NAMES[:turns]
    got, want = results(True, order), results(False, order)
    assert got.keys() == want.keys()
    for name in order:
        np.testing.assert_equal(got[name], want[name], err_msg=name)
    assert want["second:0"] == 6.0 and want["called:0"] == 20.0


def nodes_of(growing):
    """The nodes of the graph by name, as TensorFlow's runtime has them."""
    return {node.name: node for node in growing.graph.as_graph_def().node}


def test_only_what_is_needed_is_there():
    growing = GrowingGraph(whole())
    assert not nodes_of(growing)
    growing.take_in(["init"])
    assert nodes_of(growing).keys() == {"init", "AssignVariableOp", "v", "x"}
    growing.take_in(["init", "x:0", "no such op"])
    assert len(nodes_of(growing)) == 4
    growing.take_in(["second"])
    nodes = nodes_of(growing)
    assert {text for text in nodes["second"].input if text.startswith("^")} == {"^init", "^AssignAddVariableOp"}
    assert nodes["AssignAddVariableOp"].attr["_class"].list.s == [b"loc:@v"]
    growing.take_in([node.name for node in whole().node])
    assert nodes_of(growing).keys() == {node.name for node in whole().node}


def test_nodes_are_as_they_were_given():
    """Their inputs, attributes and devices, however many pieces the graph comes in."""
    graph_def = whole()
    for number, node in enumerate(graph_def.node):
        node.device = f"/job:localhost/replica:0/task:0/device:CPU:{number % 2}"
    growing = GrowingGraph(graph_def)
    for name in NAMES:
        growing.take_in([name])
    growing.take_in([node.name for node in graph_def.node])
    nodes = nodes_of(growing)
    for node in graph_def.node:
        assert nodes[node.name].device == node.device
        assert [*nodes[node.name].input] == [*node.input]
        # TensorFlow notes what others wait for.
        nodes[node.name].attr.pop("_has_manual_control_dependencies", None)
        node.attr.pop("_has_manual_control_dependencies", None)
        assert nodes[node.name].attr == node.attr


def test_only_what_is_asked_for_is_made_in_python():
    growing = GrowingGraph(whole())
    growing.take_in(["second:0", "x"])
    asked = growing.graph.get_operation_by_name("second"), growing.graph.get_operation_by_name("x")
    assert [*growing.graph.get_operations()] == [*asked]
    growing.take_in(["x:0", "second"])
    assert growing.graph.get_operation_by_name("x") is asked[1]


def test_a_node_that_does_not_fit_is_refused():
    growing = GrowingGraph(whole())
    growing.take_in(["first"])
    for name, source, message in (("first", "x", "already exists"), ("other", "missing", "'missing'")):
        added = v1.GraphDef()
        node = added.node.add(name=name, op="Identity", input=[source])
        node.attr["T"].type = tf.float32.as_datatype_enum
        growing.add(added)
        with pytest.raises(ValueError, match=message):
            growing.take_in([name])


def test_what_is_added_reads_what_is_there_or_not_there_yet():
    growing = GrowingGraph(whole())
    growing.take_in(["first"])
    added = v1.GraphDef()
    for name, source in (("of_first", "first"), ("of_part", "parts:1")):
        node = added.node.add(name=name, op="Identity", input=[source, "^init"])
        node.attr["T"].type = tf.float32.as_datatype_enum
    growing.add(added)
    growing.take_in(["of_first", "of_part", "x"])
    with v1.Session(graph=growing.graph) as session:
        assert session.run(["of_first:0", "of_part:0"], {"x:0": np.float32(2.0)}) == [2.0, [2.0]]
