"""All networks of `keras.applications` on four workers, against one device that runs the four parts in rank order.

Images are small, rates of dropout are 0. Networks with more than 100 million parameters are compiled and verified only.
"""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN

import caramel

pytestmark = [pytest.mark.soak, pytest.mark.slow]

NAMES = [name for name in dir(keras.applications) if name[0].isupper()]
SIDES = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}
"""The least that a network takes, in pixels, where that is more than 64."""

WORKERS, BATCH, STEPS, CLASSES = 4, 16, 3, 5
"""With two examples of 32 pixels for each worker, the last layers would normalise two numbers, which are -1 and 1 after it
but for their rounding: one device alone would then get other weights for another order of additions."""

TOLERANCE = 1e-8
"""Largest difference, as a fraction of the largest value of an array."""

ROUNDING = 100
"""Largest difference, after all steps, as a multiple of what one device shows by itself if its images and weights differ in
their last bits (sums of many terms round more than that). In some of the deep networks, in which four numbers are
normalised a hundred times, rounding grows beyond `TOLERANCE` in three steps; after the first one nothing does."""

LARGEST = 100e6  # parameters


@pytest.fixture(autouse=True)
def _double():
    keras.config.set_floatx("float64")
    keras.backend.clear_session()
    yield
    keras.config.set_floatx("float32")
    keras.backend.clear_session()
    gc.collect()


def built(name):
    """The network, always with the same initial weights; nothing is dropped."""
    keras.utils.set_random_seed(2)
    side = SIDES.get(name, 64)
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), classes=CLASSES, classifier_activation=None
    )
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    return model


def data(name):
    rng = np.random.default_rng(4)
    side = SIDES.get(name, 64)
    return rng.uniform(0, 255, (BATCH * STEPS, side, side, 3)), rng.integers(0, CLASSES, BATCH * STEPS)


def in_parts(model, x, y):
    """Train on one device with the mean gradient of the parts; statistics are those of the first part. The losses."""

    @tf.function(reduce_retracing=True)
    def gradients(images, labels):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(images, labels, model(images, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    losses = []
    for start in range(0, len(x), BATCH):
        found = []
        for rank in range(WORKERS):
            before = [variable.numpy() for variable in model.non_trainable_variables] if rank else []
            part = slice(start + rank * BATCH // WORKERS, start + (rank + 1) * BATCH // WORKERS)
            found.append(gradients(x[part], y[part]))
            for variable, value in zip(model.non_trainable_variables, before):
                variable.assign(value)
        losses.append(np.mean([loss for loss, _ in found]))
        means = [tf.add_n(parts) / WORKERS for parts in zip(*(each for _, each in found))]
        model.optimizer.apply_gradients(zip(means, model.trainable_variables))
    return np.array(losses)


def check_that_it_compiles(model, x, y):
    model.optimizer.build(model.trainable_variables)
    specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype), tf.TensorSpec([None], y.dtype)]
    context = caramel.capture(lambda images, labels: model.train_step((images, labels)), specs)
    assert caramel.ARModel(context, WORKERS).plan.proof


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_as_one_device_does(name):
    model = built(name)
    x, y = data(name)
    if model.count_params() > LARGEST:
        check_that_it_compiles(model, x, y)
        return
    wanted, found = on_one_device(name, x, y), on_workers(name, x, y)
    far = beyond(TOLERANCE, found, wanted)
    if far:  # rounding grows from step to step: the first one shows whether it is that
        first = x[:BATCH], y[:BATCH]
        assert not beyond(TOLERANCE, on_workers(name, *first), on_one_device(name, *first))
        again = on_one_device(name, x, y, rounded=True)
        for path in far:
            rounding = np.max(np.abs(again[path] - wanted[path]))
            largest = np.max(np.abs(found[path] - wanted[path]))
            assert largest <= ROUNDING * rounding, f"{path}: {largest:.3g} where rounding makes {rounding:.3g}"


def on_one_device(name, x, y, rounded=False):
    """The losses and values of a training on one device; where asked for, from other last bits of images and weights."""
    keras.backend.clear_session()
    model = built(name)
    rng = np.random.default_rng(5)

    def otherwise(values):
        return values * (1 + rng.choice([-1, 1], values.shape) * np.finfo(values.dtype).eps)

    if rounded:
        x = otherwise(x)
        for variable in model.trainable_variables:
            variable.assign(otherwise(variable.numpy()))
    return {"losses": in_parts(model, x, y), **values_of(model)}


def on_workers(name, x, y):
    """The same on four workers."""
    keras.backend.clear_session()
    model = built(name)
    losses = Losses()
    caramel.fit(
        model, x, y, workers=WORKERS, batch_size=BATCH, shuffle=False, verbose=0, cluster=AS_WRITTEN, callbacks=[losses]
    )
    return {"losses": of_each_batch(losses.found), **values_of(model)}


def beyond(tolerance, found, wanted):
    """Names of the arrays that differ by more than a fraction of their largest value.

    Less than that of 1e-6 is nothing but rounding: biases before a normalisation.
    """
    return [
        path
        for path, value in wanted.items()
        if np.max(np.abs(found[path] - value), initial=0.0) > tolerance * np.max(np.abs(value), initial=1e-6)
    ]


def values_of(model):
    return {variable.path: variable.numpy() for variable in model.variables}


def of_each_batch(means):
    """The losses of batches, from the means of all so far."""
    return np.diff(np.arange(1, len(means) + 1) * means, prepend=0.0)


class Losses(keras.callbacks.Callback):
    """The mean loss of the epoch so far, after each batch, as Keras' logs have it."""

    def __init__(self):
        super().__init__()
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(logs["loss"])
