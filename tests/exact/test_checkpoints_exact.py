"""Checkpoints between one device and N workers, both ways, and from one session of N workers to the next."""

import exact_keras as k
import exact_tf1 as v1
import numpy as np
import pytest
import tensorflow as tf
from exact_common import (
    BATCH,
    LOCAL,
    STEPS,
    Case,
    assert_bits,
    assert_close,
    assert_equivalent,
    assert_same,
    batches,
    in_process,
    serial_functions,
    train,
)
from variants import in_soak

import caramel

HALF = STEPS // 2
SAME = ("schedule", "clip", "decay", "tied")


@pytest.fixture(autouse=True)
def _kernels_as_written():
    with serial_functions():
        yield


def halves(dtype):
    data = batches(BATCH, dtype)
    return data[:HALF], data[HALF:]


def v1_session(case, workers):
    """A fresh session, and how to feed its program."""
    context, program = v1.capture(case)
    return caramel.ARModel(context, workers).session(in_process()), program


def v1_train(session, program, data):
    return train(session, [program.feed(batch) for batch in data])


def keras_session(case, workers):
    """A fresh session of a fresh model with its Checkpoint, and the program."""
    program = k.Program(case)
    context = caramel.capture(tf.function(program.step), inputs=program.specs, checkpoint=program.checkpoint())
    return caramel.ARModel(context, workers).session(in_process()), program


# TensorFlow 1: tf.compat.v1.train.Saver


@pytest.mark.parametrize("workers", [*in_soak(1), 3])
def test_a_savers_checkpoint_goes_on_with_n_workers(workers, tmp_path):
    case = Case("adam", (*SAME, "unused"))
    first, second = halves(case.dtype)
    device = v1.OneDevice(case)
    device.train(first)
    path = device.save(str(tmp_path / "single"))
    start, want = device.values(), device.train(second)
    session, program = v1_session(case, workers)
    with session:
        session.restore(path)
        assert_bits(session.values(), start)
        assert session.step_count == HALF
        assert_equivalent(v1_train(session, program, second), want)
        assert session.step_count == STEPS


@pytest.mark.parametrize("workers", [*in_soak(1), 3])
def test_a_session_saves_for_a_saver(workers, tmp_path):
    case = Case("adam", (*SAME, "unused", "norm"))
    first, second = halves(case.dtype)
    session, program = v1_session(case, workers)
    with session:
        trained = v1_train(session, program, first)
        session.save(tmp_path / "distributed")
    device = v1.OneDevice(case)
    saved = dict(tf.train.list_variables(str(tmp_path / "distributed")))
    own = {name: shape for name, shape in saved.items() if not name.startswith("caramel/")}
    assert own == {variable.op.name: variable.shape.as_list() for variable in device.variables}
    device.restore(str(tmp_path / "distributed"))
    assert_bits(device.values(), trained.values)
    assert device.values()["global_step"] == HALF
    device.train(second)
    assert device.values()["global_step"] == STEPS


def test_one_device_goes_on_from_n_workers_on_the_same_trajectory(tmp_path):
    case = Case("nesterov", SAME)
    first, second = halves(case.dtype)
    session, program = v1_session(case, 4)
    with session:
        v1_train(session, program, first)
        session.save(tmp_path / "distributed")
    device = v1.OneDevice(case)
    device.restore(str(tmp_path / "distributed"))
    got = device.train(second)
    straight = v1.OneDevice(case)
    straight.train(first)
    assert_equivalent(got, straight.train(second))


def test_a_checkpoint_of_two_workers_goes_on_with_four(tmp_path):
    case = Case("momentum", SAME)
    first, second = halves(case.dtype)
    session, program = v1_session(case, 2)
    with session:
        v1_train(session, program, first)
        session.save(tmp_path / "two")
    session, program = v1_session(case, 4)
    with session:
        session.restore(tmp_path / "two")
        got = v1_train(session, program, second)
    straight = v1.OneDevice(case)
    straight.train(first)
    assert_equivalent(got, straight.train(second))


@pytest.mark.parametrize("workers", [*in_soak(1), 3])
def test_a_fresh_session_goes_on_with_the_same_bits(workers, tmp_path):
    case = Case("adam", (*SAME, "norm"), "float32")
    first, second = halves(case.dtype)
    session, program = v1_session(case, workers)
    with session:
        v1_train(session, program, first)
        session.save(tmp_path / "middle")
        want = v1_train(session, program, second)
    session, program = v1_session(case, workers)
    with session:
        session.restore(tmp_path / "middle")
        assert_same(v1_train(session, program, second), want)


def test_all_workers_take_the_statistics_of_a_savers_checkpoint(tmp_path):
    case = Case("adam", (*SAME, "norm"), "float32")
    first, second = halves(case.dtype)
    device = v1.OneDevice(case)
    device.train(first)
    path = device.save(str(tmp_path / "single"))
    oracle = v1.MicroBatches(case, 3)
    oracle.load(device.values())
    session, program = v1_session(case, 3)
    with session:
        session.restore(path)
        assert_same(v1_train(session, program, second), oracle.train(second))


@pytest.mark.soak  # as test_saved_in_the_middle in test_postponed_exact.py
def test_restoring_takes_a_session_back(tmp_path):
    case = Case("adam", (*SAME, "norm"), "float32")
    first, second = halves(case.dtype)
    session, program = v1_session(case, 3)
    with session:
        v1_train(session, program, first)
        session.save(tmp_path / "middle")
        want = v1_train(session, program, second)
        session.restore(tmp_path / "middle")
        assert session.step_count == HALF
        assert_same(v1_train(session, program, second), want)


def test_random_ops_start_anew_in_a_fresh_session_as_on_one_device(tmp_path):
    """The state of a stateful random op is in no checkpoint, TensorFlow's own included."""
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    first, second = halves(case.dtype)
    session, program = v1_session(case, 3)
    with session:
        v1_train(session, program, first)
        session.save(tmp_path / "middle")
    straight = v1.MicroBatches(case, 3)
    straight.train(first)
    oracle = v1.MicroBatches(case, 3)
    for fresh, old in zip(oracle.devices, straight.devices):
        fresh.load(old.values())
    session, program = v1_session(case, 3)
    with session:
        session.restore(tmp_path / "middle")
        assert_same(v1_train(session, program, second), oracle.train(second))


# Keras: tf.train.Checkpoint


@pytest.mark.parametrize("numbered", [*in_soak(False), True])
def test_a_keras_checkpoint_goes_on_with_n_workers(numbered, tmp_path):
    case = Case("adam", (*SAME, "unused"))
    first, second = halves(case.dtype)
    device = k.OneDevice(case)
    device.train(first)
    checkpoint = device.program.checkpoint()
    path = (checkpoint.save if numbered else checkpoint.write)(str(tmp_path / "single"))
    start, want = device.program.values(), device.train(second)
    session, _ = keras_session(case, 3)
    with session:
        session.restore(path)
        assert_bits(session.values(), start)
        assert session.step_count == HALF
        assert_equivalent(train(session, second), want)


def test_a_session_saves_for_a_keras_checkpoint(tmp_path):
    case = Case("adam", (*SAME, "unused"))
    first, second = halves(case.dtype)
    session, _ = keras_session(case, 3)
    with session:
        trained = train(session, first)
        session.save(tmp_path / "distributed")
    device = k.OneDevice(case)
    status = device.program.checkpoint().read(str(tmp_path / "distributed"))
    status.assert_existing_objects_matched()
    assert_bits(device.program.values(), trained.values)
    got = device.train(second)
    straight = k.OneDevice(case)
    straight.train(first)
    assert_equivalent(got, straight.train(second))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.soak), pytest.param(3, marks=pytest.mark.slow)])
def test_a_fresh_keras_session_goes_on_with_the_same_bits(workers, tmp_path):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    first, second = halves(case.dtype)
    session, _ = keras_session(case, workers)
    with session:
        train(session, first)
        session.save(tmp_path / "middle")
        want = train(session, second)
    session, _ = keras_session(case, workers)
    with session:
        session.restore(tmp_path / "middle")
        got = train(session, second)
    assert_same(got, want)
    oracle = k.MicroBatches(case, workers)
    oracle.train(first)
    assert_same(got, oracle.train(second))


@pytest.mark.soak  # as test_all_workers_take_the_statistics_of_a_savers_checkpoint
def test_all_workers_take_the_statistics_of_a_keras_checkpoint(tmp_path):
    case = Case("adam", (*SAME, "norm"), "float32", clip=1.0)
    first, second = halves(case.dtype)
    device = k.OneDevice(case)
    device.train(first)
    path = device.program.checkpoint().write(str(tmp_path / "single"))
    oracle = k.MicroBatches(case, 3)
    oracle.program.checkpoint().read(path).assert_existing_objects_matched()
    oracle.spread()
    session, _ = keras_session(case, 3)
    with session:
        session.restore(path)
        assert_same(train(session, second), oracle.train(second))


def test_more_workers_take_the_random_state_of_one_with_their_offsets(tmp_path):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    first, second = halves(case.dtype)
    with caramel.ARModel(k.capture(case)[0], 1).session(in_process()) as session:
        values = train(session, first).values
        session.save(tmp_path / "one")
    oracle = k.MicroBatches(case, 3)
    for variable in oracle.program.variables():
        variable.assign(values[variable.path])
    oracle.spread()
    with caramel.ARModel(k.capture(case)[0], 3).session(in_process()) as session:
        session.restore(tmp_path / "one")
        assert_same(train(session, second), oracle.train(second))


@pytest.mark.parametrize("features", [*in_soak((SAME,)), (*SAME, *LOCAL, "unused")])
def test_write_back_gives_the_model_the_trained_values(features):
    case = Case("momentum", features, "float32")
    first, second = halves(case.dtype)
    session, program = keras_session(case, 3)
    x, _ = first[0]
    with session:
        before = program.model(x).numpy()
        trained = train(session, first)
        assert np.array_equal(program.model(x).numpy(), before)
        session.write_back()
        assert_bits(program.values(), trained.values)
        assert_bits(session.values(), trained.values)
        train(session, second)
        assert_bits(program.values(), trained.values)
    assert not np.array_equal(program.model(x).numpy(), before)


@pytest.mark.soak  # as test_write_back_gives_the_model_the_trained_values
def test_one_device_goes_on_after_write_back():
    case = Case("adam", SAME)
    first, second = halves(case.dtype)
    session, program = keras_session(case, 3)
    with session:
        train(session, first)
        session.write_back()
    step = tf.function(program.step)
    losses = [float(step(*batch)) for batch in second]
    straight = k.OneDevice(case)
    straight.train(first)
    want = straight.train(second)
    np.testing.assert_allclose(losses, want.losses, rtol=1e-8)
    assert_close(program.values(), want.values)


@pytest.mark.soak  # as test_more_workers_take_the_random_state_of_one_with_their_offsets
def test_a_named_checkpoint_of_a_keras_step_goes_on_with_the_same_bits(tmp_path):
    """Without checkpoint= the variables go by their names."""
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    first, second = halves(case.dtype)

    def fresh():
        return caramel.ARModel(k.capture(case)[0], 3).session(in_process())

    with fresh() as session:
        train(session, first)
        session.save(tmp_path / "middle")
        want = train(session, second)
    with fresh() as session:
        session.restore(tmp_path / "middle")
        assert_same(train(session, second), want)
