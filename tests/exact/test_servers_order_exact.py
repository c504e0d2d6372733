"""Parameter servers where a branch is not taken, or the order of accesses goes over another side."""

import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_servers import assert_bits, reduced, served
from exact_steps import Program

import caramel

v1 = tf.compat.v1

ROWS = [tf.TensorSpec([None], tf.int64, "rows"), tf.TensorSpec([None], tf.float64, "y")]
SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def parameter(name, shape, **options):
    return tf.Variable(np.random.default_rng(len(name)).normal(size=shape), name=name, **options)


def rows(count=12, steps=6, seed=1):
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, 6, count), rng.normal(size=count)) for _ in range(steps)]


def examples(count=12, steps=6, seed=2):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, 4)), rng.normal(size=count)) for _ in range(steps)]


def a_lookup_every_other_step():
    """The table is written in every step, whether it was looked up or not."""
    table, scale = parameter("table", [6]), parameter("scale", [])
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

    def step(rows, y):
        with tf.GradientTape() as tape:
            found = tf.cond(count % 2 == 0, lambda: tf.gather(table, rows), lambda: tf.zeros_like(y))
            loss = tf.reduce_mean((tf.stop_gradient(found) * scale - y + scale) ** 2)
        gradient = tape.gradient(loss, scale)
        table.assign(table * 0.9)
        scale.assign_sub(0.1 * gradient)
        count.assign_add(1)
        return loss

    return Program(step, ROWS, {"table": table, "scale": scale, "count": count})


def a_read_in_a_branch_of_some_workers():
    """Each worker takes the branch by its own examples."""
    w = parameter("w", [4, 4])

    def step(x, y):
        with tf.GradientTape() as tape:
            x = tf.cond(tf.reduce_sum(y) > 0, lambda: x + tf.tanh(x @ w), lambda: x)
            loss = tf.reduce_mean((tf.reduce_sum(x @ w, 1) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, SPECS, {"w": w}, {"loss_reduction": "mean"})


def a_read_in_a_branch_before_a_decay():
    w = parameter("w", [4])

    def step(x, y):
        with tf.GradientTape() as tape:
            shift = tf.cond(tf.reduce_sum(y) > 0, lambda: tf.reduce_sum(x * w, 1), lambda: tf.zeros_like(y))
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y + tf.stop_gradient(shift)) ** 2)
        gradient = tape.gradient(loss, w)
        w.assign(0.9 * w)
        w.assign_sub(0.1 * gradient)
        return loss

    return Program(step, SPECS, {"w": w}, {"loss_reduction": "mean"})


PROGRAMS = {
    a_lookup_every_other_step: rows,
    a_read_in_a_branch_of_some_workers: examples,
    a_read_in_a_branch_before_a_decay: examples,
}


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (3, 1)])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_branch_that_is_not_taken(make, workers, servers):
    data = PROGRAMS[make]()
    got, _ = served(make, data, workers, servers)
    assert_bits(got, reduced(make, data, workers))
    assert all(loss != 0 for loss in got[0])


def test_a_write_in_a_branch_before_a_lookup_there_is_refused():
    table, count = parameter("table", [6]), tf.Variable(0, dtype=tf.int64, name="count", trainable=False)

    def step(rows, y):
        def taken():
            table.assign(table * 0.5)
            return tf.gather(table, rows)

        with tf.GradientTape() as tape:
            found = tf.cond(count % 2 == 0, taken, lambda: tf.zeros_like(y))
            loss = tf.reduce_mean((tf.stop_gradient(found) - y + tf.reduce_sum(table)) ** 2)
        gradient = tape.gradient(loss, table)
        table.assign_sub(0.01 * gradient)
        count.assign_add(1)
        return loss

    context = caramel.capture(step, ROWS)
    with pytest.raises(caramel.UnsupportedError, match="writes a variable in a branch, and .* takes its handle"):
        caramel.PSModel(context, 2)


def looked_up_after_a_write():
    """A graph of TensorFlow 1: only a worker's op is between the write of the table and the lookup."""
    with caramel.capture(loss_reduction="mean") as context:
        found = v1.placeholder(tf.int64, [None], name="rows")
        y = v1.placeholder(tf.float64, [None], name="y")
        table = v1.get_variable(
            "table", dtype=tf.float64, initializer=np.arange(6.0), trainable=False, use_resource=True
        )
        w = v1.get_variable("w", dtype=tf.float64, initializer=np.float64(0.5), use_resource=True)
        halved = v1.assign(table, table * 0.5)
        with tf.control_dependencies([halved]):
            later = tf.identity(found)
        loss = tf.reduce_mean((tf.gather(table, later) * w - y) ** 2)
        v1.train.GradientDescentOptimizer(0.01).minimize(loss)
    return context


@pytest.mark.parametrize("servers", [1, 2])
def test_an_order_that_goes_over_workers(servers):
    data = [dict(zip(("rows", "y"), batch)) for batch in rows()]
    results = []
    for make in (
        lambda context: caramel.PSModel(context, 3, servers, deterministic=True),
        lambda context: caramel.ARModel(context, 3, deterministic=True),
    ):
        with make(looked_up_after_a_write()).session(in_process()) as session:
            losses = [session.step(batch).loss for batch in data]
            results.append((losses, session.values()))
    assert results[0][0] == results[1][0]
    for name, value in results[1][1].items():
        np.testing.assert_array_equal(results[0][1][name], value)


def test_an_evaluation_must_not_write_what_servers_have():
    w, count = parameter("w", [4]), tf.Variable(0.0, name="count", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        count.assign_add(1.0)
        return loss

    options = {"evaluation": lambda x: count.assign_add(100.0), "evaluation_inputs": SPECS[:1]}
    context = caramel.capture(step, SPECS, **options)
    with pytest.raises(caramel.UnsupportedError, match="of the evaluation writes .*'count'"):
        caramel.PSModel(context, 1)


def test_a_gradient_that_needs_no_examples_is_predicted():
    """A parameter that only a penalty uses."""
    w, other = parameter("w", [4]), parameter("other", [3])

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2) + 0.01 * tf.reduce_sum(other**2)
        for v, gradient in zip((w, other), tape.gradient(loss, (w, other))):
            v.assign_sub(0.1 * gradient)
        return loss

    context = caramel.capture(step, SPECS)
    trace = caramel.trace(context, *examples()[0], workers=2)
    model = caramel.PSModel(context, 2, 1, trace=trace, network=caramel.NetworkModel.from_link_rate(1e8))
    assert model.plan.servers.prediction.step_s >= model.plan.servers.prediction.lower_bound_s
