"""The loss that a step reports is that of one device with the whole batch, whatever is differentiated."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.model import Combination

v1 = tf.compat.v1
RNG = np.random.default_rng(5)
X, Y = RNG.normal(size=(10, 3)), RNG.normal(size=(10, 1))  # 4, 3 and 3 examples for three workers
START = RNG.normal(size=(3, 1))
SPECS = [tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None, 1], tf.float64)]

REPORTED = {
    "sum": lambda errors, w: tf.reduce_sum(errors),
    "mean": lambda errors, w: tf.reduce_mean(errors),
    "scaled": lambda errors, w: 0.25 * tf.reduce_mean(errors),
    "with a term of the weights": lambda errors, w: tf.reduce_mean(errors) + tf.reduce_sum(w * w),
    "of the weights": lambda errors, w: tf.reduce_sum(w * w),
    "of each example": lambda errors, w: errors,
}
DIFFERENTIATED = {
    "sum": lambda errors: tf.reduce_sum(errors),
    "mean": lambda errors: tf.reduce_mean(errors),
    "scaled": lambda errors: 128.0 * tf.reduce_mean(errors),
}


def program(differentiated, reported):
    w = tf.Variable(START, name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.squeeze(tf.square(x @ w - y), 1)
            loss = DIFFERENTIATED[differentiated](errors)
        given = REPORTED[reported](errors, tf.identity(w))
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return {"loss": given}

    return step


@pytest.mark.parametrize("reported", list(REPORTED))
@pytest.mark.parametrize("differentiated", list(DIFFERENTIATED))
def test_a_step_function(differentiated, reported):
    alone = program(differentiated, reported)
    want = [float(tf.reduce_sum(alone(tf.constant(X), tf.constant(Y))["loss"])) for _ in range(2)]
    context = caramel.capture(program(differentiated, reported), inputs=SPECS, loss="loss")
    with caramel.ARModel(context, 3).session() as session:
        got = [session.step(X, Y).loss for _ in range(2)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_graph():
    def build():
        x, y = v1.placeholder(tf.float64, [None, 3], "x"), v1.placeholder(tf.float64, [None, 1], "y")
        w = v1.get_variable("w", initializer=START)
        errors = tf.square(x @ w - y)
        v1.train.GradientDescentOptimizer(0.001).minimize(tf.reduce_mean(errors))
        return tf.reduce_sum(errors, name="total")

    with caramel.capture(loss="total:0") as context:
        build()
    with caramel.ARModel(context, 3).session() as session:
        got = session.step({"x": X, "y": Y}).loss
    np.testing.assert_allclose(got, np.sum((X @ START - Y) ** 2), rtol=1e-12)


def test_a_complex_loss_is_reported_by_the_part_that_its_gradient_descends():
    w = tf.Variable(tf.cast(START, tf.complex128), name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((0.6 + 0.8j) * tf.square(tf.cast(x, tf.complex128) @ w - tf.cast(y, tf.complex128)))
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return loss

    context = caramel.capture(step, inputs=SPECS)
    with caramel.ARModel(context, 3).session() as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        got = [session.step(X, Y).loss for _ in range(2)]
    want = [step(tf.constant(X), tf.constant(Y)).numpy().real for _ in range(2)]
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert got[1] < got[0]


def test_what_cannot_be_told_is_said():
    w = tf.Variable(START)

    def step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.square(x @ w - y)
            loss = tf.reduce_mean(errors)
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return {"loss": tf.reduce_max(errors)}

    notes = "; ".join(caramel.ARModel(caramel.capture(step, inputs=SPECS), 3).plan.notes)
    assert "the reported loss" in notes and "combined by mean" in notes


RESULTS = {
    "rows": (lambda x, errors: errors, Combination.EXAMPLES),
    "two entries of each example": (lambda x, errors: tf.reshape(x[:, :2], [-1]), Combination.EXAMPLES),
    "columns": (lambda x, errors: tf.transpose(x), None),
    "columns of unknown number": (lambda x, errors: tf.transpose(tf.boolean_mask(x, [True, False, True], 1)), None),
    "sorted": (lambda x, errors: tf.sort(x[:, 0]), None),
    "centred": (lambda x, errors: x - tf.reduce_mean(x, 0), None),
    "both halves": (lambda x, errors: tf.concat([x, -x], 0), None),
    "divided by the size": (lambda x, errors: x / tf.cast(tf.shape(x)[0], tf.float64), None),
    "means of columns": (lambda x, errors: tf.reduce_mean(x, 0), Combination.MEAN),
    "sums of columns": (lambda x, errors: tf.reduce_sum(x, 0), Combination.SUM),
    "a mean": (lambda x, errors: tf.reduce_mean(errors), Combination.MEAN),
    "number of examples": (lambda x, errors: tf.shape(x)[0], Combination.SUM),
    "half the number of examples": (lambda x, errors: tf.cast(tf.size(errors), tf.float64) / 2.0, Combination.SUM),
    "number of examples less one": (lambda x, errors: tf.shape(x)[0] - 1, None),
    "number of columns": (lambda x, errors: tf.shape(x)[1], Combination.SAME),
    "the largest": (lambda x, errors: tf.reduce_max(errors), Combination.MAX),
    "the largest of each column": (lambda x, errors: tf.reduce_max(tf.abs(x), 0), Combination.MAX),
    "the smallest": (lambda x, errors: tf.reduce_min(x), Combination.MIN),
    "the smallest class": (lambda x, errors: tf.cast(tf.reduce_min(tf.argmax(x, 1)), tf.float32), Combination.MIN),
    "whether any": (lambda x, errors: tf.cast(tf.reduce_any(errors > 1.0), tf.int32), Combination.MAX),
    "whether all": (lambda x, errors: tf.reduce_all(tf.math.is_finite(x)), Combination.MIN),
    "whether the largest is not zero": (lambda x, errors: tf.cast(tf.reduce_max(errors), tf.bool), None),
    "the largest in a byte": (lambda x, errors: tf.cast(tf.reduce_max(tf.argmax(x, 1)), tf.uint8), None),
    "minus the largest": (lambda x, errors: -tf.reduce_max(errors), None),
    "the largest of each example": (lambda x, errors: tf.reduce_max(x, 1), Combination.EXAMPLES),
    "the largest share": (lambda x, errors: tf.reduce_max(errors / tf.reduce_sum(errors)), Combination.MAX),
    "the largest share of a size": (lambda x, errors: tf.reduce_max(x / tf.cast(tf.size(errors), x.dtype)), None),
    "random": (lambda x, errors: tf.random.uniform([]), None),
    "an op that is not known": (lambda x, errors: tf.strings.as_string(x), Combination.EXAMPLES),
}


@pytest.fixture(scope="module")
def combinations():
    w = tf.Variable(START, name="w")

    def step(x, y):
        with tf.GradientTape() as tape:
            errors = tf.squeeze(tf.square(x @ w - y), 1)
            loss = tf.reduce_mean(errors)
        w.assign_sub(0.001 * tape.gradient(loss, w))
        return {"loss": loss, **{name: result(x, errors) for name, (result, _) in RESULTS.items()}}

    model = caramel.capture(step, inputs=SPECS, loss="loss").model
    return dict(zip((name for name, _ in model.outputs), model.combinations))


@pytest.mark.parametrize("name", list(RESULTS))
def test_how_results_of_the_workers_combine(combinations, name):
    assert combinations[name] is RESULTS[name][1]


def test_a_function_of_sums_that_stays_in_a_loop_is_named():
    """Outside of loops it is that of the whole batch."""
    w = tf.Variable(START, name="w")

    def step(x, y):
        total, losses, roots = tf.zeros_like(w), tf.constant(0.0, tf.float64), tf.constant(0.0, tf.float64)
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w - y) ** 2)
            total += tape.gradient(loss, w)
            losses += loss
            roots += tf.sqrt(loss)
        w.assign_sub(0.001 * total)
        return {"loss": losses, "roots": roots, "root": tf.sqrt(tf.reduce_mean(y**2))}

    notes = caramel.ARModel(caramel.capture(step, inputs=SPECS), 3).plan.notes
    assert [note for note in notes if "its own value of roots, of which" in note]
