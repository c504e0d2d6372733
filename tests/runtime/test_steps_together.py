"""Several steps in one run: the workers' data, errors, checkpoints, and what runs step by step."""

import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from numbered_data import model, numbers, seen
from variants import in_soak

import caramel
from caramel.errors import ClusterError, DataError, EndOfData, InputError, StepError
from caramel.runtime.clusters.local_processes import LocalProcesses
from caramel.runtime.steps_per_execution import READY_S_PER_NODE, worthwhile_steps


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


@pytest.mark.parametrize("together", [1, 4])
def test_a_checkpoint_at_the_end_of_a_pass(together, tmp_path):
    """The end was seen already, where steps are made together; it comes when it would have come."""
    with model(numbers(4).batch(2)).session() as session:
        while session.step_count < 2:
            session.steps_together(together)
        session.save(tmp_path / "saved")
        with pytest.raises(EndOfData):
            session.step()
        session.step()
        session.restore(tmp_path / "saved")
        with pytest.raises(EndOfData):
            session.steps_together(together)
        assert seen(session.step()) == [0, 1]


@pytest.mark.parametrize("resumed", [False, *in_soak(True)])
def test_an_element_that_fails_behind_others_that_did(resumed, tmp_path):
    """Those that were taken in vain are looked for again, over what has failed on the way."""
    with model(numbers(20, bad=[4, 13]).batch(2)).session() as session:
        session.run(steps=2)
        with pytest.raises(DataError, match="batch 2 of pass 0"):
            session.step()
        session.run(steps=2)
        if resumed:
            session.save(tmp_path / "saved")
            session.restore(tmp_path / "saved")
        session._steps.data._one_by_one, session._steps.data._is_restored = False, True  # as it is after a restore
        found = []
        with pytest.raises(DataError, match="batch 6 of pass 0"):
            while True:
                found += map(seen, session.steps_together(4))
        assert found == [[10, 11]]
        assert [seen(r) for r in session.run(steps_per_execution=4)] == [[14, 15], [16, 17], [18, 19]]


def test_one_graph_serves_what_is_left_over():
    with model(numbers(22).batch(2)).session() as session:
        session.run(steps=30, steps_per_execution=4, progress=False)
        assert list(session._steps.unrolled._by_count) == [4]


@pytest.mark.parametrize("together", [2, 5])
def test_a_worker_whose_data_has_ended_goes_on_with_its_last_element(together):
    def drawn(steps):
        data = lambda workers, rank: numbers(12 - 2 * rank).batch(2)  # noqa: E731
        with model(data, 3).session() as session:
            results = session.run(steps_per_execution=steps, progress=False)
        return [[share.tolist() for share in result.outputs["seen"]] for result in results]

    found = drawn(together)
    assert found == drawn(1) and found[-1] == [[10, 11], [8, 9], [6, 7]]


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


def reused():
    """Batches in one array, which is filled anew for each."""
    array = np.empty(4, np.float32)
    for number in range(5):
        array[:] = number
        yield (array,)


def test_batches_in_an_array_that_is_used_again():
    with fed().session() as session:
        want = [r.loss for r in session.run(reused(), progress=False)]
    with fed().session() as session:
        assert [r.loss for r in session.run(reused(), steps_per_execution=3, progress=False)] == want


def test_batches_before_one_that_cannot_be_had():
    """They are trained on, as they are step by step."""

    def failing():
        yield from ([batch(1)] * 3)
        raise ValueError("no further batch")

    with fed().session() as session:
        with pytest.raises(ValueError, match="no further"):
            session.run(failing(), steps_per_execution=4)
        assert session.step_count == 3
        with pytest.raises(InputError, match="there are 5 batches for 6 steps"):
            session.run([batch(1)] * 5, 6, steps_per_execution=4)
        assert session.step_count == 8
        with pytest.raises(InputError, match="shape"):
            session.run([batch(1), (np.zeros((4, 2)),)], steps_per_execution=2)
        assert session.step_count == 9


def test_batches_that_are_too_large_for_one_message(monkeypatch):
    with fed().session() as session:
        monkeypatch.setattr(session._steps.unrolled, "_is_elsewhere", True)
        monkeypatch.setattr("caramel.runtime.unrolled_steps._MOST_FED_BYTES", 40)
        assert len(session.steps_together(2, [batch(1)] * 2)) == 2 and session._steps.unrolled._by_count
        assert len(session.steps_together(3, [batch(1)] * 3)) == 3 and list(session._steps.unrolled._by_count) == [2]


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


def test_a_value_that_is_read_in_one_branch_only():
    """What waits for it would not run where the other branch is taken."""
    v1 = tf.compat.v1
    with caramel.capture(replicated=["p"]) as context:
        x, p = v1.placeholder(tf.float32, [None], "x"), v1.placeholder(tf.bool, [], "p")
        w = v1.get_variable("w", [], initializer=tf.ones_initializer())
        other = v1.get_variable("other", [], initializer=tf.ones_initializer(), trainable=False)
        loss = tf.reduce_mean((w * x) ** 2) + tf.cond(p, lambda: other.read_value(), lambda: tf.constant(0.0))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    batches = [{"x": batch(1)[0], "p": number % 2 == 0} for number in range(4)]
    with caramel.ARModel(context, 2).session() as session:
        want = [session.step(each).loss for each in batches]
    with caramel.ARModel(context, 2).session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert [r.loss for r in session.steps_together(4, batches)] == want


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
        copied = len(session._steps.unrolled._unrolling._copied)
        monkeypatch.setattr("caramel.modifiers.unroll.MOST_NODES", 2 * copied + 1)
        assert session._steps.unrolled.most(8) == 2
        results = session.run([batch(1)] * 5, steps_per_execution=4, progress=False)
        assert [r.step for r in results] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("on_workers", [False, True])
def test_a_number_that_is_chosen(on_workers, monkeypatch):
    """After some single steps; what they took, and what an empty run takes, is measured."""
    asked = []

    def choose(*arguments):
        asked.append(arguments)
        return 4

    monkeypatch.setattr("caramel.runtime.training_steps.worthwhile_steps", choose)
    runs = []
    armodel = model(numbers(20).batch(2)) if on_workers else fed()
    batches = None if on_workers else [batch(1)] * 30
    with armodel.session() as session:
        session.run(batches, 30, steps_per_execution="auto", on_step=lambda r: runs.append(session.step_count))
        ((step_s, run_s, steps, node_s, most),) = asked
        assert 0 < run_s < 5 and 0 < step_s < 5 and steps == 19 and most == 19
        assert node_s == session._steps.unrolled.nodes * READY_S_PER_NODE
        session.run(batches, steps_per_execution="auto")  # the number of steps is not known
        assert len(asked) == 1
    together = [runs.count(end) for end in dict.fromkeys(runs)]
    # A pass over the data has 10 batches, so it ends within a run.
    assert together == ([1] * 11 + [4, 4, 1, 4, 4, 1, 1] if on_workers else [1] * 11 + [4] * 4 + [1] * 3)


@pytest.mark.parametrize("steps", [10, 11, 12, 13])
def test_a_number_that_is_chosen_for_nothing(steps):
    with fed().session() as session:
        assert len(session.run([batch(1)] * steps, steps, steps_per_execution="auto", progress=False)) == steps


@pytest.mark.parametrize("number", ["often", 0, 1.5, None])
def test_bad_numbers_of_steps_in_a_run(number):
    with fed().session() as session, pytest.raises(InputError, match="steps_per_execution"):
        session.run([batch(1)], steps_per_execution=number)


@given(
    step_s=st.floats(1e-4, 1.0),
    part=st.floats(0, 1),
    steps=st.integers(0, 10**6),
    node_s=st.floats(1e-3, 1e3),
    most=st.integers(1, 20),
)
def test_the_number_with_which_a_training_ends_first(step_s, part, steps, node_s, most):
    """Each run costs what an empty one costs; getting ready costs its nodes. A gain of less than 5 % does not count."""
    run_s = part * step_s

    def total_s(count):
        return (steps / count) * run_s + steps * (step_s - run_s) + (count * node_s) * (count > 1)

    found = worthwhile_steps(step_s, run_s, steps, node_s, most)
    assert 1 <= found <= most
    times_s = {count: total_s(count) for count in (1, 2, 4, 8, 16) if count <= most}
    if found > 1:
        assert times_s[found] <= min(times_s.values()) + 1e-9 and times_s[found] <= 0.95 * times_s[1] + 1e-9
    else:
        assert times_s[1] <= 0.0 or min(times_s.values()) >= 0.95 * times_s[1] - 1e-9


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
