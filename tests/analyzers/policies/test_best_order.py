"""The order that looks at transfers, against all orders of small cases."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework.node_def_pb2 import NodeDef

from caramel.analyzers.cost.network import Network
from caramel.analyzers.policies.best_order import best_order
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.registry import automatic_analyzers
from caramel.errors import InputError
from caramel.facts import Dependencies, Trace
from caramel.graph.graph import Graph
from caramel.model import Gradient, Model, Reduction
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel

BYTE_S = 1e-6
NETWORK = Network(CollectiveOptions("ring", network=NetworkModel.from_costs(0.0, BYTE_S)), 2)
"""Two workers' ring: half of the bytes twice, so a byte takes one microsecond."""

JOBS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=5)
"""Milliseconds of computation and of sending."""


def step_of(inputs, jobs):
    """A Model whose gradients are made by the ops of that name, and need those that these read."""
    nodes = [NodeDef(name=name, op="AddN", input=texts) for name, texts in inputs.items()]
    graph = Graph(nodes)
    sizes = {name: round(sent_ms / 1e3 / BYTE_S / 4) for name, (_, sent_ms) in jobs.items()}
    gradients = tuple(Gradient(n, n, f"{n}:0", (), "float32", (size,), 4) for n, size in sizes.items())
    model = Model(graph, (), "", (), (), (), gradients, (), Reduction("mean", ""), values=None)
    ops = graph.order
    needs = np.array([[op in graph.ancestors((name,)) for op in ops] for name in jobs])
    nothing = dict.fromkeys(jobs, ())
    found = Dependencies(
        ops,
        tuple(jobs),
        needs,
        {n: (n,) for n in jobs},
        nothing,
        nothing,
        dict.fromkeys(jobs, 0),
        dict.fromkeys(jobs, ""),
    )
    op_s = {name: computed_ms / 1e3 for name, (computed_ms, _) in jobs.items()}
    total_s = sum(op_s.values())
    return model, found, Trace("", op_s, {}, total_s, total_s, 1, 2, None, "a test")


def by_themselves(jobs):
    names = {f"n{number}": job for number, job in enumerate(jobs)}
    return step_of(dict.fromkeys(names, ()), names), names


def in_a_row(jobs):
    """Each needs the one before."""
    names = {f"n{number}": job for number, job in enumerate(jobs)}
    inputs = {name: ([f"n{number - 1}"] if number else []) for number, name in enumerate(names)}
    return step_of(inputs, names), names


def makespan_ms(order, jobs):
    """Computing one after the other, sending one after the other."""
    computed = sent = 0
    for name in order:
        computed += jobs[name][0]
        sent = max(sent, computed) + jobs[name][1]
    return sent


def chosen(case, uses_forward=False):
    model, found, trace = case
    return best_order(uses_forward).run(model, found, trace, NETWORK)


@given(JOBS)
def test_gradients_that_share_nothing_are_in_the_order_that_is_sent_soonest(jobs):
    case, names = by_themselves(jobs)
    least = min(makespan_ms(order, names) for order in itertools.permutations(names))
    assert makespan_ms(chosen(case).gradients, names) <= 1.0051 * least


@given(JOBS)
def test_what_needs_the_one_before_stays_behind_it(jobs):
    case, names = in_a_row(jobs)
    order = chosen(case)
    assert order.gradients == tuple(names)
    assert order.reason.count(" ms") == 1  # all rules make one order, which is packed once


def test_a_large_gradient_does_not_wait_for_small_ones_that_are_computed_faster():
    """As the last convolution's in a network with branches: the greedy order computes it last."""
    case, names = by_themselves([(10, 300), *[(5, 1)] * 40])
    model, found, trace = case
    greedy = greedy_order().run(model, found, trace)
    assert greedy.gradients[-1] == "n0"
    order = chosen(case)
    assert order.gradients[0] == "n0"
    assert makespan_ms(order.gradients, names) < 0.8 * makespan_ms(greedy.gradients, names)
    assert "least remaining computation first 510 ms" in order.reason  # 210 ms of computation, then the large one


def test_the_papers_order_is_taken_where_no_other_one_is_better():
    case, _ = by_themselves([(50, 1), (40, 1), (30, 1), (20, 1)])
    model, found, trace = case
    order = chosen(case)
    assert order.gradients == greedy_order().run(model, found, trace).gradients
    assert order.reason.startswith("least remaining computation first, by the predicted steps")


def test_it_needs_a_network():
    model, found, trace = by_themselves([(1, 1)])[0]
    with pytest.raises(InputError, match="no network model"):
        best_order().run(model, found, trace, Network(CollectiveOptions(), 2))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "best order"),
        ({"batching": False}, "best order"),
        ({"scheduling": False}, "best order"),
        ({"policy": "paper"}, "greedy order"),
        ({"serialize": False}, "greedy order"),
    ],
)
def test_which_order_a_plan_has(options, name):
    trace = by_themselves([(1, 1)])[0][2]
    analyzers, _ = automatic_analyzers(NETWORK, trace, **options)
    assert [a.name for a in analyzers if a.name.endswith(" order")] == [name]
