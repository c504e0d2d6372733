"""Losses that take the examples apart, and treat each by itself: the numbers of one device with the whole batch."""

import pytest
import tensorflow as tf
from test_forward_sums_exact import BATCHES, SPECS, Program, _double, batches, check, errors
from variants import mostly_in_soak

import caramel

__all__ = ["_double"]


# -- tf.vectorized_map -----------------------------------------------------------------------


def product_with_a_vector(outputs, y, mask):
    matrix = tf.ones([3, 3], outputs.dtype) + tf.eye(3, dtype=outputs.dtype)
    sums = tf.vectorized_map(lambda row: tf.reduce_sum(tf.tanh(tf.linalg.matvec(matrix, row))), outputs)
    return tf.reduce_mean((sums - y) ** 2)


def rows_with_targets(outputs, y, mask):
    return tf.reduce_mean(
        tf.vectorized_map(lambda of: (tf.reduce_sum(of[0][None] @ of[0][:, None]) - of[1]) ** 2, (outputs, y))
    )


def chosen_by_each(outputs, y, mask):
    def of_one(values):
        return tf.where(values[1] > 1.0, tf.reduce_sum(values[0] ** 2), tf.abs(values[1]) * values[0][0])

    return tf.reduce_mean(tf.vectorized_map(of_one, (outputs, y)))


def a_branch_for_each(outputs, y, mask):
    def of_one(values):
        row, target = values
        return tf.cond(target > 1.0, lambda: tf.reduce_sum(row), lambda: tf.reduce_sum(row**2))

    return tf.reduce_mean(tf.vectorized_map(of_one, (outputs, y)))


def entry_of_each(outputs, y, mask):
    columns = tf.cast(y * 7, tf.int32) % 3
    return tf.reduce_mean(tf.vectorized_map(lambda of: tf.gather(of[0], of[1]) ** 2, (outputs, columns)))


def slope_of_each(outputs, y, mask):
    def of_one(row):
        with tf.GradientTape() as tape:
            tape.watch(row)
            value = tf.reduce_sum(tf.tanh(row[None] @ tf.ones([3, 2], row.dtype)))
        return tf.reduce_sum(tape.gradient(value, row) ** 2)

    return tf.reduce_mean(tf.vectorized_map(of_one, outputs))


def ratio_of_sums(outputs, y, mask):
    weights = tf.vectorized_map(lambda row: tf.sigmoid(row[0]) + tf.sort(row)[2], outputs)
    return tf.reduce_sum(weights * errors(outputs, y)) / tf.reduce_sum(weights)


# -- shapes, taken apart ---------------------------------------------------------------------


def unstacked_shape(outputs, y, mask):
    rows, columns = tf.unstack(tf.shape(outputs))
    entries = tf.reshape(outputs, [rows * columns, 1]) * 2.0
    return tf.reduce_sum((tf.reshape(entries, [rows, columns])[:, 0] - y) ** 2) / tf.cast(rows, y.dtype)


def split_shape(outputs, y, mask):
    rows, columns = tf.split(tf.shape(outputs), 2)
    again = tf.reshape(tf.reshape(outputs, [-1]), tf.concat([rows, columns], 0))
    return tf.reduce_sum((again[:, 1] - y) ** 2) / tf.cast(rows[0], y.dtype)


# -- experts, each with some of the examples -------------------------------------------------


def experts(outputs, y, mask):
    numbers = tf.cast(outputs[:, 0] > 0, tf.int32)
    places = tf.dynamic_partition(tf.range(tf.shape(outputs)[0]), numbers, 2)
    first, second = tf.dynamic_partition(outputs, numbers, 2)
    return tf.reduce_mean((tf.reduce_sum(tf.dynamic_stitch(places, [first**2, tf.sin(second)]), 1) - y) ** 2)


# -- counts ----------------------------------------------------------------------------------


def weighted_by_count(outputs, y, mask):
    classes = tf.cast(y * 7, tf.int32) % 3
    counts = tf.cast(tf.math.bincount(classes, minlength=3, maxlength=3), y.dtype)
    return tf.reduce_mean(tf.gather(1.0 / (counts + 1.0), classes) * errors(outputs, y))


def counts_with_weights(outputs, y, mask):
    classes = tf.cast(y * 7, tf.int32) % 3
    counts = tf.math.bincount(classes, weights=y, minlength=3, maxlength=3)
    return tf.reduce_mean(errors(outputs * tf.nn.softplus(counts), y))


LOSSES = [
    *(product_with_a_vector, rows_with_targets, chosen_by_each, a_branch_for_each, entry_of_each, slope_of_each),
    *(ratio_of_sums, unstacked_shape, split_shape, experts, weighted_by_count, counts_with_weights),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("size", mostly_in_soak(list(BATCHES.values()), BATCHES["uneven"]))
def test_loss(loss, size):
    check(lambda: Program(loss), list(batches(size)))


def test_parts_that_are_not_all_are_refused():
    """Of three experts two have their examples put together, and some places may stay empty."""

    def two_of_three(outputs, y, mask):
        numbers = tf.cast(outputs[:, 0] > 0, tf.int32)
        places = tf.dynamic_partition(tf.range(tf.shape(outputs)[0]), numbers, 3)
        parts = tf.dynamic_partition(outputs, numbers, 3)
        return tf.reduce_mean(tf.dynamic_stitch(places[:2], parts[:2]) ** 2)

    with pytest.raises(caramel.CaptureError, match="DynamicStitch"):
        assert caramel.capture(Program(two_of_three).step, SPECS).model
