"""What callbacks change in a model around an evaluation or a prediction, and before a training, as in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, FEATURES, arrays, compiled

import caramel

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(24)
PLACE = {"workers": 3, "cluster": AS_WRITTEN}


def averaged():
    return compiled(lambda: keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.5))


class Doubling(keras.callbacks.Callback):
    """Doubles the model's weights where it is told to, and halves them at the end."""

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, lambda *given, **named: self._times(2.0))
        self._count = 0

    def _times(self, factor):
        self._count += 1
        self.model.set_weights([factor * value for value in self.model.get_weights()])

    def on_test_end(self, logs=None):
        self._times(0.5**self._count)

    on_predict_end = on_test_end


HOOKS = ["begin", "batch_begin", "batch_end"]


@pytest.mark.parametrize("hook", HOOKS)
def test_an_evaluation_has_what_its_callbacks_set(hook):
    model = compiled()
    want = model.evaluate(X, Y, batch_size=8, verbose=0, callbacks=[Doubling(f"on_test_{hook}")])
    found = caramel.evaluate(model, X, Y, batch_size=8, verbose=0, callbacks=[Doubling(f"on_test_{hook}")], **PLACE)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert abs(want[0] - model.evaluate(X, Y, batch_size=8, verbose=0)[0]) > 1e-3


@pytest.mark.parametrize("hook", HOOKS)
def test_a_prediction_has_what_its_callbacks_set(hook):
    model = compiled()
    want = model.predict(X, batch_size=8, verbose=0, callbacks=[Doubling(f"on_predict_{hook}")])
    found = caramel.predict(model, X, batch_size=8, verbose=0, callbacks=[Doubling(f"on_predict_{hook}")], **PLACE)
    np.testing.assert_allclose(found, want, rtol=1e-9)


def test_averages_are_swapped_in():
    model = averaged()
    caramel.fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **PLACE)
    model.set_weights([2.0 * value for value in model.get_weights()])  # at the end of a training they are the averages
    swap = keras.callbacks.SwapEMAWeights
    want = model.evaluate(X, Y, verbose=0, callbacks=[swap()])
    found = caramel.evaluate(model, X, Y, verbose=0, callbacks=[swap()], **PLACE)
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert abs(found[0] - caramel.evaluate(model, X, Y, verbose=0, **PLACE)[0]) > 1e-3


# -- before the first step of a training -----------------------------------------------------


def freezing(model):
    model.layers[1].trainable = False


def another_optimizer(model):
    model.optimizer = keras.optimizers.SGD(0.1)


CHANGES = {"frozen": (freezing, "whether .* is trained"), "optimizer": (another_optimizer, "how the model is compiled")}


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_trained_cannot_change_once_the_step_is_captured(name, hook):
    change, said = CHANGES[name]
    callback = keras.callbacks.Callback()
    model = compiled()
    setattr(callback, hook, lambda *given, **logs: change(model))
    with pytest.raises(caramel.InputError, match=f"a callback of the training has changed {said}"):
        caramel.fit(model, X, Y, verbose=0, callbacks=[callback], **PLACE)


class WithItsOwnOptimizer(keras.Model):
    """Compiled without an optimizer, as models with several of their own are."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.own = keras.optimizers.SGD(0.1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x)[:, 0] - tf.cast(y, x.dtype)) ** 2)
        variables = self.dense.trainable_variables
        self.own.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def test_a_model_without_an_optimizer_ends_its_training():
    losses, ended = [], []
    for fit in (
        lambda model, *data, **options: model.fit(*data, **options),
        lambda *given, **options: caramel.fit(*given, **options, **PLACE),
    ):
        keras.utils.set_random_seed(3)
        model = WithItsOwnOptimizer()
        model.compile(optimizer=None)
        callback = keras.callbacks.LambdaCallback(on_train_end=lambda logs: ended.append(logs))
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        losses.append(fit(model, X, Y, **options).history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    assert len(ended) == 2


@pytest.mark.parametrize("is_built", [True, False])
def test_scales_of_float8_are_refused_on_several_workers(is_built):
    inputs = [keras.Input([FEATURES])] if is_built else []
    model = keras.Sequential([*inputs, keras.layers.Dense(16, dtype="float8_from_float32")])
    model.compile("sgd", "mse")
    with pytest.raises(caramel.UnsupportedError, match="its new value, as of the scales of float8"):
        caramel.fit(model, X.astype("float32"), np.zeros((24, 16), "float32"), verbose=0, **PLACE)


# -- what a prediction may give --------------------------------------------------------------


class Doubled(keras.Model):
    """A model without a variable."""

    def call(self, x):
        return 2.0 * x


@pytest.mark.parametrize("workers", [1, 3])
def test_a_model_without_variables_predicts(workers):
    model, data = Doubled(), tf.data.Dataset.from_tensor_slices(X).batch(8)
    found = caramel.predict(model, data, workers=workers, verbose=0, cluster=AS_WRITTEN)
    np.testing.assert_allclose(found, 2 * X)


def test_batches_of_other_sizes_become_a_ragged_tensor():
    model = Doubled()
    data = tf.data.Dataset.range(1, 9).map(lambda n: tf.ones([n, 3], tf.float64)).padded_batch(4, [None, 3])
    want = model.predict(data, verbose=0)
    found = caramel.predict(model, data, workers=2, verbose=0, cluster=AS_WRITTEN)
    assert isinstance(found, tf.RaggedTensor) and found.shape.as_list() == want.shape.as_list() == [8, None, 3]
    np.testing.assert_allclose(found.to_tensor(), want.to_tensor())
