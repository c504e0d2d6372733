"""When gradients are ready, and how much longer computation is beside transfers that were, and were not, measured."""

from dataclasses import replace

import pytest
from tensorflow.core.framework.node_def_pb2 import NodeDef

from caramel.analyzers.analyzer import analyse
from caramel.analyzers.automatic import WANTED
from caramel.analyzers.cost.network import Network
from caramel.analyzers.registry import automatic_analyzers
from caramel.errors import InputError
from caramel.facts import Boundaries, Trace
from caramel.graph.graph import Graph
from caramel.model import Gradient, Model, Reduction
from caramel.netmodel.choice import CollectiveOptions
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel
from caramel.plan import Transfers

WORKERS = 4


def step(*, is_sparse=False):
    """A Model with one gradient and its update."""
    nodes = [NodeDef(name="x", op="AddN"), NodeDef(name="g", op="AddN", input=["x"])]
    nodes.append(NodeDef(name="update", op="AddN", input=["g"]))
    sparse = {"indices": "g:1", "index_dtype": "int64"} if is_sparse else {}
    found = Gradient("w", "w", "g:0", ("update",), "float32", (64, 64), 4, **sparse)
    return Model(Graph(nodes), (), "x:0", (), (), (), (found,), (), Reduction("mean", ""), values=None)


def measured_rings():
    """Rings of depths 1 and 2, and what they take from computation."""
    samples = [Sample(64, 1e-3), Sample(2**20, 0.1)]
    curves = tuple(Curve.fitted(WORKERS, "ring", depth, samples) for depth in (1, 2))
    return NetworkModel("a test", curves, contentions=(Contention(WORKERS, "ring", 1, 2**20, 0.3, 1.5),))


def planned(model, trace=None, **options):
    network = Network(CollectiveOptions(network=measured_rings(), **options), WORKERS)
    analyzers, _ = automatic_analyzers(network, trace)
    return analyse(analyzers, [model, network], WANTED)


def trace_of(model):
    """A second for each op."""
    return Trace(model.digest, {node.name: 1.0 for node in model.graph}, {}, 3.0, 3.0, 1, 1, None, "a test")


NOT_MEASURED = {
    "an algorithm": ({"algorithm": "star", "depth": 3}, False),
    "an algorithm, sparse": ({"algorithm": "shuffle"}, True),
    "any in rank order, sparse": ({"deterministic": True}, True),
}


@pytest.mark.parametrize(("options", "is_sparse"), NOT_MEASURED.values(), ids=NOT_MEASURED)
def test_without_a_trace_nothing_has_to_be_known_of_transfers(options, is_sparse):
    """Times that nobody measured are not longer beside them either."""
    found = planned(step(is_sparse=is_sparse), **options)
    (transfer,) = found[Transfers].transfers
    assert (transfer.algorithm, transfer.depth) == (("all_gather", 1) if is_sparse else ("star", 3))
    assert transfer.predicted_s is None
    assert found[Boundaries].factor == 1


@pytest.mark.parametrize(("options", "is_sparse"), NOT_MEASURED.values(), ids=NOT_MEASURED)
def test_with_a_trace_what_was_not_measured_is_refused(options, is_sparse):
    """A plan by times needs those of transfers."""
    model = step(is_sparse=is_sparse)
    with pytest.raises(InputError, match=r"known are ring at depth 1, ring at depth 2; measure"):
        planned(model, trace_of(model), **options)


def test_computation_is_longer_beside_what_was_measured():
    model = step()
    found = planned(model, trace_of(model))[Boundaries]
    assert found.factor > 1
    assert found.compute_s == pytest.approx(2 * found.factor)
    assert found.updates_s == pytest.approx(found.factor)


@pytest.mark.parametrize(
    ("pace", "expected"), [((0.0, 1.0), 2 / 3), ((0.0, 0.8, 1.0), 0.8 + 0.2 / 3), ((0.4, 1.0), 0.8)]
)
def test_a_gradient_is_ready_when_all_workers_have_it(pace, expected):
    """Two of three seconds are gone when it has been computed, if ops run one after the other."""
    model = step()
    nodes = [*model.graph, NodeDef(name="alone", op="AddN", input=["x"])]
    model = replace(model, graph=Graph(nodes), updates=(("s", "alone"),))
    for kind, is_measured in (("none", True), ("total", False)):  # there is no order to enforce
        trace = replace(trace_of(model), pace={kind: pace})
        found = planned(model, trace)[Boundaries]
        assert found.compute_s == pytest.approx(3 * found.updates_s)
        ready = found.gradients[0].ready_s / found.compute_s
        assert ready == pytest.approx(expected if is_measured else 2 / 3)


def test_a_plan_says_what_its_trace_does_not():
    """It goes on with what a trace by hand, or of a program without such an op, does have."""
    for is_sparse, said in ((True, "; it has no sizes of w, which count with all rows"), (False, "")):
        model = step(is_sparse=is_sparse)
        trace = trace_of(model)
        options = {"algorithm": "ring", "depth": 1}
        assert planned(model, trace, **options)[Boundaries].basis.partition("a test")[2].startswith(said or "; beside")
        sized = replace(trace, op_bytes={"g": 4096})
        assert "no sizes" not in planned(model, sized, **options)[Boundaries].basis
        assert "computed at once" not in planned(model, sized, **options)[Boundaries].basis
        shared = planned(model, replace(sized, workers=3), **options)[Boundaries].basis
        assert "3 workers computed at once there, and shared the cores" in shared
        untimed = replace(sized, op_s={"x": 1.0, "update": 1.0})
        assert (
            "it has no times of what makes w, which count as 0" in planned(model, untimed, **options)[Boundaries].basis
        )
