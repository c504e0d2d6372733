"""One session in several threads, and in forks of its process; several trainings at once."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import session as tensorflow_session

import caramel
from caramel.runtime import session as session_module

STEPS = 25
THREADS = 4


@pytest.fixture
def endless(compiled):
    """A program whose steps take as long as their ``rounds`` say."""

    def between(x):
        rounds = tf.compat.v1.placeholder_with_default(tf.constant(1, tf.int64), [], "rounds")
        return tf.while_loop(lambda i, z: i < rounds, lambda i, z: (i + 1, z + 0.0), [tf.constant(0, tf.int64), x])[1]

    return compiled(between=between)


def in_thread(call):
    """Start a thread; the thread, and a list that gets the result or the error."""
    outcome = []

    def body():
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, outcome


def read(graph_def, variable):
    """Name of a tensor that has the value of a variable."""
    return next(f"{n.name}:0" for n in graph_def.node if n.op == "ReadVariableOp" and n.input[0] == variable)


def wait_until_it_steps(session):
    """Return once another thread is in a step."""
    while session._lock.acquire(blocking=False):
        session._lock.release()
        time.sleep(0.01)
    time.sleep(0.5)


def test_steps_of_four_threads_are_as_many_steps_of_one(compiled, batch):
    armodel = compiled()
    with armodel.session() as session:
        expected = [session.step(*batch).loss for _ in range(THREADS * STEPS)]
        values = session.values()
    with armodel.session() as session, ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda _: [session.step(*batch) for _ in range(STEPS)], range(THREADS)))
        assert session.step_count == THREADS * STEPS
        replicas = session.executor.run([read(armodel.graph_def, f"worker_{rank}/w") for rank in range(2)], [], {}, 60)
        shared_values = session.values()
    steps = sorted((result.step, result.loss) for thread_results in results for result in thread_results)
    assert steps == list(enumerate(expected, 1))
    np.testing.assert_array_equal(*replicas)
    for name, value in values.items():
        np.testing.assert_array_equal(shared_values[name], value)


def test_every_use_of_a_session_waits_for_a_step(compiled, batch, tmp_path):
    """While one thread is in a step, each other use waits; then it finds the step done."""
    armodel = compiled()
    with armodel.session() as session:
        session.step(*batch)
        session.save(tmp_path / "before")
        uses = {
            "step": lambda: session.step(*batch),
            "run": lambda: session.run([batch]),
            "flush": session.flush,
            "evaluate": lambda: session.evaluate(*batch),
            "values": session.values,
            "assign": lambda: session.assign({"w": np.zeros(3, np.float32)}),
            "save": lambda: session.save(tmp_path / "saved"),
            "restore": lambda: session.restore(tmp_path / "before"),
        }
        for name, use in uses.items():
            entered, leave = threading.Event(), threading.Event()

            def run(*arguments, entered=entered, leave=leave):
                entered.set()
                assert leave.wait(60)
                return session.executor.run(*arguments)

            stepping, step_outcome = in_thread(lambda run=run: session.step_by(run, *batch))
            assert entered.wait(60)
            waiting, outcome = in_thread(use)
            waiting.join(0.2)
            assert waiting.is_alive(), f"{name} did not wait"
            leave.set()
            stepping.join(60)
            waiting.join(60)
            assert isinstance(step_outcome[0], caramel.StepResult)
            assert not isinstance(outcome[0], BaseException), (name, outcome)


def test_what_a_step_calls_may_use_the_session(compiled, batch):
    with compiled().session() as session:
        seen = []
        session.run([batch] * 2, on_step=lambda result: seen.append(session.values()["w"]))
        assert not np.array_equal(*seen)


def test_close_ends_a_step_that_does_not_end(endless, batch, monkeypatch):
    monkeypatch.setattr(session_module, "CLOSE_WAIT_S", 1.0)
    x, y = batch
    session = endless.session()
    session.step(x, y)
    stepping, outcome = in_thread(lambda: session.step(x=x, y=y, rounds=np.int64(10**12)))
    wait_until_it_steps(session)
    queued, queued_outcome = in_thread(lambda: session.step(x, y))
    start = time.monotonic()
    session.close()
    for thread in (stepping, queued):
        thread.join(30)
        assert not thread.is_alive()
    assert time.monotonic() - start < 20
    for (error,) in (outcome, queued_outcome):
        assert isinstance(error, caramel.ClusterError)
        assert "closed" in str(error) and "start a new one" in str(error)


def test_close_lets_a_short_step_end(endless, batch):
    x, y = batch
    session = endless.session()
    stepping, outcome = in_thread(lambda: session.step(x=x, y=y, rounds=np.int64(200_000)))
    wait_until_it_steps(session)
    session.close()
    stepping.join(60)
    assert isinstance(outcome[0], caramel.StepResult)


@pytest.mark.soak  # as test_close_ends_a_step_that_does_not_end
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces", "scratch")
def test_close_ends_a_step_in_other_processes(endless, batch, monkeypatch, ours, processes):
    monkeypatch.setattr(session_module, "CLOSE_WAIT_S", 1.0)
    x, y = batch
    session = endless.session(caramel.LocalProcesses())
    everything = ours()
    session.step(x, y)
    stepping, outcome = in_thread(lambda: session.step(x=x, y=y, rounds=np.int64(10**12)))
    wait_until_it_steps(session)
    start = time.monotonic()
    session.close()
    stepping.join(30)
    assert time.monotonic() - start < 20
    assert isinstance(outcome[0], caramel.ClusterError) and "closed" in str(outcome[0])
    assert processes.wait_until_gone(everything) == []


# -- forks -----------------------------------------------------------------------------------


def fork(body):
    """Exit status of a fork that runs a function and ends as Python does, with all finalisers."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            sys.stdout.flush()
            try:
                raise SystemExit(status)  # pytest would catch it; so the finalisers are run by hand
            except SystemExit:
                import atexit

                atexit._run_exitfuncs()
                os._exit(status)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the fork does not end")


def used_in_fork(session, batch):
    """What a fork does with its parent's session: every use is refused, and closing it changes nothing."""
    for use in (lambda: session.step(*batch), session.values, session.flush, lambda: session.evaluate(*batch)):
        with pytest.raises(caramel.ClusterError, match="is a fork of it.*open a session of its own"):
            use()
    session.close()
    session.executor.__dict__.clear()  # what it refers to is collected now


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_its_parent_s_session(compiled, batch):
    with compiled().session() as session:
        session.step(*batch)
        assert fork(lambda: used_in_fork(session, batch)) == 0
        assert session.step(*batch).step == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_lock_that_nobody_frees(compiled, batch):
    with compiled().session() as session:
        entered, leave = threading.Event(), threading.Event()

        def run(*arguments):
            entered.set()
            assert leave.wait(60)
            return session.executor.run(*arguments)

        stepping, outcome = in_thread(lambda: session.step_by(run, *batch))
        assert entered.wait(60)
        assert fork(lambda: used_in_fork(session, batch)) == 0
        leave.set()
        stepping.join(60)
        assert outcome[0].step == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_tensorflow_closes_no_session_in_a_fork(compiled, batch, monkeypatch):
    """It does so when its object goes, and the servers that run the session would end it for the parent."""
    closed = []

    def body():
        session.executor._session.__del__()
        assert closed == []

    with compiled().session() as session:
        monkeypatch.setattr(tensorflow_session.tf_session, "TF_CloseSession", closed.append)
        assert fork(body) == 0
        monkeypatch.undo()
        assert session.step(*batch).step == 1


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_its_parent_s_servers(compiled, batch, ours, scratch):
    with compiled().session(caramel.LocalProcesses()) as session:
        everything = ours()
        session.step(*batch)
        assert fork(lambda: None) == 0  # the finalisers alone
        assert fork(lambda: used_in_fork(session, batch)) == 0
        assert session.step(*batch).step == 2
        assert ours() == everything
        assert list(scratch.iterdir()) != []
    assert list(scratch.iterdir()) == []


# -- several trainings at once ---------------------------------------------------------------


def fitted(seed, barrier=None):
    """Weights and losses of a model that was trained on data of its own."""
    random = np.random.default_rng(seed)
    last = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=seed))
    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), last])
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    arrays = random.normal(size=(24, 4)).astype(np.float32), random.integers(0, 3, 24)
    if barrier is not None:
        barrier.wait(60)
    history = caramel.fit(model, tf.data.Dataset.from_tensor_slices(arrays).batch(8), workers=2, epochs=2, verbose=0)
    return model.get_weights(), history.history


@pytest.mark.soak
def test_two_fits_in_two_threads_train_as_each_alone():
    alone = [fitted(seed) for seed in (1, 2)]
    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: fitted(seed, barrier), (1, 2)))
    for (weights, history), (other_weights, other_history) in zip(alone, together):
        assert other_history == history
        for value, other in zip(weights, other_weights):
            np.testing.assert_array_equal(other, value)
