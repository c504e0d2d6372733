"""Parameters of every dtype, and mixed precision: bit for bit against micro-batches, one for each worker."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import SERIAL, in_process, serial_functions, sizes
from variants import each_once

import caramel

FEATURES, CLASSES = 5, 3


class Case:
    """A program in two parts, so that the oracle can put numpy between them."""

    def __init__(self, specs, variables, differentiate, apply):
        self.specs, self.variables = specs, variables
        self.differentiate, self.apply = differentiate, apply

    def step(self, *batch):
        loss, gradients = self.differentiate(*batch)
        self.apply(gradients)
        return loss


def plain(dtype):
    """A linear model with momentum written by hand."""

    def make():
        rng = np.random.default_rng(2)
        start = rng.normal(size=FEATURES) + (1j * rng.normal(size=FEATURES) if dtype.startswith("complex") else 0)
        w = tf.Variable(tf.cast(start, dtype), name="w")
        b = tf.Variable(tf.cast(0.5, dtype), name="b")
        slots = [tf.Variable(tf.zeros_like(v), name=f"slot_{v.name[0]}", trainable=False) for v in (w, b)]

        def differentiate(x, y):
            with tf.GradientTape() as tape:
                error = tf.linalg.matvec(x, w) + b - y
                loss = tf.reduce_mean(tf.math.real(error * tf.math.conj(error)))
            return loss, tape.gradient(loss, [w, b])

        def apply(gradients):
            for v, m, g in zip((w, b), slots, gradients):
                m.assign(tf.cast(0.5, dtype) * m + g)
                v.assign_sub(tf.cast(0.125, dtype) * m)

        specs = [tf.TensorSpec([None, FEATURES], dtype, "x"), tf.TensorSpec([None], dtype, "y")]
        return Case(specs, {v.name: v for v in (w, b, *slots)}, differentiate, apply)

    return make


def keras_with(policy, optimizer):
    """A Keras model under a policy of mixed precision."""

    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(3)
        layers = keras.layers
        inputs = keras.Input([FEATURES], dtype="float32")
        hidden = layers.Dense(4, "relu", dtype=policy)(inputs)
        hidden = layers.LayerNormalization(dtype=policy)(hidden)
        model = keras.Model(inputs, layers.Dense(CLASSES, dtype="float32")(hidden))
        chosen = optimizer()
        chosen.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def differentiate(x, y, begins_with=None):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
                scaled = chosen.scale_loss(loss)
            return loss, tape.gradient(scaled, model.trainable_variables, begins_with)

        def apply(gradients):
            chosen.apply_gradients(zip(gradients, model.trainable_variables))

        specs = [tf.TensorSpec([None, FEATURES], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "y")]
        variables = {v.path: v for v in [*model.variables, *chosen.variables]}
        return Case(specs, variables, differentiate, apply)

    return make


def scaled_sgd():
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.125), initial_scale=2.0**15, dynamic_growth_steps=2
    )


CASES = {
    **{dtype: plain(dtype) for dtype in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")},
    "mixed_bfloat16": keras_with("mixed_bfloat16", lambda: keras.optimizers.Adam(0.01)),
    "mixed_float16": keras_with("mixed_float16", scaled_sgd),
}


def batches(specs, count=12, steps=6):
    rng = np.random.default_rng(5)

    def values(spec):
        shape = [count if size is None else size for size in spec.shape]
        if spec.dtype.is_integer:
            return rng.integers(0, CLASSES, shape)
        value = rng.normal(size=shape)
        return (value + 1j * rng.normal(size=shape) if spec.dtype.is_complex else value).astype(
            spec.dtype.as_numpy_dtype
        )

    return [tuple(values(spec) for spec in specs) for _ in range(steps)]


def by_micro_batches(make, workers, data):
    """Each worker's part by itself; gradients added in rank order in their own dtype, and divided.

    Those of mixed float16 begin with the worker's share, and are multiplied behind it. A sum of numbers that float16 has
    is made one of these.
    """
    case = make()
    gradients_like = [tf.TensorSpec(v.shape, v.dtype) for v in case.differentiate(*data[0])[1]]
    is_mixed = make is CASES["mixed_float16"]
    begins = [tf.constant(1.0) / tf.constant(float(workers))] if is_mixed else []
    specs = [*case.specs, *([tf.TensorSpec([])] if is_mixed else [])]
    differentiate = tf.function(case.differentiate, input_signature=specs)
    apply = tf.function(lambda *g: case.apply(g), input_signature=gradients_like)
    with serial_functions():
        for batch in data:
            ends = np.cumsum([0, *sizes(len(batch[0]), workers)])
            parts = [differentiate(*(a[i:j] for a in batch), *begins)[1] for i, j in zip(ends[:-1], ends[1:])]
            means = []
            for same in zip(*parts):
                own = [each.numpy() * (np.float32(workers) if is_mixed else 1) for each in same]
                total = own[0]
                for other in own[1:]:
                    total = total + other
                # TensorFlow divides complex numbers in another way than numpy does.
                mean = tf.constant(total) / tf.cast(workers, total.dtype)
                if is_mixed and all(np.array_equal(e, e.numpy().astype(np.float16), equal_nan=True) for e in same):
                    mean = tf.cast(tf.cast(mean, tf.float16), tf.float32)
                means.append(mean)
            apply(*means)
    return {name: np.asarray(v) for name, v in case.variables.items()}


def by_caramel(make, workers, data):
    case = make()
    armodel = caramel.ARModel(caramel.capture(case.step, case.specs), workers)
    with armodel.session(in_process(SERIAL)) as session:
        for batch in data:
            session.step(*batch)
        session.write_back()
    return {name: np.asarray(v) for name, v in case.variables.items()}, armodel


@pytest.mark.parametrize("name, workers", each_once([*CASES], [2, 3]))
def test_bits(name, workers):
    data = batches(CASES[name]().specs)
    before = {k: np.asarray(v) for k, v in CASES[name]().variables.items()}
    want = by_micro_batches(CASES[name], workers, data)
    got, armodel = by_caramel(CASES[name], workers, data)
    for key, value in want.items():
        np.testing.assert_array_equal(got[key], value, err_msg=key)
    assert sum(not np.array_equal(before[k], want[k]) for k in want) >= 4
    if name in ("float16", "bfloat16", "complex64"):
        assert {t.dtype for t in armodel.plan.transfers} == {name}


def test_the_scale_of_mixed_precision_went_down_and_up():
    """The case with float16 begins with a scale at which gradients overflow."""
    case = CASES["mixed_float16"]()
    (name,) = [k for k in case.variables if k.endswith("dynamic_scale")]
    scales = [float(np.asarray(case.variables[name]))]
    for batch in batches(case.specs):
        case.step(*batch)
        scales.append(float(np.asarray(case.variables[name])))
    changes = np.diff(scales)
    assert min(changes) < 0 < max(changes)
