"""Steps that wait for their data: what is measured, and what is said beside a prediction."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.prediction import Interval, Prediction, is_long_wait
from caramel.report.content import Report, notes
from caramel.report.run_record import RunRecord

WAIT_S = 0.03


def slowly(x):
    """What a pipeline does for an element, in Python, as no op takes a given time."""
    time.sleep(WAIT_S)
    return x


def session_on(data=None):
    w = tf.Variable([[1.0]], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    specs = [tf.TensorSpec([None, 1])]
    context = caramel.capture(step, specs) if data is None else caramel.capture(step, data=data)
    return caramel.ARModel(context, 2).session()


def test_batches_that_are_made_slowly():
    def batches():
        for _ in range(9):
            yield (slowly(np.ones([4, 1], np.float32)),)

    with session_on() as session:
        record = RunRecord(session, is_drawn=False)
        session.run(batches(), on_run=record.note, progress=False)
        assert 9 * WAIT_S <= session.data_wait_s < 9 * WAIT_S + 0.5
    assert WAIT_S <= record.data_wait_s <= record.median_step_s <= record.mean_step_s + 0.02


def test_a_pipeline_that_is_slow():
    x = np.ones([40, 1], np.float32)
    # As long as that takes: some hundred thousand numbers for each element.
    work = tf.data.Dataset.from_tensor_slices(x).map(
        lambda each: each + 0 * tf.reduce_sum(tf.sort(tf.random.normal([300_000])))
    )
    with session_on(work.batch(4)) as session:
        record = RunRecord(session, is_drawn=False)
        session.run(steps=10, on_run=record.note, progress=False)
    assert record.data_wait_s > 0.5 * record.median_step_s
    with session_on(tf.data.Dataset.from_tensor_slices(x).batch(4)) as session:
        record = RunRecord(session, is_drawn=False)
        session.run(steps=10, on_run=record.note, progress=False)
    assert 0 < record.data_wait_s < record.median_step_s


@pytest.mark.parametrize(
    "data_wait_s, step_s, is_long", [(0.05, 0.1, True), (0.02, 0.1, False), (0.004, 0.006, False), (0.0, 0.1, False)]
)
def test_what_is_said_beside_a_prediction(data_wait_s, step_s, is_long):
    assert is_long_wait(data_wait_s, step_s) == is_long
    prediction = Prediction(
        SimpleNamespace(iteration_s=0.05), 0.05, "", interval=Interval.around(0.05, 0.05, 0.05, 0.05)
    )
    text = prediction.beside(step_s, 1, data_wait_s)
    assert ("waits for its data" in text) == is_long
    if is_long:
        assert text.startswith("for 50 ms of it") and text.endswith(
            "predicted 50 ms, 0.0% more than measured and within the interval of the prediction"
        )
    record = SimpleNamespace(median_step_s=step_s, data_wait_s=data_wait_s, steps_in_run=1, losses=[])
    plan = SimpleNamespace(prediction=prediction, notes=(), proof=())
    found = notes(Report("", plan, "", record=record))
    assert any("waits 50 ms for its data, of 100 ms" in text for _, text in found) == is_long
    assert any("outside the interval" in text for _, text in found) == (not is_long)
