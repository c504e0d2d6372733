"""The structural verifier: each invariant is broken once and found."""

import pytest
from tensorflow.core.framework import function_pb2

from caramel.errors import InvariantError
from caramel.graph.graph import Graph
from caramel.graph.nodes import constant, dtype_attribute, node
from caramel.graph.verify import verify_structure


def add(name, *inputs):
    return node(name, "AddV2", inputs, T=dtype_attribute("float32"))


ONE = constant("one", 1.0, "float32", "")
INT = constant("int", 1, "int32", "")


def test_a_good_graph_passes():
    verify_structure(Graph([ONE, add("two", "one", "one"), add("three", "two", "one", "^two")]), "test")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([ONE, add("a", "one", "ghost")], "after test: .*'a' reads 'ghost'"),
        ([ONE, add("a", "one", "b"), add("b", "a", "one")], "after test: .*cycle"),
        ([ONE, INT, add("a", "one", "int")], "after test: node 'a' wants float32 as input 1, but 'int' is int32"),
        ([ONE, add("a", "one", "one:1")], "after test: node 'a' reads output 1 of 'one', which has 1"),
        ([ONE, add("a", "one")], "after test: node 'a' has 1 data inputs, its op 2"),
        ([ONE, add("a", "one", "one", "one")], "after test: node 'a' has more than its 2"),
        ([ONE, add("a", "one", "^one", "one")], "after test: node 'a' has data input 'one' after a control input"),
    ],
)
def test_each_broken_invariant_is_named(nodes, message):
    with pytest.raises(InvariantError, match=message):
        verify_structure(Graph(nodes), "test")


def test_unknown_op():
    with pytest.raises(InvariantError, match="'NoSuchOp'"):
        verify_structure(Graph([node("a", "NoSuchOp")]), "test")


def calling(name, function):
    made = node(name, "PartitionedCall")
    made.attr["f"].func.name = function
    return made


def test_a_function_that_is_missing():
    library = function_pb2.FunctionDefLibrary()
    library.function.add().signature.name = "there"
    verify_structure(Graph([calling("a", "there")], library), "test")
    with pytest.raises(InvariantError, match="after test: node 'a' calls function 'gone', which does not exist"):
        verify_structure(Graph([calling("a", "gone")], library), "test")
    with pytest.raises(InvariantError, match="node 'a' calls function 'there'"):
        verify_structure(Graph([calling("a", "there")]), "test")
    library.function[0].node_def.add().CopyFrom(calling("b", "gone"))
    with pytest.raises(InvariantError, match="node 'b' in function 'there' calls function 'gone'"):
        verify_structure(Graph([calling("a", "there")], library), "test")


def failures(graph, verified=None):
    """What the verifier says: of the whole graph, and of what differs from one that has passed."""
    found = []
    for before in (None, verified):
        try:
            verify_structure(graph, "test", before)
            found.append(None)
        except InvariantError as error:
            found.append(str(error))
    return found


TWO = add("two", "one", "one")
THREE = add("three", "two", "one")


@pytest.mark.parametrize(
    ("changed", "added", "message"),
    [
        ({}, [add("four", "three", "two")], None),
        ({"two": add("two", "one", "one", "^one")}, [], None),
        ({"one": constant("one", 1, "int32", "")}, [], "node 'two' wants float32 as input 0, but 'one' is int32"),
        ({"one": node("one", "NoOp")}, [], "node 'two' reads output 0 of 'one', which has 0"),
        ({"two": add("two", "one", "three")}, [], "cycle through 'three'"),
        ({"two": add("two", "one")}, [], "node 'two' has 1 data inputs"),
        ({}, [add("four", "three", "ghost")], "node 'four' reads 'ghost'"),
        ({}, [calling("four", "gone")], "node 'four' calls function 'gone'"),
    ],
)
def test_of_a_graph_like_one_that_has_passed_only_the_rest_is_looked_at(changed, added, message):
    verified = Graph([ONE, TWO, THREE])
    verify_structure(verified, "test")
    whole, rest = failures(verified.replaced(changed, added), verified)
    assert whole == rest
    assert rest is None if message is None else message in rest


def test_a_function_that_is_gone_is_missed_where_nothing_else_changed():
    library, empty = function_pb2.FunctionDefLibrary(), function_pb2.FunctionDefLibrary()
    library.function.add().signature.name = "there"
    verified = Graph([calling("a", "there")], library)
    verify_structure(verified, "test")
    whole, rest = failures(verified.replaced({}, library=empty), verified)
    assert whole == rest and "node 'a' calls function 'there'" in rest
