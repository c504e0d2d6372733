"""How many threads a plan gives to servers, and that sessions ask for them."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.facts import Timeline
from caramel.prediction import Prediction


def context(columns):
    w = tf.Variable(tf.zeros([columns, 8]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - 1.0) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return caramel.capture(step, [tf.TensorSpec([None, columns])])


@pytest.mark.parametrize(("columns", "threads"), [(16, 0), (2**15, 0), (2**15 + 1, 6)])
def test_by_bytes_where_nothing_is_predicted(columns, threads):
    plan = caramel.ARModel(context(columns), 2).plan
    assert plan.transfer_threads == threads
    said = "one for each core and 6 for transfers\n" if threads else "one for each core\n"
    assert f"threads of a server that is started for this: {said}" in plan.table()


@pytest.mark.parametrize(("compute_s", "threads"), [(0.05, 0), (0.051, 6)])
@pytest.mark.parametrize("columns", [16, 2**16])
def test_by_the_computation_that_is_predicted(columns, compute_s, threads):
    plan = caramel.ARModel(context(columns), 2).plan
    timeline = Timeline((), 1.0, compute_s, 0.0)
    assert replace(plan, prediction=Prediction(timeline, 0.0, "a guess")).transfer_threads == threads


def test_sessions_ask_for_them():
    asked = []

    class Spied(caramel.InProcess):
        def for_transfers(self, threads):
            asked.append(threads)
            return super().for_transfers(threads)

    with caramel.ARModel(context(16), 2).session(Spied()) as session:
        session.step(np.ones((2, 16), np.float32))
    assert asked == [0]


def test_so_does_fit():
    import keras

    asked = []

    class Spied(caramel.LocalProcesses):
        def for_transfers(self, threads):
            asked.append(threads)
            return super().for_transfers(threads)

    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    caramel.fit(model, np.ones((8, 4)), np.ones((8, 1)), workers=2, cluster=Spied(allow_open_ports=True), verbose=0)
    assert 0 in asked
