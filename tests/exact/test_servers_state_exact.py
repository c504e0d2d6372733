"""State of programs with parameter servers: checkpoints to and from all other kinds, values, exports."""

import os
import subprocess
import sys

import exact_keras as k
import exact_tf1 as v1
import numpy as np
import pytest
import tensorflow as tf
from exact_common import BATCH, LOCAL, Case, in_process, serial_functions, train
from exact_common import assert_bits as assert_same_values
from exact_common import assert_equivalent as assert_equivalent_training
from exact_common import assert_same as assert_same_training
from exact_common import batches as classified
from exact_matrix import FEATURE, batches, program
from exact_servers import THREADS, assert_close
from exact_steps import alone, captured, fresh, values_of
from test_servers_exact import examples, large, normalised
from variants import in_soak

import caramel

HALF = 3
SAME = ("schedule", "clip", "decay", "tied")

PROGRAMS = {
    "everything": (program("adam", "everything"), batches(FEATURE["everything"])),
    "embedding": (program("adam", "embedding"), batches(FEATURE["embedding"])),
    "parts": (large("adam"), examples()),
    "own state": (normalised, examples()),
}


def model_of(context, how, workers=3):
    """A model with that many servers; with all-reduces for 0."""
    if how:
        return caramel.PSModel(context, workers, how, deterministic=True)
    return caramel.ARModel(context, workers, deterministic=True)


def halves(context, data, how, path, workers=3):
    """What the session has after the first half, which is saved, and the losses and values after the second."""
    with model_of(context, how, workers).session(in_process(THREADS)) as session:
        session.run(data[:HALF], progress=False)
        session.save(path)
        saved = session.values()
        losses = [result.loss for result in session.run(data[HALF:], progress=False)]
        return saved, (losses, session.values())


def second_half(context, data, how, path, workers=3):
    """The same, from a checkpoint; what was there before is replaced."""
    with model_of(context, how, workers).session(in_process(THREADS)) as session:
        session.run(data[:1], progress=False)
        session.restore(path)
        restored = session.values()
        assert session.step_count == HALF
        losses = [result.loss for result in session.run(data[HALF:], progress=False)]
        return restored, (losses, session.values())


@pytest.mark.parametrize("source, target", [(2, 0), (0, 2), *in_soak((2, 1), (1, 3), (3, 0), (2, 2))])
@pytest.mark.parametrize("name", PROGRAMS)
def test_training_goes_on_with_the_same_bits(name, source, target, tmp_path):
    """From K servers to others, to all-reduces (0), and back."""
    make, data = PROGRAMS[name]
    if max(source, target) > 2 and name == "parts":
        source, target = min(source, 2), min(target, 2)
    _, context = captured(make)
    saved, want = halves(context, data, source, tmp_path / "saved")
    restored, got = second_half(context, data, target, tmp_path / "saved")
    assert saved.keys() == {v.name for v in context.model.variables if v.saved}
    assert {name: value.shape for name, value in saved.items()} == {
        v.name: tuple(v.shape) for v in context.model.variables if v.saved
    }
    assert_same_values(restored, saved)
    assert got[0] == want[0]
    assert_same_values(got[1], want[1])


@pytest.mark.parametrize("name", ["embedding", "parts"])
def test_training_goes_on_with_another_number_of_workers(name, tmp_path):
    make, data = PROGRAMS[name]
    _, context = captured(make)
    saved, want = halves(context, data, 2, tmp_path / "saved")
    for how, workers in ((1, 2), (2, 1), (0, 4)):
        restored, got = second_half(context, data, how, tmp_path / "saved", workers)
        assert_same_values(restored, saved)
        assert_close(got, want)


def test_files_are_those_of_all_reduces(tmp_path):
    """Names, shapes and types of what a checkpoint has."""
    make, data = PROGRAMS["parts"]
    found = []
    for how in (0, 1, 2):
        _, context = captured(make)
        halves(context, data, how, tmp_path / str(how))
        reader = tf.train.load_checkpoint(str(tmp_path / str(how)))
        types = reader.get_variable_to_dtype_map()
        found.append({name: (shape, types[name]) for name, shape in reader.get_variable_to_shape_map().items()})
    assert found[0] == found[1] == found[2]
    assert any(name.startswith("w") for name in found[0])


@pytest.mark.parametrize("name", ["everything", "embedding", "parts"])
def test_one_device_goes_on_after_write_back(name):
    make, data = PROGRAMS[name]
    want = alone(make, data)
    made, context = captured(make)
    with model_of(context, 2).session(in_process(THREADS)) as session:
        losses = [result.loss for result in session.run(data[:HALF], progress=False)]
        session.write_back()
    step = tf.function(made.step, input_signature=made.specs)
    losses += [float(step(*batch)) for batch in data[HALF:]]
    assert_close((losses, values_of(made)), want)


@pytest.mark.parametrize("name", ["everything", "parts"])
def test_servers_go_on_after_one_device(name):
    """The program's own variables, as they are at capture, are where the servers start from."""
    make, data = PROGRAMS[name]
    want = alone(make, data)
    made = fresh(make)
    step = tf.function(made.step, input_signature=made.specs)
    losses = [float(step(*batch)) for batch in data[:HALF]]
    context = caramel.capture(made.step, made.specs, **made.options)
    with model_of(context, 2).session(in_process(THREADS)) as session:
        losses += [result.loss for result in session.run(data[HALF:], progress=False)]
        session.write_back()
    assert_close((losses, values_of(made)), want)


def test_a_saver_of_tensorflow_1_and_back(tmp_path):
    case = Case("adam", (*SAME, "unused"))
    data = classified(BATCH, case.dtype)
    first, second = data[:10], data[10:]
    device = v1.OneDevice(case)
    device.train(first)
    path, start = device.save(str(tmp_path / "single")), device.values()
    want = device.train(second)
    context, made = v1.capture(case)
    feeds = [made.feed(batch) for batch in second]
    with caramel.PSModel(context, 3, 2).session(in_process()) as session:
        session.restore(path)
        assert_same_values(session.values(), start)
        assert session.step_count == 10
        assert_equivalent_training(train(session, feeds), want)
        session.save(tmp_path / "distributed")
    saved = dict(tf.train.list_variables(str(tmp_path / "distributed")))
    assert {n: s for n, s in saved.items() if not n.startswith("caramel/")} == {
        variable.op.name: variable.shape.as_list() for variable in device.variables
    }
    again = v1.OneDevice(case)
    again.restore(str(tmp_path / "distributed"))
    assert again.values()["global_step"] == 20
    for name, value in want.values.items():
        np.testing.assert_allclose(again.values()[name], value, rtol=1e-8, atol=1e-12, err_msg=name)


def test_a_checkpoint_of_keras_and_back(tmp_path):
    case = Case("adam", (*SAME, "unused"))
    data = classified(BATCH, case.dtype)
    first, second = data[:10], data[10:]
    with serial_functions():
        straight = k.OneDevice(case)
        straight.train(first)
        path = straight.program.checkpoint().write(str(tmp_path / "single"))
        want = straight.train(second)
        made = k.Program(case)
        context = caramel.capture(tf.function(made.step), inputs=made.specs, checkpoint=made.checkpoint())
        with caramel.PSModel(context, 3, 2).session(in_process()) as session:
            session.restore(path)
            assert_equivalent_training(train(session, second), want)
            session.restore(path)
            session.save(tmp_path / "distributed")
        device = k.OneDevice(case)
        device.program.checkpoint().read(str(tmp_path / "distributed")).assert_existing_objects_matched()
        assert_equivalent_training(device.train(second), want)


def test_all_workers_take_the_statistics_of_a_saver(tmp_path):
    """What is each worker's own goes to all of them, whatever the servers have."""
    case = Case("adam", (*SAME, "norm"), "float32")
    data = classified(BATCH, case.dtype)
    device = v1.OneDevice(case)
    device.train(data[:10])
    path = device.save(str(tmp_path / "single"))
    oracle = v1.MicroBatches(case, 3)
    oracle.load(device.values())
    context, made = v1.capture(case)
    with caramel.PSModel(context, 3, 2, deterministic=True).session(in_process()) as session:
        session.restore(path)
        got = train(session, [made.feed(batch) for batch in data[10:]])
    assert_same_training(got, oracle.train(data[10:]))


def test_random_state_goes_on(tmp_path):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    data = classified(BATCH, case.dtype)
    oracle = k.MicroBatches(case, 3)
    with serial_functions():
        oracle.train(data[:10])
        want = oracle.train(data[10:])
        made = k.Program(case)
        context = caramel.capture(tf.function(made.step), inputs=made.specs, checkpoint=made.checkpoint())
        with caramel.PSModel(context, 3, 2, deterministic=True).session(in_process()) as session:
            train(session, data[:10])
            session.save(tmp_path / "middle")
        with caramel.PSModel(context, 3, 1, deterministic=True).session(in_process()) as session:
            session.restore(tmp_path / "middle")
            assert_same_training(train(session, data[10:]), want)


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_that_are_assigned(name):
    """All of them, of other values than before: training goes on as with all-reduces to which the same was done."""
    make, data = PROGRAMS[name]
    found = []
    for how in (0, 1, 2):
        _, context = captured(make)
        with model_of(context, how).session(in_process(THREADS)) as session:
            session.run(data[:HALF], progress=False)
            changed = {n: v * v.dtype.type(0.5) if v.dtype.kind == "f" else v for n, v in session.values().items()}
            session.assign(changed)
            assert_same_values(session.values(), changed)
            losses = [result.loss for result in session.run(data[HALF:], progress=False)]
            found.append((losses, session.values()))
    for losses, values in found[1:]:
        assert losses == found[0][0]
        assert_same_values(values, found[0][1])


def test_a_learning_rate_that_is_assigned_reaches_all_servers():
    """No step writes it, and each server reads it."""
    make, data = PROGRAMS["parts"]
    found = []
    for how in (0, 2):
        _, context = captured(make)
        with model_of(context, how).session(in_process(THREADS)) as session:
            (name,) = (n for n in session.values() if "learning_rate" in n)
            session.run(data[:HALF], progress=False)
            session.assign({name: np.asarray(0.0, session.values()[name].dtype)})
            before = session.values()
            session.run(data[HALF : HALF + 1], progress=False)
            assert_same_values({n: session.values()[n] for n in "wb"}, {n: before[n] for n in "wb"})
            session.assign({name: np.asarray(0.25, session.values()[name].dtype)})
            session.run(data[HALF:], progress=False)
            found.append(session.values())
    assert_same_values(found[1], found[0])


def test_values_of_some_variables():
    make, data = PROGRAMS["parts"]
    _, context = captured(make)
    with model_of(context, 2).session(in_process(THREADS)) as session:
        values = session.values()
        assert values["w"].shape == (16, 9)
        session.assign({"w": np.ones([16, 9])})
        session.step(*data[0])
        assert not np.array_equal(session.values()["w"], np.ones([16, 9]))
        with pytest.raises(caramel.InputError, match="w"):
            session.assign({"w": np.ones([9, 16])})
        with pytest.raises(caramel.InputError, match="nothing"):
            session.assign({"nothing": np.ones(3)})


# -- exports -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["parts", *in_soak("embedding", "everything", "own state")])
def test_exported(name, tmp_path):
    """The runner trains as the session does, from a checkpoint of it, and saves one."""
    make, data = PROGRAMS[name]
    made, context = captured(make)
    model = model_of(context, 2, workers=2)
    model.export(tmp_path / "out")
    arrays = {spec.name: array for spec, array in zip(made.specs, data[0])}
    np.savez(tmp_path / "batch.npz", **{i.name: arrays[i.name] for i in context.model.inputs})
    with model.session(in_process()) as session:
        session.run(data[:HALF], progress=False)
        session.save(tmp_path / "half")
        session.run([data[0]] * 4, progress=False)
        want = session.values()
    command = [sys.executable, str(tmp_path / "out" / "run.py"), "train", "--data", str(tmp_path / "batch.npz")]
    command += ["--steps", "4", "--restore", str(tmp_path / "half"), "--save", str(tmp_path / "end")]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env={**os.environ, "PYTHONPATH": ""})
    reader = tf.train.load_checkpoint(str(tmp_path / "end"))
    for variable, value in want.items():
        np.testing.assert_allclose(reader.get_tensor(variable), value, rtol=1e-9, atol=1e-12, err_msg=variable)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        session.restore(tmp_path / "end")
        assert session.step_count == HALF + 4
