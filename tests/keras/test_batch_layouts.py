"""What a model's own steps get: batches alone or in tuples, and None where nothing is given, as in Keras."""

import random
from collections import namedtuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, compiled, same
from variants import in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(24)
SIZE = 8


class Reconstructing(keras.Model):
    """Takes a batch as Keras gives it: a tuple of one, or the inputs themselves."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(FEATURES)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - x) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"loss": loss, "is tuple": tf.constant(float(isinstance(data, tuple)))}

    def test_step(self, data):
        (x,) = data if isinstance(data, tuple) else (data,)
        return {"loss": tf.reduce_mean((self(x) - x) ** 2)}

    def predict_step(self, data):
        return self(data[0] if isinstance(data, tuple) else data)


def reconstructing():
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    model = Reconstructing()
    model.compile(keras.optimizers.SGD(0.1))
    return model


class InTuples(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return (X[SIZE * number :][:SIZE],)


def elements():
    return tf.data.Dataset.from_tensor_slices(X)


GIVEN = {
    "arrays": (lambda: X, {"batch_size": SIZE}),
    "elements": (lambda: elements().batch(SIZE), {}),
    "tuples": (lambda: tf.data.Dataset.from_tensor_slices((X,)).batch(SIZE), {}),
    "a PyDataset": (InTuples, {"shuffle": False}),
    "a generator": (lambda: ((X[n : n + SIZE],) for n in range(0, 24, SIZE)), {"steps_per_epoch": 3}),
}


@pytest.mark.parametrize("workers", [3, *in_soak(1)])
@pytest.mark.parametrize("name", GIVEN)
def test_inputs_alone(name, workers):
    data, options = GIVEN[name]
    options = {"shuffle": False, "verbose": 0, **options}
    alone, distributed = reconstructing(), reconstructing()
    want = alone.fit(data(), **options)
    got = caramel.fit(distributed, data(), workers=workers, cluster=AS_WRITTEN, **options)
    same((want, alone), (got, distributed))
    if name != "a generator":
        further = {"workers": workers, "verbose": 0, "cluster": AS_WRITTEN}
        size = {"batch_size": SIZE} if name == "arrays" else {}
        np.testing.assert_allclose(
            caramel.predict(distributed, data(), **size, **further), alone.predict(data(), verbose=0, **size), rtol=1e-9
        )
        np.testing.assert_allclose(
            caramel.evaluate(distributed, data(), **size, **further),
            alone.evaluate(data(), verbose=0, **size),
            rtol=1e-9,
        )


def test_named_tuples_are_inputs_and_targets():
    """Keras takes what is a tuple for one, whatever its class."""
    pair = namedtuple("pair", "x y")
    data = tf.data.Dataset.from_tensor_slices(pair(X, Y)).batch(SIZE)
    alone, distributed = compiled(), compiled()
    want = alone.fit(data, verbose=0)
    same((want, alone), (caramel.fit(distributed, data, workers=3, verbose=0, cluster=AS_WRITTEN), distributed))


# -- None ------------------------------------------------------------------------------------


def two_outputs():
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(6, "tanh")(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(CLASSES)(hidden), keras.layers.Dense(2)(hidden)])
    model.compile("sgd", [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None])
    return model


WEIGHTS = np.linspace(0.5, 2.0, 24)

WITHOUT = {
    "a target": ((X, [Y, None]), {}),
    "weights of an output": ((X, [Y, None]), {"sample_weight": [WEIGHTS, None]}),
    "a part to validate on": ((X, [Y, None]), {"validation_split": 0.25}),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_nothing_for_one_of_two_outputs(name):
    data, options = WITHOUT[name]
    options = {"batch_size": SIZE, "shuffle": False, "verbose": 0, **options}
    alone, distributed = two_outputs(), two_outputs()
    want = alone.fit(*data, **options)
    same((want, alone), (caramel.fit(distributed, *data, workers=3, cluster=AS_WRITTEN, **options), distributed))


def test_nothing_for_an_optional_input():
    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        first, second = keras.Input([FEATURES]), keras.Input([2], optional=True)

        class Both(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(CLASSES)

            def call(self, one, other):
                return self.dense(one) if other is None else self.dense(one) + other[:, :1]

        model = keras.Model([first, second], Both()(first, second))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    options = {"batch_size": SIZE, "shuffle": False, "verbose": 0}
    alone, distributed = make(), make()
    want = alone.fit([X, None], Y, **options)
    same((want, alone), (caramel.fit(distributed, [X, None], Y, workers=3, cluster=AS_WRITTEN, **options), distributed))


def test_dates_are_refused():
    with pytest.raises(caramel.InputError, match="x is an array of datetime64"):
        caramel.fit(compiled(), np.zeros((8, FEATURES), "datetime64[s]"), np.zeros(8), workers=2)


# -- orders and limits -----------------------------------------------------------------------


class Numbered(InTuples):
    def __getitem__(self, number):
        return X[SIZE * number :][:SIZE], Y[SIZE * number :][:SIZE]


def test_a_shuffled_pydataset_has_keras_order():
    alone, distributed = compiled(), compiled()
    random.seed(7)
    want = alone.fit(Numbered(), epochs=3, verbose=0)
    random.seed(7)
    got = caramel.fit(distributed, Numbered(), workers=2, epochs=3, verbose=0, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed))


@pytest.mark.skipif(not hasattr(keras.config, "set_max_epochs"), reason="this version of Keras has no such limits")
def test_limits_of_the_configuration_hold():
    """As in Keras, whose steps of an evaluation are limited, too."""
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(2)
    try:
        alone, distributed = compiled(), compiled()
        options = {"batch_size": 4, "shuffle": False, "verbose": 0}
        with pytest.warns(UserWarning, match="Limiting"):
            want = alone.fit(X, Y, epochs=3, **options)
        with pytest.warns(UserWarning, match="limits the training to 2 of 3 epochs"):
            got = caramel.fit(distributed, X, Y, epochs=3, workers=2, cluster=AS_WRITTEN, **options)
        same((want, alone), (got, distributed))
        options.pop("shuffle")
        with pytest.warns(UserWarning, match="limits the number of steps to 2"):
            found = caramel.evaluate(distributed, X, Y, workers=2, cluster=AS_WRITTEN, **options)
        np.testing.assert_allclose(found, alone.evaluate(X, Y, **options), rtol=1e-9)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
