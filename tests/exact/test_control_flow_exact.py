"""Exchanges and reads of variables within branches, loops and functions: N workers equal one device, or it is refused."""

import exact_steps
import numpy as np
import pytest
import tensorflow as tf

import caramel

SPECS = [tf.TensorSpec([None, 3], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def batches(shifts=(0.0, -0.9, 0.4)):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(7, 3)) + np.arange(7)[:, None] / 5 + shift, rng.normal(size=7)) for shift in shifts]


def guess(x, w):
    return tf.linalg.matvec(x, w)


def squared(x, y, w):
    return tf.reduce_mean((guess(x, w) - y) ** 2)


def over_replicas(value):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, value)


def centred(x, y, w):
    """A loss that asks for the mean over all examples."""
    return tf.reduce_mean((guess(x, w) - over_replicas(tf.reduce_mean(guess(x, w)))) ** 2 * (1 + y**2))


def program(loss_and_change, **options):
    def make():
        w = tf.Variable(np.linspace(-0.5, 0.9, 3), name="w")
        count = tf.Variable(0, name="count", trainable=False)

        def step(x, y):
            count.assign_add(1)
            loss, change = loss_and_change(x, y, w, count)
            w.assign_sub(0.05 * change)
            return loss

        return exact_steps.Program(step, SPECS, {"w": w, "count": count}, options)

    return make


def runs_alone(made, **options):
    """With one worker nothing is refused for the way in which examples are combined."""
    with caramel.ARModel(caramel.capture(made.step, made.specs, **options), 1).session() as session:
        assert session.step(*batches()[0]).loss > 0


def softmax_or_mean(x, y, w, count):
    """The branch that is not taken has other values in its place, of other shapes."""
    with tf.GradientTape() as tape:
        loss = tf.cond(
            tf.reduce_mean(x) > 0.1, lambda: tf.reduce_sum(tf.nn.softmax(guess(x, w)) * y), lambda: squared(x, y, w)
        )
    return loss, tape.gradient(loss, w)


def rounds(x, y, w, count):
    """As many rounds as steps."""
    zero = tf.zeros([], tf.float64)
    scaled = lambda number: w * tf.cast(number + 1, tf.float64)  # noqa: E731
    return tf.while_loop(
        lambda number, total: number < count,
        lambda number, total: (number + 1, total + squared(x, y, scaled(number))),
        [0, zero],
    )[1]


def a_counted_loop_twice(x, y, w, count):
    """The loop reads the counter after it was written, also where two differentiations change the loop."""
    with tf.GradientTape(persistent=True) as tape:
        loss = rounds(x, y, w, count)
        double = 2 * loss
    return loss, 0.1 * (tape.gradient(loss, w) + tape.gradient(double, w))


def a_counted_loop_and_a_vector(x, y, w, count):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = rounds(x, y, w, count)
        slope = inner.gradient(loss, w)
        product = tf.reduce_sum(slope * [1.0, 2.0, -1.0])
    return loss, 0.1 * slope + 0.01 * outer.gradient(product, w)


def masked(x, y, w):
    weights = tf.cast(y > 0, tf.float64)
    return tf.reduce_sum(weights * (guess(x, w) - y) ** 2) / tf.reduce_sum(weights)


def chosen_by(condition):
    """A masked mean in a branch, in which the parameters are read."""

    def change(x, y, w, count):
        with tf.GradientTape() as tape:
            loss = tf.cond(condition(count), lambda: masked(x, y, w), lambda: squared(x, y, w))
        return loss, tape.gradient(loss, w)

    return change


def a_masked_mean_in_some_steps(x, y, w, count):
    return chosen_by(lambda count: count % 2 == 1)(x, y, w, count)


def cases(x, y, w, count):
    with tf.GradientTape() as tape:
        loss = tf.switch_case(
            count % 3,
            [
                lambda: squared(x, y, w) * tf.reduce_mean(tf.abs(guess(x, w))),
                lambda: masked(x, y, w),
                lambda: tf.reduce_sum((guess(x, w) - y) ** 2) / 7.0 + tf.reduce_sum(w**2),
            ],
        )
    return loss, tape.gradient(loss, w)


@pytest.mark.parametrize(
    "change",
    [softmax_or_mean, a_masked_mean_in_some_steps, cases, a_counted_loop_twice, a_counted_loop_and_a_vector],
    ids=lambda f: f.__name__,
)
def test_exact(change):
    exact_steps.check(program(change), batches(), 3)


def test_a_masked_mean_in_a_branch_that_workers_may_take_or_not():
    made = exact_steps.fresh(program(chosen_by(lambda count: tf.random.uniform([]) < 0.5)))
    with pytest.raises(caramel.UnsupportedError, match="the others would wait for a worker that takes another branch"):
        caramel.ARModel(caramel.capture(made.step, made.specs), 3)
    runs_alone(made)


def a_vector_through_a_sum(x, y, w, count):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = centred(x, y, w)
        slope = inner.gradient(loss, w)
        product = tf.reduce_sum(slope * [1.0, 2.0, -1.0])
    return loss, slope + outer.gradient(product, w)


def a_step_through_a_sum(x, y, w, count):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            before = centred(x, y, w)
        loss = centred(x, y, w - 0.1 * inner.gradient(before, w))
    return loss, outer.gradient(loss, w)


def in_vectors(x, y, w, count):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            tf.vectorized_map(lambda scale: centred(x, y, w * scale), tf.constant([1.0, 0.5], w.dtype))
        )
    return loss, tape.gradient(loss, w)


def recomputed(x, y, w, count):
    with tf.GradientTape() as tape:
        loss = tf.recompute_grad(lambda w: centred(x, y, w))(w * 1.0)
    return loss, tape.gradient(loss, w)


_REFUSALS = (
    "asks for an all-reduce|a mean or a sum over the batch|is part of what is differentiated|"
    "comes from a tf.custom_gradient"
)


@pytest.mark.parametrize("options", [{}, {"loss_reduction": "mean"}], ids=["told", "given"])
@pytest.mark.parametrize(
    "change", [a_vector_through_a_sum, a_step_through_a_sum, in_vectors, recomputed], ids=lambda f: f.__name__
)
def test_sums_for_which_a_program_asks_where_they_cannot_be_had(change, options):
    made = exact_steps.fresh(program(change, **options))
    context = caramel.capture(made.step, made.specs, **made.options)
    with pytest.raises((caramel.UnsupportedError, caramel.CaptureError), match=_REFUSALS):
        caramel.ARModel(context, 3)
    runs_alone(made, **made.options)


def test_a_recomputed_comparison_is_refused():
    def largest(x, y, w, count):
        with tf.GradientTape() as tape:
            loss = tf.recompute_grad(lambda w: tf.reduce_max((guess(x, w) - y) ** 2))(w * 1.0)
        return loss, tape.gradient(loss, w)

    made = exact_steps.fresh(program(largest))
    with pytest.raises(caramel.CaptureError, match="takes one value from all examples"):
        caramel.ARModel(caramel.capture(made.step, made.specs), 3)


def test_what_is_said_of_a_loss_that_divides_by_the_number_of_all_examples():
    def summed(x, y, w, count):
        number = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, tf.cast(tf.shape(x)[0], tf.float64)
        )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((guess(x, w) - y) ** 2) / number
        return loss, tape.gradient(loss, w)

    exact_steps.check(program(summed), batches(), 3)
    made = exact_steps.fresh(program(summed))
    with pytest.raises(caramel.CaptureError, match="loss_reduction='mean' does not hold"):
        caramel.ARModel(caramel.capture(made.step, made.specs, loss_reduction="mean"), 3)
    runs_alone(made, loss_reduction="mean")
