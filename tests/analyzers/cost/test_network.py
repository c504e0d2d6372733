"""Times of transfers as planners ask for them."""

import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef
from variants import each_once

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.automatic import WANTED
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.prediction import predict
from caramel.analyzers.registry import automatic_analyzers
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.graph.graph import Graph
from caramel.model import Gradient, Model, Reduction
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

MODEL = NetworkModel.from_costs(2e-3, 3e-6, 5e-6)


@pytest.mark.parametrize("options", [("ring", 1), ("ring", None), ("halving_doubling", 1), (None, None)])
def test_times_are_those_of_the_cost_table(options):
    """For two workers, ring and halving-doubling are alike: two messages, all bytes once, half of them added."""
    network = Network(CollectiveOptions(*options, network=MODEL), 2)
    assert network.time_s(1000) == pytest.approx(2 * 2e-3 + 1000 * 3e-6 + 500 * 5e-6)


def test_one_worker_sends_nothing():
    network = Network(CollectiveOptions("ring", 1, network=MODEL), 1)
    assert (network.time_s(1000), network.threshold_bytes, network.line(1000).a_s) == (0, 0, 0)
    network.must_be_known("a test")


def test_without_a_model_nothing_is_known():
    with pytest.raises(InputError, match="a test needs.*network="):
        Network(CollectiveOptions(), 2).must_be_known("a test")


# -- bounds: whatever may be chosen, nothing is faster ---------------------------------------------


def measured(times_s, shares=None, sizes=(64, 2**20)):
    """For each algorithm the time of the larger size, and what it takes from computation."""
    curves = [
        Curve.fitted(4, name, 1, [Sample(sizes[0], 0.01 * time_s), Sample(sizes[1], time_s)])
        for name, time_s in times_s.items()
    ]
    contentions = [Contention(4, name, 1, sizes[1], share, 1.0) for name, share in (shares or {}).items()]
    return NetworkModel("a test", tuple(curves), contentions=tuple(contentions))


def on(model, *options, **others):
    return Network(CollectiveOptions(*options, network=model, **others), 4)


@pytest.mark.parametrize(
    ("times_s", "chosen"),
    [({"shuffle": 0.1, "ring": 0.124}, "ring"), ({"native": 0.1, "shuffle": 0.14}, "shuffle")],
    ids=["a ring is preferred", "native is avoided"],
)
@pytest.mark.parametrize("size", [1, 64, 5000, 2**18, 2**20])
def test_no_transfer_is_below_the_line_for_bounds(times_s, chosen, size):
    model = measured(times_s)
    assert model.choose(2**20, 4, is_beside=True).algorithm == chosen
    line = on(model).line_below(2**20)
    times = [on(model, name, depth).time_s(size) for name in times_s for depth in (1, None)]
    assert line.time_s(size) <= min(times) * (1 + 1e-9)
    assert on(model, chosen).line_below(2**20).time_s(2**20) == pytest.approx(on(model, chosen).time_s(2**20))


def test_bounds_are_for_what_is_allowed():
    """Not for what a mode excludes, nor for the extension of a line that ends where something else was measured."""
    model = measured({"ring": 0.1, "shuffle": 0.2})
    assert on(model, deterministic=True).line_below(2**20).time_s(2**20) == pytest.approx(0.2)
    given_up = Curve.fitted(4, "star", 1, [Sample(64, 1e-3), Sample(2**12, 1.1e-3)])
    model = NetworkModel("a test", (*model.curves, given_up))
    assert model.predict("star", 1, 4, 2**20).time_s < 0.1
    assert on(model).line_below(2**20).time_s(2**20) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(
    ("shares", "compute_s"),
    each_once([{}, {"shuffle": 0.1, "ring": 0.4}], [0.01, 0.1, 1.0]),
    ids=lambda value: ("processors" if value else "") if isinstance(value, dict) else None,
)
def test_no_plan_is_below_the_bound_of_the_automatic_one(shares, compute_s):
    model = measured({"shuffle": 0.1, "ring": 0.124}, shares)
    bound_s = predicted(on(model), compute_s).lower_bound_s
    for forced in (on(model, "shuffle"), on(model, "ring"), on(model, "shuffle", 1), on(model)):
        found = predicted(forced, compute_s)
        assert found.lower_bound_s <= found.timeline.iteration_s
        assert bound_s <= found.timeline.iteration_s * (1 + 1e-9)


def predicted(network, compute_s):
    """Of a step with two gradients of half a mebibyte each, and a tenth of the time for updates."""
    size = 2**19
    nodes = [NodeDef(name="x", op="AddN")]
    gradients = []
    for number in range(2):
        nodes.append(NodeDef(name=f"g{number}", op="AddN", input=[f"g{number - 1}" if number else "x"]))
        nodes.append(NodeDef(name=f"update{number}", op="AddN", input=[f"g{number}"]))
        name, updates = f"w{number}", (f"update{number}",)
        gradients.append(Gradient(name, name, f"g{number}:0", updates, "float32", (size // 4,), 4))
    model = Model(Graph(nodes), (), "x:0", (), (), (), tuple(gradients), (), Reduction("mean", ""), values=None)
    op_s = {node.name: 0.05 if node.name.startswith("update") else 0.3 for node in model.graph}
    trace = Trace(model.digest, op_s, {}, compute_s, compute_s, 1, 1, None, "a test")
    analyzers, _ = automatic_analyzers(network, trace)
    return predict(analyse(analyzers, [model, network], WANTED))
