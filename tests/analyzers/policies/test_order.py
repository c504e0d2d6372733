"""The greedy order and the edges that enforce it, on small random graphs, against all ways to run them."""

import itertools
import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef

from caramel.analyzers.policies.control_edges import control_edges
from caramel.analyzers.policies.order import order_by_cost, order_of
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.errors import InputError
from caramel.facts import Dependencies
from caramel.graph.fusion import verify_fusible
from caramel.graph.graph import Graph
from caramel.model import Gradient, Model, Reduction


def graph_of(inputs, ops=None):
    """A graph from the producers of each node."""
    nodes = [NodeDef(name=n, op=(ops or {}).get(n, "AddN"), input=texts) for n, texts in inputs.items()]
    return Graph(nodes)


def model_of(graph):
    return Model(graph, (), "", (), (), (), (), (), Reduction("mean", ""), values=None)


def dependencies_of(graph, producers):
    """Only what the order is made from."""
    ops = graph.order
    needs = np.array([[op in graph.ancestors(of) for op in ops] for of in producers.values()])
    names = tuple(producers)
    return Dependencies(ops, names, needs, producers, {}, {}, dict.fromkeys(names, 0), {})


def random_case(seed):
    """A graph of at most 8 ops, and up to 4 gradients of it."""
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(rng.randint(4, 8))]
    inputs = {n: rng.sample(names[:i], rng.randint(0, min(i, 2))) for i, n in enumerate(names)}
    graph = graph_of(inputs)
    made = rng.sample(names, rng.randint(2, 4))
    producers = {f"g{n}": (name,) for n, name in enumerate(made)}
    times = {n: rng.choice([0.0, 1e-3, 2e-3, 3e-3]) for n in names}
    return graph, producers, times


def runs_of(graph, edges=()):
    """All orders in which the nodes can run."""
    before = {n.name: {*n.input, *(b for b, a in edges if a == n.name)} for n in graph}

    def extend(done):
        if len(done) == len(before):
            yield tuple(done)
        for name in before:
            if name not in done and before[name] <= set(done):
                yield from extend([*done, name])

    return extend([])


def naive_order(graph, producers, times):
    done, order, waiting = set(), [], list(producers)
    while waiting:
        remaining = {g: graph.ancestors(producers[g]) - done for g in waiting}
        best = min(waiting, key=lambda g: (round(1e9 * sum(times[n] for n in remaining[g])), len(remaining[g])))
        order.append(best)
        done |= remaining[best]
        waiting.remove(best)
    return tuple(order)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_is_the_papers(seed):
    graph, producers, times = random_case(seed)
    found = order_by_cost(model_of(graph), dependencies_of(graph, producers), times, "")
    assert found.gradients == naive_order(graph, producers, times)
    done = set()
    for gradient, stage in zip(found.gradients, found.stages):
        assert set(stage) == graph.ancestors(producers[gradient]) - done
        assert all(set(graph[op].input) <= done | set(stage[:n]) for n, op in enumerate(stage))
        done |= set(stage)


def completed(run, producers, order):
    """The order in which gradients are ready in a run; those of one op together, in the given order."""
    return tuple(sorted(order, key=lambda g: (run.index(producers[g][0]), order.index(g))))


@pytest.mark.parametrize("kind", ["total", "updates"])
@pytest.mark.parametrize("seed", range(40))
def test_the_edges_leave_one_order_of_gradients(seed, kind):
    graph, producers, times = random_case(seed)
    model, found = model_of(graph), dependencies_of(graph, producers)
    order = order_by_cost(model, found, times, "")
    edges = control_edges(model, found, order, kind).edges
    runs = list(itertools.islice(runs_of(graph, edges), 5000))
    assert runs
    assert {completed(run, producers, order.gradients) for run in runs} == {order.gradients}


def is_serial(run, order, producers):
    """Whether every op that only later gradients need came after the gradient before."""
    ends = [max(run.index(p) for p in producers[g]) for g in order.gradients]
    latest = list(itertools.accumulate(ends, max))
    return all(
        run.index(op) > latest[number - 1] for number, stage in enumerate(order.stages) if number for op in stage
    )


@pytest.mark.parametrize("seed", range(40))
def test_total_edges_are_enough_and_none_is_too_many(seed):
    graph, producers, times = random_case(seed)
    model, found = model_of(graph), dependencies_of(graph, producers)
    order = order_by_cost(model, found, times, "")
    edges = control_edges(model, found, order, "total").edges
    assert all(is_serial(run, order, producers) for run in itertools.islice(runs_of(graph, edges), 3000))
    for edge in edges:
        fewer = [e for e in edges if e != edge]
        assert not all(is_serial(run, order, producers) for run in runs_of(graph, fewer)), edge


def with_several_producers(seed):
    """A random graph of which gradients are made by up to three ops each."""
    rng = random.Random(1000 + seed)
    graph, _, times = random_case(seed)
    names = list(graph.nodes)
    return graph, {f"g{n}": tuple(rng.sample(names, rng.randint(1, 3))) for n in range(rng.randint(2, 4))}, times


@pytest.mark.parametrize("kind", ["total", "updates"])
def test_no_edge_follows_from_the_others(kind):
    """By what is reachable, in 300 graphs; with as many edges fewer there is another order."""
    several = 0
    for seed in range(300):
        graph, producers, times = with_several_producers(seed)
        model, found = model_of(graph), dependencies_of(graph, producers)
        order = order_by_cost(model, found, times, "")
        edges = control_edges(model, found, order, kind).edges
        for edge in edges:
            others = nx.DiGraph(graph.digraph)
            others.add_edges_from(e for e in edges if e != edge)
            assert not nx.has_path(others, *edge), (seed, edge)
        if kind == "total":
            runs = itertools.islice(runs_of(graph, edges), 300)
            assert all(is_serial(run, order, producers) for run in runs), seed
        several += len(edges) > 1
    assert several > 100


def test_an_edge_does_not_follow_from_a_way_through_a_merge():
    """A Merge runs once one of its inputs is there, and need not wait for the other."""
    texts = {"a": [], "b": [], "m": ["a", "b"], "c": ["m"], "d": ["a"]}
    graph = graph_of(texts, {"m": "Merge"})
    producers = {"first": ("d",), "second": ("b", "c")}
    order = order_of(model_of(graph), dependencies_of(graph, producers), ("first", "second"), "")
    edges = control_edges(model_of(graph), dependencies_of(graph, producers), order, "updates").edges
    assert set(edges) == {("d", "b"), ("d", "c")}


def test_without_edges_there_are_several_orders():
    graph = graph_of({"a": [], "b": ["a"], "c": ["a"]})
    producers = {"gb": ("b",), "gc": ("c",)}
    orders = {completed(run, producers, ("gb", "gc")) for run in runs_of(graph)}
    assert orders == {("gb", "gc"), ("gc", "gb")}


def test_edges_begin_and_end_at_ops_that_compute():
    """What only passes values on may be removed by TensorFlow, with its edges."""
    inputs = {"x": [], "b": ["x"], "gb": ["b"], "w": [], "w/read": ["w"], "c": ["x", "w/read"], "gc": ["c"]}
    ops = {"gb": "Identity", "gc": "Identity", "w": "VarHandleOp", "w/read": "ReadVariableOp"}
    graph = graph_of(inputs, ops)
    model, found = model_of(graph), dependencies_of(graph, {"gb": ("gb",), "gc": ("gc",)})
    order = order_by_cost(model, found, {"b": 1e-3, "c": 2e-3}, "")
    for kind in ("total", "updates"):
        assert control_edges(model, found, order, kind).edges == (("b", "c"),)


def test_no_edge_between_branches():
    """It would kill what is not in the branch."""
    inputs = {"p": [], "x": [], "s": ["x", "p"], "in": ["s:1"], "b": ["in"], "c": ["x"]}
    graph = graph_of(inputs, {"s": "Switch"})
    model, found = model_of(graph), dependencies_of(graph, {"gb": ("b",), "gc": ("c",)})
    order = order_by_cost(model, found, {"b": 1e-3, "c": 2e-3, "in": 0.0}, "")
    reverse = order_by_cost(model, found, {"b": 3e-3, "c": 2e-3}, "")
    assert order.gradients == ("gb", "gc") and reverse.gradients == ("gc", "gb")
    assert control_edges(model, found, order, "total").edges == ()
    assert control_edges(model, found, reverse, "updates").edges == (("c", "b"),)


def regularised():
    """Two convolutions whose kernels, and the second one's bias, are regularised: what makes a gradient is a sum."""
    inputs = {"x": [], "y": ["x"], "dy": ["y"], "dx": ["dy"], "k": [], "size": []}
    ops = {"k": "VarHandleOp", "size": "Const"}
    for layer, (image, gradient) in enumerate([("x", "dx"), ("y", "dy")]):
        inputs |= {f"bias{layer}": [gradient], f"filter{layer}": [image, "size", gradient], f"l2{layer}": ["k"]}
        inputs |= {f"sum{layer}": [f"filter{layer}", f"l2{layer}"], f"total{layer}": [f"bias{layer}", f"l2{layer}"]}
        ops |= {f"bias{layer}": "BiasAddGrad", f"filter{layer}": "Conv2DBackpropFilter"}
    producers = {"kernel0": ("sum0",), "offset0": ("bias0",), "kernel1": ("sum1",), "offset1": ("total1",)}
    return graph_of(inputs, ops), producers


def found_of(graph, producers):
    gradients = tuple(Gradient(n, n, f"{of[0]}:0", (), "float32", (2,), 4) for n, of in producers.items())
    model = replace(model_of(graph), gradients=gradients, loss="y:0")
    return model, find_dependencies(model)


@pytest.mark.parametrize("kind", ["total", "updates"])
def test_what_tensorflow_joins_is_never_parted(kind):
    """Whatever the order is: oneDNN makes one op of a bias's and its filter's gradient."""
    model, found = found_of(*regularised())
    for gradients in itertools.permutations(found.gradients):
        order = order_of(model, found, gradients, "")
        assert sorted(op for stage in order.stages for op in stage) == sorted(
            model.graph.ancestors(of[0] for of in found.producers.values())
        )
        edges = control_edges(model, found, order, kind).edges
        assert edges
        verify_fusible(model.graph, edges, "serialize")


def test_an_order_names_each_gradient_once():
    model, found = found_of(*regularised())
    for names in (["kernel0"], [*found.gradients, "kernel0"], [*found.gradients, "ghost"]):
        with pytest.raises(InputError, match="an order names each gradient once, and no others; not so "):
            order_of(model, found, names, "")
