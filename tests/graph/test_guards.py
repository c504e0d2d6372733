"""Branches of TensorFlow 1: under which conditions nodes run."""

import pytest
from tensorflow.core.framework import node_def_pb2

from caramel.errors import InvariantError
from caramel.graph.graph import Graph
from caramel.graph.guards import guards_of

BRANCHES = {
    "condition": ("Const", []),
    "value": ("Const", []),
    "switch": ("Switch", ["value", "condition"]),
    "if_false": ("Neg", ["switch"]),
    "if_true": ("Identity", ["switch:1"]),
    "either": ("Merge", ["if_false", "if_true"]),
    "after": ("Neg", ["either"]),
}


def make(nodes):
    return Graph(node_def_pb2.NodeDef(name=name, op=op, input=inputs) for name, (op, inputs) in nodes.items())


def test_what_is_behind_a_switch_runs_in_one_branch():
    guards = guards_of(make(BRANCHES))
    assert guards.by_node["if_false"] == {("condition", 0)} and guards.by_node["if_true"] == {("condition", 1)}
    assert not guards.by_node["after"] and not guards.by_node["switch"]
    assert [*guards.decided["either"]] == ["condition"] and not guards.decided["after"]


def test_without_a_switch_all_run():
    guards = guards_of(make({name: ("Neg", inputs) for name, (_, inputs) in BRANCHES.items()}))
    assert [*guards.by_node] and guards.by_node.keys() == BRANCHES.keys() == guards.decided.keys()
    assert not any(guards.by_node.values()) and not any(guards.decided.values())


@pytest.mark.parametrize("op", ["Switch", "Neg"])
def test_a_cycle_is_refused(op):
    with pytest.raises(InvariantError, match="cycle"):
        guards_of(make({"a": (op, ["b"]), "b": ("Neg", ["a"])}))
