"""Plans for networks that were measured with other sizes, depths or numbers of workers, and for one worker."""

import pytest
import tensorflow as tf

import caramel
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel

START_S, S_PER_BYTE = 1e-3, 1e-8
BYTES = 4 * 128 * 128


def network(sizes=(64, 4096, 2**20), workers=(4,), names=("ring",)):
    """Measured at depth 1 only."""
    samples = [Sample(size, START_S + S_PER_BYTE * size) for size in sizes]
    return NetworkModel("a test", tuple(Curve.fitted(n, name, 1, samples) for n in workers for name in names))


def planned(known, workers=4, **options):
    """The plan of two matrices, one after the other."""
    matrices = [tf.Variable(tf.eye(128), name=f"w{n}") for n in range(2)]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(tf.tanh(tf.matmul(x, matrices[0])), matrices[1]) ** 2)
        for v, g in zip(matrices, tape.gradient(loss, matrices)):
            v.assign_sub(0.1 * g)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 128])])
    op_s = {node.name: 4e-3 if node.op == "MatMul" else 1e-5 for node in context.model.graph}
    trace = Trace(context.model.digest, op_s, {}, 0.02, 0.02, 5, 1, 16, "a test")
    return caramel.ARModel(context, workers, network=known, trace=trace, batching=False, **options).plan


def extrapolated(plan):
    return [note for note in plan.notes if "extrapolated" in note]


def test_what_was_measured_is_not_marked():
    plan = planned(network())
    assert plan.prediction is not None and extrapolated(plan) == []


@pytest.mark.parametrize("sizes", [(64, 4096), (2**20, 2**22)], ids=["above", "below"])
def test_sizes_that_were_not_measured_are_marked(sizes):
    plan = planned(network(sizes))
    assert plan.prediction is not None
    assert extrapolated(plan) == [
        "network: extrapolated outside what was measured: 2 transfers: "
        f"0 (ring at depth 1, {BYTES:,} bytes), 1 (ring at depth 1, {BYTES:,} bytes)"
    ]


def test_depths_that_were_not_measured_are_marked():
    plan = planned(network(), depth=4)
    assert plan.prediction.timeline.communication_s >= 2 * 4 * START_S
    (note,) = extrapolated(plan)
    assert f"0 (ring at depth 4, {BYTES:,} bytes)" in note


@pytest.mark.parametrize("narrowed", ["bfloat16", "float16"])
def test_what_travels_counts(narrowed):
    """Rounded to two bytes, the gradients are as large as what was measured."""
    assert extrapolated(planned(network((64, BYTES // 2)))) != []
    assert extrapolated(planned(network((64, BYTES // 2)), wire=narrowed)) == []


def test_numbers_of_workers_that_were_not_measured_get_no_graph():
    with pytest.raises(InputError, match="measured with 2, 4 workers, not with 3"):
        planned(network(workers=(2, 4)), workers=3)


@pytest.mark.parametrize("options", [{}, {"policy": "paper"}, {"depth": 4}, {"algorithm": "star"}], ids=str)
def test_one_worker_sends_nothing_on_any_network(options):
    plan = planned(network(), workers=1, **options)
    timeline = plan.prediction.timeline
    assert timeline.communication_s == timeline.exposed_s == 0
    assert timeline.iteration_s == plan.prediction.lower_bound_s == pytest.approx(timeline.compute_s)
    assert extrapolated(plan) == []


@pytest.mark.parametrize("options", [{"policy": "paper"}, {"algorithm": "star"}], ids=str)
def test_what_a_network_cannot_serve_is_named(options):
    with pytest.raises(InputError, match=r"about (shuffle|star).*known are ring at depth 1"):
        planned(network(), **options)
