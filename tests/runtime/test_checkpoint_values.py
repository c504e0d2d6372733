"""Values on their way between the program and the workers: some at a time, and all or none."""

import os
import signal

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import CheckpointError
from caramel.model import Variable, VariableClass, VariablePart
from caramel.runtime import checkpoint

VALUES = {name: np.full(4, number, np.float64) for number, name in enumerate("dbaec")}


def parts():
    """Two halves of one variable, and a variable with the name between theirs."""
    halves = {"z/part_0": np.arange(2.0), "a": np.arange(5.0), "z/part_1": np.arange(2.0, 6.0)}
    variables = [
        Variable(
            name, name, "float64", halves[name].shape, VariableClass.PARAMETER, 8, part=VariablePart("z", (6,), at)
        )
        for name, at in (("z/part_0", (0,)), ("z/part_1", (2,)))
    ]
    return halves, variables


@pytest.mark.parametrize("group_bytes, files", [(1, 5), (64, 3), (10**6, 1)])
def test_groups_are_one_checkpoint(tmp_path, monkeypatch, group_bytes, files):
    monkeypatch.setattr(checkpoint, "_GROUP_BYTES", group_bytes)
    prefix = str(tmp_path / "values")
    checkpoint.write_in_groups(prefix, VALUES)
    np.testing.assert_equal(checkpoint.read_values(prefix), VALUES)
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("values.data")]) == files


@pytest.mark.parametrize("group_bytes", [1, 10**6])
def test_parts_of_a_variable_are_written_together(tmp_path, monkeypatch, group_bytes):
    monkeypatch.setattr(checkpoint, "_GROUP_BYTES", group_bytes)
    values, variables = parts()
    prefix = str(tmp_path / "values")
    checkpoint.write_in_groups(prefix, values, variables)
    np.testing.assert_equal(checkpoint.read_values(prefix), {"z": np.arange(6.0), "a": np.arange(5.0)})
    np.testing.assert_equal(checkpoint.read_values(prefix, values, variables), values)


def model(count=3):
    variables = [tf.Variable(np.full(3, float(number)), name=f"w{number}") for number in range(count)]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x) * tf.add_n([tf.reduce_sum(v) for v in variables])
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(gradient)
        return loss

    return variables, caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None], tf.float64)]), 2)


def test_workers_begin_with_values_in_groups(monkeypatch):
    monkeypatch.setattr(checkpoint, "_GROUP_BYTES", 1)
    _, armodel = model()
    with armodel.session() as session:
        assert {name: value.tolist() for name, value in session.values().items()} == {
            "w0": [0.0] * 3,
            "w1": [1.0] * 3,
            "w2": [2.0] * 3,
        }


def test_values_are_those_of_the_capture():
    """Whatever becomes of the program's variables before the session opens."""
    variables, armodel = model()
    variables[0].assign_add([7.0, 7.0, 7.0])
    variables[1].assign([8.0, 8.0, 8.0])
    variables[2].scatter_update(tf.IndexedSlices([9.0], [0]))
    with armodel.session() as session:
        assert session.values()["w0"].tolist() == [0.0] * 3
        session.step(np.ones(2))
        session.write_back()
        assert session.values()["w2"].tolist() == [1.0] * 3
    assert [variable.numpy().tolist() for variable in variables] == [[number - 1.0] * 3 for number in range(3)]


def test_nothing_is_given_where_one_value_cannot_be_read(monkeypatch):
    variables, armodel = model()
    real = checkpoint.each_value

    def damaged(*given):
        for name, value in real(*given):
            if name == "w1":
                raise CheckpointError("checkpoint is damaged")
            yield name, value

    with armodel.session() as session:
        session.step(np.ones(2))
        monkeypatch.setattr(checkpoint, "each_value", damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            session.write_back()
    assert variables[0].numpy().tolist() == [0.0] * 3


def test_a_signal_waits_until_all_values_are_given(monkeypatch):
    """Else the program's variables would be of two steps."""
    variables, armodel = model()
    real = checkpoint.each_value

    calls = []

    def interrupted(*given):
        calls.append(given)
        for number, item in enumerate(real(*given)):
            if len(calls) == 2 and number == 1:  # the first call only reads
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    with armodel.session() as session:
        session.step(np.ones(2))
        monkeypatch.setattr(checkpoint, "each_value", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.write_back()
    assert [variable.numpy().tolist() for variable in variables] == [[number - 1.0] * 3 for number in range(3)]
