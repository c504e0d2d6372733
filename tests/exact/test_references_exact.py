"""Programs with reference variables on N workers against one device, and against one device with micro-batches."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exact_common import (
    BATCH,
    LOCAL,
    SAME,
    STEPS,
    Case,
    assert_bits,
    assert_equivalent,
    assert_moved,
    assert_same,
    batches,
    in_process,
    train,
)
from exact_tf1 import (
    AVERAGE,
    FURTHER_OPTIMIZERS,
    OPTIMIZERS,
    MicroBatches,
    OneDevice,
    build,
    capture,
    distributed,
    trained_alone,
)
from variants import each_once, in_soak, mostly_in_soak

import caramel

v1 = tf.compat.v1
EVERY = [*OPTIMIZERS, *FURTHER_OPTIMIZERS]
SOME = ("gradient descent", "adam", "centered rmsprop", "ftrl")
SOME_AND_IN_SOAK_THE_OTHERS = [*SOME, *in_soak(*(o for o in EVERY if o not in SOME))]
HALF = STEPS // 2


def case_of(optimizer, features, dtype="float64", **options):
    return Case(optimizer, tuple(features), dtype, references=True, **options)


def ops_of(device):
    return {op.type for op in device.graph.get_operations()}


@pytest.mark.parametrize("optimizer", SOME_AND_IN_SOAK_THE_OTHERS)
def test_equals_one_device_with_the_whole_batch(optimizer):
    case = case_of(optimizer, SAME)
    data = batches(BATCH, case.dtype)
    device = OneDevice(case)
    assert "VariableV2" in ops_of(device) and "VarHandleOp" not in ops_of(device)
    initial = device.values()
    want = device.train(data)
    assert_moved(initial, want.values, but=["unused"])
    assert_equivalent(distributed(case, 3, data), want)


@pytest.mark.parametrize("optimizer", mostly_in_soak(EVERY, "ftrl"))
def test_has_the_bits_of_micro_batches(optimizer):
    """With batch normalisation, whose statistics are assigned, and dropout."""
    case = case_of(optimizer, SAME + LOCAL, "float32", clip=1.4)
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, 3, data), MicroBatches(case, 3).train(data))


@pytest.mark.soak  # as in test_tf1_exact.py: references are gone before the graph is optimized
@pytest.mark.parametrize("optimizer", ["adam", "momentum", "adadelta"])
def test_has_the_bits_of_micro_batches_with_the_graph_optimizers_on(optimizer):
    case = case_of(optimizer, SAME + LOCAL, "float32", clip=1.3)
    data = batches(BATCH, case.dtype)
    oracle = MicroBatches(case, 2, v1.ConfigProto())
    assert_same(distributed(case, 2, data, caramel.InProcess()), oracle.train(data))


@pytest.mark.soak  # both have the bits of micro-batches
@pytest.mark.parametrize("optimizer", EVERY)
def test_has_the_bits_of_the_same_program_with_resource_variables(optimizer):
    case = case_of(optimizer, SAME + LOCAL, "float32")
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, 2, data), distributed(replace(case, references=False), 2, data))


@pytest.mark.parametrize(
    "optimizer, workers",
    [("adam", 3), *in_soak(("adam", 2), ("gradient descent", 2), ("gradient descent", 3))],
)
def test_an_average_of_the_weights_after_each_step(optimizer, workers, old_control_flow):
    """It takes the weights that the step has just written, although it was given reads from before."""
    case = case_of(optimizer, (*SAME, AVERAGE))
    data = batches(BATCH, case.dtype)
    device = OneDevice(case)
    want = device.train(data)
    assert "first/kernel/ExponentialMovingAverage" in want.values
    assert_equivalent(distributed(case, workers, data), want)


@pytest.mark.soak  # as the test before
def test_an_average_of_the_weights_has_the_bits_of_micro_batches(old_control_flow):
    case = case_of("momentum", (*SAME, *LOCAL, AVERAGE), "float32", clip=1.3)
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, 3, data), MicroBatches(case, 3).train(data))


@pytest.mark.parametrize(("total", "workers"), [*in_soak((10, 4)), (7, 3)])
def test_uneven_batches_equal_the_whole_batch(total, workers):
    case = case_of("adam", ("clip", "decay", "tied", "schedule"))
    data = batches(total, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


def test_a_finished_graph_equals_one_device():
    case = case_of("momentum", ("schedule", "decay", "tied"))
    data = batches(BATCH, case.dtype)
    device = OneDevice(case)
    context = caramel.capture(device.graph)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        got = train(session, [device.program.feed(batch) for batch in data])
    assert_equivalent(got, device.train(data))


def counting(dtype="float64"):
    """Counters and rates from what assigns return, gradients that are added up, and tf.gradients by variables."""
    x = v1.placeholder(dtype, [None, 16], "x")
    w = v1.get_variable("w", [16], dtype, v1.random_normal_initializer(seed=3), use_resource=False)
    total = v1.get_variable("total", [16], dtype, v1.zeros_initializer(), use_resource=False, trainable=False)
    norms = v1.get_variable("norms", [4], dtype, v1.zeros_initializer(), use_resource=False, trainable=False)
    count = v1.get_variable("count", [], tf.int64, v1.zeros_initializer(), use_resource=False, trainable=False)
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - 1.0))
    (gradient,) = tf.gradients(loss, [w])
    now = v1.assign_add(count, 1)
    added = v1.assign_add(total, gradient)
    rate = 0.1 / tf.cast(now, dtype)
    moved = v1.assign_sub(w, rate * added)
    with tf.control_dependencies([moved]):
        kept = v1.scatter_update(norms, [now % 4], [tf.norm(w)])
    with tf.control_dependencies([kept]):
        shrunk = v1.assign(w, w * 0.99)
    return x, loss, tf.group(shrunk, name="step")


def test_what_assigns_return():
    data = [batch[:1] for batch in batches(BATCH, "float64")]
    losses, want = trained_alone(counting, data)
    with caramel.capture() as context:
        *_, context.train_op = counting()
    with caramel.ARModel(context, 3).session(in_process()) as session:
        got = [session.step(*batch).loss for batch in data]
        values = session.values()
    assert values["count"] == len(data) and np.all(values["norms"] > 0)
    np.testing.assert_allclose(got, losses, rtol=1e-8)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-8, err_msg=name)


def looking_up(optimizer):
    """A table of which every step looks up some rows, some of them twice."""
    rows = v1.placeholder(tf.int32, [None], "rows")
    y = v1.placeholder(tf.float64, [None], "y")
    with v1.variable_scope("net", use_resource=False):
        table = v1.get_variable("table", [7, 3], tf.float64, v1.random_normal_initializer(seed=2))
        w = v1.get_variable("w", [3], tf.float64, v1.ones_initializer())
        step = v1.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(tf.nn.embedding_lookup(table, rows), w) - y))
    return rows, y, loss, (OPTIMIZERS | FURTHER_OPTIMIZERS)[optimizer](0.05).minimize(loss, step)


@pytest.mark.parametrize("optimizer", mostly_in_soak(EVERY, "adam", "ftrl"))
def test_sparse_gradients(optimizer):
    rng = np.random.default_rng(4)
    data = [(rng.integers(0, 7, 12).astype(np.int32), rng.normal(size=12)) for _ in range(8)]
    losses, want = trained_alone(lambda: looking_up(optimizer), data)
    with caramel.capture() as context:
        looking_up(optimizer)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        got = [session.step(*batch).loss for batch in data]
        values = session.values()
    np.testing.assert_allclose(got, losses, rtol=1e-8)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-8, err_msg=name)


def looking_ahead(resource):
    """Every third step a branch moves slow weights towards the fast ones, and the fast ones back to them."""
    x = v1.placeholder(tf.float64, [None, 16], "x")
    with v1.variable_scope("net", use_resource=resource):
        w = v1.get_variable("w", [16], tf.float64, v1.random_normal_initializer(seed=3))
        slow = v1.get_variable("slow", [16], tf.float64, v1.zeros_initializer(), trainable=False)
        count = v1.get_variable("count", [], tf.int64, v1.zeros_initializer(), trainable=False)
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - 1.0))

    def synchronise():
        moved = v1.assign_add(slow, 0.5 * (w - slow))
        with tf.control_dependencies([moved]):
            return tf.identity(v1.assign(w, slow * 1.0))

    with tf.control_dependencies([v1.train.GradientDescentOptimizer(0.05).minimize(loss), v1.assign_add(count, 1)]):
        due = tf.equal(tf.identity(count) % 3, 0)
    return x, loss, v1.cond(due, synchronise, lambda: tf.identity(w), name="ahead").op


@pytest.mark.parametrize("variables, workers", each_once(["references", "resources"], [2, 3]))
def test_branches_that_write(workers, variables, old_control_flow):
    resource = variables == "resources"
    data = [batch[:1] for batch in batches(BATCH, "float64")]
    losses, want = trained_alone(lambda: looking_ahead(resource), data)
    with caramel.capture() as context:
        *_, context.train_op = looking_ahead(resource)
    with caramel.ARModel(context, workers).session(in_process()) as session:
        got = [session.step(*batch).loss for batch in data]
        values = session.values()
    assert values["net/count"] == len(data)
    np.testing.assert_allclose(got, losses, rtol=1e-8)
    for name, value in want.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-8, err_msg=name)


# -- checkpoints and evaluation --------------------------------------------------------------


def halves(case):
    data = batches(BATCH, case.dtype)
    return data[:HALF], data[HALF:]


def fresh_session(case, workers):
    context, program = capture(case)
    return caramel.ARModel(context, workers).session(in_process()), program


@pytest.mark.parametrize("optimizer", ["adam", *in_soak("centered rmsprop")])
def test_a_savers_checkpoint_goes_on_with_n_workers(optimizer, tmp_path):
    case = case_of(optimizer, (*SAME, "unused"))
    first, second = halves(case)
    device = OneDevice(case)
    device.train(first)
    path = device.save(str(tmp_path / "single"))
    start, want = device.values(), device.train(second)
    session, program = fresh_session(case, 3)
    with session:
        session.restore(path)
        assert_bits(session.values(), start)
        assert session.step_count == HALF
        assert_equivalent(train(session, [program.feed(batch) for batch in second]), want)


@pytest.mark.parametrize("optimizer", ["adam", *in_soak("centered rmsprop")])
def test_a_session_saves_for_a_saver(optimizer, tmp_path):
    case = case_of(optimizer, (*SAME, "unused"))
    first, second = halves(case)
    session, program = fresh_session(case, 3)
    with session:
        trained = train(session, [program.feed(batch) for batch in first])
        session.save(tmp_path / "distributed")
    device = OneDevice(case)
    device.restore(str(tmp_path / "distributed"))
    assert_bits(device.values(), trained.values)
    straight = OneDevice(case)
    straight.train(first)
    assert_equivalent(device.train(second), straight.train(second))


def test_what_an_evaluation_fetches():
    case = case_of("momentum", ("norm", "clip"))
    data = batches(BATCH, case.dtype)
    with caramel.capture() as context:
        program = build(case)
        kernel = next(v for v in v1.global_variables() if v.op.name == "first/kernel")
        with v1.colocate_with(kernel):
            context.evaluation = {"logits": program.logits, "kernel": kernel, "read": kernel.read_value()}
            tf.multiply(kernel, 2.0, name="doubled")
    with caramel.ARModel(context, 2).session(in_process()) as session:
        trained = train(session, [program.feed(batch) for batch in data])
        values = session.evaluate(data[0][0])
        reference, doubled = session.evaluate(fetches=["first/kernel:0", "doubled:0"])
    device = OneDevice(case)
    device.load(trained.values)
    np.testing.assert_allclose(
        values["logits"], device.session.run(device.program.logits, {device.program.x: data[0][0]})
    )
    for value in (values["kernel"], values["read"], reference):
        np.testing.assert_array_equal(value, trained.values["first/kernel"])
    np.testing.assert_array_equal(doubled, 2.0 * reference)


# -- a whole program -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_whole_program_of_tensorflow_1(tmp_path):
    """The program is run twice, in a process of its own: by itself, and unmodified by Caramel."""
    program = Path(__file__).with_name("references_program.py")
    environment = os.environ | {"PYTHONPATH": str(Path(caramel.__file__).parents[1])}
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    alone, together = (np.load(tmp_path / f"{how}.npz") for how in ("alone", "distributed"))
    assert set(alone.files) == set(together.files) and len(alone.files) > 20
    for name in alone.files:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-8, atol=1e-12, err_msg=name)
