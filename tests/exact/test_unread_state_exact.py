"""State that a step keeps of its examples, and that no loss reads: that of one device, whatever writes it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import mostly_in_soak

import caramel
from caramel.frontend.roles import whole_batch
from caramel.model import VariableClass

RNG = np.random.default_rng(0)
X = RNG.normal(size=(59, 6))
Y = RNG.integers(0, 4, 59)
BATCHES = [(X[start : start + 20], Y[start : start + 20]) for start in range(0, 59, 20)]
SPECS = [tf.TensorSpec([None, 6], tf.float64), tf.TensorSpec([None], tf.int64)]


def ones(y):
    return tf.ones_like(y, tf.float64)


COUNTS = {
    "counts up to the largest": lambda c, x, y: c.assign_add(tf.math.bincount(y, minlength=4, dtype=tf.float64)),
    "counts as integers": lambda c, x, y: c.assign_add(tf.cast(tf.math.bincount(y, minlength=4), tf.float64)),
    "rows added": lambda c, x, y: c.scatter_nd_add(y[:, None], ones(y)),
    "slices added": lambda c, x, y: c.scatter_add(tf.IndexedSlices(ones(y), y)),
    "values added at places": lambda c, x, y: c.assign(tf.tensor_scatter_nd_add(c, y[:, None], x[:, 0])),
    "added to zeros": lambda c, x, y: c.assign_add(
        tf.tensor_scatter_nd_add(tf.zeros([4], tf.float64), y[:, None], x[:, 1])
    ),
}

MEANS = {
    "moving mean": lambda c, x, y: c.assign(0.9 * c + 0.1 * tf.reduce_mean(x[:, :4], 0)),
    "deviation": lambda c, x, y: c.assign(tf.math.reduce_std(x[:, :4], 0)),
    "last mean": lambda c, x, y: c.assign(tf.reduce_mean(tf.abs(x[:, :4]), 0)),
}


def trained(update, workers):
    """The state after some steps, and the model; of one device without workers."""
    weight, state = tf.Variable(tf.ones([6], tf.float64), name="w"), tf.Variable(tf.zeros([4], tf.float64), name="c")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weight) - tf.cast(y, tf.float64)) ** 2)
        update(state, x, y)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    if workers == 0:
        for x, y in BATCHES:
            step(tf.constant(x), tf.constant(y))
        return state.numpy(), None
    armodel = caramel.ARModel(caramel.capture(step, SPECS), workers)
    with armodel.session() as session:
        session.run(BATCHES, progress=False)
        session.write_back()
    return state.numpy(), armodel


@pytest.mark.parametrize(
    "name", mostly_in_soak([*COUNTS, *MEANS], "counts up to the largest", "rows added", "deviation")
)
def test_state_is_that_of_one_device(name):
    update = {**COUNTS, **MEANS}[name]
    want, _ = trained(update, 0)
    assert np.any(want)
    for workers in (1, 3):
        found, armodel = trained(update, workers)
        np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)
    kind = armodel.model.variable_by_name["c"].kind
    assert kind is (VariableClass.TOTAL if name in COUNTS else VariableClass.HYPERPARAMETER)


NORMALISED = {
    "rows": ([6], {}),
    "images": ([3, 3, 2], {}),
    "axis by number": ([3, 3, 2], {"axis": 3}),
    "channels first": ([2, 3, 3], {"axis": 1}),
    "float16": ([3, 3, 2], {"axis": 3, "dtype": "mixed_float16"}),
}
"""Shape of an example, and arguments of the layer, whose moments go into the normalisation as they are or reshaped."""


@pytest.mark.parametrize("name", NORMALISED)
def test_what_batch_normalisation_keeps_stays_each_workers(name):
    """Also where another variable has a mean that is that of one device."""
    shape, arguments = NORMALISED[name]
    normalise = keras.layers.BatchNormalization(**arguments)
    network = keras.Sequential([keras.Input(shape), normalise, keras.layers.Flatten(), keras.layers.Dense(1)])
    state = tf.Variable(tf.zeros([]), name="c")

    def step(x):
        with tf.GradientTape() as tape:
            outputs = network(x, training=True)
            loss = tf.reduce_mean(outputs**2)
        for variable, gradient in zip(network.trainable_variables, tape.gradient(loss, network.trainable_variables)):
            variable.assign_sub(0.1 * gradient)
        state.assign(tf.reduce_mean(x))
        return loss

    model = caramel.capture(step, [tf.TensorSpec([None, *network.input_shape[1:]])]).model_for(2)
    kinds = {v.name.rpartition("/")[2]: v.kind for v in model.variables}
    assert kinds["moving_mean"] is kinds["moving_variance"] is VariableClass.STATISTICS
    assert kinds["c"] is VariableClass.HYPERPARAMETER and len(model.forward_sums) == 1
    assert not any("keeps its own" in note for note in model.notes)


LARGEST = {
    "largest": lambda c, x, y: c.assign(tf.maximum(c, tf.reduce_max(x[:, :4], 0))),
    "last examples": lambda c, x, y: c.assign(tf.concat([c, x[:, 0]], 0)[-4:]),
}


@pytest.mark.parametrize("name", LARGEST)
def test_what_stays_each_workers_is_said(name):
    _, armodel = trained(LARGEST[name], 2)
    assert armodel.model.variable_by_name["c"].kind is VariableClass.STATISTICS
    assert any("each worker keeps its own value of c:" in note for note in armodel.plan.notes)


def test_many_variables_are_found_together(monkeypatch):
    """Also beside some that stay each worker's: the program is analysed a few times, and not for each of them."""
    weight = tf.Variable(tf.ones([6], tf.float64), name="w")
    means = [tf.Variable(tf.zeros([4], tf.float64), name=f"mean_{n}") for n in range(12)]
    others = [tf.Variable(tf.zeros([4], tf.float64), name=f"other_{n}") for n in range(6)]

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weight) - tf.cast(y, tf.float64)) ** 2)
        for number, state in enumerate(means):
            state.assign(0.9 * state + tf.reduce_mean((number + x[:, :4]) ** 2, 0))
        for number, state in enumerate(others):
            list(LARGEST.values())[number % 2](state, x + number, y)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    def state_of(workers):
        for variable in (*means, *others):
            variable.assign(tf.zeros([4], tf.float64))
        weight.assign(tf.ones([6], tf.float64))
        if workers == 0:
            for x, y in BATCHES:
                step(tf.constant(x), tf.constant(y))
            return [mean.numpy() for mean in means]
        analysed = []
        analyse = whole_batch.reductions_of
        monkeypatch.setattr(whole_batch, "reductions_of", lambda *given: analysed.append(0) or analyse(*given))
        armodel = caramel.ARModel(caramel.capture(step, SPECS), workers)
        assert len(analysed) < 8
        kinds = {v.name: v.kind for v in armodel.model.variables}
        assert {kinds[v.name.split(":")[0]] for v in means} == {VariableClass.HYPERPARAMETER}
        assert {kinds[v.name.split(":")[0]] for v in others} == {VariableClass.STATISTICS}
        with armodel.session() as session:
            session.run(BATCHES, progress=False)
            session.write_back()
        return [mean.numpy() for mean in means]

    np.testing.assert_allclose(state_of(3), state_of(0), rtol=1e-10)


@pytest.mark.parametrize("shape", [2, 3])
def test_a_number_of_steps_that_is_a_seed_too(shape):
    """It is the same on all workers, as a loss follows from it; so is what they draw, and the plan says so."""
    weight = tf.Variable(tf.ones([6], tf.float64), name="w")
    count = tf.Variable(tf.zeros([shape], tf.int32), name="count")

    def step(x, y):
        noise = 0.0 * tf.random.stateless_normal(tf.shape(x), count[:2], dtype=tf.float64)
        with tf.GradientTape() as tape:
            values = tf.linalg.matvec(x + noise, weight)
            annealed = tf.cast(tf.minimum(1.0, 0.2 * tf.cast(count[0], tf.float32)), tf.float64)
            loss = tf.reduce_mean((values - tf.cast(y, tf.float64)) ** 2) + annealed * tf.reduce_mean(values**2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        count.assign_add([1, *[0] * (shape - 1)])
        return loss

    context = caramel.capture(step, SPECS)
    armodel = caramel.ARModel(context, 3)
    with armodel.session() as session:
        found = [result.loss for result in session.run(BATCHES, progress=False)]
    want = [float(step(tf.constant(x), tf.constant(y))) for x, y in BATCHES]
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert armodel.model.variable_by_name["count"].kind is VariableClass.HYPERPARAMETER
    assert any("draw the same numbers on every worker" in note for note in armodel.plan.notes)


def test_a_seed_that_nothing_else_follows_from_is_each_workers():
    weight = tf.Variable(tf.ones([6], tf.float64), name="w")
    seed = tf.Variable([1, 2], name="seed", dtype=tf.int32)

    def step(x, y):
        with tf.GradientTape() as tape:
            noise = tf.random.stateless_normal(tf.shape(x), seed, dtype=tf.float64)
            loss = tf.reduce_mean((tf.linalg.matvec(x + noise, weight) - tf.cast(y, tf.float64)) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        seed.assign_add([1, 0])
        return loss

    model = caramel.capture(step, SPECS).model_for(2)
    assert model.variable_by_name["seed"].kind is VariableClass.RANDOM_STATE
