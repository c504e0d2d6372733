"""`caramel.what_if`: the plan of `caramel.ARModel` without its graph, also where there could be no graph."""

from dataclasses import replace

import pytest
from three_layers import three_layers

import caramel
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.netmodel.contention import Contention
from caramel.netmodel.line import Curve, Sample

SIZES = (64, 2**12, 2**16, 2**20)
COST = caramel.NetworkModel.from_costs(1e-4, 1e-9).given


@pytest.fixture(scope="module")
def captured():
    """Three layers, and a trace in which their products take a millisecond each."""
    context = three_layers(20)
    op_s = {node.name: 1e-3 if node.op == "MatMul" else 1e-9 for node in context.model.graph}
    return context, Trace(context.model.digest, op_s, {}, 9e-3, 9e-3, 3, 1, 16, "by hand")


def measured(*numbers, contentions=()):
    curves = [
        Curve.fitted(n, name, 1, [Sample(size, COST.time_s(name, n, 1, size)) for size in SIZES])
        for n in numbers
        for name in ("ring", "shuffle")
    ]
    return caramel.NetworkModel("as by hand", tuple(curves), contentions=tuple(contentions))


@pytest.mark.parametrize("options", [{}, {"policy": "paper"}, {"deterministic": True}, {"scheduling": False}])
def test_it_is_the_plan_of_a_graph(options, captured):
    context, trace = captured
    network = measured(2, 4)
    found = caramel.what_if(context, 4, network=network, trace=trace, **options)
    whole = caramel.ARModel(context, 4, network=network, trace=trace, **options).plan
    assert whole.proof and not found.proof
    assert found == replace(whole, proof=())


def test_other_numbers_of_workers_are_predicted_from_costs(captured):
    context, trace = captured
    for workers in (3, 16):
        found = caramel.what_if(context, workers, network=measured(2, 4), trace=trace, algorithm="ring", depth=1)
        wanted = caramel.what_if(
            context,
            workers,
            network=caramel.NetworkModel("by hand", given=COST),
            trace=trace,
            algorithm="ring",
            depth=1,
        )
        assert found.prediction.timeline.iteration_s == pytest.approx(wanted.prediction.timeline.iteration_s, rel=1e-6)
        assert any("extrapolated" in note for note in found.notes)
    with pytest.raises(InputError, match="up to 16"):
        caramel.what_if(context, 17, network=measured(2, 4), trace=trace)


def test_what_computation_costs_transfers_is_that_of_the_nearest_number_that_was_measured(captured):
    context, trace = captured
    contentions = [
        Contention(workers, name, 1, size, share, 2.0)
        for workers, share in ((2, 0.1), (8, 0.4))
        for name in ("ring", "shuffle")
        for size in (2**12, 2**20)
    ]
    network = measured(2, 8, contentions=contentions)
    for workers, nearest in ((3, 2), (4, 8), (16, 8)):  # 4 is as far from both: the larger one counts
        for ask in (network.processor_share, network.slowdown):
            assert ask(workers, "ring", 1, 2**16) == pytest.approx(ask(nearest, "ring", 1, 2**16), rel=0.5)
        assert network.processor_share(workers, "ring", 1, 2**20) == pytest.approx(0.1 if nearest == 2 else 0.4)
    busy = caramel.what_if(context, 16, network=network, trace=trace)
    idle = caramel.what_if(context, 16, network=measured(2, 8), trace=trace)
    assert busy.prediction.timeline.iteration_s > idle.prediction.timeline.iteration_s
    assert network.processor_share(1, "ring", 1, 2**20) == 0.0


def test_more_workers_than_a_graph_can_have(captured):
    context, trace = captured
    network = caramel.NetworkModel.from_link_rate(125e6)
    steps_s = [
        caramel.what_if(context, n, network=network, trace=trace).prediction.timeline.iteration_s
        for n in (2, 256, 10_000)
    ]
    assert steps_s == sorted(steps_s)
    with pytest.raises(InputError, match="10,000"):
        caramel.what_if(context, 10_001, network=network)
    with pytest.raises(InputError, match="at most 256"):
        caramel.ARModel(context, 257, network=network)


def test_bad_arguments(captured):
    context, _ = captured
    with pytest.raises(InputError, match="caramel.capture returned, got dict"):
        caramel.what_if({}, 2)
    with pytest.raises(InputError, match="'polcy'.*'policy'"):
        caramel.what_if(context, 2, polcy="paper")
    with pytest.raises(InputError, match="is_what_if"):
        caramel.what_if(context, 2, is_what_if=False)
