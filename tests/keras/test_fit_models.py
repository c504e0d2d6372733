"""Models and data of many kinds in `caramel.fit`, against Keras' own fit on one device."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, both, compiled_as, dataset, dense, made, same
from variants import in_soak, mostly_in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")


def test_validation_on_arrays():
    x, y = arrays(20, 8)
    weights = np.linspace(0.1, 2, 20)
    same(*both(dataset(59), made(dense), epochs=2, validation_data=(x, y, weights), validation_batch_size=7))


@pytest.mark.soak  # as test_a_dataset_in_which_all_batches_are_full
def test_validation_on_some_batches():
    validation = dataset(59, seed=8).repeat()
    same(*both(dataset(59), made(dense), epochs=2, validation_data=validation, validation_steps=3))


def test_a_dataset_in_which_all_batches_are_full():
    data = tf.data.Dataset.from_tensor_slices(arrays()).batch(12, drop_remainder=True)
    validation = {"validation_data": dataset(59, seed=8).repeat(), "validation_steps": 3}
    same(*both(data, made(dense, metrics=["accuracy"]), epochs=2, **validation))


class Flat(keras.Model):
    """A model that has the size of a batch in it as a number."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, series):
        return self.dense(tf.reshape(series, [8, -1]))


@pytest.mark.parametrize("workers", [4, *in_soak(1, 2)])
def test_the_size_of_a_batch_as_a_number(workers):
    """On a worker it is the number of its examples."""
    series = np.random.default_rng(0).normal(size=(32, 5, 3))
    data = tf.data.Dataset.from_tensor_slices((series, series.sum((1, 2))[:, None])).batch(8, drop_remainder=True)
    mse = keras.losses.MeanSquaredError
    same(*both(data, made(Flat, mse), workers=workers, epochs=2), rtol=1e-5)  # the layer is of float32


class Sized(keras.Model):
    """A model that makes something of the size of a batch beside its examples."""

    def __init__(self, made_beside):
        super().__init__()
        self.first, self.cell, self.last = (
            keras.layers.Dense(300, "tanh"),
            keras.layers.GRUCell(30),
            keras.layers.Dense(1),
        )
        self.made_beside = made_beside

    def call(self, series):
        return self.last(self.made_beside(self, series))


def after_a_state(model, series):
    state = tf.zeros([8, 30], series.dtype)
    for step in range(series.shape[1]):
        state, _ = model.cell(series[:, step], [state])
    return state


BESIDE = {
    "added zeros": lambda m, s: m.first(keras.layers.Flatten()(s) + tf.zeros([8, 15], s.dtype)),
    "ones in a column": lambda m, s: tf.concat([m.first(s[:, 0]), tf.ones([8, 1], s.dtype)], 1),
    "the state of a cell": after_a_state,
    "repeated": lambda m, s: m.first(s[:, 0] + tf.tile(tf.constant([[1.0, 2.0, 3.0]], s.dtype), [8, 1])),
    "broadcast": lambda m, s: m.first(s[:, 0] + tf.broadcast_to(tf.constant([1.0, 2.0, 3.0], s.dtype), [8, 3])),
    "reshaped": lambda m, s: m.first(tf.reshape(s, [8, 15])),
}


@pytest.mark.parametrize("kind", ["dataset", *in_soak("arrays")])
@pytest.mark.parametrize("name", mostly_in_soak(list(BESIDE), "added zeros", "reshaped"))
def test_what_has_the_size_of_a_batch(name, kind):
    series = np.random.default_rng(0).normal(size=(32, 5, 3))
    data = series, series.sum((1, 2))[:, None]
    trained = []
    for fit in (lambda m, *d, **o: m.fit(*d, **o), lambda m, *d, **o: caramel.fit(m, *d, workers=4, **o)):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(2)
        model = Sized(BESIDE[name])
        model.compile(keras.optimizers.SGD(0.01), "mse")
        if kind == "arrays":
            history = fit(model, *data, batch_size=8, shuffle=False, epochs=2, verbose=0)
        else:
            batches = tf.data.Dataset.from_tensor_slices(data).batch(8, drop_remainder=True)
            history = fit(model, batches, epochs=2, verbose=0)
        trained.append((history.history["loss"], [v.numpy() for v in model.trainable_variables]))
    (want, values), (got, others) = trained
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for one, other in zip(values, others):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


def rows(p):
    return tf.cast(tf.shape(p)[0], p.dtype)


COUNTED = {
    "divided by": lambda p, y: tf.reduce_sum((p - y) ** 2) / rows(p),
    "of the static shape": lambda p, y: tf.reduce_sum((p - y) ** 2) / p.shape[0],
}
NUMBERED = {
    "its root below a sum": lambda p, y: tf.reduce_sum((p - y) ** 2) / tf.sqrt(rows(p)),
    "its logarithm beside a mean": lambda p, y: tf.reduce_mean((p - y) ** 2) * tf.math.log(rows(p)),
    "times each example": lambda p, y: tf.reduce_mean((p * rows(p) / 12 - y) ** 2),
    "as a number of Python": lambda p, y: tf.reduce_mean((p * (p.shape[0] / 12) - y) ** 2),
    "numbers of the examples": lambda p, y: tf.reduce_mean((p + tf.range(rows(p))[:, None] - y) ** 2),
    "a line over them": lambda p, y: tf.reduce_mean(
        tf.cast(tf.linspace(0.0, 1.0, p.shape[0]), p.dtype)[:, None] * (p - y) ** 2
    ),
}
"""Losses that have the number of examples in them; on a worker it is another one."""

REFUSED = ("times each example", "as a number of Python", "a line over them")
"""Those of them in which it is beside single examples, which several workers do not handle."""


class OfAFixedBatch(keras.Model):
    """A step that needs to know the number of examples when it is traced."""

    def __init__(self, loss):
        super().__init__()
        self.head, self.loss_of = keras.layers.Dense(2, use_bias=False), loss

    def call(self, x):
        return self.head(x)

    def train_step(self, data):
        x, y = data
        noise = 0.0 * tf.random.normal([x.shape[0], 6], dtype=x.dtype)
        with tf.GradientTape() as tape:
            loss = self.loss_of(self(x + noise, training=True), y)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss}


def of_a_fixed_batch(loss, fit):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(2)
    model = OfAFixedBatch(loss)
    model.compile(keras.optimizers.SGD(0.1))
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(48, width)).astype(keras.config.floatx()) for width in (6, 2))
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)
    return fit(model, batches).history["loss"], model.get_weights()


@pytest.mark.parametrize("name", mostly_in_soak(list(COUNTED), "of the static shape"))
def test_losses_that_count_a_fixed_batch(name):
    want, weights = of_a_fixed_batch(COUNTED[name], lambda m, d: m.fit(d, verbose=0))
    got, others = of_a_fixed_batch(COUNTED[name], lambda m, d: caramel.fit(m, d, workers=4, verbose=0))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(others[0], weights[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("name", mostly_in_soak(list(NUMBERED), "its logarithm beside a mean", "times each example"))
def test_a_workers_part_of_a_fixed_batch_is_not_taken_for_the_batch(name, workers):
    """Traced for a worker's three examples, twelve of them are nowhere in the step, and nothing else would tell."""
    want, weights = of_a_fixed_batch(NUMBERED[name], lambda m, d: m.fit(d, verbose=0))
    is_refused = workers > 1 and name in REFUSED
    with pytest.raises(caramel.CaptureError) if is_refused else nullcontext():
        got, others = of_a_fixed_batch(NUMBERED[name], lambda m, d: caramel.fit(m, d, workers=workers, verbose=0))
    if is_refused:
        return
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(others[0], weights[0], rtol=1e-4, atol=1e-6)


def one_by_one(p, y):
    return tf.add_n([tf.reduce_mean((a - b) ** 2) for a, b in zip(tf.unstack(p), tf.unstack(y))]) / p.shape[0]


@pytest.mark.parametrize("kind", ["dataset", "arrays"])
def test_a_step_with_ops_for_each_example(kind):
    """One worker has all of them; several have fewer, which is another step."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(48, width)).astype(keras.config.floatx()) for width in (6, 2))

    def trained(fit):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(2)
        model = OfAFixedBatch(one_by_one)
        model.compile(keras.optimizers.SGD(0.1))
        if kind == "arrays":
            return fit(model, x, y, batch_size=12, shuffle=False).history["loss"]
        return fit(model, tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)).history["loss"]

    want = trained(lambda m, *d, **o: m.fit(*d, verbose=0, **o))
    got = trained(lambda m, *d, **o: caramel.fit(m, *d, workers=1, verbose=0, **o))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    with pytest.raises(caramel.CaptureError):
        trained(lambda m, *d, **o: caramel.fit(m, *d, workers=4, verbose=0, **o))


def test_a_model_that_is_built_by_the_first_batch():
    """So are its losses of weights."""

    def build():
        first = keras.layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))
        return keras.Sequential([first, keras.layers.Dense(CLASSES)])

    same(*both(dataset(59), made(build, optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9)), epochs=2))


def test_inputs_and_outputs_by_name():
    def build():
        inputs = {"a": keras.Input([FEATURES], name="a"), "b": keras.Input([2], name="b")}
        hidden = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
        first = keras.layers.Dense(CLASSES, name="first")(hidden)
        return keras.Model(inputs, {"first": first, "second": keras.layers.Dense(2, name="second")(hidden)})

    def losses():
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"first": entropy, "second": keras.losses.MeanSquaredError()}

    rng = np.random.default_rng(0)
    x, y = arrays(59)
    elements = ({"a": x, "b": rng.normal(size=(59, 2))}, {"first": y, "second": rng.normal(size=(59, 2))})
    data = tf.data.Dataset.from_tensor_slices(elements).batch(12)
    metrics = {"first": ["accuracy"], "second": [keras.metrics.RootMeanSquaredError()]}
    same(*both(data, made(build, losses, metrics=metrics, loss_weights={"first": 1.0, "second": 0.3}), epochs=2))


def with_dropout():
    return dense(keras.layers.Dense(50, "tanh"), keras.layers.Dropout(0.5, seed=7))


@pytest.mark.soak  # as "RandomFlip" in test_fit_sweep.py
def test_dropout_on_one_worker():
    same(*both(dataset(59), made(with_dropout), workers=1, epochs=2))


def test_dropout_is_the_same_in_each_training():
    """Although one device draws other masks than the workers."""
    ends = []
    for _ in range(2):
        model = made(with_dropout)()
        caramel.fit(model, dataset(59), workers=3, epochs=2, verbose=0, cluster=AS_WRITTEN)
        ends.append([v.numpy() for v in model.variables])
    for first, second in zip(*ends):
        np.testing.assert_array_equal(first, second)


@pytest.mark.soak  # as test_synchronised_exact.py
def test_batch_normalisation_on_one_worker():
    same(*both(dataset(59), made(lambda: dense(keras.layers.BatchNormalization())), workers=1, epochs=2))


def test_scaled_losses():
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.02), 2.0**10, 3)

    same(*both(dataset(59), made(dense, optimizer=optimizer, metrics=["accuracy"]), epochs=2))


@pytest.mark.soak  # as test_a_model_that_is_built_by_the_first_batch
def test_regularised_weights():
    build = lambda: dense(keras.layers.Dense(6, "tanh", kernel_regularizer=keras.regularizers.L2(0.1)))  # noqa: E731
    same(*both(dataset(59), made(build), epochs=2))


@pytest.mark.soak
def test_sequences():
    def build():
        layers = [keras.layers.Embedding(7, 4), keras.layers.LSTM(3), keras.layers.Dense(CLASSES)]
        return keras.Sequential([keras.Input([None], dtype="int32"), *layers])

    x = np.random.default_rng(0).integers(0, 7, size=(40, 6))
    data = tf.data.Dataset.from_tensor_slices((x, x[:, 0] % CLASSES)).batch(9)
    same(*both(data, made(build), epochs=2))


def test_compiled_by_xla():
    same(*both(dataset(59), made(dense, jit_compile=True), epochs=2))


def test_two_losses_in_one_step():
    """A generator and a critic of its own: two differentiations, two optimizers."""

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = keras.layers.Dense(FEATURES)
            self.other = keras.layers.Dense(1)
            self.losses_of = [keras.metrics.Mean(name="one"), keras.metrics.Mean(name="other")]

        def compile(self):
            super().compile(keras.optimizers.SGD(0.01))
            self.second = keras.optimizers.Adam(0.01)

        @property
        def metrics(self):
            return self.losses_of

        def call(self, x):
            return self.other(self.one(x))

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                one = tf.reduce_mean(tf.square(self.other(self.one(x)) - 1.0))
            self.optimizer.apply(tape.gradient(one, self.one.trainable_variables), self.one.trainable_variables)
            with tf.GradientTape() as tape:
                other = tf.reduce_mean(tf.square(self.other(self.one(x)))) + tf.reduce_mean(
                    tf.square(self.other(x) - 1.0)
                )
            self.second.apply(tape.gradient(other, self.other.trainable_variables), self.other.trainable_variables)
            for metric, value in zip(self.losses_of, (one, other)):
                metric.update_state(value)
            return {metric.name: metric.result() for metric in self.losses_of}

    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        model = Pair()
        model.compile()
        return model

    first, second = both(dataset(60, 15), make, epochs=2)
    same(first, second)
    for mine, theirs in zip(second[1].second.variables, first[1].second.variables):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8)


def test_metrics_that_a_layer_counts():
    class Counting(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.mean, self.active = keras.metrics.Mean(name="mean"), keras.metrics.Mean(name="active")

        def call(self, x):
            self.mean.update_state(tf.reduce_mean(x))
            self.active.update_state(tf.reduce_mean(tf.cast(x > 0, x.dtype), -1))
            return x

    same(*both(dataset(59), made(lambda: dense(Counting())), epochs=2))


# -- what cannot be told ---------------------------------------------------------------------


def middle(values):
    """The median: no sum, mean or extreme of the examples."""
    return tf.sort(tf.reshape(values, [-1]))[tf.size(values) // 2]


def refused(words, make, **options):
    with pytest.raises(caramel.CaptureError) as caught:
        caramel.fit(make(), dataset(), workers=2, verbose=0, **options)
    for word in words:
        assert word in str(caught.value)


def with_layer(call):
    class Layer(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.own = keras.metrics.Mean(name="own")

    Layer.call = call
    return made(lambda: dense(Layer()))


def test_a_metric_of_a_value_that_is_no_mean():
    def call(self, x):
        self.own.update_state(middle(x))
        return x

    refused(["metric 'own'", "StridedSlice", "values of each example"], with_layer(call))


def test_a_metric_in_a_loop():
    def call(self, x):
        return tf.map_fn(lambda row: (self.own.update_state(tf.reduce_max(row)), row)[1], x)

    refused(["metric 'own'", "loop", "train_step"], with_layer(call))


def test_a_metric_that_is_written_by_hand():
    def call(self, x):
        self.own.total.assign_add(tf.reduce_max(x))
        return x

    refused(["own/total", "metric 'own'", "update_state"], with_layer(call))


def test_a_loss_that_depends_on_a_metric():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.loss(y, self(x)))
                loss = loss * (1.0 + self.compiled.result())
            self.compiled.update_state(tf.reduce_mean(tf.square(x), -1))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    def make():
        model = compiled_as(Own)
        model.compiled = keras.metrics.Mean(name="compiled")
        return model

    refused(["the loss depends on", "metric 'compiled'"], make, loss_reduction="mean")


def test_a_log_that_cannot_be_told():
    class Own(keras.Model):
        def train_step(self, data):
            return {**super().train_step(data), "middle": middle(data[0])}

    def make():
        return compiled_as(Own)

    refused(["returns 'middle'", "StridedSlice"], make)


def test_a_log_that_is_taken_for_the_loss_and_cannot_be_told():
    class Own(keras.Model):
        def train_step(self, data):
            super().train_step(data)
            return {"middle": middle(data[0])}

        @property
        def metrics(self):
            return []

    def make():
        return compiled_as(Own)

    refused(["returns 'middle'", "StridedSlice"], make)


def test_extremes_of_the_examples():
    """Logs and metrics of the largest and the smallest of all examples, and whether some or all are so."""

    class Own(keras.Model):
        def train_step(self, data):
            logs, (x, y) = super().train_step(data), data
            errors = tf.abs(tf.cast(y[:, None], x.dtype) - self(x))
            self.largest.update_state(tf.reduce_max(errors))
            some, always = tf.reduce_any(errors > 1.5), tf.reduce_all(tf.math.is_finite(errors))
            found = {"smallest": tf.reduce_min(errors), "some": some, "always": tf.cast(always, tf.int32)}
            return {**logs, "largest": self.largest.result(), **found}

    def make():
        model = compiled_as(Own)
        model.largest = keras.metrics.Mean(name="largest")
        return model

    same(*both(dataset(59), make, epochs=2, workers=4))


def test_a_count_that_is_taken_for_the_loss():
    """It is the only number that the step gives."""

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            self.squares.update_state(tf.reduce_sum(tf.square(x), -1))
            return {"squares": self.squares.result()}

        @property
        def metrics(self):
            return [self.squares]

    def make():
        model = compiled_as(Own)
        model.squares = keras.metrics.Sum(name="squares")
        return model

    same(*both(dataset(59), make, epochs=2))
