"""Library functions, branches and loops in a step: N workers equal one device."""

import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, check
from variants import in_soak

import caramel


def examples(count=12, steps=6, features=4, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, features)), rng.normal(size=count)) for _ in range(steps)]


SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def variable(shape, name, **options):
    value = np.random.default_rng(len(name)).normal(size=shape)
    return tf.Variable(value, name=name, dtype=tf.float64, **options)


def a_model_in_a_function():
    w, b = variable([4], "w"), variable([], "b")

    @tf.function
    def predict(x):
        return tf.linalg.matvec(x, w) + b

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(predict(x) - y))
        for v, g in zip((w, b), tape.gradient(loss, (w, b))):
            v.assign_sub(0.1 * g)
        return loss

    return Program(step, SPECS, {"w": w, "b": b})


def functions_in_functions():
    w, b = variable([4], "w"), variable([], "b")

    @tf.function
    def inner(x):
        return tf.tanh(x * w)

    @tf.function
    def middle(x):
        return tf.reduce_sum(inner(x) + inner(2.0 * x), 1)

    @tf.function
    def loss_of(x, y):
        return tf.reduce_mean(tf.square(middle(x) + b - y))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        for v, g in zip((w, b), tape.gradient(loss, (w, b))):
            v.assign_sub(0.1 * g)
        return loss

    return Program(step, SPECS, {"w": w, "b": b})


def a_differentiation_in_a_function():
    """The usual train_step, called from another tf.function; twice, on halves of the batch's features."""
    w = variable([4], "w")
    momentum = tf.Variable(tf.zeros([4], tf.float64), name="momentum", trainable=False)

    @tf.function
    def differentiate(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))
        return loss, tape.gradient(loss, w)

    @tf.function
    def apply(g):
        momentum.assign(0.9 * momentum + g)
        w.assign_sub(0.05 * momentum)

    def step(x, y):
        loss, g = differentiate(x, y)
        apply(g)
        again, g = differentiate(2.0 * x, y)
        apply(tf.clip_by_norm(g, 1.0))
        return loss + again

    return Program(step, SPECS, {"w": w, "momentum": momentum}, {"loss_reduction": "mean", "loss": "output"})


def a_branch_on_the_step():
    w = variable([4], "w")
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)
    best = tf.Variable(tf.zeros([4], tf.float64), name="best", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))
        g = tape.gradient(loss, w)
        if tf.equal(count % 2, 0):
            w.assign_sub(0.1 * g)
            best.assign(w)
        elif tf.equal(count, 3):
            w.assign(w * 0.5)
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "count": count, "best": best})


def a_branch_in_a_branch():
    """The inner branches write, and give back, a tensor of the outer one."""
    w = variable([4], "w")
    count = tf.Variable(0, dtype=tf.int64, name="count", trainable=False)
    total = tf.Variable(0.0, dtype=tf.float64, name="total", trainable=False)
    taken = tf.Variable(0.0, dtype=tf.float64, name="taken", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))
        g = tape.gradient(loss, w)

        def inner(outer):
            return tf.cond(tf.equal(count % 3, 0), lambda: total.assign_add(outer), lambda: outer)

        taken.assign(tf.cond(tf.equal(count % 2, 0), lambda: inner(tf.reduce_sum(w) * 2.0), lambda: total + 1.0))
        w.assign_sub(0.1 * g)
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "count": count, "total": total, "taken": taken})


def a_case_that_differentiates():
    """Two branches are chosen by their numbers, the last one by any other number."""
    w = variable([4], "w")
    count = tf.Variable(-1, dtype=tf.int32, name="count", trainable=False)
    momentum = tf.Variable(tf.zeros([4], tf.float64), name="momentum", trainable=False)

    def step(x, y):
        def branch(number):
            def run():
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(tf.linalg.matvec((number + 1.0) * x, w) - y))
                momentum.assign(0.5 * momentum + tape.gradient(loss, w))
                w.assign_sub(0.01 * (number + 1.0) * momentum)
                return loss

            return run

        loss = tf.switch_case(count.read_value(), [branch(number) for number in range(3)])
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "count": count, "momentum": momentum})


def a_differentiated_case():
    w = variable([4], "w")
    count = tf.Variable(0, dtype=tf.int32, name="count", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            forms = [lambda: w, lambda: tf.tanh(w), lambda: w * w]
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, tf.switch_case(count % 3, forms)) - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        count.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "count": count}, {"loss_reduction": "mean"})


def a_skipped_update():
    """What loss scaling does: apply only a finite gradient. Of one worker's examples, some overflow."""
    w = variable([4], "w")
    skipped = tf.Variable(0, dtype=tf.int64, name="skipped", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))
        g = tape.gradient(loss, w)

        def apply():
            w.assign_sub(0.1 * g)
            return tf.constant(0)

        def skip():
            skipped.assign_add(1)
            return tf.constant(1)

        tf.cond(tf.reduce_all(tf.math.is_finite(g)), apply, skip)
        return loss

    return Program(step, SPECS, {"w": w, "skipped": skipped})


def a_loop_that_reads():
    w = variable([4, 4], "w")

    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = x
            for _ in tf.range(3):
                hidden = tf.tanh(hidden @ w)
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(hidden, 1) - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return Program(step, SPECS, {"w": w}, {"loss_reduction": "mean"})


def a_loop_that_writes():
    """A proximal step by iteration: the loop updates the parameter, from the aggregated gradient."""
    w = variable([4], "w")
    rounds = tf.Variable(0, dtype=tf.int64, name="rounds", trainable=False)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))
        g = tape.gradient(loss, w)
        for _ in tf.range(3):
            w.assign_sub(0.03 * g + 0.001 * w)
            rounds.assign_add(1)
        return loss

    return Program(step, SPECS, {"w": w, "rounds": rounds})


PROGRAMS = {
    f.__name__: f
    for f in (
        a_model_in_a_function,
        functions_in_functions,
        a_differentiation_in_a_function,
        a_branch_on_the_step,
        a_branch_in_a_branch,
        a_case_that_differentiates,
        a_differentiated_case,
        a_loop_that_reads,
        a_loop_that_writes,
    )
}


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_a_step_with(make, workers):
    """On even batches, then on uneven ones."""
    check(make, [*examples(), *examples(count=7)], workers)


def test_all_workers_skip_an_update_or_none():
    batches = examples()
    for position in (1, 4):
        batches[position][0][position] = np.inf  # an example of the first worker, and one of another
    check(a_skipped_update, batches, [2, 3])


def test_an_op_that_wants_to_be_beside_one_outside_its_branch():
    """TensorFlow's global_norm is placed with its inputs, which a branch has from outside."""
    w = tf.Variable([1.0, 2.0], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        gradient = tape.gradient(loss, w)

        def clipped():
            norm = tf.linalg.global_norm([gradient])
            w.assign_sub(0.1 * gradient / norm)
            return norm

        tf.cond(tf.reduce_max(gradient) < 1e3, clipped, lambda: tf.constant(0.0))
        return loss

    model = caramel.ARModel(caramel.capture(step, [tf.TensorSpec([None, 2])]), 2)
    x = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0], [2.0, 2.0]], np.float32)
    gradient = 2 * x.T @ (x @ [1.0, 2.0]) / 4
    with model.session(caramel.InProcess()) as session:
        session.step(x)
        (found,) = session.values().values()
    np.testing.assert_allclose(found, [1.0, 2.0] - 0.1 * gradient / np.linalg.norm(gradient), rtol=1e-5)
