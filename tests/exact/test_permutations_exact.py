"""Examples that a step pairs by chance: each worker does so among those of its own part."""

import itertools

import exact_steps
import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

SPECS = [tf.TensorSpec([None, 3], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]
X = np.random.default_rng(0).normal(size=(6, 3))
Y = np.random.default_rng(1).normal(size=6)
WEIGHTS = np.array([0.5, -1.0, 0.25])
SHARE = 0.7


def rows(x):
    return tf.range(tf.shape(x)[0])


def by_range(x, number):
    return tf.random.shuffle(rows(x))


def by_seeds(x, number):
    return tf.random.experimental.stateless_shuffle(rows(x), [1, number])


def by_sorting(x, number):
    return tf.argsort(tf.random.uniform([tf.shape(x)[0]], 1, 5))


GENERATOR = keras.random.SeedGenerator(3)


def by_keras(x, number):
    return keras.random.shuffle(rows(x), seed=GENERATOR)


def mixed(x, y, weights, order):
    """Mixup: each example with another, and with the target of both."""
    guess = tf.linalg.matvec(SHARE * x + (1 - SHARE) * tf.gather(x, order), weights)
    return SHARE * tf.reduce_mean((guess - y) ** 2) + (1 - SHARE) * tf.reduce_mean((guess - tf.gather(y, order)) ** 2)


def step_of(loss_of):
    def make():
        w = tf.Variable(WEIGHTS, name="w")
        count = tf.Variable(0, name="count", trainable=False)

        def step(x, y):
            count.assign_add(1)
            with tf.GradientTape() as tape:
                loss = loss_of(x, y, w, count)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return exact_steps.Program(step, SPECS, {"w": w, "count": count})

    return make


def after_a_step(order):
    w = tf.Variable(WEIGHTS)
    with tf.GradientTape() as tape:
        loss = mixed(X, Y, w, order)
    return [loss.numpy(), *(w - 0.1 * tape.gradient(loss, w)).numpy()]


@pytest.mark.parametrize("order_of", [by_range, by_seeds, by_sorting, by_keras], ids=lambda f: f.__name__)
def test_mixup_within_a_part(order_of):
    """Two examples in each part: each worker leaves them, or exchanges them."""
    make = step_of(lambda x, y, w, count: mixed(x, y, w, order_of(x, count)))
    expected = [
        after_a_step([place for k, swap in enumerate(swaps) for place in (2 * k + swap, 2 * k + 1 - swap)])
        for swaps in itertools.product([0, 1], repeat=3)
    ]
    program, context = exact_steps.captured(make)
    armodel = caramel.ARModel(context, 3)
    assert any("the loss pairs examples by chance" in note for note in armodel.plan.notes)
    seen = set()
    with armodel.session() as session:
        for _ in range(8):
            loss = session.step(X, Y).loss
            found = [loss, *session.values()["w"]]
            matches = [number for number, each in enumerate(expected) if np.allclose(each, found, rtol=1e-10)]
            assert len(matches) == 1
            seen.update(matches)
            session.assign({"w": WEIGHTS})
    assert len(seen) > 1


def back_in_order(x, y, w, count):
    """As in MoCo: shuffled for the encoder, and put back behind it."""
    order = tf.random.shuffle(rows(x))
    guess = tf.linalg.matvec(tf.gather(x, order), w)
    return tf.reduce_mean((tf.gather(guess, tf.math.invert_permutation(order)) - y) ** 2)


def of_permuted_columns(x, y, w, count):
    """As in FactorVAE: the columns of different examples, whose means are what they were."""
    columns = [tf.random.shuffle(x[:, 0]), tf.gather(x[:, 1], tf.random.shuffle(rows(x))), x[:, 2]]
    return tf.reduce_mean(tf.linalg.matvec(tf.stack(columns, 1), w)) + tf.reduce_mean(y * w[0] ** 2)


@pytest.mark.parametrize("loss_of", [back_in_order, of_permuted_columns], ids=lambda f: f.__name__)
def test_what_does_not_depend_on_the_order(loss_of):
    exact_steps.check(step_of(loss_of), [(X, Y)] * 3, 4)


def as_classes(x, y, w, count):
    logits = tf.matmul(x * w, x, transpose_b=True)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.random.shuffle(rows(x)), logits))


def as_numbers(x, y, w, count):
    return tf.reduce_mean(tf.cast(tf.random.shuffle(rows(x)), x.dtype) * tf.linalg.matvec(x, w))


@pytest.mark.parametrize("loss_of", [as_classes, as_numbers], ids=lambda f: f.__name__)
def test_numbers_of_examples_that_are_used_otherwise_are_refused(loss_of):
    _, context = exact_steps.captured(step_of(loss_of))
    with pytest.raises(caramel.CaptureError, match="a mean or a sum over the batch"):
        caramel.ARModel(context, 2)


def test_an_order_that_examples_decide_is_that_of_all():
    def by_value(x, y, w, count):
        return mixed(x, y, w, tf.argsort(x[:, 0] * tf.random.uniform([tf.shape(x)[0]], 1, 1.0001, x.dtype)))

    exact_steps.check(step_of(by_value), [(X, Y)] * 2, 3)
