"""Steps in which it is easy to miss that a value depends on all examples, or on their number: as on one device, or refused."""

import numpy as np
import pytest
import tensorflow as tf

import caramel

RNG = np.random.default_rng(5)
X = RNG.normal(size=(14, 4))
Y = RNG.normal(size=(14, 3))
BATCHES = [(X[:12], Y[:12]), (X[2:], Y[2:]), (X[:7], Y[:7])]
SPECS = [tf.TensorSpec([None, 4], tf.float64), tf.TensorSpec([None, 3], tf.float64)]


def errors(x, y, w):
    return (x @ w - y) ** 2


def a_sum_in_a_loop_beside_a_mean(x, y, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(errors(x, y, a))
    for_a, for_b = tape.gradient(loss, a), tf.zeros_like(b)
    for _ in tf.range(3):
        with tf.GradientTape() as tape:
            in_loop = tf.reduce_sum(errors(x, y, b))
        for_b += tape.gradient(in_loop, b)
    a.assign_sub(0.1 * for_a)
    b.assign_sub(0.01 * for_b)
    return loss


def a_mean_in_a_loop_beside_a_mean(x, y, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(errors(x, y, a))
    for_a, for_b = tape.gradient(loss, a), tf.zeros_like(b)
    for _ in tf.range(3):
        with tf.GradientTape() as tape:
            in_loop = tf.reduce_mean(errors(x, y, b))
        for_b += tape.gradient(in_loop, b)
    a.assign_sub(0.1 * for_a)
    b.assign_sub(0.1 * for_b)
    return loss


def a_mean_in_a_loop(x, y, a, b):
    for_b = tf.zeros_like(b)
    for _ in tf.range(3):
        with tf.GradientTape() as tape:
            in_loop = tf.reduce_mean(errors(x, y, b))
        for_b += tape.gradient(in_loop, b)
    b.assign_sub(0.1 * for_b)
    return tf.reduce_mean(errors(x, y, b))


def trains_a(loss_of):
    def step(x, y, a, b):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, a)
        a.assign_sub(0.1 * tape.gradient(loss, a))
        return loss

    return step


def centred(x, y, a):
    z = x @ a
    return z - tf.reduce_mean(z, 0)


def list_of_centred(x, y, a):
    return tf.reduce_mean(tf.map_fn(lambda row: tf.reduce_sum(tf.abs(row)), centred(x, y, a)))


def list_of_chosen(x, y, a):
    kept = tf.boolean_mask(tf.reduce_sum(errors(x, y, a), 1), y[:, 0] > 0)
    stacked = tf.TensorArray(tf.float64, 0, dynamic_size=True).unstack(kept).stack()
    return tf.reduce_mean(stacked)


def chosen_slopes(x, y, a):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_mean(errors(x, y, a))
    slopes = tf.reduce_sum(tape.gradient(loss, x) ** 2, 1)
    return loss + tf.reduce_mean(tf.boolean_mask(slopes, y[:, 0] > 0))


def chosen_shares(x, y, a):
    each = tf.reduce_sum(errors(x, y, a), 1) / tf.cast(tf.shape(x)[0], tf.float64)
    return tf.reduce_mean(tf.boolean_mask(each, y[:, 0] > 0))


def loop_that_stops(x, y, a):
    z, count = x @ a, tf.shape(x)[0]
    rows = tf.TensorArray(tf.float64, count).unstack(z)
    _, _, found = tf.while_loop(
        lambda i, goes_on, found: tf.logical_and(i < count, goes_on),
        lambda i, goes_on, found: (
            i + 1,
            tf.reduce_sum(rows.read(i)) < 2.0,
            found.write(i, tf.reduce_sum(rows.read(i) ** 2)),
        ),
        (0, True, tf.TensorArray(tf.float64, count, element_shape=())),
    )
    return tf.reduce_mean(found.stack())


def quantised(x, y, a):
    rounded = tf.quantization.quantize_and_dequantize_v2(y, 0.0, 0.0, num_bits=4)
    return tf.reduce_mean((x @ a - rounded) ** 2)


def quantised_between(x, y, a):
    z = tf.quantization.quantize_and_dequantize_v2(x @ a, -3.0, 3.0, range_given=True)
    return tf.reduce_mean((z - y) ** 2)


def own_gradient(x, y, a):
    @tf.custom_gradient
    def as_a_sum(h):
        count = tf.cast(tf.shape(h)[0], tf.float64)
        return tf.identity(h), lambda upstream: upstream * count

    return tf.reduce_mean((as_a_sum(x @ a) - y) ** 2)


def own_gradient_of_each(x, y, a):
    @tf.custom_gradient
    def reversed_gradient(h):
        return tf.identity(h), lambda upstream: -0.5 * upstream

    return tf.reduce_mean((reversed_gradient(x @ a) - y) ** 2)


def normalised_after_centring(x, y, a):
    h = tf.cast(tf.nn.relu(centred(x, y, a)), tf.float32)[:, None, None, :]
    ones, zeros = tf.ones([3]), tf.zeros([3])
    moments = {"mean": zeros, "variance": ones}
    normed, *_ = tf.compat.v1.nn.fused_batch_norm(h, ones, zeros, **moments, is_training=False)
    return tf.cast(tf.reduce_mean((normed - 1.0) ** 2), tf.float64)


def counted_by_zeros(x, y, a):
    kept = tf.boolean_mask(tf.reduce_sum(errors(x, y, a), 1), y[:, 0] > 0)
    return tf.reduce_sum(kept) / tf.reduce_sum(tf.zeros_like(kept) + 1.0)


def judged_as_ones(x, y, a):
    kept = tf.boolean_mask(tf.sigmoid(x @ a), y[:, 0] > 0)
    return tf.reduce_mean(tf.keras.losses.binary_crossentropy(tf.ones_like(kept), kept))


def branches_of_each(x, y, a):
    def of_one(row):
        return tf.cond(row[0] > 0, lambda: tf.reduce_sum(row**2), lambda: tf.reduce_sum(tf.abs(row)))

    return tf.reduce_mean(tf.map_fn(of_one, x @ a - y))


def delayed(x, y, a):
    """Each value of a loop is that of the one before it: after twelve rounds all follow from the examples."""
    first = x @ a - y
    line = [tf.zeros_like(first)] * 11
    values = tf.while_loop(lambda i, *line: i < 12, lambda i, *line: (i + 1, first, *line[:-1]), [0, *line])
    return tf.reduce_mean(values[-1] ** 2)


def tiled(x, y, a):
    noisy = tf.tile(x, [3, 1]) * tf.constant([[1.0, 2.0, 0.5, 1.0]], tf.float64)
    return tf.reduce_mean((noisy @ a - tf.tile(y, [3, 1])) ** 2)


def chosen_by_a_vector(x, y, a):
    each = tf.compat.v1.where(y[:, 0] > 0, errors(x, y, a), tf.abs(x @ a - y))
    return tf.reduce_mean(each)


def crossed(x, y, a):
    return tf.reduce_mean(tf.linalg.cross(x @ a, y) ** 2)


def regulariser_by_itself(x, y, a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(errors(x, y, a))
    with tf.GradientTape() as again:
        penalty = tf.reduce_sum(a**2)
    a.assign_sub(0.1 * tape.gradient(loss, a) + 0.01 * again.gradient(penalty, a))
    return loss


def along_an_axis_that_a_branch_chooses(x, y, a, b):
    """Each branch has its own constant, so that the axis is none."""

    def after_a_write(axis):
        with tf.control_dependencies([b.assign_add(tf.ones_like(b))]):
            return tf.constant(axis)

    axis = tf.cond(tf.cast(b[0, 0], tf.int32) % 2 == 0, lambda: after_a_write(1), lambda: after_a_write(0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.reshape(tf.reduce_mean(errors(x, y, a), axis), [-1]))
    a.assign_sub(0.01 * tape.gradient(loss, a))
    return loss


EXACT = {
    "a sum in a loop beside a mean": a_sum_in_a_loop_beside_a_mean,
    "along an axis that a branch chooses": along_an_axis_that_a_branch_chooses,
    "a mean in a loop beside a mean": a_mean_in_a_loop_beside_a_mean,
    "a mean in a loop": a_mean_in_a_loop,
    "a list of centred examples": trains_a(list_of_centred),
    "slopes of chosen examples": trains_a(chosen_slopes),
    "between given bounds": trains_a(quantised_between),
    "a gradient of one's own": trains_a(own_gradient_of_each),
    "centred, then normalised": trains_a(normalised_after_centring),
    "chosen ones counted by zeros": trains_a(counted_by_zeros),
    "examples repeated": trains_a(tiled),
    "chosen ones judged as ones": trains_a(judged_as_ones),
    "branches of each example": trains_a(branches_of_each),
    "a delay line": trains_a(delayed),
    "a branch for each example": trains_a(chosen_by_a_vector),
    "cross products": trains_a(crossed),
    "a regulariser by itself": regulariser_by_itself,
    "a list of chosen examples": trains_a(list_of_chosen),
    "rounded between the batch's bounds": trains_a(quantised),
}

REFUSED = {
    "shares of chosen examples": (trains_a(chosen_shares), "a mean over chosen examples"),
    "a loop that stops early": (trains_a(loop_that_stops), "a loop that runs as often as the examples say"),
    "the number of examples in a gradient of one's own": (trains_a(own_gradient), "tf.custom_gradient"),
}


def trained(make, workers):
    """What is trained by some steps; by one device without workers."""
    a = tf.Variable(np.linspace(-0.5, 0.6, 12).reshape(4, 3), name="a")
    b = tf.Variable(np.linspace(0.3, -0.4, 12).reshape(4, 3), name="b")

    @tf.function
    def step(x, y):
        return make(x, y, a, b)

    if workers == 0:
        losses = [float(step(tf.constant(x), tf.constant(y))) for x, y in BATCHES]
    else:
        context = caramel.capture(step, SPECS)
        with caramel.ARModel(context, workers).session() as session:
            losses = [result.loss for result in session.run(BATCHES, progress=False)]
            session.write_back()
    return losses, a.numpy(), b.numpy()


@pytest.mark.parametrize("name", EXACT)
def test_as_on_one_device(name):
    losses, *want = trained(EXACT[name], 0)
    found_losses, *found = trained(EXACT[name], 3)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
    for each, wanted in zip(found, want):
        np.testing.assert_allclose(each, wanted, rtol=1e-6, atol=1e-9)
    assert any(not np.array_equal(each, start) for each, start in zip(found, trained(lambda *given: 0.0, 0)[1:]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, message = REFUSED[name]
    with pytest.raises(caramel.CaptureError, match=message):
        trained(make, 3)
    trained(make, 1)
