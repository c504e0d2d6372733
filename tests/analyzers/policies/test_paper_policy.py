"""`policy="paper"` as a whole: every decision is the paper's."""

import pytest
import tensorflow as tf

import caramel
from caramel.analyzers.registry import automatic_analyzers
from caramel.compiler.options import CompileOptions
from caramel.errors import InputError
from caramel.facts import Trace
from caramel.netmodel.line import Curve, Sample
from caramel.netmodel.model import NetworkModel, default_depth

WORKERS = 4
SIZES = (64, 4096, 65536, 2**20, 2**23)


def network(names=("shuffle", "ring"), depths=(1, 2, 4, 8)):
    """Rings are faster; each chunk costs a tenth of a start. The threshold of a shuffle is 1.5 a / b = 150 kB."""
    curves = []
    for name in names:
        for depth in depths:
            factor = (0.5 if name == "ring" else 1.0) * (1 + 0.1 * (depth - 1))
            samples = [Sample(size, factor * (1e-3 + 1e-8 * size)) for size in SIZES]
            curves.append(Curve.fitted(WORKERS, name, depth, samples))
    return NetworkModel("a test", tuple(curves))


def compiled(**options):
    """Two large matrices and six small vectors, in a chain."""
    large = [tf.Variable(tf.random.stateless_uniform([512, 512], [1, n]), name=f"large{n}") for n in range(2)]
    small = [tf.Variable(tf.ones([512]), name=f"small{n}") for n in range(6)]

    def step(x):
        with tf.GradientTape() as tape:
            for n, v in enumerate(small):
                x = tf.tanh(x * v)
                if n in (2, 4):
                    x = tf.matmul(x, large[n // 4])
            loss = tf.reduce_mean(x**2)
        for v, g in zip([*large, *small], tape.gradient(loss, [*large, *small])):
            v.assign_sub(0.1 * g)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 512])])
    model = context.model
    op_s = {node.name: 4e-3 if node.op == "MatMul" else 1e-5 for node in model.graph}
    least_s = {name: time_s / 2 for name, time_s in op_s.items()}
    trace = Trace(model.digest, op_s, {}, 0.02, 0.02, 5, 1, 16, "a test", op_least_s=least_s)
    given = {"network": network(), "trace": trace, "policy": "paper", **options}
    return caramel.ARModel(context, WORKERS, **given), trace


def test_every_decision_is_the_papers():
    armodel, _ = compiled()
    plan = armodel.plan
    assert [name for name in plan.analyzers if "order" in name or "serial" in name or "trace" in name] == [
        "trace (least times)",
        "greedy order",
        "serialization (total)",
    ]
    assert "Caramel's batching" in plan.analyzers and "Caramel's packing" in plan.analyzers
    threshold = 1.5 * 1e-3 / 1e-8
    for transfer in plan.transfers:
        assert transfer.algorithm == "shuffle"
        assert transfer.depth == default_depth(transfer.size_bytes, threshold)
    large = [t for t in plan.transfers if t.size_bytes > threshold]
    assert len(large) == 2 and all(len(t.gradients) == 1 and t.depth == 6 for t in large)
    assert any(len(t.gradients) > 1 for t in plan.transfers)  # small ones join
    (note,) = [note for note in plan.notes if note.startswith("threshold: ")]
    assert "146 KiB" in note
    assert "in pieces of the threshold of 146 KiB, up to 8" in large[0].reason


def test_the_least_times_of_a_trace_count():
    analyzers, _ = automatic_analyzers(planners_network(), compiled()[1], policy="paper")
    (trace,) = [a.run() for a in analyzers if a.provides is Trace]
    assert trace.op_s == compiled()[1].op_least_s
    analyzers, _ = automatic_analyzers(planners_network(), compiled()[1])
    (trace,) = [a.run() for a in analyzers if a.provides is Trace]
    assert trace.op_s == compiled()[1].op_s


def planners_network():
    from caramel.analyzers.cost.network import Network
    from caramel.netmodel.choice import CollectiveOptions

    return Network(CollectiveOptions(network=network()), WORKERS)


def test_what_the_caller_says_goes_before():
    plan = compiled(algorithm="ring", depth=2)[0].plan
    assert {(t.algorithm, t.depth) for t in plan.transfers} == {("ring", 2)}


def test_a_network_that_cannot_serve_it():
    with pytest.raises(InputError, match=r"about shuffle.*known are ring at depth 1"):
        compiled(network=network(names=("ring",), depths=(1,)))


def test_depths_that_were_not_measured_cost_a_start_for_each_chunk():
    plan = compiled(network=network(depths=(1,)), batching=False)[0].plan
    for transfer in plan.transfers:
        alone_s = 1e-3 + 1e-8 * max(transfer.size_bytes, 64)
        start_s = 1e-3 + 1e-8 * 64
        assert transfer.predicted_s == pytest.approx(alone_s + (transfer.depth - 1) * start_s)


def test_options_complete_what_is_left_open():
    options = CompileOptions(WORKERS, network=network(), policy="paper").collectives
    assert (options.algorithm, options.depth, options.depth_by_threshold) == ("shuffle", None, True)
    assert CompileOptions(WORKERS, network=network()).collectives.depth_by_threshold is False
