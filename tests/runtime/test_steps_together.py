"""Several steps in one run: the workers' data, errors, checkpoints, and what runs step by step."""

import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from numbered_data import model, numbers, seen
from variants import in_soak

import caramel
from caramel.errors import ClusterError, DataError, EndOfData, InputError, StepError
from caramel.runtime.clusters.local_processes import LocalProcesses


def passes(session, together, count):
    """What the steps of some passes saw, with the errors and the ends."""
    found = []
    while found.count("end") < count:
        try:
            found += map(seen, session.steps_together(together))
        except DataError as error:
            found.append(f"failed: {str(error).partition(':')[0]}")
        except EndOfData:
            found.append("end")
    return found


@pytest.mark.parametrize(
    "bad, workers, sharding",
    [
        ([], 2, "slice"),
        ([7], 2, "slice"),
        *in_soak(
            ([3, 4, 5, 9], 3, "slice"),
            ([0, 11], 1, "slice"),
            (list(range(12)), 3, "slice"),
            ([4], 2, "batches"),
            ([13], 3, "batches"),
        ),
    ],
)
@pytest.mark.parametrize("together", [2, *in_soak(3, 4, 7)])
def test_batches_errors_and_ends(bad, workers, sharding, together):
    """What arises step by step arises where steps are made together, at the same place."""
    got, want = [], []
    for number, found in ((together, got), (1, want)):
        with model(numbers(14, bad).batch(3), workers, sharding=sharding).session() as session:
            found += passes(session, number, 2)
    assert got == want


def test_variables_have_seen_the_steps_before_an_error(tmp_path):
    with model(numbers(15, bad=[7]).batch(3)).session() as session:
        assert [seen(r) for r in session.steps_together(4)] == [[0, 1, 2]]  # one by one, from there on
        session.steps_together(4)
        before = session.values()["w"]
        session.save(tmp_path / "saved")
        with pytest.raises(DataError, match="(?s)batch 2 of pass 0.*No step has run"):
            session.steps_together(4)
        assert session.step_count == 2
        np.testing.assert_array_equal(session.values()["w"], before)
        assert [seen(r) for r in session.run(steps_per_execution=4)] == [[9, 10, 11], [12, 13, 14]]
        assert [seen(r) for r in session.steps_together(2)] == [[0, 1, 2], [3, 4, 5]]  # together again, in a new pass
        session.restore(tmp_path / "saved")
        with pytest.raises(DataError, match="batch 2 of pass 0"):
            session.steps_together(2)


@pytest.mark.parametrize("shuffled", [False, True])
def test_training_goes_on_from_a_checkpoint(shuffled, tmp_path):
    def data():
        tf.random.set_seed(2)
        made = numbers(22)
        return (made.shuffle(22, seed=3) if shuffled else made).batch(2)

    with model(data()).session() as session:
        want = [seen(r) for r in session.run(steps=30, progress=False)]
        values = session.values()
    with model(data()).session() as session:
        first = [seen(r) for r in session.run(steps=16, steps_per_execution=4, progress=False)]
        session.save(tmp_path / "saved")
    with model(data()).session() as session:
        session.restore(tmp_path / "saved")
        last = [seen(r) for r in session.run(steps=14, steps_per_execution=3, progress=False)]
        assert first + last == want
        np.testing.assert_equal(session.values(), values)


def test_a_pass_that_is_left_where_an_error_is_near():
    """What was taken in vain does not count: the next pass has the order that it has without it."""

    def orders(together):
        tf.random.set_seed(2)
        data = numbers(12, bad=[5]).shuffle(12, seed=3).batch(2)
        found = []
        with model(data).session() as session:
            for _ in range(3):
                taken = 0
                while taken < 2:
                    try:
                        results = session.steps_together(min(together, 2 - taken))
                    except DataError:
                        found.append("failed")
                        taken += 1
                    else:
                        taken += len(results)
                        found += map(seen, results)
                session.restart_data()
        return found

    assert orders(2) == orders(1)


def test_on_step_and_the_last_steps():
    found = []
    with model(numbers(20).batch(2)).session() as session:
        session.run(steps=7, steps_per_execution=3, on_step=lambda r: found.append((r.step, session.step_count)))
    assert found == [(1, 3), (2, 3), (3, 3), (4, 6), (5, 6), (6, 6), (7, 7)]


def test_a_traced_step_is_a_run_of_its_own():
    metadata = []
    with model(numbers(20).batch(2)).session() as session:
        session.trace_next(metadata.append)
        assert len(session.steps_together(3)) == 1 and len(metadata) == 1
        assert len(session.steps_together(3)) == 3 and len(metadata) == 1


def fed(workers=2, **options):
    variable = tf.Variable(1.0, name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(variable * x))
        checked = tf.debugging.assert_less(x, 100.0)
        with tf.control_dependencies([checked]):
            variable.assign_sub(0.01 * tape.gradient(loss, variable))
        return loss

    return caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None])]), workers, **options)


def batch(number):
    return (np.full(4, number, np.float32),)


def test_batches_of_the_driver():
    with fed().session() as session:
        results = session.steps_together(3, [batch(1), batch(2), {"x": batch(3)[0]}])
        assert [r.step for r in results] == [1, 2, 3] and [r.examples for r in results] == [4, 4, 4]
        want = 1.0
        for number, result in enumerate(results, 1):
            assert result.loss == pytest.approx((want * number) ** 2, rel=1e-6)
            want -= 0.01 * 2 * want * number**2
        assert session.values()["w"] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ((0,), "steps"),
        ((2,), "no dataset on the workers"),
        ((2, [batch(1)]), "1 batches were given for 2 steps"),
        ((2, [batch(1), (np.zeros((4, 2)),)]), "shape"),
    ],
)
def test_bad_arguments(arguments, text):
    with fed().session() as session:
        with pytest.raises(InputError, match=text):
            session.steps_together(*arguments)
        assert session.step_count == 0
        session.step(*batch(1))


def test_batches_where_the_workers_have_data():
    with model(numbers(8).batch(2)).session() as session, pytest.raises(InputError, match="without batches"):
        session.steps_together(2, [batch(1), batch(1)])


def test_an_op_that_fails():
    with fed().session() as session:
        session.step(*batch(1))
        with pytest.raises(StepError, match="one of the steps 2 to 4 failed"):
            session.steps_together(3, [batch(1), batch(100), batch(1)])
        with pytest.raises(StepError, match="restore a checkpoint first"):
            session.step(*batch(1))


def test_steps_that_cannot_be_unrolled_run_one_by_one():
    variable = tf.Variable(1.0, name="w")

    def step(x):
        kept = tf.nn.dropout(x, 0.5, seed=3)  # draws from a state of the op
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(variable * kept))
        variable.assign_sub(0.1 * tape.gradient(loss, variable))
        return loss

    tf.random.set_seed(1)
    armodel = caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None])]), 2)
    with armodel.session() as session:
        want = [session.step(*batch(1)).loss for _ in range(4)]
    with armodel.session() as session:
        with pytest.warns(UserWarning, match=r"each step is a run of its own.*RandomUniform.*state of its own"):
            got = [r.loss for r in session.steps_together(2, [batch(1)] * 2)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is said once
            got += [r.loss for r in session.steps_together(2, [batch(1)] * 2)]
    assert got == want


def test_graphs_that_become_too_large(monkeypatch):
    with fed().session() as session:
        copied = len(session._unrolled._unrolling._copied)
        monkeypatch.setattr("caramel.modifiers.unroll.MOST_NODES", 2 * copied + 1)
        assert session._unrolled.most(8) == 2
        results = session.run([batch(1)] * 5, steps_per_execution=4, progress=False)
        assert [r.step for r in results] == [1, 2, 3, 4, 5]


def test_threads_take_turns():
    with fed().session() as session:
        found = []

        def train():
            found.extend(session.run([batch(1)] * 6, steps_per_execution=3, progress=False))

        threads = [threading.Thread(target=train) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(r.step for r in found) == list(range(1, 19))


@pytest.mark.processes
@pytest.mark.parametrize("on_workers", [False, True])
def test_server_processes(on_workers):
    """Batches of all steps travel in one array for each worker, and the time of a step counts for each of them."""

    def trained(together, cluster):
        armodel = model(numbers(21).batch(3), 2) if on_workers else fed(2)
        batches = None if on_workers else [batch(number % 3) for number in range(10)]
        with armodel.session(cluster, step_timeout_s=60) as session:
            results = session.run(batches, 10, steps_per_execution=together, progress=False)
            return [r.loss for r in results], session.values()["w"]

    want = trained(1, caramel.InProcess())
    assert trained(4, LocalProcesses()) == want


@pytest.mark.processes
def test_steps_that_take_too_long():
    variable = tf.Variable(1.0, name="w")

    def step(x):
        number = tf.while_loop(lambda n: n < tf.cast(x[0], tf.int64), lambda n: n + 1, [tf.constant(0, tf.int64)])[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(variable * x)) + 0 * tf.cast(number, tf.float32)
        variable.assign_sub(0.1 * tape.gradient(loss, variable))
        return loss

    armodel = caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None])]), 2)
    with armodel.session(LocalProcesses(), step_timeout_s=3) as session:
        session.steps_together(2, [batch(1)] * 2)
        with pytest.raises(ClusterError, match="steps 3 to 4 cannot go on.*at most 6 s"):
            session.steps_together(2, [batch(1), batch(1e12)])
