"""A parameter server that is killed: an error within seconds that says what was lost."""

import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import ClusterError, StepError

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BOUND_S = 10.0
"""Seconds after which the error is out."""

BATCH = np.ones([4, 2], np.float32), np.ones(4, np.float32)


@pytest.fixture
def model():
    w = tf.Variable([0.0, 0.0], name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])
    return caramel.PSModel(context, 2, servers=1)


@pytest.mark.parametrize(("task", "is_server"), [(2, True), (1, False)])
def test_what_was_lost_is_named(model, namespaces, task, is_server):
    with model.session(caramel.LocalProcesses()) as session:
        session.step(*BATCH)
        os.kill(session.executor.worker_pids()[task], signal.SIGKILL)
        begin_s = time.monotonic()
        with pytest.raises(ClusterError, match=f"step 2 cannot go on: .*worker {task} ") as found:
            session.step(*BATCH)
        assert time.monotonic() - begin_s < BOUND_S
        assert (f"worker {task} is parameter server 0" in str(found.value)) == is_server
        with pytest.raises((ClusterError, StepError)):
            session.step(*BATCH)


def test_it_is_named_where_several_steps_run_together(model, namespaces):
    with model.session(caramel.LocalProcesses()) as session:
        session.steps_together(3, [BATCH] * 3)
        os.kill(session.executor.worker_pids()[2], signal.SIGKILL)
        with pytest.raises(ClusterError, match="steps 4 to 6 cannot go on: .*worker 2 is parameter server 0"):
            session.steps_together(3, [BATCH] * 3)


def test_a_new_session_goes_on_from_a_checkpoint(model, namespaces, tmp_path):
    saved = str(tmp_path / "checkpoint")
    with model.session(caramel.LocalProcesses()) as session:
        session.step(*BATCH)
        session.save(saved)
        want = session.step(*BATCH).loss
        os.kill(session.executor.worker_pids()[2], signal.SIGKILL)
        with pytest.raises(ClusterError):
            session.step(*BATCH)
    with model.session(caramel.LocalProcesses()) as session:
        session.restore(saved)
        assert session.step(*BATCH).loss == want
