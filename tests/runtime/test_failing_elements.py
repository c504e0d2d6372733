"""Elements that fail, or do not fit: all others come once and in order, each failure is told once, whatever is done."""

import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_data import model, numbers, seen
from variants import in_soak

from caramel.errors import DataError, EndOfData

FAILED, END = "failed", "end"


def events(session, calls):
    """What comes of as many runs, each of so many steps: the examples of each step, failures, ends of passes."""
    found = []
    for steps in calls:
        try:
            results = [session.step()] if steps == 1 else session.steps_together(steps)
        except DataError:
            found.append(FAILED)
        except EndOfData:
            found.append(END)
        else:
            found += [seen(result) for result in results]
    return found


def on_one_device(dataset):
    """The same for a pass of a loop in Python."""
    found, iterator = [], iter(dataset)
    while True:
        try:
            found.append(next(iterator)[0].numpy().tolist())
        except StopIteration:
            return [*found, END]
        except tf.errors.InvalidArgumentError:
            found.append(FAILED)


def until_end(session, steps):
    found = []
    while END not in found:
        found += events(session, [steps])
    return found


def in_groups(found, size):
    """What groups of so many elements mean: one with an element that fails is left out, as a whole."""
    groups = [found[first : first + size] for first in range(0, len(found) - 1, size)]
    return [FAILED if FAILED in group else list(itertools.chain(*group)) for group in groups] + [END]


@pytest.mark.parametrize("bad", [[6], *in_soak([9, 11], [1, 2], [16, 19], [4, 13, 14])])
@pytest.mark.parametrize("resumes", [True, False])
def test_any_runs_before_and_after_a_restore(bad, resumes, tmp_path):
    data = numbers(20, bad).batch(2)
    if not resumes:  # the state of its iterators does not say all
        data = data.map(lambda n, x: (n, x + 0 * tf.random.uniform([], seed=3)))
    want = on_one_device(numbers(20, bad).batch(2))
    distributed = model(data, 2)
    with distributed.session() as session, distributed.session() as other:
        for before in ([1], [2, 2], [1, 3, 1], [2, 2, 1, 2]):
            session.restart_data()
            found = events(session, before)
            session.save(tmp_path / "saved")
            assert [*found, *until_end(session, 1)] == want
            for steps in (1, 3):
                other.restore(tmp_path / "saved")
                assert [*found, *until_end(other, steps)] == want


@pytest.mark.parametrize("bad", [[7, 8], *in_soak([7], [7, 9, 10], [6, 8], [0, 11])])
def test_groups_of_which_an_element_fails(bad, tmp_path):
    """Two that follow each other, too: the next one begins where it would without."""
    data = numbers(24, [2 * each for each in bad]).batch(2)
    want = in_groups(on_one_device(data), 2)
    with model(data, 2, sharding="batches").session() as session:
        for steps, before in itertools.product((1, 2), ([1, 1], [3, 2], [1, 1, 1, 1, 1])):
            session.restart_data()
            found = events(session, before)
            session.save(tmp_path / "saved")
            assert [*found, *until_end(session, steps)] == want
            session.restore(tmp_path / "saved")
            assert [*found, *until_end(session, steps)] == want


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(
    bad=st.sets(st.integers(0, 11), max_size=5),
    workers=st.integers(1, 3),
    is_grouped=st.booleans(),
    calls=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    steps=st.integers(1, 3),
)
def test_any_elements(bad, workers, is_grouped, calls, steps, tmp_path_factory):
    saved = tmp_path_factory.mktemp("any") / "saved"
    data = numbers(36, sorted(3 * each for each in bad)).batch(3)
    want = in_groups(on_one_device(data), workers) if is_grouped else on_one_device(data)
    with model(data, workers, sharding="batches" if is_grouped else "slice").session() as session:
        found = events(session, calls)
        if END in found:
            return
        session.save(saved)
        assert [*found, *until_end(session, steps)] == want
        session.restore(saved)
        assert [*found, *until_end(session, steps)] == want


@pytest.mark.parametrize("calls", [[1] * 7, [2, 1, 1, 1, 1, 1], [2, *[3] * 6], [2] * 8])
def test_one_that_the_step_cannot_take_among_those_that_were_taken_ahead(calls):
    """Batch 2 has three numbers and two values, which no op of the pipeline looks at."""
    values = tf.data.Dataset.range(3).batch(3)
    for rows in (3, 2, 3, 3, 3):
        values = values.concatenate(tf.data.Dataset.range(rows).batch(rows))
    data = tf.data.Dataset.zip((tf.data.Dataset.range(18).batch(3), values.map(lambda n: tf.cast(n, tf.float32))))
    with model(data, 2).session() as session:
        assert session.distributed.signature.data.ahead
        found = [each if isinstance(each, str) else each[0] // 3 for each in events(session, calls)]
    assert found[: found.index(END)] == [0, 1, FAILED, 3, 4, 5]


def test_a_worker_whose_elements_fail_leaves_others_theirs():
    """What worker 1 had was left out with what failed on worker 0: its dataset is not empty."""
    data = lambda workers, rank: numbers(4 - 2 * rank, bad=[0, 1] if rank == 0 else []).batch(1)  # noqa: E731
    with model(data, 2).session() as session:
        assert events(session, [1, 1, 1, 1, 1]) == [FAILED, FAILED, None, None, END]  # see `seen`


# -- shuffles that draw within a pass ----------------------------------------------------------


def repeated(bad=()):
    """Numbers whose shuffle draws a seed in the middle of a pass; some of them fail."""
    order = tf.data.Dataset.range(40).shuffle(40, seed=4).repeat(2)
    forbidden = tf.constant([*bad, -1], tf.int64)

    def check(number):
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(number != forbidden), [number])]):
            return tf.identity(number), tf.cast(number, tf.float32)

    return order.map(check).batch(4)


def passes(dataset, counts):
    """The first so many elements of each pass over a dataset, in Python."""
    found = []
    for count in counts:
        found.append([numbers.numpy().tolist() for numbers, _ in itertools.islice(iter(dataset), count)])
    return found


def test_a_pass_that_was_left_before_its_end(tmp_path):
    left, whole, after = passes(repeated(), [1, 20, 20])
    with model(repeated(), 2).session() as session:
        assert events(session, [1]) == left
        session.restart_data()
        assert events(session, [1]) == whole[:1]
        session.save(tmp_path / "saved")
        for _ in range(2):
            assert [seen(r) for r in session.run(progress=False)] == whole[1:]
            assert [seen(r) for r in session.run(progress=False)] == after
            session.restore(tmp_path / "saved")


def test_a_failure_in_a_run_of_several_steps_after_a_pass_that_was_left():
    _, order = passes(repeated(), [1, 6])
    bad = [order[3][0]]
    with model(repeated(bad), 2).session() as session:
        session.step()
        session.restart_data()
        want = [FAILED if each == order[3] else each for each in order]
        assert events(session, [1, *[3] * 5])[:6] == want


def test_a_pass_that_cannot_be_read_again(tmp_path):
    """The file is gone when the shuffle's seeds are drawn once more: no end of failures, but an end."""
    file = tmp_path / "lines"
    file.write_text("a\nbb\nccc\ndddd\n")

    def numbered(line):
        number = tf.cast(tf.strings.length(line), tf.int64)
        return number, tf.cast(number, tf.float32)

    data = tf.data.TextLineDataset(str(file)).shuffle(4, seed=1).repeat(2).map(numbered).batch(4)
    with model(data, 1).session() as session:
        session.run(progress=False)
        session.step()
        session.save(tmp_path / "saved")
        file.unlink()
        with pytest.raises(DataError):
            session.restore(tmp_path / "saved")
            session.run(steps=4, progress=False)


def test_states_of_iterators_are_saved_where_they_can_be_restored(tmp_path):
    """Those of a pass that began behind some elements cannot."""
    data = tf.data.Dataset.range(24).map(lambda n: (n, tf.cast(n, tf.float32))).batch(2)
    with model(data, 2).session() as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run(steps=4, steps_per_execution=2, progress=False)
        for number in range(4, 8):
            session.save(tmp_path / "saved")
            session.restore(tmp_path / "saved")
            assert events(session, [1]) == [np.arange(2 * number, 2 * number + 2).tolist()]
