"""Losses with branches that the batch decides: all workers take the branch of one device."""

import pytest
import tensorflow as tf
from test_forward_sums_exact import BATCHES, Program, _double, batches, check, errors
from variants import mostly_in_soak

__all__ = ["_double"]

ZERO = tf.constant(0.0, tf.float64)


def weights_of(mask):
    return tf.cast(mask, tf.float64)


def mean_or_nothing(outputs, y, mask):
    chosen = tf.reduce_sum(weights_of(mask))
    total = tf.reduce_sum(weights_of(mask) * errors(outputs, y))
    return tf.cond(chosen > 0, lambda: total / chosen, lambda: ZERO)


def sums_in_the_branch(outputs, y, mask):
    def mean():
        return tf.reduce_sum(weights_of(mask) * errors(outputs, y)) / tf.reduce_sum(weights_of(mask))

    return tf.cond(tf.reduce_sum(weights_of(mask)) > 1, mean, lambda: 0.0 * tf.reduce_sum(outputs))


@tf.function
def chosen_mean(losses, mask):
    if tf.reduce_any(mask):
        return tf.reduce_mean(losses[mask])
    return ZERO


def by_autograph(outputs, y, mask):
    return chosen_mean(errors(outputs, y), mask & (y > 0.8)) + tf.reduce_mean(outputs)


def places_in_the_branch(outputs, y, mask):
    places = tf.where(mask & (y > 0.8))[:, 0]
    chosen = tf.cond(tf.size(places) > 0, lambda: tf.reduce_mean(tf.gather(outputs, places) ** 2), lambda: ZERO)
    return chosen + tf.reduce_mean(errors(outputs, y))


def one_of_three(outputs, y, mask):
    error, loss = tf.reduce_mean(tf.abs(outputs)), tf.reduce_mean(errors(outputs, y))
    return tf.case([(error < 0.4, lambda: loss), (error < 0.6, lambda: tf.sqrt(loss))], default=lambda: error)


def by_number(outputs, y, mask):
    loss = errors(outputs, y)
    count = tf.cast(tf.minimum(tf.math.count_nonzero(y > 1.5), 2), tf.int32)
    branches = [
        lambda: tf.reduce_mean(loss),
        lambda: tf.reduce_sum(loss) / 7.0,
        lambda: tf.sqrt(tf.reduce_sum(loss**2)),
    ]
    return tf.switch_case(count, branches)


def one_in_another(outputs, y, mask):
    loss = errors(outputs, y)

    def some():
        kept = tf.boolean_mask(loss, mask)
        return tf.cond(tf.size(kept) > 4, lambda: tf.reduce_mean(kept) * 2.0, lambda: tf.reduce_sum(kept))

    return tf.cond(tf.reduce_any(y > 1.0), some, lambda: tf.reduce_mean(loss))


def two_kinds(outputs, y, mask):
    one, other = tf.boolean_mask(outputs[:, 0], mask), tf.boolean_mask(outputs[:, 1], ~mask)
    has_both = (tf.size(one) > 0) & (tf.size(other) > 0)
    return tf.cond(has_both, lambda: tf.reduce_mean(one) - tf.reduce_mean(other), lambda: tf.reduce_mean(outputs))


def unless_it_is_small(outputs, y, mask):
    loss = tf.reduce_mean(errors(outputs, y))
    return tf.cond(loss > 1.0, lambda: loss, lambda: 2.0 - loss)


def by_the_first(outputs, y, mask):
    largest, root = tf.reduce_max(y), tf.sqrt(tf.reduce_mean(errors(outputs, y)))
    return root * tf.cond(y[0] > 1.0, lambda: largest, lambda: 2.0 * largest)


LOSSES = [
    *(mean_or_nothing, sums_in_the_branch, by_autograph, places_in_the_branch, one_of_three, by_number),
    *(one_in_another, two_kinds, unless_it_is_small, by_the_first),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("size", mostly_in_soak(list(BATCHES.values()), BATCHES["uneven"]))
def test_loss(loss, size):
    check(lambda: Program(loss), list(batches(size)))


class ReadsInBranch(Program):
    """The branches read the variables: they are part of the graph, and no function."""

    def __init__(self, decides):
        super().__init__(None)
        self.decides = decides

    def step(self, x, y, mask):
        with tf.GradientTape() as tape:
            loss = tf.cond(
                self.decides(x @ self.first, y),
                lambda: tf.reduce_mean(errors(tf.tanh(x @ self.first) @ self.second, y)),
                lambda: tf.reduce_mean(tf.abs((x @ self.first) @ self.second)),
            )
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply([tf.convert_to_tensor(g) for g in gradients], self.variables)
        return loss


@pytest.mark.parametrize(
    "decides",
    [lambda h, y: tf.reduce_max(y) > 1.8, lambda h, y: tf.reduce_mean(tf.abs(h)) > 0.5, lambda h, y: y[-1] > 1.0],
    ids=["the largest", "a mean", "the last"],
)
def test_branches_that_read_variables(decides):
    check(lambda: ReadsInBranch(decides), list(batches(13, steps=4)))


class DifferentiatesInBranch(Program):
    """The gradient itself is made in the branches."""

    def __init__(self, decides):
        super().__init__(None)
        self.decides = decides

    def step(self, x, y, mask):
        def gradients(factor):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(errors(tf.tanh(factor * x @ self.first) @ self.second, y))
            return [*tape.gradient(loss, self.variables), loss]

        branches = [lambda factor=factor: gradients(factor) for factor in (1.0, 2.0, 0.5)]
        *found, loss = tf.switch_case(self.decides(x, y), branches)
        self.optimizer.apply(found, self.variables)
        return loss


@pytest.mark.parametrize(
    "decides",
    [
        lambda x, y: tf.cast(tf.reduce_sum(x), tf.int32) % 3,
        lambda x, y: tf.cast(tf.reduce_max(y) > 1.8, tf.int32),
        lambda x, y: tf.cast(y[0] > 1.0, tf.int32),
    ],
    ids=["a sum", "the largest", "the first"],
)
def test_branches_that_differentiate(decides):
    check(lambda: DifferentiatesInBranch(decides), list(batches(13, steps=4)))
