"""Variables that are written from sums over the examples and that the loss reads: those of one device."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, check
from variants import in_soak, mostly_in_soak

import caramel

FEATURES, CLASSES = 4, 3
SPECS = [tf.TensorSpec([None, FEATURES], tf.float64), tf.TensorSpec([None, CLASSES], tf.float64)]


def batches(size, steps=4):
    rng = np.random.default_rng(size)
    return [(rng.normal(size=(size, FEATURES)) + i, rng.uniform(size=(size, CLASSES))) for i in range(steps)]


def variable(name, shape, *, trainable=False, seed=0, scale=1.0):
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return tf.Variable(values, name=name, trainable=trainable, dtype=tf.float64)


def program(variables, loss, update):
    """A step that differentiates ``loss(x, y)`` by the first variable, before or after ``update(x, y)``."""
    weights = variables[0]

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(x, y)
        weights.assign_sub(0.05 * tape.gradient(value, weights))
        update(x, y)
        return value

    return Program(step, SPECS, {v.name: v for v in variables})


def centred_targets():
    """A centre that follows the mean of a teacher's outputs, and a teacher that follows the student."""
    student, teacher = (
        variable("student", (FEATURES, CLASSES), trainable=True),
        variable("teacher", (FEATURES, CLASSES)),
    )
    centre = variable("centre", (CLASSES,), scale=0.0)

    def loss(x, y):
        targets = tf.nn.softmax((x @ teacher - centre) / 0.5)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, x @ student))

    def update(x, y):
        centre.assign(0.9 * centre + 0.1 * tf.reduce_mean(x @ teacher, 0))
        teacher.assign(0.9 * teacher + 0.1 * student)

    return program([student, teacher, centre], loss, update)


def codebook():
    """Codes that are the running means of what is nearest to them."""
    weights, codes = variable("weights", (FEATURES, CLASSES), trainable=True), variable("codes", (5, CLASSES), seed=1)
    counts, sums = variable("counts", (5,), scale=0.0), variable("sums", (5, CLASSES), seed=1)

    def nearest(z):
        distances = tf.reduce_sum((z[:, None] - codes[None]) ** 2, 2)
        return tf.one_hot(tf.argmin(distances, 1), 5, dtype=tf.float64)

    def loss(x, y):
        z = x @ weights
        return tf.reduce_mean((z - tf.stop_gradient(nearest(z) @ codes)) ** 2) + tf.reduce_mean((z - y) ** 2)

    def update(x, y):
        z = x @ weights
        chosen = nearest(z)
        counts.assign(0.8 * counts + 0.2 * tf.reduce_sum(chosen, 0))
        sums.assign(0.8 * sums + 0.2 * tf.matmul(chosen, z, transpose_a=True))
        total = tf.reduce_sum(counts)
        codes.assign(sums / ((counts + 1e-3) / (total + 5e-3) * total)[:, None])

    return program([weights, codes, counts, sums], loss, update)


def running_moments():
    """Mean and variance of all examples so far, by which the inputs are scaled."""
    weights, mean = variable("weights", (FEATURES, CLASSES), trainable=True), variable("mean", (FEATURES,), scale=0.0)
    deviations, count = variable("deviations", (FEATURES,), scale=0.0), variable("count", (), scale=0.0)

    def loss(x, y):
        number = tf.cast(tf.shape(x)[0], x.dtype)
        difference, total = tf.reduce_mean(x, 0) - mean, count + number
        deviations.assign_add(tf.math.reduce_variance(x, 0) * number + difference**2 * count * number / total)
        mean.assign_add(difference * number / total)
        count.assign(total)
        scaled = (x - mean) / tf.sqrt(deviations / count + 1e-3)
        return tf.reduce_mean((scaled @ weights - y) ** 2)

    return program([weights, mean, deviations, count], loss, lambda x, y: None)


def running_count():
    """A rate that falls with the number of examples so far, a whole number."""
    weights = variable("weights", (FEATURES, CLASSES), trainable=True)
    seen = tf.Variable(0, name="seen", trainable=False, dtype=tf.int64)

    def loss(x, y):
        seen.assign_add(tf.shape(x, tf.int64)[0])
        return tf.reduce_mean((x @ weights - y) ** 2) / tf.cast(seen + 1, tf.float64)

    return program([weights, seen], loss, lambda x, y: None)


def running_loss():
    """A weight that follows the loss so far."""
    weights, seen = variable("weights", (FEATURES, CLASSES), trainable=True), variable("seen", ())

    def loss(x, y):
        value = tf.reduce_mean((x @ weights - y) ** 2)
        seen.assign(tf.sqrt(0.5 * seen**2 + 0.5 * tf.stop_gradient(value)))
        return value / (1.0 + seen)

    return program([weights, seen], loss, lambda x, y: None)


def largest_so_far():
    """The inputs are scaled by the largest target of the last batch."""
    weights, largest = variable("weights", (FEATURES, CLASSES), trainable=True), variable("largest", (CLASSES,))

    def loss(x, y):
        value = tf.reduce_mean((x @ weights / largest - y) ** 2)
        largest.assign(tf.maximum(0.9 * largest, tf.reduce_max(y, 0)))
        return value

    return program([weights, largest], loss, lambda x, y: None)


def layer_with_a_codebook():
    """A Keras layer that updates its codes when it is called for training."""

    class Codes(keras.layers.Layer):
        def build(self, shape):
            self.codes = self.add_weight(name="codes", shape=(5, shape[-1]), trainable=False, dtype="float64")
            self.codes.assign(np.random.default_rng(1).normal(size=(5, shape[-1])))

        def call(self, z, training=False):
            distances = keras.ops.sum((z[:, None] - self.codes[None]) ** 2, 2)
            chosen = keras.ops.one_hot(keras.ops.argmin(distances, 1), 5, dtype="float64")
            found = chosen @ self.codes
            if training:
                sums, counts = keras.ops.transpose(chosen) @ z, keras.ops.sum(chosen, 0)[:, None]
                means = keras.ops.where(counts > 0, sums / keras.ops.maximum(counts, 1.0), self.codes)
                self.codes.assign(0.9 * self.codes + 0.1 * means)
            self.add_loss(keras.ops.mean((z - keras.ops.stop_gradient(found)) ** 2))
            return z + keras.ops.stop_gradient(found - z)

    model = keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(CLASSES), Codes(), keras.layers.Dense(CLASSES)]
    )
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2) + sum(model.losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return Program(step, SPECS, {v.path: v for v in [*model.variables, *optimizer.variables]})


def queue(write=None, size=14):
    """The last keys of a teacher, from which a student's outputs are told: momentum contrast."""
    student, teacher = (
        variable("student", (FEATURES, CLASSES), trainable=True),
        variable("teacher", (FEATURES, CLASSES)),
    )
    keys = variable("keys", (size, CLASSES), seed=1)
    place = tf.Variable(0, name="place", trainable=False, dtype=tf.int64)

    def keys_of(x):
        return tf.stop_gradient(tf.math.l2_normalize(x @ teacher, 1))

    def loss(x, y):
        found = tf.math.l2_normalize(x @ student, 1)
        logits = tf.concat([tf.reduce_sum(found * keys_of(x), 1, keepdims=True), found @ tf.transpose(keys)], 1) / 0.2
        return tf.reduce_mean(tf.nn.log_softmax(logits)[:, 0]) * -1.0

    def update(x, y):
        if write is None:
            keys.assign(tf.concat([keys_of(x), keys[: -tf.shape(x)[0]]], 0))
        else:
            write(keys, place, keys_of(x))
        teacher.assign(0.9 * teacher + 0.1 * student)

    return program([student, teacher, keys, *([place] if write else [])], loss, update)


def at_places(write):
    """A queue in a circle: new keys are written where the last ones have ended, over the oldest."""

    def written(keys, place, new):
        size, count = tf.shape(keys, tf.int64)[0], tf.shape(new, tf.int64)[0]
        write(keys, (place + tf.range(count)) % size, new)
        place.assign((place + count) % size)

    return queue(written)


def queue_by_scatter_nd():
    return at_places(lambda keys, places, new: keys.scatter_nd_update(places[:, None], new))


def queue_by_slices():
    return at_places(lambda keys, places, new: keys.scatter_update(tf.IndexedSlices(new, tf.cast(places, tf.int32))))


def queue_by_another_tensor():
    def write(keys, places, new):
        keys.assign(tf.tensor_scatter_nd_update(keys, places[:, None], new))

    return at_places(write)


def queue_by_a_mask():
    """Each row asks which of the new keys is to be there."""

    def write(keys, places, new):
        chosen = tf.cast(tf.range(tf.shape(keys, tf.int64)[0])[:, None] == places[None], tf.float64)
        is_new = tf.reduce_sum(chosen, 1, keepdims=True)
        keys.assign((1 - is_new) * keys + chosen @ new)

    return at_places(write)


def queue_by_a_range():
    """It begins again at its first row where the next batch would not fit."""

    def write(keys, place, new):
        count = tf.shape(new, tf.int64)[0]
        keys[place : place + count].assign(new)
        after = place + count
        place.assign(tf.where(after + count > tf.shape(keys, tf.int64)[0], tf.zeros_like(after), after))

    return queue(write, 40)


def queue_by_an_update_of_keras():
    def write(keys, place, new):
        count = tf.shape(new)[0]
        first = tf.cast(place, tf.int32)
        keys.assign(keras.ops.slice_update(keys, (first, 0), new))
        after = first + count
        place.assign(tf.cast(tf.where(after + count > tf.shape(keys)[0], tf.zeros_like(after), after), tf.int64))

    return queue(write, 40)


def queue_of_means():
    """A row for each step."""

    def write(keys, place, new):
        keys[place].assign(tf.reduce_mean(new, 0))
        place.assign((place + 1) % 14)

    return queue(write)


def queue_of_some():
    """Of every second example of all."""

    def write(keys, place, new):
        some = new[::2]
        count = (tf.shape(new, tf.int64)[0] + 1) // 2
        keys.scatter_nd_update(((place + tf.range(count)) % 15)[:, None], some)
        place.assign((place + count) % 15)

    return queue(write, 15)


QUEUES = (queue, queue_by_scatter_nd, queue_by_another_tensor, queue_by_an_update_of_keras, queue_of_means)
FURTHER_QUEUES = (queue_by_slices, queue_by_a_range, queue_by_a_mask, queue_of_some)


def class_of(y):
    return tf.argmax(y, 1)


def centres():
    """A centre for each class, from which its examples are not to be far; each example moves it."""
    weights, centre = variable("weights", (FEATURES, CLASSES), trainable=True), variable("centre", (CLASSES, CLASSES))

    def distances(x, y):
        return x @ weights - tf.gather(centre, class_of(y))

    def update(x, y):
        centre.scatter_add(tf.IndexedSlices(0.05 * distances(x, y), class_of(y)))

    return program([weights, centre], lambda x, y: tf.reduce_mean(tf.reduce_sum(distances(x, y) ** 2, 1)), update)


def counts():
    """How often each class was there, by places in a table of two axes."""
    weights, seen = variable("weights", (FEATURES, CLASSES), trainable=True), variable("seen", (1, CLASSES), scale=0.0)

    def loss(x, y):
        prior = tf.math.log((seen[0] + 1.0) / tf.reduce_sum(seen + 1.0))
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, x @ weights + prior))

    def update(x, y):
        places = tf.stack([tf.zeros_like(class_of(y)), class_of(y)], 1)
        seen.scatter_nd_add(places, tf.ones_like(y[:, 0]))

    return program([weights, seen], loss, update)


def counts_by_bincount():
    """The same with a count of all classes that is added to a variable."""
    weights, seen = variable("weights", (FEATURES, CLASSES), trainable=True), variable("seen", (CLASSES,), scale=0.0)

    def loss(x, y):
        prior = tf.math.log((seen + 1.0) / tf.reduce_sum(seen + 1.0))
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, x @ weights + prior))

    def update(x, y):
        found = tf.math.bincount(tf.cast(class_of(y), tf.int32), minlength=CLASSES, maxlength=CLASSES)
        seen.assign_add(tf.cast(found, seen.dtype))

    return program([weights, seen], loss, update)


def updated_by(change, *variables):
    """A program with one parameter, which is updated by ``change(weights, gradient, x, y)``."""
    weights = variable("weights", (FEATURES, CLASSES), trainable=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - y) ** 2)
        change(weights, tape.gradient(loss, weights), x, y)
        return loss

    return Program(step, SPECS, {v.name: v for v in (weights, *variables)})


def number(x):
    return tf.cast(tf.shape(x)[0], tf.float64)


def rate_by_number():
    return updated_by(lambda w, g, x, y: w.assign_sub(0.01 * tf.sqrt(number(x)) * g))


def rate_by_all_examples_so_far():
    seen = variable("seen", (), scale=0.0)

    def change(w, g, x, y):
        seen.assign_add(number(x))
        w.assign_sub(g / (10.0 + seen))

    return updated_by(change, seen)


def decay_to_a_mean():
    return updated_by(lambda w, g, x, y: w.assign_sub(0.1 * g + 0.01 * (w - tf.reduce_mean(y))))


def rate_by_the_largest():
    return updated_by(lambda w, g, x, y: w.assign_sub(0.1 * g / tf.reduce_max(tf.abs(x))))


def natural_gradient():
    """By the running second moments of the inputs."""
    moments = tf.Variable(np.eye(FEATURES), name="moments", trainable=False)

    def change(w, g, x, y):
        moments.assign(0.9 * moments + 0.1 * tf.matmul(x, x, transpose_a=True) / number(x))
        w.assign_sub(0.1 * tf.linalg.solve(moments + 0.1 * tf.eye(FEATURES, dtype=tf.float64), g))

    return updated_by(change, moments)


def only_where_outputs_stay_near():
    """Several updates of one batch, of which the later ones are left out once outputs have moved too far."""

    def change(w, g, x, y):
        before = tf.nn.softmax(x @ tf.stop_gradient(w))
        for _ in range(3):
            moved = tf.reduce_mean(tf.reduce_sum(before * tf.math.log(before / tf.nn.softmax(x @ w)), 1))
            w.assign_sub(tf.where(moved < 0.002, tf.constant(0.1, g.dtype), 0.0) * g)

    return updated_by(change)


UPDATES = [
    *(rate_by_number, rate_by_all_examples_so_far, decay_to_a_mean, rate_by_the_largest),
    *(natural_gradient, only_where_outputs_stay_near),
]


@pytest.mark.parametrize("make", UPDATES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", mostly_in_soak([12, 13, 3], 13))
def test_updates_by_what_all_examples_give(make, size):
    check(make, batches(size), [1, 3])


@pytest.fixture(autouse=True)
def _double():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


@pytest.mark.parametrize(
    "make",
    [
        *(centred_targets, codebook, running_moments, running_count, running_loss, largest_so_far),
        *(layer_with_a_codebook, *QUEUES, *in_soak(*FURTHER_QUEUES), centres, counts, counts_by_bincount),
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("size", mostly_in_soak([12, 13, 3], 13))
def test_it_is_that_of_one_device(make, size):
    check(make, batches(size), [1, 2, 4])


def test_with_a_given_reduction_each_worker_has_its_own():
    """Nothing is summed then, and the replicas keep values of their own."""
    made = centred_targets()
    context = caramel.capture(made.step, SPECS, loss_reduction="mean")
    assert not context.model.forward_sums
    with pytest.raises(AssertionError):
        check(lambda: replace(centred_targets(), options={"loss_reduction": "mean"}), batches(12), 4)


def last_example():
    """One worker has it; all get it."""
    weights, seen = variable("weights", (FEATURES, CLASSES), trainable=True), variable("seen", (2 * CLASSES,))

    def loss(x, y):
        seen.scatter_nd_update(tf.range(CLASSES)[:, None], y[-1])
        return tf.reduce_mean((x @ weights - seen[:CLASSES] * y) ** 2)

    return program([weights, seen], loss, lambda x, y: None)


def test_an_example_that_is_written():
    check(last_example, batches(13), [1, 2, 4])


def test_chosen_examples_that_are_written_are_refused():
    """How many each worker has, no sum tells."""

    def write(keys, place, new):
        some = tf.boolean_mask(new, new[:, 0] > 0)
        count = tf.shape(some, tf.int64)[0]
        keys.scatter_nd_update(((place + tf.range(count)) % 14)[:, None], some)
        place.assign((place + count) % 14)

    made = queue(write)
    with pytest.raises(caramel.CaptureError, match="variable 'keys' has a value of its own on each worker"):
        assert caramel.capture(made.step, SPECS).model
