"""An order of gradients is enforced where transfers begin in its course, and not where one waits for all of them."""

import pytest
import tensorflow as tf

import caramel
from caramel.analyzers import automatic_analyzers
from caramel.analyzers.cost.network import Network
from caramel.facts import Trace
from caramel.netmodel.choice import CollectiveOptions

v1 = tf.compat.v1

STEP_S = {"none": 10e-3, "total": 12e-3, "updates": 11.99e-3}


@pytest.fixture(scope="module")
def context():
    with caramel.capture() as found:
        x = v1.placeholder(tf.float32, [None, 8], name="x")
        values = [x, x]  # of two branches, so that gradients have no order by themselves
        for layer in range(3):
            kernels = [v1.get_variable(f"{side}{layer}", [8, 8]) for side in ("left", "right")]
            values = [tf.nn.relu(tf.matmul(value, kernel)) for value, kernel in zip(values, kernels)]
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(values[0] * values[1]))
    return found


def options_of(context, start_s):
    """A network with dear or cheap starts, and a trace in which an order costs a fifth of the step."""
    model = context.model
    computing = {node.name: 1e-3 for node in model.graph if node.op in ("MatMul", "Relu", "ReluGrad")}
    trace = Trace(model.digest, computing, {}, STEP_S["none"], 9e-3, 10, 2, 4, "made up", (), STEP_S)
    return {"network": caramel.NetworkModel.from_costs(start_s, 1e-6), "trace": trace}


def test_one_transfer_of_everything_needs_no_order(context):
    plan = caramel.ARModel(context, 2, **options_of(context, 1.0)).plan
    assert [t.window for t in plan.transfers] == ["backward"] and plan.edges == ()
    assert "enforced: nothing, since all gradients travel together" in plan.order_reason
    assert plan.prediction.timeline.compute_s == pytest.approx(STEP_S["none"])


@pytest.mark.parametrize("left", [0, 1])
def test_gradients_that_travel_in_the_next_step_need_none(context, left):
    names = [gradient.name for gradient in context.model.gradients]
    plan = caramel.ARModel(context, 2, **options_of(context, 1e-5), postponed=names[left:], batching=False).plan
    assert len(plan.transfers) == len(names) and [t.window for t in plan.transfers].count("backward") == left
    assert bool(plan.edges) == bool(left)
    assert ("nothing, since all gradients travel in the next step's forward pass" in plan.order_reason) == (not left)
    kind = "updates" if left else "none"
    assert plan.prediction.timeline.compute_s == pytest.approx(STEP_S[kind], rel=1e-2)


def test_several_do(context):
    plan = caramel.ARModel(context, 2, **options_of(context, 1e-5)).plan
    assert len(plan.transfers) > 1 and plan.edges and "control edges on each worker" in plan.order_reason
    assert plan.prediction.timeline.compute_s == pytest.approx(STEP_S["total"], rel=1e-3)


def test_what_is_asked_for_by_hand_stays(context):
    options = options_of(context, 1.0)
    network = Network(CollectiveOptions(network=options["network"]), 2)
    analyzers, _ = automatic_analyzers(network, options["trace"])
    plan = caramel.ARModel(context, 2, network=options["network"], analyzers=analyzers).plan
    assert len(plan.transfers) == 1 and plan.edges
    assert caramel.ARModel(context, 2, **options, policy="paper").plan.edges
