"""Workers that die or freeze: an error in bounded time that names them, and everything ends."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.runtime.clusters import launcher_client as processes_module
from caramel.runtime.executor import caramel_error

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.usefixtures("namespaces", "scratch")]

BOUND_S = 15.0
"""No error may take longer; they come within a second on an idle machine."""

FOUND_S = 10.0
"""Within which a worker that does not answer is found."""


@pytest.fixture
def bounded():
    """Context manager: a ClusterError, soon."""

    class Bounded:
        def __init__(self, match, limit_s=BOUND_S):
            self.raises = pytest.raises(caramel.ClusterError, match=match)
            self.limit_s = limit_s

        def __enter__(self):
            self.start = time.monotonic()
            return self.raises.__enter__()

        def __exit__(self, *error):
            caught = self.raises.__exit__(*error)
            assert time.monotonic() - self.start < self.limit_s
            return caught

    return Bounded


@pytest.fixture
def session(compiled, ours):
    """Two servers, one step done. A step takes as long as its ``rounds`` say."""

    def between(x):
        rounds = tf.compat.v1.placeholder_with_default(tf.constant(1, tf.int64), [], "rounds")
        return tf.while_loop(lambda i, z: i < rounds, lambda i, z: (i + 1, z + 0.0), [tf.constant(0, tf.int64), x])[1]

    armodel = compiled(between=between)
    with armodel.session(caramel.LocalProcesses(), step_timeout_s=25.0) as session:
        ours()  # from here on they count as this test's
        yield session


def test_a_worker_killed_between_steps(session, batch, bounded, tmp_path):
    session.step(*batch)
    pids = session._executor.worker_pids()
    os.kill(pids[1], signal.SIGKILL)
    with bounded(f"worker 1 .*process {pids[1]}, was killed by SIGKILL") as caught:
        session.step(*batch)
    assert "restore the last checkpoint" in str(caught.value)
    # The other uses do not wait either, and say why.
    with pytest.raises(caramel.StepError, match="failed before"):
        session.step(*batch)
    with pytest.raises(caramel.CaramelError):
        session.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


@pytest.mark.soak  # as test_a_worker_killed_between_steps
def test_worker_0_killed_between_steps(session, batch, bounded):
    pids = session._executor.worker_pids()
    os.kill(pids[0], signal.SIGTERM)
    with bounded(f"worker 0 .*process {pids[0]}, was killed by SIGTERM"):
        session.step(*batch)


def test_a_worker_killed_during_a_step(session, batch, bounded):
    x, y = batch
    session.step(x, y)
    pids = session._executor.worker_pids()
    killer = threading.Timer(1.5, os.kill, [pids[1], signal.SIGKILL])
    killer.start()
    start = time.monotonic()
    with bounded(f"worker 1 .*process {pids[1]}, was killed by SIGKILL", BOUND_S + 1.5):
        session.step(x=x, y=y, rounds=np.int64(10**9))
    assert time.monotonic() - start > 1.4  # it was in the middle of the step
    killer.join()


def test_a_worker_killed_before_a_checkpoint(session, batch, bounded, tmp_path):
    session.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    session.step(*batch)
    os.kill(session._executor.worker_pids()[0], signal.SIGKILL)
    with bounded("worker 0 "):
        session.save(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("task", [1, *in_soak(0)])
def test_a_frozen_worker(compiled, batch, bounded, ours, processes, freeze, task):
    """However long a step may take."""
    with compiled().session(caramel.LocalProcesses()) as session:
        session.step(*batch)
        everything = ours()
        frozen = session._executor.worker_pids()[task]
        freeze(frozen)
        with bounded(f"worker {task} .*process {frozen}, is stopped by a signal", FOUND_S) as caught:
            session.step(*batch)
        assert "restore the last checkpoint" in str(caught.value)
        start = time.monotonic()
    assert time.monotonic() - start < 3
    assert processes.wait_until_gone(everything) == []


@pytest.mark.soak  # as test_a_frozen_worker
def test_a_worker_that_is_paused_now_and_then(compiled, batch, freeze):
    """Seconds between two calls do not count."""
    with compiled().session(caramel.LocalProcesses()) as session:
        session.step(*batch)
        paused = session._executor.worker_pids()[1]
        for _ in range(2):
            freeze(paused)
            threading.Timer(3.0, os.kill, [paused, signal.SIGCONT]).start()
            began_s = time.monotonic()
            session.step(*batch)
            assert time.monotonic() - began_s > 2.5
            time.sleep(5)


@pytest.mark.soak  # as test_a_frozen_worker
def test_a_worker_that_is_frozen_before_a_session_opens(compiled, batch, freeze):
    """Its servers are not used again."""
    armodel = compiled()
    with caramel.LocalProcesses().shared() as servers:
        with armodel.session(servers) as session:
            want = session.step(*batch).loss
            before = session._executor.worker_pids()
            freeze(before[1])
        with armodel.session(servers) as session:
            assert session.step(*batch).loss == want
            assert not set(before) & set(session._executor.worker_pids())


@pytest.mark.soak  # as test_a_frozen_worker
def test_a_step_that_takes_longer_than_allowed(session, batch, bounded):
    x, y = batch
    session._steps._timeout_s = 3.0
    with bounded("did not answer.*3 s.*step_timeout_s"):
        session.step(x=x, y=y, rounds=np.int64(10**9))
    with pytest.raises(caramel.StepError, match="restore a checkpoint"):
        session.step(x, y)


def test_a_step_that_fails_leaves_the_cluster_alive(compiled, batch, ours, tmp_path):
    def between(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "the data is too large")]):
            return tf.identity(x)

    x, y = batch
    with compiled(between=between).session(caramel.LocalProcesses()) as session:
        session.step(x, y)
        session.save(tmp_path / "saved")
        with pytest.raises(caramel.StepError, match="the data is too large"):
            session.step(x * 1000, y)
        with pytest.raises(caramel.StepError, match="restore a checkpoint"):
            session.step(x, y)
        session.restore(tmp_path / "saved")
        assert session.step(x, y).step == 2


def test_a_killed_launcher(session, batch, bounded, ours, processes):
    session.step(*batch)
    everything = ours()
    os.kill(session._executor.launcher_pid, signal.SIGKILL)
    with bounded("local cluster.*ended"):
        session.step(*batch)
    assert processes.wait_until_gone(everything, BOUND_S) == []
    with pytest.raises(caramel.CaramelError):
        session.step(*batch)


@pytest.mark.soak  # as test_a_frozen_worker and test_a_killed_launcher
def test_a_frozen_launcher(compiled, batch, bounded, ours, processes, freeze, monkeypatch):
    monkeypatch.setattr(processes_module, "_CLOSE_TIMEOUT_S", 1.0)
    session = compiled().session(caramel.LocalProcesses())
    everything = ours()
    freeze(session._executor.launcher_pid)
    with bounded("local cluster's driver, process .*, is stopped by a signal", FOUND_S):
        session.step(*batch)
    session.close()
    assert processes.wait_until_gone(everything, BOUND_S) == []


@pytest.mark.soak  # as test_a_worker_killed_between_steps
def test_a_new_session_after_a_lost_one(compiled, batch, bounded, tmp_path):
    """What the message advises: a new session, and the last checkpoint."""
    armodel = compiled()
    with armodel.session(caramel.LocalProcesses()) as session:
        session.step(*batch)
        session.save(tmp_path / "saved")
        os.kill(session._executor.worker_pids()[1], signal.SIGKILL)
        with bounded("worker 1 "):
            session.step(*batch)
    with armodel.session() as again:
        again.restore(tmp_path / "saved")
        assert again.step(*batch).step == 2


def test_an_error_of_two_workers_at_once():
    """TensorFlow lists the ops first, then each worker's error with its code and place on a line before."""
    message = """Graph execution error:

Detected at node 'worker_1/Assert' defined at (most recent call last):
Node: 'worker_1/Assert'
Detected at node 'worker_0/Assert' defined at (most recent call last):
Node: 'worker_0/Assert'
=====================
INVALID_ARGUMENT: From /job:worker/replica:0/task:1:
the data is too large
\t [[{{node worker_1/Assert}}]]
"""
    error = caramel_error(tf.errors.InvalidArgumentError(None, None, message), "in a test")
    assert type(error) is caramel.StepError
    assert str(error) == "the program failed in op 'worker_1/Assert': the data is too large"
