"""Batch normalisation over all replicas: exact on one worker, and refused by its name on several."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process

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


def data():
    return tf.data.Dataset.from_tensor_slices(arrays()).batch(16)


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


def test_fit_on_several_workers_is_refused_by_the_layers_name():
    with pytest.raises(caramel.UnsupportedError) as caught:
        caramel.fit(compiled(), data(), workers=3, verbose=0)
    for words in ("together", "synchronized=True", "3 workers", "synchronized=False"):
        assert words in str(caught.value)


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


def test_a_step_on_one_worker_is_that_of_one_device():
    batches = [tuple(t.numpy() for t in batch) for batch in data()]
    want, step, specs = captured()
    function = tf.function(step, input_signature=specs)
    losses = [float(function(*batch)) for batch in batches]
    got, step, specs = captured()
    context = caramel.capture(step, inputs=specs, loss_reduction="mean")
    with caramel.ARModel(context, 1).session() as session:
        np.testing.assert_allclose([session.step(batch).loss for batch in batches], losses, rtol=1e-9)
        session.write_back()
    assert_same(got, want)


def test_a_step_on_several_workers_is_refused_by_the_layers_name():
    _, step, specs = captured()
    context = caramel.capture(step, inputs=specs, loss_reduction="mean")
    with pytest.raises(caramel.UnsupportedError, match="together.*synchronized=True"):
        caramel.ARModel(context, 2)


def test_a_step_whose_loss_cannot_be_told_names_the_layer():
    _, step, specs = captured()
    with pytest.raises(caramel.CaptureError, match="together.* asks for statistics of the whole batch"):
        caramel.ARModel(caramel.capture(step, inputs=specs), 2)
