"""The Graph container: indexing, ordering, pruning."""

import pytest
from tensorflow.core.framework import node_def_pb2

from caramel.errors import InvariantError
from caramel.graph.graph import Graph, format_input, node_of, parse_input, tensor_name


def make(**inputs):
    return Graph(node_def_pb2.NodeDef(name=name, op="NoOp", input=reads) for name, reads in inputs.items())


@pytest.mark.parametrize(
    ("text", "parsed"), [("a", ("a", 0)), ("a:1", ("a", 1)), ("^a", ("a", -1)), ("scope/a:12", ("scope/a", 12))]
)
def test_input_text_round_trip(text, parsed):
    assert parse_input(text) == parsed
    assert format_input(*parsed) == text
    assert node_of(text) == parsed[0]


def test_tensor_name_always_has_an_index():
    assert tensor_name("a") == "a:0"
    assert tensor_name("a:2") == "a:2"


def test_order_puts_producers_first_and_keeps_ties():
    graph = make(c=["a", "^b"], b=["a"], a=[], d=[])
    assert graph.order == ("a", "d", "b", "c")


def test_consumers_lists_each_position():
    graph = make(a=[], b=["a", "a:1", "^a"])
    assert graph.consumers["a"] == (("b", 0), ("b", 1), ("b", 2))
    assert graph.consumers["b"] == ()


def test_cycle_is_named():
    with pytest.raises(InvariantError, match=r"cycle through 'a' \(2 nodes"):
        make(a=["b"], b=["a"], c=[]).order  # noqa: B018


def test_missing_producer_is_named():
    with pytest.raises(InvariantError, match="'a' reads 'ghost'"):
        make(a=["ghost"]).order  # noqa: B018


def test_two_nodes_of_one_name():
    node = node_def_pb2.NodeDef(name="a", op="NoOp")
    with pytest.raises(InvariantError, match="two nodes are named 'a'"):
        Graph([node, node])


def test_ancestors_follow_control_edges_only_when_asked():
    graph = make(a=[], b=[], c=["a", "^b"], d=["c"])
    assert graph.ancestors(["d"]) == {"a", "b", "c", "d"}
    assert graph.ancestors(["d"], control=False) == {"a", "c", "d"}
    assert graph.ancestors(["d"], stop=lambda name: name == "c") == {"c", "d"}


def test_graphs_of_one_origin_know_their_own_inputs():
    """They share what they have parsed, node by node: not of a node that has another of its name."""
    first = make(a=[], b=["a:1", "^a"], c=["a"])
    assert [*first.parsed_inputs("b")] == [("a", 1), ("a", -1)]
    other = node_def_pb2.NodeDef(name="b", op="NoOp", input=["c"])
    second = first.replaced({"b": other}, [node_def_pb2.NodeDef(name="d", op="NoOp", input=["^b"])])
    for _ in range(2):
        assert [*second.parsed_inputs("b")] == [("c", 0)] and second.sources("d") == ("b",)
        assert [*first.parsed_inputs("b")] == [("a", 1), ("a", -1)] and first.sources("b") == ("a", "a")
    assert list(second.nodes) == ["a", "b", "c", "d"] and second["b"] is other


def test_a_replacement_keeps_the_name_and_an_addition_has_its_own():
    graph = make(a=[], b=["a"])
    named_a = node_def_pb2.NodeDef(name="a", op="NoOp")
    with pytest.raises(InvariantError, match="'b' is replaced by one named 'a'"):
        graph.replaced({"b": named_a})
    with pytest.raises(InvariantError, match="two nodes are named 'a'"):
        graph.replaced({}, [named_a])


def test_descendants_follow_control_edges_unless_told_not_to():
    graph = make(a=[], b=["a"], c=["^b"], d=["c", "a:1"], e=[])
    assert graph.descendants(["b"]) == {"b", "c", "d"} and graph.descendants(["b"], control=False) == {"b"}
    assert graph.descendants(["a", "e"], control=False) == {"a", "b", "d", "e"}


def test_pruned_keeps_order_and_drops_the_rest():
    graph = make(a=[], x=["a"], b=["a"])
    assert list(graph.pruned(["b"]).nodes) == ["a", "b"]


def test_same_nodes_same_bytes():
    assert make(a=[], b=["a"]).to_bytes() == make(a=[], b=["a"]).to_bytes()


def test_networkx_has_ops_times_and_bytes():
    nodes = [
        node_def_pb2.NodeDef(name="a", op="Const", device="/CPU:0"),
        node_def_pb2.NodeDef(name="b", op="Add", input=["a", "a", "a:1"]),
        node_def_pb2.NodeDef(name="c", op="NoOp", input=["^a", "^b"]),
    ]
    graph = Graph(nodes)
    found = graph.to_networkx({"a": 2e-3}, {"a": 8})
    assert dict(found.nodes(data=True)) == {
        "a": {"op": "Const", "device": "/CPU:0", "seconds": 2e-3, "bytes": 8},
        "b": {"op": "Add", "device": "", "seconds": None, "bytes": None},
        "c": {"op": "NoOp", "device": "", "seconds": None, "bytes": None},
    }
    assert {(u, v): (d["control"], d["bytes"]) for u, v, d in found.edges(data=True)} == {
        ("a", "b"): (False, None),  # it reads two outputs, of which only one is known
        ("a", "c"): (True, None),
        ("b", "c"): (True, None),
    }
    only_first = Graph([nodes[0], node_def_pb2.NodeDef(name="b", op="Neg", input=["a"])])
    assert only_first.to_networkx({}, {"a": 8}).edges["a", "b"] == {"control": False, "bytes": 8}


def test_loop_order_enters_before_it_goes_around():
    node = node_def_pb2.NodeDef
    graph = Graph(
        [
            node(name="exit", op="Exit", input=["switch"]),
            node(name="next", op="NextIteration", input=["body"]),
            node(name="body", op="Add", input=["switch:1"]),
            node(name="switch", op="Switch", input=["merge"]),
            node(name="merge", op="Merge", input=["enter", "next"]),
            node(name="enter", op="Enter", input=["start"]),
            node(name="start", op="Const"),
        ]
    )
    assert [n.name for n in graph.loop_order()] == ["start", "enter", "merge", "switch", "exit", "body", "next"]
    with pytest.raises(InvariantError, match=r"cycle through 'body' \(5 nodes"):
        graph.order  # noqa: B018
