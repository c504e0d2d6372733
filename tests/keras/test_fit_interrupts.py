"""SIGINT and SIGTERM in a training: the running step is the last one, and the model has its weights."""

import os
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

X = np.random.default_rng(1).normal(size=(40, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
ENDS = {signal.SIGINT: (KeyboardInterrupt, None), signal.SIGTERM: (SystemExit, 128 + signal.SIGTERM)}


def compiled():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


class Signals(keras.callbacks.Callback):
    """Sends signals at the end of a step of an epoch."""

    def __init__(self, number, epoch, batch, times=1):
        super().__init__()
        self.number, self.epoch, self.batch, self.times, self.now = number, epoch, batch, times, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.batch):
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
                time.sleep(0.05)


def interrupted(number, callback, **options):
    """The model of a training that a signal ends."""
    model, (kind, status) = compiled(), ENDS[number]
    with pytest.raises(kind) as caught:
        caramel.fit(model, X, Y, workers=2, batch_size=10, epochs=9, shuffle=False, callbacks=[callback], **options)
    assert status is None or caught.value.code == status
    return model


def trained(steps):
    """The model after so many steps on one device."""
    model = compiled()
    for step in range(steps):
        rows = slice(10 * (step % 4), 10 * (step % 4) + 10)
        model.train_on_batch(X[rows], Y[rows])
    return model


def assert_same_weights(got, expected):
    for mine, theirs in zip(got.get_weights(), expected.get_weights()):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", ENDS)
def test_the_model_has_the_weights_of_the_last_step(number, caplog):
    model = interrupted(number, Signals(number, epoch=1, batch=2), verbose=2)
    assert_same_weights(model, trained(4 + 3))
    said = caplog.text
    assert f"{number.name}: the step that runs is the last one" in said
    assert "ended in epoch 2: the model has the weights of its last step" in said


def test_nothing_is_said_where_nothing_is_to_be(caplog):
    interrupted(signal.SIGINT, Signals(signal.SIGINT, epoch=0, batch=0), verbose=0)
    assert caplog.text == ""


def test_the_second_one_leaves_the_model_as_of_the_last_epoch():
    """Unless callbacks look at values in the middle of it; here it comes from elsewhere."""
    model = compiled()

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        return 1

    class Batches(keras.utils.PyDataset):
        seen = 0

        def __len__(self):
            return 4

        def __getitem__(self, number):
            Batches.seen += 1
            if Batches.seen > 9:
                twice()
            return X[10 * number : 10 * number + 10], Y[10 * number : 10 * number + 10]

    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="PyDataset is Python code"):
        caramel.fit(model, Batches(), workers=2, epochs=9, shuffle=False, verbose=0)
    done = round(float(model.optimizer.iterations.numpy()))
    assert done in (4, 8)  # batches are made ahead
    assert_same_weights(model, trained(done))


def test_a_handler_of_the_program_is_left_alone():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        caramel.fit(
            compiled(), X, Y, workers=2, batch_size=10, verbose=0, callbacks=[Signals(signal.SIGTERM, epoch=0, batch=1)]
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_the_next_training_goes_on_from_there():
    model = interrupted(signal.SIGINT, Signals(signal.SIGINT, epoch=0, batch=3), verbose=0)
    caramel.fit(model, X, Y, workers=2, batch_size=10, epochs=1, shuffle=False, verbose=0)
    assert_same_weights(model, trained(8))


class Checked(keras.layers.Layer):
    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "pixel too large")]):
            return tf.identity(x)


@pytest.mark.parametrize("epochs_before", [0, 1])
def test_a_step_that_fails_is_named_and_the_model_has_what_it_had_last(epochs_before):
    inputs = keras.Input([4])
    model = keras.Model(inputs, keras.layers.Dense(3)(Checked()(inputs)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((40, 4), "float32"), np.zeros(40, int)
    options = {"batch_size": 4, "workers": 2, "verbose": 0, "shuffle": False}
    for _ in range(epochs_before):
        caramel.fit(model, x, y, **options)
    before = [value.numpy() for value in model.weights]
    x[30] = 1000.0
    with pytest.raises(caramel.StepError, match=f"step {10 * epochs_before + 8} failed: .*pixel too large"):
        caramel.fit(model, x, y, **options)
    for weight, value in zip(model.weights, before):
        np.testing.assert_array_equal(weight, value)
    assert model.optimizer.iterations == 10 * epochs_before
    caramel.fit(model, x[:28], y[:28], **options)
    assert model.optimizer.iterations == 10 * epochs_before + 7
