"""Slices of one row that each worker adds up before it sends them: the same training, and only where it is the same."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, check, distributed, fresh
from test_sparse_exact import SPECS, examples, keras_with, loss_of, scattered, table_of
from variants import in_soak

import caramel
from caramel.analyzers.step.sparse_slices import distinct_rows_node
from caramel.errors import PlanError

v1 = tf.compat.v1
NETWORK = caramel.NetworkModel.from_link_rate(1e8)


def with_momentum(slices_of=lambda values: values, rows_of=lambda added, places, count: added):
    """Momentum on rows that are there once, as optimizers have it."""

    def make():
        table = table_of()
        momentum = tf.Variable(tf.zeros_like(table), trainable=False, name="momentum")

        def step(rows, y):
            with tf.GradientTape() as tape:
                loss = loss_of(table, rows, y)
            g = tape.gradient(loss, table)
            different, places = tf.unique(g.indices)
            count = tf.shape(different)[0]
            added = rows_of(tf.math.unsorted_segment_sum(slices_of(g.values), places, count), places, count)
            lr, momentum_factor = (tf.constant(value, tf.float64) for value in (0.1, 0.9))
            tf.raw_ops.ResourceSparseApplyMomentum(
                var=table.handle,
                accum=momentum.handle,
                lr=lr,
                grad=added,
                indices=different,
                momentum=momentum_factor,
            )
            return loss

        return Program(step, SPECS, {"table": table, "momentum": momentum})

    return make


def with_tf1(optimizer):
    def make():
        table = table_of()
        chosen = optimizer()

        def step(rows, y):
            with tf.GradientTape() as tape:
                loss = loss_of(table, rows, y)
            chosen.apply_gradients([(tape.gradient(loss, table), table)])
            return loss

        return Program(step, SPECS, {"table": table})

    return make


def averaged(added, places, count):
    """By how often a row is there, which is not to be seen any more where slices have been added up."""
    return added / tf.math.unsorted_segment_sum(tf.ones_like(places, tf.float64), places, count)[:, None]


def squared(values):
    return values * tf.abs(values)


def traced(make, batch):
    program = fresh(make)
    context = caramel.capture(program.step, program.specs, **program.options)
    trace = caramel.trace(context, *batch, workers=1, runs=1, steps=1, orders=False, progress=False)
    op_s = dict.fromkeys(trace.op_s, 1e-5)  # bytes are measured; what is decided must not depend on a busy machine
    step_s = sum(op_s.values())
    return replace(
        trace, op_s=op_s, op_least_s=op_s, step_s=step_s, predicted_s=step_s, plain_steps_s=(step_s,), pace={}
    )


PROGRAMS = {
    "by hand": with_momentum(),
    "adam": with_tf1(lambda: v1.train.AdamOptimizer(0.1)),
    "adagrad": with_tf1(lambda: v1.train.AdagradOptimizer(0.1)),
    "momentum": with_tf1(lambda: v1.train.MomentumOptimizer(0.1, 0.9)),
    "rmsprop": with_tf1(lambda: v1.train.RMSPropOptimizer(0.01)),
}


@pytest.mark.parametrize(
    "name, workers",
    [("momentum", 3), *in_soak(*((n, w) for n in PROGRAMS for w in (2, 3) if (n, w) != ("momentum", 3)))],
)
def test_training_is_the_same(name, workers):
    """On even batches, and on uneven ones: some workers have fewer slices, and fewer rows."""
    batches = [*examples(count=24), *examples(count=31, steps=3)]
    make = PROGRAMS[name]
    armodel = check(make, batches, workers, trace=traced(make, batches[0]), network=NETWORK)
    (transfer,) = armodel.plan.transfers
    assert transfer.adds_slices
    ops = [n.op for n in armodel.graph_def.node if n.name.startswith("caramel/transfer")]
    assert ops.count("UnsortedSegmentSum") == ops.count("Unique") == workers
    assert "adds up its slices of one row first" in armodel.plan.explain("table")  # to whomever they go


@pytest.mark.parametrize(
    "make",
    [
        scattered,
        with_momentum(rows_of=averaged),
        *in_soak(with_momentum(squared), keras_with(tf.keras.optimizers.Adam)),
    ],
    ids=["scattered", "averaged", "squared", "keras"],
)
def test_slices_stay_as_they_are_where_more_is_done_with_them(make):
    batches = examples(count=24)
    armodel = check(make, batches, 2, rtol=1e-7, trace=traced(make, batches[0]), network=NETWORK)
    assert not any(t.adds_slices for t in armodel.plan.transfers)
    (number,) = [n for n, t in enumerate(armodel.plan.transfers) if t.algorithm == "all_gather"]
    transfers = list(armodel.plan.transfers)
    transfers[number] = replace(transfers[number], adds_slices=True)
    program = fresh(make)
    context = caramel.capture(program.step, program.specs, **program.options)
    with pytest.raises(PlanError, match="adds up slices of .*, which the program does not do, or not only"):
        caramel.ARModel(context, 2, plan=replace(armodel.plan, transfers=tuple(transfers)))


def test_slices_stay_as_they_are_where_they_are_an_output():
    """Nothing that a step returns is made up of more, or less, than it was."""
    make = PROGRAMS["by hand"]
    context = caramel.capture(fresh(make).step, SPECS)
    (gradient,) = context.model.gradients
    assert distinct_rows_node(context.model, gradient)
    for tensor in (gradient.tensor, gradient.indices, f"{distinct_rows_node(context.model, gradient)}:1"):
        assert distinct_rows_node(replace(context.model, outputs=(("seen", tensor),)), gradient) is None


def test_nothing_is_added_up_where_no_row_is_there_twice():
    make = PROGRAMS["by hand"]
    rows = np.arange(10, dtype=np.int32).reshape(5, 2)
    batch = (rows, np.ones(5))
    armodel = check(make, [batch] * 2, 2, trace=traced(make, batch), network=NETWORK)
    assert not armodel.plan.transfers[0].adds_slices


def test_in_rank_order_no_trace_changes_a_bit():
    """Sums of sums are rounded otherwise."""
    make = PROGRAMS["momentum"]
    batches = examples(count=24)
    found = []
    for trace in (None, traced(make, batches[0])):
        program = fresh(make)
        context = caramel.capture(program.step, program.specs)
        options = {"deterministic": True, "trace": trace, "network": NETWORK}
        losses, values, armodel = distributed(program, context, batches, 3, **options)
        assert not any(t.adds_slices for t in armodel.plan.transfers)
        found.append((losses, values["table"].tobytes()))
    assert found[0] == found[1]


def test_plans_in_rank_order_add_up_no_slices():
    make = PROGRAMS["momentum"]
    trace = traced(make, examples(count=24)[0])
    program = fresh(make)
    context = caramel.capture(program.step, program.specs)
    plan = caramel.ARModel(context, 2, trace=trace, network=NETWORK).plan
    assert plan.transfers[0].adds_slices
    with pytest.raises(
        PlanError, match="transfer 0 adds up slices of 'table' on each worker, and so not in rank order"
    ):
        caramel.ARModel(context, 2, plan=replace(plan, deterministic=True))


def test_nothing_is_known_of_rows_without_a_trace():
    armodel = check(PROGRAMS["by hand"], examples(), 2)
    assert not armodel.plan.transfers[0].adds_slices


def test_plans_count_what_is_left():
    """A batch in which every slice is of one row sends next to nothing."""
    make = PROGRAMS["by hand"]
    y = np.linspace(0, 1, 40)
    sizes = {}
    for name, rows in {
        "one": np.zeros((40, 2), np.int32),
        "many": np.arange(80, dtype=np.int32).reshape(40, 2) % 11,
    }.items():
        program = fresh(make)
        context = caramel.capture(program.step, program.specs)
        trace = traced(make, (rows, y))
        for deterministic in (False, True):
            # A divided table sends less, and whether that is shorter is a question of the measured times.
            options = {"trace": trace, "network": NETWORK, "deterministic": deterministic, "shard_embeddings": False}
            (found,) = caramel.ARModel(context, 2, **options).facts[caramel.facts.Boundaries].gradients
            sizes[name, deterministic] = found.size_bytes / (3 * 8 + 4)
    left = {("one", False): 1, ("many", False): 11, ("one", True): 80, ("many", True): 80}
    assert sizes == pytest.approx(left)


def test_a_plan_says_it_of_whatever_transfer():
    """Also of one to the workers that have the rows, which a plan chooses by measured times."""
    make = PROGRAMS["momentum"]
    batches = examples(count=24)
    options = {"trace": traced(make, batches[0]), "network": NETWORK}
    program = fresh(make)
    context = caramel.capture(program.step, program.specs, **program.options)
    for is_divided in (False, True):
        plan = caramel.ARModel(context, 3, shard_embeddings=is_divided, **options).plan
        assert (plan.transfers[0].algorithm == "owners") == is_divided
        assert "adds up its slices of one row first" in plan.explain("table")
