"""Handles that went through branches, taken from the variable: the same values, and plain to see."""

import numpy as np
import pytest
import tensorflow as tf

from caramel.frontend.programs.handles import direct_handles
from caramel.graph import ops
from caramel.graph.graph import Graph
from caramel.graph.verify import verify_structure

v1 = tf.compat.v1
pytestmark = pytest.mark.usefixtures("old_control_flow")


def nodes_of(graph):
    return Graph.from_graph_def(graph.as_graph_def(add_shapes=True))


def values(nodes, fetches, chosen):
    """The fetches, and the variables after that."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(nodes.to_graph_def(), name="")
        with v1.Session(graph=graph) as session:
            session.run(["w/Assign", "u/Assign"])
            return [*session.run(fetches, {"choice:0": chosen}), *session.run(["w_after:0", "u_after:0"])]


def build(what):
    w, u = (v1.get_variable(name, [], initializer=v1.ones_initializer(), use_resource=True) for name in "wu")
    result = what(w, u, v1.placeholder(tf.bool, [], "choice"))
    tf.identity(w.read_value(), "w_after"), tf.identity(u.read_value(), "u_after")
    return result.name


def write_in_one(w, u, choice):
    return v1.cond(choice, lambda: w.assign_add(2.0).read_value() + u, lambda: tf.identity(w) * 5.0)


def write_in_an_inner_one(w, u, choice):
    def outer():
        with tf.control_dependencies([u.assign(7.0)]):
            return v1.cond(w > 0.0, lambda: w.assign_sub(3.0).read_value(), lambda: tf.identity(u))

    return v1.cond(choice, outer, lambda: u.assign_add(1.0).read_value())


def nothing_but_the_handle_keeps_it_in_its_branch(w, u, choice):
    handle = tf.raw_ops.Switch(data=w.handle, pred=choice).output_true
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(9.0), name="written")
    with tf.control_dependencies([v1.get_default_graph().get_operation_by_name("written")]):
        taken = tf.constant(3.0)
    return (
        tf.raw_ops.Merge(inputs=[taken, tf.raw_ops.Switch(data=u.read_value(), pred=choice).output_false]).output * 1.0
    )


PROGRAMS = [write_in_one, write_in_an_inner_one, nothing_but_the_handle_keeps_it_in_its_branch]


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_values_are_tensorflows_own(program, chosen):
    with tf.Graph().as_default() as graph:
        fetch = build(program)
        nodes = nodes_of(graph)
    new = direct_handles(nodes)
    verify_structure(new, "direct_handles")
    through = [n.name for n in new for p, _ in ops.data_inputs(n) if new[p].op == "Switch" and _takes_handle(n)]
    assert not through and [
        n.name for n in nodes for p, _ in ops.data_inputs(n) if nodes[p].op == "Switch" and _takes_handle(n)
    ]
    np.testing.assert_array_equal(values(new, [fetch], chosen), values(nodes, [fetch], chosen))


def _takes_handle(node):
    """Whether an op that is more than a way for handles takes one."""
    return node.op not in ("Switch", "Identity", "Merge") and ops.DT_RESOURCE in [t for _, t in ops.input_types(node)]


def test_a_graph_without_such_handles_keeps_its_nodes():
    with tf.Graph().as_default() as graph:
        build(lambda w, u, choice: tf.where(choice, w, u))
        nodes = nodes_of(graph)
    assert direct_handles(nodes).to_bytes() == nodes.to_bytes()
