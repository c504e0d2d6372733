"""A session that trains on many batches."""

import numpy as np
import pytest
import tensorflow as tf

import caramel


def test_training_is_quiet_where_there_is_no_terminal(compiled, batch, capfd):
    with compiled().session() as session:
        capfd.readouterr()
        seen = []
        results = session.run([batch] * 3, on_step=seen.append)
    assert capfd.readouterr() == ("", "")
    assert [r.step for r in results] == [1, 2, 3]
    assert seen == results


def test_results_are_the_callers_own():
    """Whatever is written to them, variables and constants of the workers stay as they are."""
    w = tf.Variable(np.linspace(0.5, 1.0, 64).reshape(8, 8), name="w", dtype=tf.float64)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return {"loss": loss, "constant": tf.constant(np.arange(8.0)), "weights": tf.identity(w), "inputs": x}

    @tf.function(input_signature=[])
    def weights():
        return {"w": w.read_value()}

    x = np.ones((4, 8))
    context = caramel.capture(step, [tf.TensorSpec([None, 8], tf.float64)], loss="loss")
    with caramel.ARModel(context, 2).session(caramel.InProcess()) as session:
        result = session.step(x)
        before = session.values()["w"].copy()
        evaluated = session.evaluate(fetches=weights)
        for each in (*(a for arrays in result.outputs.values() for a in arrays), *evaluated.values()):
            each[...] = -1000.0
        assert np.array_equal(session.values()["w"], before)
        again = session.step(x)
    assert again.worker_losses[0] == again.worker_losses[1]
    assert np.array_equal(again.outputs["constant"][0], np.arange(8.0))
    assert np.array_equal(x, np.ones((4, 8)))


@pytest.mark.parametrize("examples, is_said", [(2, True), (3, False)])
def test_workers_without_an_example_are_said(examples, is_said, caplog):
    """Of the first batch only: a last one may have few examples."""
    w = tf.Variable(1.0, name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x * w) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None])])
    with caramel.ARModel(context, 3).session(caramel.InProcess()) as session:
        session.run([[np.ones(examples, np.float32)], [np.ones(1, np.float32)]])
    said = [record.message for record in caplog.records if "compute in vain" in record.message]
    assert (
        said == ["the first batch has 2 examples for 3 workers: 1 of them compute in vain in each such step"] * is_said
    )
