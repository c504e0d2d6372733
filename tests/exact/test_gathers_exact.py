"""Losses that compare the examples of a batch with each other: the numbers of one device with the whole batch."""

import exact_steps
import keras
import numpy as np
import pytest
import tensorflow as tf
from test_forward_sums_exact import BATCHES, SPECS, Program, _double, assert_same, batches, distributed, one_device
from variants import mostly_in_soak

import caramel

__all__ = ["_double"]


def unit(outputs):
    return tf.math.l2_normalize(outputs, 1)


def pairs(outputs, y, mask):
    """Each example's pair is its own among all of the batch."""
    logits = tf.matmul(unit(outputs), unit(outputs * y[:, None] + 1.0), transpose_b=True) * 5.0
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(y)[0]), logits))


def both_ways(outputs, y, mask):
    logits = tf.matmul(unit(outputs), unit(outputs + y[:, None]), transpose_b=True)
    labels = tf.eye(tf.shape(logits)[0], dtype=logits.dtype)
    one = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(one) + tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, tf.transpose(logits)))


def views(outputs, y, mask):
    """Two views of each example, one batch after the other, and all others as what they are compared with."""
    both = unit(tf.concat([outputs, outputs * y[:, None]], 0))
    size = tf.shape(outputs)[0]
    similarity = tf.matmul(both, both, transpose_b=True) - 1e9 * tf.eye(2 * size, dtype=both.dtype)
    labels = tf.concat([tf.range(size, 2 * size), tf.range(size)], 0)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, similarity))


def hardest_triplets(outputs, y, mask):
    """The farthest example of the same class, and the nearest of another."""
    classes = tf.cast(y * 2, tf.int32)
    distances = tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, 2)
    same = tf.cast(classes[:, None] == classes[None], distances.dtype)
    positive = tf.reduce_max(same * distances, 1)
    negative = tf.reduce_min(distances + 100.0 * same, 1)
    return tf.reduce_mean(tf.nn.softplus(positive - negative))


def semihard_triplets(outputs, y, mask):
    """The nearest example of another class that is farther than one of the same class, where there is one."""
    classes = tf.cast(y * 2, tf.int32)
    size = tf.shape(outputs)[0]
    distances = tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, 2)
    same = classes[:, None] == classes[None]
    large = tf.reduce_max(distances) + 1.0
    others = tf.where(same, large, distances)
    is_farther = others[:, None] > distances[:, :, None]
    farther = tf.reduce_min(tf.where(is_farther, tf.broadcast_to(others[:, None], [size, size, size]), large), 2)
    farthest = tf.reduce_max(tf.where(same, tf.zeros_like(distances), distances), 1, keepdims=True)
    negative = tf.where(farther < large, farther, tf.broadcast_to(farthest, [size, size]))
    couples = tf.cast(same & ~tf.eye(size, dtype=tf.bool), distances.dtype)
    return tf.reduce_sum(couples * tf.nn.relu(distances - negative + 0.5)) / (1.0 + tf.reduce_sum(couples))


def ranks(outputs, y, mask):
    """Pairs of examples of which one should be in front of the other."""
    scores = outputs[:, 0]
    wrong = tf.nn.sigmoid(scores[None] - scores[:, None]) * tf.cast(y[:, None] > y[None], scores.dtype)
    return tf.reduce_sum(wrong) / tf.cast(tf.size(wrong), scores.dtype)


def beside_a_mean(outputs, y, mask):
    return ranks(outputs, y, mask) + tf.reduce_mean((outputs[:, 1] - y) ** 2)


def of_the_largest(outputs, y, mask):
    return tf.reduce_max(outputs**2) + tf.reduce_mean(outputs)


def sorted_losses(outputs, y, mask):
    """Only the larger half of the losses counts."""
    losses = tf.reduce_sum((outputs - y[:, None]) ** 2, 1)
    hardest, _ = tf.math.top_k(losses, tf.maximum(tf.shape(losses)[0] // 2, 1))
    return tf.reduce_mean(hardest)


def kernel_distance(outputs, y, mask):
    """How different the outputs are from the targets, as two samples."""
    targets = tf.stack([y, y, y], 1)

    def near(a, b):
        return tf.reduce_mean(tf.exp(-tf.reduce_sum((a[:, None] - b[None]) ** 2, 2)))

    return near(outputs, outputs) + near(targets, targets) - 2 * near(outputs, targets)


def number(y):
    return tf.cast(tf.shape(y)[0], y.dtype)


def near_pairs_by_size(outputs, y, mask):
    distances = tf.reduce_sum((outputs[:, None] - outputs[None]) ** 2, 2)
    return tf.reduce_sum(tf.exp(-distances)) / (number(y) * number(y))


def uniformity(outputs, y, mask):
    n, z = number(y), unit(outputs)
    return tf.math.log((tf.reduce_sum(tf.exp(tf.matmul(z, z, transpose_b=True))) - n) / (n * (n - 1.0)) + 1e-3)


def on_the_diagonal(outputs, y, mask):
    logits = tf.nn.log_softmax(tf.matmul(unit(outputs), unit(outputs + y[:, None]), transpose_b=True))
    return -tf.reduce_sum(logits * tf.eye(tf.shape(outputs)[0], dtype=logits.dtype)) / number(y)


def halves(outputs, y, mask):
    """Two views are joined, compared, and taken apart again."""
    n = tf.shape(outputs)[0]
    both = tf.concat([outputs, outputs * y[:, None]], 0)
    kernel = tf.exp(-tf.reduce_sum((both[:, None] - both[None]) ** 2, 2))
    return tf.reduce_mean(kernel[:n, :n]) + tf.reduce_mean(kernel[n:, n:]) - 2 * tf.reduce_mean(kernel[:n, n:])


def one_hot_labels(outputs, y, mask):
    """As the reference code of contrastive learning of views has it."""
    n = tf.shape(outputs)[0]
    one, other = unit(outputs), unit(outputs * y[:, None])
    labels = tf.one_hot(tf.range(n), n * 2, dtype=one.dtype)
    masks = tf.one_hot(tf.range(n), n, dtype=one.dtype) * 1e9
    logits_of_own = tf.matmul(one, one, transpose_b=True) - masks
    logits = tf.concat([tf.matmul(one, other, transpose_b=True), logits_of_own], 1)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, logits))


def sorted_by_position(outputs, y, mask):
    places = (tf.cast(tf.range(tf.shape(y)[0]), y.dtype) + 0.5) / number(y)
    return tf.reduce_mean((tf.sort(outputs[:, 0]) - places) ** 2)


def the_first(outputs, y, mask):
    """The gradient has the rows of one example only."""
    return tf.reduce_sum(tf.gather(outputs, 0) ** 2) + 0.1 * tf.reduce_mean(outputs)


def partial_likelihood(outputs, y, mask):
    scores = tf.gather(outputs[:, 0], tf.argsort(y))
    return tf.reduce_sum(tf.math.cumulative_logsumexp(scores) - scores)


def largest_of_relative(outputs, y, mask):
    """What is compared has a mean over the batch in it."""
    losses = tf.reduce_sum((outputs - y[:, None]) ** 2, 1)
    return tf.reduce_max(losses / tf.reduce_mean(losses))


def centred_pairs(outputs, y, mask):
    z = outputs - tf.reduce_mean(outputs)
    return tf.reduce_mean(tf.matmul(z, z, transpose_b=True) ** 2)


def sorted_advantages(outputs, y, mask):
    gains = y * outputs[:, 1]
    gains = (gains - tf.reduce_mean(gains)) / (tf.math.reduce_std(gains) + 1e-8)
    return tf.reduce_mean(tf.sort(gains)[:2] ** 2)


TABLE = np.linspace(0.2, 2.0, 40)


def weighted_by_row(outputs, y, mask):
    """By a weight for each place in the batch."""
    weights = tf.gather(tf.constant(TABLE), tf.range(tf.shape(y)[0]))
    return tf.reduce_mean(weights * (outputs[:, 0] - y) ** 2)


def as_many_rows(outputs, y, mask):
    return tf.reduce_mean(tf.constant(TABLE)[: tf.shape(y)[0]] * tf.tanh(outputs[:, 1]) * y)


def groups(y):
    """Each example's group, by what is fed with it."""
    return tf.cast(tf.abs(y) * 5, tf.int32) % 4


def largest_of_groups(outputs, y, mask):
    largest = tf.math.unsorted_segment_max(outputs, groups(y), 4)
    return tf.reduce_mean((tf.gather(largest, groups(y)) - 0.1 * y[:, None]) ** 2)


def means_of_sorted_groups(outputs, y, mask):
    order = tf.argsort(groups(y), stable=True)
    return tf.reduce_mean(tf.math.segment_mean(tf.gather(outputs, order), tf.gather(groups(y), order)) ** 2)


def by_how_many_are_alike(outputs, y, mask):
    _, places, counts = tf.unique_with_counts(groups(y))
    return tf.reduce_mean(outputs**2 / tf.cast(tf.gather(counts, places), outputs.dtype)[:, None])


LOSSES = [
    largest_of_groups,
    means_of_sorted_groups,
    by_how_many_are_alike,
    weighted_by_row,
    as_many_rows,
    near_pairs_by_size,
    uniformity,
    on_the_diagonal,
    halves,
    one_hot_labels,
    sorted_by_position,
    the_first,
    partial_likelihood,
    largest_of_relative,
    centred_pairs,
    sorted_advantages,
    pairs,
    both_ways,
    views,
    hardest_triplets,
    semihard_triplets,
    ranks,
    beside_a_mean,
    of_the_largest,
    sorted_losses,
    kernel_distance,
]


IN_EVERY_RUN = [
    largest_of_groups,
    by_how_many_are_alike,
    weighted_by_row,
    as_many_rows,
    semihard_triplets,
    uniformity,
    halves,
    one_hot_labels,
    sorted_by_position,
    partial_likelihood,
    centred_pairs,
    beside_a_mean,
]


@pytest.mark.parametrize("loss", mostly_in_soak(LOSSES, *IN_EVERY_RUN), ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("size", mostly_in_soak(list(BATCHES.values()), BATCHES["uneven"]))
def test_loss(loss, size):
    data = list(batches(size))
    assert_same(distributed(Program(loss), data, 3), one_device(Program(loss), data))


def all_gather(tensor, axis=0):
    return tf.distribute.get_replica_context().all_gather(tensor, axis)


def own_rows_against_all(outputs, y, mask):
    """As programs for several replicas write it: the labels of a replica begin where those of the one before end."""
    logits = tf.matmul(unit(outputs), all_gather(unit(outputs + y[:, None])), transpose_b=True)
    size = tf.shape(outputs)[0]
    rank = tf.distribute.get_replica_context().replica_id_in_sync_group
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(size) + rank * size, logits)
    return tf.reduce_mean(losses)


def gathered_views(outputs, y, mask):
    both = all_gather(tf.concat([outputs, outputs * y[:, None]], 0))
    return tf.reduce_mean(tf.reduce_logsumexp(tf.matmul(both, both, transpose_b=True), 1))


def gathered_columns(outputs, y, mask):
    columns = all_gather(tf.transpose(outputs), axis=-1)
    return tf.reduce_mean(tf.nn.softmax(columns) ** 2) + tf.reduce_mean(outputs**2)


@pytest.mark.parametrize(
    "loss", [own_rows_against_all, gathered_views, gathered_columns], ids=lambda loss: loss.__name__
)
@pytest.mark.parametrize("size", mostly_in_soak(list(BATCHES.values()), BATCHES["uneven"]))
def test_an_all_gather_of_a_step(loss, size):
    data = list(batches(size))
    assert_same(distributed(Program(loss), data, 3), one_device(Program(loss), data))


def test_an_all_gather_of_what_has_no_examples_is_refused():
    program = Program(lambda outputs, y, mask: tf.reduce_mean(all_gather(outputs[:, 0], 0) ** 2))
    caramel.ARModel(caramel.capture(program.step, SPECS), 2)
    program = Program(lambda outputs, y, mask: tf.reduce_sum(all_gather(tf.reduce_mean(outputs, 0), 0) ** 2))
    with pytest.raises(caramel.CaptureError, match="stand beside others in a way that cannot be followed"):
        caramel.ARModel(caramel.capture(program.step, SPECS), 2)


@pytest.mark.parametrize("width, is_exact", [(4, True), (3000, False)])
def test_a_network_behind_rows_that_all_workers_have(width, is_exact):
    """Each worker would compute it for all examples: a small one."""
    noise = tf.constant(np.random.default_rng(0).normal(size=(40, 4)))
    first = tf.Variable(np.random.default_rng(1).normal(size=(4, width)) / 4, name="first")
    last = tf.Variable(np.random.default_rng(2).normal(size=(width, 1)) / width, name="last")

    def step(x):
        with tf.GradientTape() as tape:
            made = tf.tanh(noise[: tf.shape(x)[0]] @ first) @ last
            loss = tf.reduce_mean((made - x) ** 2)
        for variable, slope in zip((first, last), tape.gradient(loss, [first, last])):
            variable.assign_sub(0.1 * slope)
        return loss

    data = [np.random.default_rng(seed).normal(size=(13, 1)) for seed in range(3)]
    context = caramel.capture(step, [tf.TensorSpec([None, 1], tf.float64)])
    if not is_exact:
        with pytest.raises(caramel.CaptureError, match="depend on the batch"):
            caramel.ARModel(context, 3)
        return
    with caramel.ARModel(context, 3).session() as session:
        losses, values = [session.step(x).loss for x in data], session.values()
    np.testing.assert_allclose(losses, [float(step(tf.constant(x))) for x in data], rtol=1e-10)
    np.testing.assert_allclose(values["first"], first, rtol=1e-10)
    np.testing.assert_allclose(values["last"], last, rtol=1e-10)


ROWS = {
    "of a range": lambda y: tf.range(tf.shape(y)[0]),
    "in the order of the targets": tf.argsort,
    "of a range and of classes": lambda y: tf.concat([tf.range(tf.shape(y)[0]), tf.cast(2 * y, tf.int32)], 0),
}


@pytest.mark.parametrize("rows", ROWS)
def test_a_table_that_is_trained_at_rows_of_all_examples(rows):
    """Each worker has the same slices of its gradient, which an optimizer squares."""

    def make():
        table = keras.Variable(np.linspace(-1, 1, 40)[:, None], name="table", dtype="float64")
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([table])

        def step(x, y):
            with tf.GradientTape() as tape:
                found = tf.reduce_mean(tf.gather(table.value, ROWS[rows](y)) ** 2)
                loss = found + tf.reduce_mean((x - tf.gather(table.value, tf.range(tf.shape(x)[0]))) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, table.value), table)])
            return loss

        specs = [tf.TensorSpec([None, 1], tf.float64), tf.TensorSpec([None], tf.float64)]
        return exact_steps.Program(step, specs, {v.path: v for v in [table, *optimizer.variables]})

    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(13, 1)), rng.uniform(0, 3, 13)) for _ in range(3)]
    exact_steps.check(make, data, [1, 2, 3])


def of_pairs(z):
    return tf.reduce_mean((z @ tf.transpose(z)) ** 2)


def of_gathered_pairs(z):
    return tf.reduce_mean((z @ tf.transpose(all_gather(z))) ** 2)


def of_a_reduced_mean(z):
    mean = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(tf.abs(z)))
    return tf.reduce_mean(z**2) * mean


CONDITIONS = {
    "step": lambda x, count: count % 2 == 0,
    "batch": lambda x, count: tf.reduce_mean(x) < 0.1,
    "random": lambda x, count: tf.random.uniform([]) < 0.5,
}


def in_a_branch(loss_of, condition):
    """A step that reads its parameters within a branch only."""

    def make():
        w = tf.Variable(np.linspace(-0.5, 1.0, 6).reshape(3, 2), name="w")
        count = tf.Variable(0, name="count", trainable=False)

        def step(x):
            count.assign_add(1)
            with tf.GradientTape() as tape:
                loss = tf.cond(
                    CONDITIONS[condition](x, count), lambda: loss_of(x @ w), lambda: tf.reduce_mean((x @ w - 1.0) ** 2)
                )
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return exact_steps.Program(step, [tf.TensorSpec([None, 3], tf.float64, "x")], {"w": w, "count": count})

    return make


@pytest.mark.parametrize("condition", ["step", "batch"])
@pytest.mark.parametrize("loss_of", [of_pairs, of_gathered_pairs, of_a_reduced_mean], ids=lambda f: f.__name__)
def test_in_a_branch_that_reads_the_parameters(loss_of, condition):
    rng = np.random.default_rng(5)
    data = [(rng.normal(size=(7, 3)) + shift,) for shift in (0.5, -0.5, -0.5, 0.5, 0.5, -0.5)]
    taken = {bool(x.mean() < 0.1) for (x,) in data}
    assert taken == {True, False}
    exact_steps.check(in_a_branch(loss_of, condition), data, 3)


@pytest.mark.parametrize("loss_of", [of_pairs, of_gathered_pairs], ids=lambda f: f.__name__)
def test_in_a_branch_that_workers_may_take_or_not(loss_of):
    program = in_a_branch(loss_of, "random")()
    with pytest.raises(caramel.CaptureError, match="a mean or a sum over the batch"):
        caramel.ARModel(caramel.capture(program.step, program.specs), 2)
    if loss_of is of_gathered_pairs:
        with pytest.raises(caramel.UnsupportedError, match="the others would wait for a worker"):
            caramel.ARModel(caramel.capture(program.step, program.specs, loss_reduction="mean"), 2)
    with caramel.ARModel(caramel.capture(program.step, program.specs), 1).session() as session:
        assert session.step(np.ones([7, 3])).loss > 0
