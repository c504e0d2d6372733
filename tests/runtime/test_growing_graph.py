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


def test_only_what_is_needed_is_there():
    growing = GrowingGraph(whole())
    assert not growing.graph.get_operations()
    growing.take_in(["init"])
    assert {op.name for op in growing.graph.get_operations()} == {"init", "AssignVariableOp", "v", "x"}
    growing.take_in(["init", "x:0", "no such op"])
    assert len(growing.graph.get_operations()) == 4
    growing.take_in(["second"])
    (second,) = (op for op in growing.graph.get_operations() if op.name == "second")
    assert {op.name for op in second.control_inputs} == {"init", "AssignAddVariableOp"}
    assert [*second.control_inputs[0].colocation_groups(), *second.control_inputs[1].colocation_groups()].count(
        b"loc:@v"
    )
    growing.take_in([node.name for node in whole().node])
    assert {op.name for op in growing.graph.get_operations()} == {node.name for node in whole().node}


def test_what_is_added_reads_what_is_there_or_not_there_yet():
    growing = GrowingGraph(whole())
    growing.take_in(["first"])
    added = v1.GraphDef()
    for name, source in (("of_first", "first"), ("of_part", "parts:1")):
        node = added.node.add(name=name, op="Identity", input=[source, "^init"])
        node.attr["T"].type = tf.float32.as_datatype_enum
    growing.add(added)
    growing.take_in(["of_first", "of_part"])
    with v1.Session(graph=growing.graph) as session:
        assert session.run(["of_first:0", "of_part:0"], {"x:0": np.float32(2.0)}) == [2.0, [2.0]]
