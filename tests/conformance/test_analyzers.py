"""What every analyzer of the library keeps, whatever the facts are: one suite for all, and for those to come."""

import copy
import dataclasses

import numpy as np
import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef
from variants import mostly_in_soak

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.search import optimal_buckets
from caramel.analyzers.policies.batching import fixed, mg_wfbp, paper_batching, single
from caramel.analyzers.policies.credit_packing import bytescheduler
from caramel.analyzers.policies.packing import priority
from caramel.analyzers.policies.transfers import adaptive_depth, whole_gradient
from caramel.analyzers.registry import known, listed_analyzers
from caramel.analyzers.step.dependencies import find_dependencies
from caramel.errors import InputError, InvariantError
from caramel.facts import (
    BACKWARD,
    FORWARD,
    Boundaries,
    Boundary,
    Buckets,
    ControlEdges,
    Dependencies,
    Piece,
    Schedule,
    Scheduled,
    Trace,
    UpdateOrder,
)
from caramel.graph.fusion import verify_fusible
from caramel.graph.graph import Graph
from caramel.model import Gradient, Model, Reduction
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.model import NetworkModel
from caramel.plan import Transfers
from caramel.simulator import validate_schedule

SEEDS = range(15)
TRACE = Trace("", {}, {}, 0.0, 0.0, 1, 1, None, "")
BUILT_IN = known(TRACE)
BUCKETS = [*(a for a in BUILT_IN.values() if a.provides is Buckets), fixed(0), fixed(50), paper_batching(64)]
SCHEDULES = [*(a for a in BUILT_IN.values() if a.provides is Schedule), priority(40), bytescheduler(40, 90)]
ORDERS = [a for a in BUILT_IN.values() if a.provides is UpdateOrder]
EDGES = [a for a in BUILT_IN.values() if a.provides is ControlEdges]
TRANSFERS = [*(a for a in BUILT_IN.values() if a.provides is Transfers), adaptive_depth(1)]


def by_name(analyzers):
    return pytest.mark.parametrize("analyzer", analyzers, ids=[a.name for a in analyzers])


# -- generated facts ---------------------------------------------------------------------------


def some_network(rng):
    workers = int(rng.choice([1, 2, 3, 8]))
    costs = NetworkModel.from_costs(float(rng.choice([1e-9, 0.1, 2.0])), float(rng.choice([0.0, 0.01, 0.3])))
    options = [CollectiveOptions("ring", 1, network=costs), CollectiveOptions(network=costs)]
    return Network(options[rng.integers(2)], workers)


def some_model(rng):
    """A step of random ops, with dense and sparse gradients of several types, and updates that others may need."""
    nodes, gradients = [NodeDef(name="x", op="AddN")], []
    for number in range(int(rng.integers(0, 9))):
        there = [n.name for n in nodes]
        op = str(rng.choice(["AddN", "Identity", "BiasAddGrad", "Conv2DBackpropFilter"]))
        count = {"Identity": 1, "BiasAddGrad": 1, "Conv2DBackpropFilter": 3}.get(op, int(rng.integers(1, 3)))
        inputs = [str(name) for name in rng.choice(there, count)]
        nodes.append(NodeDef(name=f"n{number}", op=op, input=inputs))
        if rng.random() < 0.6:
            name, dtype = f"g{number}", str(rng.choice(["float32", "float32", "float64"]))
            shape = [(), (0,), (3,), (4, 5), (700,)][rng.integers(5)]
            item_bytes = {"float32": 4, "float64": 8}[dtype]
            sparse = {"indices": f"n{number}:1", "index_dtype": "int64"} if rng.random() < 0.15 else {}
            updating = f"update{number}"
            nodes.append(NodeDef(name=updating, op="AddN", input=[f"n{number}"]))
            gradients.append(Gradient(name, name, f"n{number}:0", (updating,), dtype, shape, item_bytes, **sparse))
    model = Model(Graph(nodes), (), "x:0", (), (), (), tuple(gradients), (), Reduction("mean", ""), values=None)
    try:
        verify_fusible(model.graph, (), "nothing")
    except InvariantError:  # TensorFlow would not run it as it is
        return some_model(rng)
    return model


def some_trace(rng, model):
    op_s = {node.name: float(rng.choice([0.0, 1e-3, 2e-3])) for node in model.graph}
    ordered = {"none": 1.0, "total": 1.1, "updates": float(rng.choice([1.0, 1.1]))} if rng.random() < 0.5 else {}
    return Trace("", op_s, {}, 1e-2, 1e-2, 3, 1, None, "made up", (), ordered)


def some_boundaries(rng):
    now_s, level, found = float(rng.integers(0, 4)), 0, []
    for number in range(int(rng.integers(0, 10))):
        now_s += float(rng.integers(0, 4))
        elements, others = int(rng.choice([0, 1, 7, 40, 90])), {}
        if rng.random() < 0.2:
            elements, others = None, {"kept_reason": "it is sparse"}
        elif rng.random() < 0.3:
            others = {"kept_reason": "it is kept"}
        level += int(rng.random() < 0.2)  # what needs an update of the same step is ready after it
        dtype = str(rng.choice(["float32", "float32", "float64"]))
        size = float(9 if elements is None else 4 * elements)
        times = {"ready_s": now_s, "read_s": float(rng.integers(0, 12)), "update_s": float(rng.choice([0, 0.5]))}
        divisible = bool(rng.random() < 0.7) and elements is not None
        found.append(Boundary(f"g{number}", dtype, elements, size, level=level, divisible=divisible, **times, **others))
    return Boundaries(tuple(found), now_s + float(rng.integers(0, 4)), "made up")


def dependencies_of(boundaries):
    """Only what a schedule by hand looks at."""
    names = tuple(g.name for g in boundaries.gradients)
    reasons = {g.name: g.kept_reason for g in boundaries.gradients}
    return Dependencies((), names, np.zeros((len(names), 0), bool), {}, {}, {}, {}, reasons)


def model_of(boundaries):
    """A model that has these gradients."""
    made = [
        Gradient(g.name, g.name, "x:0", (), g.dtype, (g.elements or 0,), 4, "x:1" if g.elements is None else None)
        for g in boundaries.gradients
    ]
    return Model(Graph([]), (), "x:0", (), (), (), tuple(made), (), Reduction("mean", ""), values=None)


# -- what all of them keep ---------------------------------------------------------------------


def result_of(analyzer, *facts):
    """What an analyzer makes of facts: the same again, of facts that are as before, and unchangeable."""
    given = [fact for fact in facts if type(fact) in analyzer.requires]
    before = copy.deepcopy(given)
    made = analyzer.run(*(next(f for f in given if type(f) is each) for each in analyzer.requires))
    again = analyse([analyzer], before, [analyzer.provides])[analyzer.provides]
    assert made == again and repr(made) == repr(again)
    for one, other in zip(given, before):
        assert as_text(one) == as_text(other)
    assert isinstance(made, analyzer.provides)
    hash(made)  # no list or dict in it, so nothing in it can be changed
    field = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, field, ())
    return made


def as_text(fact):
    return [str(node) for node in fact.graph] if isinstance(fact, Model) else repr(fact)


def test_names():
    """Each is known by its own name, to the command, too."""
    assert all(name == analyzer.name for name, analyzer in BUILT_IN.items())
    assert len({(a.name, a.provides) for a in BUILT_IN.values()}) == len(BUILT_IN)
    for name, analyzer in BUILT_IN.items():
        assert "," not in name
        (found,) = listed_analyzers(name, TRACE)
        assert (found.name, found.requires, found.provides) == (name, analyzer.requires, analyzer.provides)
    with pytest.raises(InputError, match="there is no analyzer 'ghost'"):
        listed_analyzers("ghost", TRACE)


def test_every_kind_is_there():
    provided = {a.provides for a in BUILT_IN.values()}
    assert provided == {Buckets, ControlEdges, Schedule, Transfers, UpdateOrder, Boundaries, Dependencies, Trace}
    for made in (single, paper_batching, mg_wfbp, optimal_buckets):
        assert made().name in BUILT_IN


@pytest.mark.parametrize("seed", SEEDS)
@by_name(BUCKETS)
def test_buckets(analyzer, seed):
    rng = np.random.default_rng(seed)
    boundaries, network = some_boundaries(rng), some_network(rng)
    found = result_of(analyzer, boundaries, network)
    names = [name for bucket in found.buckets for name in bucket]
    assert sorted(names) == sorted(boundaries.by_name)
    assert len(found.reasons) == len(found.buckets) and all(found.reasons)
    for bucket in found.buckets:
        gradients = [boundaries.by_name[name] for name in bucket]
        assert len({(g.dtype, g.level) for g in gradients}) == 1
        assert len(bucket) == 1 or all(g.elements is not None for g in gradients)


@pytest.mark.parametrize("batching", [single(), fixed(50)], ids=["alone", "fixed"])
@pytest.mark.parametrize("seed", mostly_in_soak(SEEDS, 0, 1, 4, 6, 8))
@by_name(SCHEDULES)
def test_schedules(analyzer, seed, batching):
    rng = np.random.default_rng(seed)
    boundaries, network = some_boundaries(rng), some_network(rng)
    facts = [boundaries, network, batching.run(boundaries), dependencies_of(boundaries), model_of(boundaries)]
    found = result_of(analyzer, *facts)
    validate_schedule(boundaries, found)  # all once, one type and level, the forward window where it may be
    assert found.reason and all(t.reason for t in found.transfers)
    for transfer in found.transfers:
        if transfer.window == FORWARD:
            assert all(boundaries.by_name[p.gradient].is_postponable for p in transfer.pieces)
    # What needs an update of the same step comes after it, whatever is read first.
    levels = [boundaries.by_name[t.pieces[0].gradient].level for t in found.transfers if t.window == BACKWARD]
    assert levels == sorted(levels)


@pytest.mark.parametrize("seed", SEEDS)
@by_name(ORDERS)
def test_orders(analyzer, seed):
    rng = np.random.default_rng(seed)
    model = some_model(rng)
    needs = find_dependencies(model)
    found = result_of(analyzer, model, needs, some_trace(rng, model), some_network(rng))
    assert sorted(found.gradients) == sorted(needs.gradients) and found.reason
    done = set()
    for name, stage in zip(found.gradients, found.stages, strict=True):
        assert done.isdisjoint(stage) and set(needs.producers[name]) <= done | set(stage)
        for op in stage:
            assert {text.partition(":")[0] for text in model.graph[op].input} <= done
            done.add(op)


@pytest.mark.parametrize("seed", SEEDS)
@by_name(EDGES)
def test_edges(analyzer, seed):
    rng = np.random.default_rng(seed)
    model = some_model(rng)
    given = {Model: model, Dependencies: find_dependencies(model), Trace: some_trace(rng, model)}
    given[Network] = some_network(rng)
    for order in ORDERS:
        made = order.run(*(given[fact] for fact in order.requires))
        found = result_of(analyzer, *(given[fact] for fact in (Model, Dependencies, Trace)), made)
        assert len(set(found.edges)) == len(found.edges) and found.reason and found.kind
        verify_fusible(model.graph, found.edges, "serialize")
        after = {}
        for before, name in found.edges:
            after.setdefault(name, []).append(before)
        nodes = [
            NodeDef(name=n.name, op=n.op, input=[*n.input, *(f"^{b}" for b in after.get(n.name, ()))])
            for n in model.graph
        ]
        assert len(Graph(nodes).order) == len(nodes)  # no cycle
        for before, name in found.edges:
            assert before not in model.graph.ancestors([name])  # none that follows from the rest


@pytest.mark.parametrize("seed", SEEDS)
@by_name(TRANSFERS)
def test_transfers(analyzer, seed):
    rng = np.random.default_rng(seed)
    model, network = some_model(rng), some_network(rng)
    scheduled = [Scheduled((whole_gradient(g),), "backward", f"why {g.name}") for g in model.gradients]
    schedule = Schedule(tuple(scheduled), "each alone")
    found = result_of(analyzer, model, schedule, network)
    gradients = {g.name: g for g in model.gradients}
    assert [t.pieces for t in found.transfers] == [s.pieces for s in scheduled]
    assert [t.window for t in found.transfers] == [s.window for s in scheduled]
    assert all(most is None or most >= 1 for most in map(found.in_flight.most, ("forward", "backward")))
    for transfer in found.transfers:
        gradient = gradients[transfer.pieces[0].gradient]
        assert transfer.dtype == gradient.dtype and transfer.depth >= 1
        sizes = (None, None) if gradient.is_sparse else (gradient.size, gradient.size_bytes)
        assert (transfer.elements, transfer.size_bytes) == sizes
        assert gradient.is_sparse or network.workers == 1 or transfer.predicted_s >= 0


def test_the_facts_are_of_every_kind():
    """Otherwise the tests above would not see what they are for."""
    every = [some_boundaries(np.random.default_rng(seed)) for seed in SEEDS]
    gradients = [g for found in every for g in found.gradients]
    assert {0, 1, 2} <= {g.level for g in gradients} and {g.dtype for g in gradients} == {"float32", "float64"}
    assert {0, None} <= {g.elements for g in gradients} and any(g.kept_reason for g in gradients)
    assert any(not found.gradients for found in every)
    models = [some_model(np.random.default_rng(seed)) for seed in SEEDS]
    assert any(find_dependencies(m).levels.get(g.name) for m in models for g in m.gradients)
    assert any(g.is_sparse for m in models for g in m.gradients) and any(not m.gradients for m in models)
    assert Piece("g", 0, 1) != Piece("g", 0, None)
