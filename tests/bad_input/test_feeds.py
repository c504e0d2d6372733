"""Batches that do not fit the program's inputs: refused before anything runs."""

import numpy as np
import pytest

import caramel

X, Y = np.arange(18, dtype=np.float32).reshape(6, 3) / 18, np.ones(6, np.float32)


@pytest.fixture(scope="module")
def session():
    import tensorflow as tf

    v1 = tf.compat.v1
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        y = v1.placeholder(tf.float32, [None], "y")
        rate = v1.placeholder_with_default(tf.constant(0.1), [], "rate")
        weights = v1.get_variable("w", [3], initializer=tf.zeros_initializer())
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        v1.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
        context.evaluation = {"error": tf.reduce_max(tf.abs(tf.linalg.matvec(x, weights) - y))}
    with caramel.ARModel(context, 4).session() as session:
        yield session


@pytest.fixture(autouse=True)
def nothing_ran(session):
    """A refused batch leaves variables and counter alone, and the session goes on."""
    before, count = session.values(), session.step_count
    yield
    after = session.values()
    assert session.step_count == count
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    assert session.step(X, Y).step == count + 1


BAD = {
    "one missing": (((), {"x": X}), ["'y'", "missing", "x (float32"]),
    "all missing": (((), {}), ["'x'", "missing"]),
    "one missing in a dict": ((({"x": X},), {}), ["'y'", "missing"]),
    "one unknown": (((), {"x": X, "y": Y, "z": Y}), ["no input 'z'", "x (float32", "y (float32"]),
    "one unknown in a dict": ((({"x": X, "y": Y, "z": Y},), {}), ["no input 'z'"]),
    "one misspelled": (((), {"x": X, "labels": Y}), ["'labels'", "y (float32"]),
    "one misspelled in a dict": ((({"x": X, "labels": Y},), {}), ["'labels'", "y (float32"]),
    "one given twice": (((X, Y), {"y": Y}), ["'y'", "twice"]),
    "too few arrays": (((X,), {}), ["1 array", "x (float32", "y (float32"]),
    "too many arrays": (((X, Y, 0.1, Y), {}), ["4 arrays", "x (float32", "y (float32"]),
    "text": (((X, np.array(["one"] * 6)), {}), ["'y'", "float32", "<U3"]),
    "complex numbers": (((X.astype(np.complex64), Y), {}), ["'x'", "float32", "complex64"]),
    "objects": (((X, np.array([None] * 6)), {}), ["'y'", "float32", "object"]),
    "None": (((X, None), {}), ["'y'", "float32"]),
    "too many columns": (((np.ones((6, 4), np.float32), Y), {}), ["'x'", "'batch', 3", "6, 4"]),
    "too many dimensions": (((X[..., None], Y), {}), ["'x'", "shape", "6, 3, 1"]),
    "too few dimensions": (((X[:, 0], Y), {}), ["'x'", "shape", "[6]"]),
    "a scalar": (((X, np.float32(1)), {}), ["'y'", "shape", "[]"]),
    "a vector for a scalar": (((X, Y), {"rate": Y}), ["'rate'", "shape", "[6]"]),
    "lists of different lengths": (((X, [[1.0], [1.0, 2.0]]), {}), ["'y'"]),
    "no examples": (((X[:0], Y[:0]), {}), ["at least one example"]),
    "different numbers of examples": (((X, Y[:5]), {}), ["'y'", "5 examples", "6"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_does_not_fit(session, refused, name):
    (arguments, keywords), words = BAD[name]
    with refused(caramel.InputError, *words):
        session.step(*arguments, **keywords)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((X,), ["1 array", "x (float32", "y (float32"]),
        (({"x": X},), ["'y'", "missing"]),
        ((X, Y.astype(complex)), ["'y'", "float32", "complex128"]),
        ((X[:, :2], Y), ["'x'", "6, 2"]),
    ],
)
def test_an_evaluation_batch_that_does_not_fit(session, refused, arguments, words):
    with refused(caramel.InputError, *words):
        session.evaluate(*arguments)


def test_an_evaluation_of_something_unknown(session, refused):
    with refused(caramel.CaptureError, "'nowhere:0'", "not a tensor"):
        session.evaluate(X, Y, fetches="nowhere:0")


def test_fewer_batches_than_steps(session, refused):
    with refused(caramel.InputError, "0 batches", "2 steps"):
        session.run([], steps=2)


def test_an_iterator_without_batches(session, refused):
    """As one that was read before; an empty list is meant."""
    with refused(caramel.InputError, "there is no batch", "once only"):
        session.run(iter(()))
    assert session.run([]) == []


@pytest.mark.parametrize("steps", [-1, "1", 1.0, True])
def test_a_number_of_steps_that_is_none(session, refused, steps):
    with refused(caramel.InputError, "steps", "whole number of at least 0", repr(steps)):
        session.run([(X, Y)], steps=steps)


def test_an_uneven_batch_where_that_is_refused(captured, line, minimize, refused):
    armodel = caramel.ARModel(captured(lambda: minimize(line().loss)), 4, uneven_batches="refuse")
    with armodel.session() as strict:
        with refused(caramel.InputError, "6 examples", "4 workers", "multiple of 4", "uneven_batches='weight'"):
            strict.step(X, Y)
        assert strict.step(X[:4], Y[:4]).examples == 4


def test_a_batch_for_a_static_batch_size(captured, line, minimize, refused):
    armodel = caramel.ARModel(captured(lambda: minimize(line(shape=(2, 3)).loss)), 3)
    with armodel.session() as fixed:
        with refused(caramel.InputError, "'x'", "2 examples on each worker", "6, not 4", "replicated="):
            fixed.step(X[:4], Y[:4])
        assert fixed.step(X, Y).examples == 6


def test_a_bad_batch_after_good_ones_stops_the_run(captured, line, minimize, refused):
    results = []
    with caramel.ARModel(captured(lambda: minimize(line().loss)), 2).session() as other:
        with refused(caramel.InputError, "'x'", "missing"):
            other.run([(X, Y), (X, Y), {"y": Y}, (X, Y)], on_step=results.append)
        assert [result.step for result in results] == [1, 2]
        assert other.step_count == 2
        assert other.step(X, Y).step == 3


@pytest.mark.parametrize(
    "values, words",
    [
        ({"nothing": 1}, ["'nothing'", "w", "global_step"]),
        ({"w": [1.0, 2.0]}, ["'w'", "[3]", "[2]"]),
        ({"w": np.ones(3, complex)}, ["'w'", "float32", "complex128"]),
        ({"w": [[1.0], [1.0, 2.0], 3.0]}, ["'w'", "no array"]),
        ({"global_step": 1.0}, ["'global_step'", "int64", "float64"]),
        ({"global_step": np.uint64(2**63)}, ["'global_step'", "int64", "too large"]),
        ({"w": [9.0, 9.0, 9.0], "global_step": np.uint64(2**64 - 1)}, ["'global_step'", "too large"]),
    ],
)
def test_an_assigned_value_that_does_not_fit(session, refused, values, words):
    with refused(caramel.InputError, *words):
        session.assign(values)
