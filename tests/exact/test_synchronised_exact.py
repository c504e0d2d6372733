"""Batch normalisation over all replicas, and other all-reduces for which a program asks: as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from variants import mostly_in_soak

import caramel

layers = keras.layers
FEATURES = 4


@pytest.fixture(autouse=True)
def _double():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


def arrays():
    x = np.random.default_rng(0).normal(size=(32, FEATURES)) + np.arange(32)[:, None] / 8  # workers see other means
    return x, (x.sum(1) > 8).astype("int64")


def data(batch=16):
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(batch)


def compiled(**options):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    together = layers.BatchNormalization(synchronized=True, name="together", **options)
    inner = [layers.Dense(8), together, layers.ReLU(dtype="float64"), layers.Dense(2)]
    model = keras.Sequential([keras.Input([FEATURES]), *inner])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss, jit_compile=False)
    return model


def assert_same(got, want):
    for mine, theirs in zip(got.variables, want.variables):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=mine.path)


def test_fit_on_one_worker_is_that_of_one_device():
    want, got = compiled(), compiled()
    want.fit(data(), epochs=2, verbose=0)
    caramel.fit(got, data(), workers=1, epochs=2, verbose=0, cluster=in_process())
    assert_same(got, want)


@pytest.mark.parametrize("batch", mostly_in_soak([16, 13, 31], 13))
def test_fit_on_several_workers_is_that_of_one_device(batch):
    want, got = compiled(), compiled()
    want.fit(data(batch), epochs=2, verbose=0)
    caramel.fit(got, data(batch), workers=3, epochs=2, verbose=0, cluster=in_process())
    assert_same(got, want)


def test_statistics_that_are_not_taken_are_no_refusal():
    """A frozen layer only uses its moving averages, which are the same on every worker."""
    want, got = compiled(trainable=False), compiled(trainable=False)
    want.fit(data(), epochs=2, verbose=0)
    caramel.fit(got, data(), workers=3, epochs=2, verbose=0, cluster=in_process())
    assert_same(got, want)


def captured():
    model = compiled()
    model.optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    specs = [tf.TensorSpec([None, FEATURES], tf.float64), tf.TensorSpec([None], tf.int64)]
    return model, step, specs


@pytest.mark.parametrize("workers", mostly_in_soak([1, 2, 5], 5))
@pytest.mark.parametrize("reduction", mostly_in_soak([None, "mean"], None))
def test_a_step_is_that_of_one_device(workers, reduction):
    batches = [tuple(t.numpy() for t in batch) for batch in data(13)]
    want, step, specs = captured()
    function = tf.function(step, input_signature=specs)
    losses = [float(function(*batch)) for batch in batches]
    got, step, specs = captured()
    context = caramel.capture(step, inputs=specs, loss_reduction=reduction)
    with caramel.ARModel(context, workers).session() as session:
        np.testing.assert_allclose([session.step(batch).loss for batch in batches], losses, rtol=1e-9)
        session.write_back()
    assert_same(got, want)


@pytest.mark.soak
def test_images():
    """The statistics are over the batch, height and width; two layers, one after the other."""

    def build():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        norms = [layers.BatchNormalization(synchronized=True, momentum=0.5) for _ in range(2)]
        body = [layers.Conv2D(3, 3), norms[0], layers.Conv2D(2, 3), norms[1], layers.Flatten(), layers.Dense(1)]
        model = keras.Sequential([keras.Input([6, 6, 1]), *body])
        model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
        return model

    rng = np.random.default_rng(0)
    images = rng.normal(size=(22, 6, 6, 1)) + np.arange(22)[:, None, None, None] / 4
    want, got = build(), build()
    want.fit(images, images.sum((1, 2, 3)), batch_size=8, epochs=2, shuffle=False, verbose=0)
    caramel.fit(
        got, images, images.sum((1, 2, 3)), batch_size=8, epochs=2, shuffle=False, verbose=0, workers=3,
        cluster=in_process(),
    )  # fmt: skip
    for mine, theirs in zip(got.variables, want.variables):
        if mine.path.endswith("bias"):
            continue  # that of a layer in front of a normalisation has the gradient 0, of which Adam makes steps
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-8, err_msg=mine.path)


SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def reducing(reduced):
    """A step with an all-reduce of its own in the loss."""
    w = tf.Variable(np.linspace(-1, 1, FEATURES), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.linalg.matvec(x, w)
            loss = reduced(tf.distribute.get_replica_context().all_reduce, y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return w, step


def sum_of_sums(all_reduce, y):
    return all_reduce(SUM, tf.reduce_sum(y)) ** 2 * 1e-3 + tf.reduce_mean(y**2)


def mean_of_means(all_reduce, y):
    return tf.reduce_mean((y - all_reduce(MEAN, tf.reduce_mean(y))) ** 2)


def pair(all_reduce, y):
    total, number = all_reduce(SUM, [tf.reduce_sum(y**2), tf.cast(tf.size(y), y.dtype)])
    return total / number


def sum_and_mean(all_reduce, y):
    """A mean has the weights of the workers' examples, which a sum has not."""
    return tf.reduce_sum(y + tf.sqrt(all_reduce(MEAN, tf.reduce_mean(y**2)))) * 1e-2


@pytest.mark.parametrize(
    "reduced", [sum_of_sums, mean_of_means, pair, sum_and_mean], ids=lambda reduced: reduced.__name__
)
@pytest.mark.parametrize("size", mostly_in_soak([12, 13, 2], 13))
def test_an_all_reduce_of_a_step(reduced, size):
    x = np.random.default_rng(1).normal(size=(size, FEATURES)) + np.arange(size)[:, None]
    want, step = reducing(reduced)
    losses = [float(step(tf.constant(x))) for _ in range(3)]
    got, step = reducing(reduced)
    context = caramel.capture(step, inputs=[tf.TensorSpec([None, FEATURES], tf.float64)])
    with caramel.ARModel(context, 3).session(cluster=in_process()) as session:
        np.testing.assert_allclose([session.step(x).loss for _ in range(3)], losses, rtol=1e-9)
        session.write_back()
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_an_all_reduce_with_another_value_is_refused():
    """The sum of the workers' means is N times the mean of one device."""
    _, step = reducing(lambda all_reduce, y: tf.reduce_mean(y**2) + all_reduce(SUM, tf.reduce_mean(y)))
    context = caramel.capture(step, inputs=[tf.TensorSpec([None, FEATURES], tf.float64)])
    with pytest.raises(caramel.UnsupportedError, match="all-reduce or all-gather over all replicas"):
        caramel.ARModel(context, 2)
    caramel.ARModel(context, 1)


@pytest.mark.parametrize("kind", ["MEAN", "SUM"])
def test_gradients_that_a_step_reduces_itself(kind):
    """As in a loop for several replicas: they are summed over the workers once, and not twice."""

    def program():
        model = compiled()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
        optimizer.build(model.trainable_variables)

        def step(x, y):
            replica = tf.distribute.get_replica_context()
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
                loss = tf.reduce_mean(losses) / replica.num_replicas_in_sync
            gradients = replica.all_reduce(kind, tape.gradient(loss, model.trainable_variables))
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        return step, model

    specs = [tf.TensorSpec([None, FEATURES], tf.float64), tf.TensorSpec([None], tf.int64)]
    step, want = program()
    for batch in data(13).as_numpy_iterator():
        tf.function(step, input_signature=specs)(*batch)
    step, got = program()
    with caramel.ARModel(caramel.capture(step, specs), 3).session(in_process()) as session:
        for batch in data(13).as_numpy_iterator():
            session.step(*batch)
        session.write_back()
    assert_same(got, want)
