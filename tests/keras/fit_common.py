"""What the tests of `caramel.fit` share: small models, data, and the comparison with Keras' own fit on one device."""

import keras
import numpy as np
import tensorflow as tf

import caramel

FEATURES, CLASSES = 5, 3


def arrays(count=60, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, FEATURES))
    return x, np.argmax(x[:, :CLASSES] + 0.1 * rng.normal(size=(count, CLASSES)), 1)


def dataset(count=59, batch=12, seed=2):
    return tf.data.Dataset.from_tensor_slices(arrays(count, seed)).batch(batch)


def compiled(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9), metrics=("accuracy",), weighted=(), **options):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        inputs = keras.Input([FEATURES])
        hidden = keras.layers.Dense(6, "tanh")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(CLASSES)(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=list(metrics), weighted_metrics=list(weighted), **options)
    finally:
        keras.config.set_floatx(before)
    return model


def compiled_as(kind, **options):
    """The same model as one of a class with a training step of its own."""
    base = compiled()
    model = kind(base.inputs, base.outputs)
    model.compile(keras.optimizers.SGD(0.1), base.loss, **options)
    return model


def made(build, loss=None, optimizer=lambda: keras.optimizers.SGD(0.05), **options):
    """A function that makes a model afresh and compiles it."""

    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        model = build()
        given = loss() if callable(loss) else loss
        model.compile(optimizer(), given or keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
        return model

    return make


def dense(*layers):
    """A model of these layers and a dense one."""
    return keras.Sequential([keras.Input([FEATURES]), *layers, keras.layers.Dense(CLASSES)])


AS_WRITTEN = caramel.InProcess(options=caramel.RunOptions(optimize_graph=False))
"""Without TensorFlow's graph optimizers, which would take as long as all the rest.

They are on in test_it_trains_as_keras_does and in test_fit_sweep.py.
"""


def both(data, make=compiled, workers=2, callbacks=list, **options):
    """Histories and models of Keras' fit and of ours; two workers, whose parts of 59 examples in twelves are not all alike."""
    mine = [k for k in ("statistics", "cluster") if k in options]
    alone = make()
    want = alone.fit(data, verbose=0, callbacks=callbacks(), **{k: v for k, v in options.items() if k not in mine})
    distributed = make()
    options = {"cluster": AS_WRITTEN, "callbacks": callbacks(), **options}
    got = caramel.fit(distributed, data, workers=workers, verbose=0, **options)
    return (want, alone), (got, distributed)


def same(first, second, rtol=1e-8):
    (want, alone), (got, distributed) = first, second
    assert list(got.history) == list(want.history)
    for name, values in want.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=1e-6, err_msg=name)
    for mine, theirs in zip(distributed.variables, alone.variables):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-12, err_msg=mine.path)
    for mine, theirs in zip(distributed.optimizer.variables, alone.optimizer.variables):
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-12, err_msg=mine.path)
