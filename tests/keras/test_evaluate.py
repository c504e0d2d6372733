"""`caramel.evaluate` and `caramel.predict`, against the model's own on one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, compiled, compiled_as, dataset, made
from variants import in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(59)
WEIGHTS = np.random.default_rng(7).uniform(0.5, 2.0, 59)
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def metrics():
    return "accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True)


class InBatches(keras.utils.PyDataset):
    """Batches in Python, and what was called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __len__(self):
        return 5

    def __getitem__(self, number):
        return X[12 * number :][:12], Y[12 * number :][:12]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def batches():
    return (batch for batch in [(X[:12], Y[:12]), (X[12:20], Y[12:20])])


DATA = {
    "arrays": ((X, Y), {}),
    "arrays in batches": ((X, Y), {"batch_size": 12}),
    "a last batch of one": ((X[:13], Y[:13]), {"batch_size": 12}),
    "weights": ((X, Y), {"batch_size": 12, "sample_weight": WEIGHTS}),
    "steps": ((X, Y), {"batch_size": 12, "steps": 2}),
    "a dataset": (lambda: (dataset(59),), {}),
    "a dataset in steps": (lambda: (dataset(59).repeat(),), {"steps": 7}),
    "Python": (lambda: (InBatches(),), {}),
    "a generator": (lambda: (batches(),), {"steps": 2}),
}


def of(name):
    given, options = DATA[name]
    return (given() if callable(given) else given), dict(options)


def quietly(function, *given, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, verbose=0, **options)


FAST = [("weights", 2), ("a last batch of one", 4), ("a dataset in steps", 3), ("Python", 2)]
SLOW = [(name, 2) for name in DATA] + [("arrays in batches", 1), ("a dataset", 3)]
CASES = [*FAST, *in_soak(*(case for case in SLOW if case not in FAST))]


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_an_evaluation_is_that_of_one_device(name, workers):
    model = compiled(metrics=metrics(), weighted=("accuracy",))
    want = quietly(model.evaluate, *of(name)[0], **of(name)[1])
    got = quietly(caramel.evaluate, model, *of(name)[0], workers=workers, cluster=AS_WRITTEN, **of(name)[1])
    assert len(got) == len(want) > 3
    np.testing.assert_allclose(got, want, **CLOSE)


def test_an_evaluation_by_names():
    model = compiled(metrics=metrics())
    want = quietly(model.evaluate, X, Y, return_dict=True)
    got = quietly(caramel.evaluate, model, X, Y, workers=2, cluster=AS_WRITTEN, return_dict=True)
    assert got.keys() == want.keys() and all(type(value) is float for value in got.values())
    assert got == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_predictions_are_those_of_one_device(name, workers):
    model = compiled()
    given, options = of(name)
    options.pop("sample_weight", None)
    want = quietly(model.predict, *given[:1], **options)
    given, _ = of(name)
    got = quietly(caramel.predict, model, *given[:1], workers=workers, cluster=AS_WRITTEN, **options)
    assert isinstance(got, np.ndarray) and got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, **CLOSE)


def test_a_loss_alone_is_a_number():
    model = compiled(metrics=())
    got = quietly(caramel.evaluate, model, X, Y, workers=2)
    assert np.ndim(got) == 0
    assert got == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-9)


def test_several_inputs_and_outputs():
    def build():
        first, second = keras.Input([FEATURES], name="first"), keras.Input([2], name="second")
        joined = keras.layers.Concatenate()([first, second])
        return keras.Model(
            {"first": first, "second": second},
            {"scores": keras.layers.Dense(CLASSES, name="scores")(joined), "size": keras.layers.Dense(1)(joined)},
        )

    model = made(build, loss={"scores": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"})()
    x = {"first": X, "second": X[:, :2]}
    want, got = (quietly(f, x) for f in (model.predict, lambda x, **o: caramel.predict(model, x, workers=2, **o)))
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, **CLOSE)
    y = {"scores": Y, "size": X[:, :1]}
    want = quietly(model.evaluate, x, y, return_dict=True)
    got = quietly(caramel.evaluate, model, x, y, workers=2, return_dict=True)
    assert got.keys() == want.keys()
    np.testing.assert_allclose([got[name] for name in want], list(want.values()), **CLOSE)


class OfPairs(keras.Model):
    """A model that takes a pair of inputs, or one input."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs[0] - 2 * inputs[1] if isinstance(inputs, (list, tuple)) else inputs)


@pytest.mark.parametrize("kind", [list, *in_soak(tuple)])
def test_several_inputs_without_targets(kind):
    """The second one is no target."""
    model, x = OfPairs(), kind([X, X[::-1]])
    want = quietly(model.predict, x)
    np.testing.assert_allclose(quietly(caramel.predict, model, x, workers=2, cluster=AS_WRITTEN), want, rtol=1e-6)
    data = tf.data.Dataset.from_tensor_slices(((X, X[::-1]),)).batch(12)
    np.testing.assert_allclose(quietly(caramel.predict, model, data, workers=2, cluster=AS_WRITTEN), want, rtol=1e-6)


class OwnSteps(keras.Model):
    """A model whose steps count, and return what Keras knows nothing of."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen", dtype="float64")
        self.mean = keras.metrics.Mean(name="mean_score", dtype="float64")

    def test_step(self, data):
        x, y = data
        scores = self(x, training=False)
        self.seen.assign_add(1.0)
        self.mean.update_state(tf.reduce_max(scores, 1))
        return {"mean_score": self.mean.result(), "largest": tf.reduce_mean(tf.reduce_max(scores, 1))}

    def predict_step(self, data):
        return tf.argmax(self(data[0] if isinstance(data, tuple) else data, training=False), 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_own_steps(workers):
    models = [compiled_as(OwnSteps) for _ in range(2)]
    want = quietly(models[0].evaluate, X[:48], Y[:48], batch_size=12, return_dict=True)
    got = quietly(caramel.evaluate, models[1], X[:48], Y[:48], batch_size=12, workers=workers, return_dict=True)
    assert got == pytest.approx(want, rel=1e-9)
    assert [float(model.seen.numpy()) for model in models] == [4.0, 4.0]
    predicted = quietly(caramel.predict, models[1], X, workers=workers)
    np.testing.assert_array_equal(predicted, quietly(models[0].predict, X))


class Called(keras.callbacks.Callback):
    """The hooks that were called, with numbers and names of logs."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_") and ("test" in name or "predict" in name):

            def hook(batch=None, logs=None):
                self.calls.append((name, batch if "batch" in name else None, sorted(logs or {})))

            return hook
        return super().__getattribute__(name)


@pytest.mark.parametrize("at_once", [2, *in_soak(1)])
def test_callbacks(at_once):
    calls = []
    for function, more in ((keras.Model.evaluate, {}), (caramel.evaluate, {"workers": 2, "cluster": AS_WRITTEN})):
        seen = Called()
        quietly(function, compiled(steps_per_execution=at_once), X, Y, batch_size=12, callbacks=[seen], **more)
        calls.append(seen.calls)
    assert calls[0] == calls[1] and len(calls[0]) > 6
    calls = []
    for function, more in ((keras.Model.predict, {}), (caramel.predict, {"workers": 2, "cluster": AS_WRITTEN})):
        seen = Called()
        quietly(function, compiled(steps_per_execution=at_once), X, batch_size=12, callbacks=[seen], **more)
        calls.append(seen.calls)
    assert calls[0] == calls[1] and len(calls[0]) > 6


def test_a_callback_ends_it():
    class Stops(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 1

        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

    model = compiled()
    got = quietly(caramel.predict, model, X, batch_size=12, callbacks=[Stops()], workers=2)
    np.testing.assert_allclose(got, quietly(model.predict, X[:24]), **CLOSE)
    got = quietly(caramel.evaluate, model, X, Y, batch_size=12, callbacks=[Stops()], workers=2)
    np.testing.assert_allclose(got, quietly(model.evaluate, X[:24], Y[:24], batch_size=12), **CLOSE)


def test_hooks_of_python_data():
    data = InBatches()
    quietly(caramel.evaluate, compiled(), data, workers=2, cluster=AS_WRITTEN)
    assert data.calls == ["end", "begin", "end"]  # as in Keras


def test_a_shuffle_goes_on_as_in_keras():
    """Orders do not matter to an evaluation, but the next training takes the next one."""
    histories = []
    for evaluate in (keras.Model.evaluate, lambda model, data, **o: caramel.evaluate(model, data, workers=2, **o)):
        tf.random.set_seed(5)
        model, data = compiled(), dataset().unbatch().shuffle(60, seed=1).batch(12)
        quietly(evaluate, model, data)
        histories.append(model.fit(data, verbose=0).history["loss"])
    np.testing.assert_allclose(*histories, rtol=1e-9)


def test_after_a_training():
    """Both see what `fit` has trained, and what the user then changes."""
    model = compiled()
    caramel.fit(model, X, Y, workers=2, verbose=0, cluster=AS_WRITTEN)
    for _ in range(2):
        np.testing.assert_allclose(
            quietly(caramel.evaluate, model, X, Y, workers=2, cluster=AS_WRITTEN),
            quietly(model.evaluate, X, Y),
            **CLOSE,
        )
        np.testing.assert_allclose(
            quietly(caramel.predict, model, X, workers=2, cluster=AS_WRITTEN), quietly(model.predict, X), **CLOSE
        )
        model.layers[-1].bias.assign([1.0, -2.0, 0.5])


def test_a_model_that_is_not_compiled_predicts():
    model = keras.Sequential([keras.Input([FEATURES]), keras.layers.Dense(2)])
    np.testing.assert_allclose(quietly(caramel.predict, model, X, workers=2), quietly(model.predict, X), rtol=1e-6)
    with pytest.raises(caramel.InputError, match="not compiled"):
        caramel.evaluate(model, X, Y, workers=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: caramel.evaluate(m, X, Y[:5], workers=2), ["same number of examples", "59", "5"]),
        (lambda m: caramel.predict(m, 3.0, workers=2), ["predict takes arrays", "float"]),
        (lambda m: caramel.predict(m, X[:0], workers=2), ["empty"]),
        (lambda m: caramel.evaluate(m, dataset().repeat(), workers=2), ["no end", "steps="]),
        (lambda m: caramel.evaluate(m, X, Y, steps=0, workers=2), ["steps"]),
        (lambda m: caramel.evaluate("model", X, Y, workers=2), ["evaluate takes", "str"]),
        (lambda m: caramel.predict(m, X, workers=0), ["workers"]),
        (lambda m: caramel.predict(m, X[:, :2], workers=2), ["cannot take"]),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(caramel.InputError) as caught:
        call(compiled())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.processes
def test_over_server_processes():
    model = compiled()
    cluster = caramel.LocalProcesses()
    got = quietly(caramel.evaluate, model, X, Y, batch_size=12, workers=3, cluster=cluster)
    np.testing.assert_allclose(got, quietly(model.evaluate, X, Y, batch_size=12), **CLOSE)
    got = quietly(caramel.predict, model, X, batch_size=12, workers=3, cluster=cluster)
    np.testing.assert_allclose(got, quietly(model.predict, X, batch_size=12), **CLOSE)


class AsksAll(keras.Model):
    """A test step that asks all replicas for a value."""

    of_part = staticmethod(tf.reduce_sum)

    def test_step(self, data):
        scores = self(data[0], training=False)
        whole = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, self.of_part(scores**2))
        return {"root": tf.sqrt(whole)}


def test_a_test_step_that_asks_all_replicas():
    want = quietly(compiled_as(AsksAll).evaluate, X[:12], Y[:12], batch_size=12, return_dict=True)
    options = {"batch_size": 12, "workers": 3, "return_dict": True, "cluster": AS_WRITTEN}
    got = quietly(caramel.evaluate, compiled_as(AsksAll), X[:12], Y[:12], **options)
    assert got == pytest.approx(want, rel=1e-9)


def test_what_a_test_step_cannot_ask_for(monkeypatch):
    """The sum of the workers' largest is not what one device has."""
    monkeypatch.setattr(AsksAll, "of_part", staticmethod(tf.reduce_max))
    with pytest.raises(caramel.UnsupportedError, match="would not be what one device has"):
        quietly(caramel.evaluate, compiled_as(AsksAll), X[:12], Y[:12], batch_size=12, workers=3, cluster=AS_WRITTEN)


class WithSlopes(keras.Model):
    """Its evaluation looks at gradients by its weights, of the batch or of each example."""

    def __init__(self, kind):
        super().__init__()
        self.dense, self.kind = keras.layers.Dense(1), kind

    def call(self, x):
        return self.dense(x)

    def test_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            squares = (self(x) - y) ** 2
            error, errors = tf.reduce_mean(squares), tf.reduce_sum(squares, 1)
        if self.kind == "batch":
            slope = tf.norm(tape.gradient(error, self.dense.kernel))
        elif self.kind == "examples":
            slope = tf.reduce_mean(tf.vectorized_map(self.slope_of_one, (x, y)))
        else:
            slope = tf.reduce_mean(tf.norm(tape.jacobian(errors, self.dense.kernel), axis=[1, 2]))
        return {"loss": error, "slope": slope}

    def slope_of_one(self, pair):
        with tf.GradientTape() as tape:
            error = tf.reduce_sum((self(pair[0][None]) - pair[1][None]) ** 2)
        return tf.norm(tape.gradient(error, self.dense.kernel))


@pytest.mark.parametrize("kind", ["batch", "examples", "jacobian"])
def test_gradients_in_an_evaluation_are_of_the_whole_batch(kind):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 3)), rng.normal(size=(16, 1))
    model = WithSlopes(kind)
    model.compile(loss="mse")
    want = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    if kind == "jacobian":
        with pytest.raises(caramel.CaptureError, match="returns 'slope'.*it cannot be told how"):
            caramel.evaluate(model, x, y, batch_size=16, workers=4, verbose=0, return_dict=True)
        return
    got = caramel.evaluate(model, x, y, batch_size=16, workers=4, verbose=0, return_dict=True)
    assert got == pytest.approx(want, rel=1e-5)
