"""Programs as users write them: recurrent, nested, shared, branching models, names and statistics."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from exact_steps import Program, check, fresh
from exact_tf1 import trained_alone
from variants import in_soak, mostly_in_soak

import caramel

v1 = tf.compat.v1
layers = keras.layers
STEPS, FEATURES, CLASSES = 5, 3, 3


def examples(count=12, steps=4, shape=(STEPS, FEATURES), seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, *shape)), rng.integers(0, CLASSES, count)) for _ in range(steps)]


def trained(build, shape=(STEPS, FEATURES), optimizer=lambda: keras.optimizers.Adam(0.01)):
    """A program with a Keras model that ``build`` makes of its input."""

    def make():
        inputs = keras.Input(shape, dtype="float64")
        outputs = layers.Dense(CLASSES, dtype="float64", name="last")(build(inputs))
        model = keras.Model(inputs, outputs)
        chosen = optimizer()
        chosen.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        specs = [tf.TensorSpec([None, *shape], tf.float64, "x"), tf.TensorSpec([None], tf.int64, "y")]
        return Program(step, specs, {v.path: v for v in [*model.variables, *chosen.variables]})

    return make


def nested(x):
    inner = keras.Sequential([layers.Dense(4, "tanh", dtype="float64"), layers.Dense(4, dtype="float64")], name="inner")
    middle_in = keras.Input([STEPS, FEATURES], dtype="float64")
    middle = keras.Model(middle_in, layers.Flatten(dtype="float64")(inner(middle_in)), name="middle")
    return layers.Concatenate(dtype="float64")([middle(x), middle(2.0 * x)])  # shared, too


def attention(x):
    hidden = layers.MultiHeadAttention(2, 4, use_bias=False, dtype="float64")(x, x)
    hidden = layers.LayerNormalization(dtype="float64")(hidden + x)
    return layers.GlobalAveragePooling1D(dtype="float64")(hidden)


MODELS = {
    "lstm": lambda x: layers.LSTM(4, dtype="float64")(x),
    "stacked_gru": lambda x: layers.GRU(3, dtype="float64")(layers.GRU(4, return_sequences=True, dtype="float64")(x)),
    "bidirectional": lambda x: layers.Bidirectional(layers.SimpleRNN(4, dtype="float64"), dtype="float64")(x),
    "nested_and_shared": nested,
    "attention": attention,
}


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("name", mostly_in_soak(list(MODELS), "nested_and_shared"))
def test_keras_model(name, workers):
    check(trained(MODELS[name]), examples(count=13), workers, unmoved=None)


@pytest.mark.soak  # as test_sequences in test_fit_models.py, and test_sentences_of_any_length in test_sparse_exact.py
def test_a_recurrent_model_on_sequences_of_any_length():
    def make():
        program = trained(lambda x: layers.LSTM(4, dtype="float64")(x), (None, FEATURES))()
        return program

    check(make, [*examples(shape=(5, FEATURES)), *examples(shape=(8, FEATURES))], 3, unmoved=None)


# -- control flow of TensorFlow 1 ------------------------------------------------------------


def graph_with_branches():
    """A graph in which v1 branches compute, differentiate through, and update."""
    x = v1.placeholder(tf.float64, [None, 4], "x")
    y = v1.placeholder(tf.float64, [None], "y")
    w = v1.get_variable("w", [4], tf.float64, initializer=v1.constant_initializer([1, -1, 0.5, 2]))
    best = v1.get_variable("best", [4], tf.float64, initializer=v1.zeros_initializer(), trainable=False)
    step = v1.train.get_or_create_global_step()
    even = tf.equal(step % 2, 0)
    scaled = v1.cond(even, lambda: x * tf.tanh(w), lambda: x * w, name="scale")
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(scaled, 1) - y))
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, step)
    with tf.control_dependencies([train]):
        keep = v1.cond(even, lambda: v1.assign(best, w), lambda: tf.identity(best), name="keep")
    assert any(op.type == "Switch" for op in x.graph.get_operations())
    return x, y, loss, v1.group(train, keep, name="whole_step")


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
def test_branches_of_tensorflow_1(workers, old_control_flow):
    rng = np.random.default_rng(1)
    batches = [(rng.normal(size=(12, 4)), rng.normal(size=12)) for _ in range(6)]
    losses, want = trained_alone(graph_with_branches, batches)
    with caramel.capture(loss_reduction="mean") as context:
        *_, context.train_op = graph_with_branches()
    with caramel.ARModel(context, workers).session(in_process()) as session:
        got_losses = [session.step(*batch).loss for batch in batches]
        got = session.values()
    np.testing.assert_allclose(got_losses, losses, rtol=1e-8)
    assert set(got) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-8, err_msg=name)
        assert np.any(value)


# -- names -----------------------------------------------------------------------------------


def test_names_like_the_librarys_own():
    def make():
        w = tf.Variable([1.0, -1.0], dtype=tf.float64, name="caramel/worker_0/step")
        v = tf.Variable([0.5, 2.0], dtype=tf.float64, name="worker_1/caramel.variables/w")
        u = tf.Variable([0.5, 2.0], dtype=tf.float64, name="worker_1/caramel.variables/w")

        def step(x, y):
            with tf.name_scope("caramel/transfer_0/reduce"), tf.GradientTape() as tape:
                with tf.name_scope("worker_0"):
                    error = tf.linalg.matvec(x, w * v + u, name="caramel_gradient") - y
                loss = tf.reduce_mean(tf.square(error), name="save")
            for each, g in zip((w, v, u), tape.gradient(loss, (w, v, u))):
                each.assign_sub(0.1 * g)
            return loss

        specs = [tf.TensorSpec([None, 2], tf.float64, "caramel"), tf.TensorSpec([None], tf.float64, "worker_0")]
        return Program(step, specs, {"w": w, "v": v, "u": u})

    rng = np.random.default_rng(0)
    check(make, [(rng.normal(size=(6, 2)), rng.normal(size=6)) for _ in range(3)], 2)


def test_names_that_differ_only_in_what_an_op_cannot_be_called():
    def make():
        w = tf.Variable([1.0, -1.0], dtype=tf.float64, name="a b")
        v = tf.Variable([0.5, 2.0], dtype=tf.float64, name="a_b")

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) + tf.linalg.matvec(x, v * v) - 1.0))
            for each, g in zip((w, v), tape.gradient(loss, (w, v))):
                each.assign_sub(0.1 * g)
            return loss

        return Program(step, [tf.TensorSpec([None, 2], tf.float64, "x")], {"a b": w, "a_b": v})

    check(make, [(np.random.default_rng(0).normal(size=(6, 2)),) for _ in range(3)], 2)


# -- statistics ------------------------------------------------------------------------------


def with_batch_norm():
    inputs = keras.Input([FEATURES], dtype="float64")
    hidden = layers.BatchNormalization(momentum=0.8, dtype="float64", name="norm")(inputs)
    model = keras.Model(inputs, layers.Dense(CLASSES, dtype="float64")(hidden))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            v.assign_sub(0.1 * g)
        return loss

    return model, step


SPECS = [tf.TensorSpec([None, FEATURES], tf.float64, "x"), tf.TensorSpec([None], tf.int64, "y")]


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
def test_averaged_statistics(workers, tmp_path):
    """Checkpoints and evaluations have the mean of what the workers, each by itself, have seen."""
    batches = examples(shape=(FEATURES,), steps=5)
    held_out = np.random.default_rng(9).normal(size=(4, FEATURES))
    made = {}

    def make():
        made["model"], step = with_batch_norm()
        return Program(step, SPECS, {v.path: v for v in made["model"].variables})

    means = np.zeros([workers, FEATURES])
    variances = np.ones([workers, FEATURES])
    for x, _ in batches:
        for rank, part in enumerate(np.split(x, workers)):
            means[rank] = 0.8 * means[rank] + 0.2 * part.mean(0)
            variances[rank] = 0.8 * variances[rank] + 0.2 * part.var(0)

    program = fresh(make)
    model = made["model"]

    def predict(x):
        return model(x, training=False)

    context = caramel.capture(program.step, SPECS, evaluation=predict, evaluation_inputs=SPECS[:1])
    results = {}
    for statistics in ("local", "mean"):
        with caramel.ARModel(context, workers, statistics=statistics).session(in_process()) as session:
            for batch in batches:
                session.step(*batch)
            session.save(tmp_path / statistics)
            results[statistics] = session.values(), session.evaluate(held_out)
            session.write_back()
            np.testing.assert_allclose(predict(held_out), results[statistics][1], rtol=1e-8)
    local, mean = (results[s][0] for s in ("local", "mean"))
    np.testing.assert_allclose(local["norm/moving_mean"], means[0], rtol=1e-8)
    np.testing.assert_allclose(mean["norm/moving_mean"], means.mean(0), rtol=1e-8)
    np.testing.assert_allclose(mean["norm/moving_variance"], variances.mean(0), rtol=1e-8)
    assert not np.allclose(results["local"][1], results["mean"][1], rtol=1e-4)

    with caramel.ARModel(context, workers, statistics="mean").session(in_process()) as session:
        session.restore(tmp_path / "mean")
        np.testing.assert_allclose(session.values()["norm/moving_mean"], means.mean(0), rtol=1e-8)
    for plan in ((workers, "local"), (workers + 1, "local"), (workers + 1, "mean")):
        with caramel.ARModel(context, plan[0], statistics=plan[1]).session(in_process()) as session:
            session.restore(tmp_path / "mean")
            np.testing.assert_allclose(session.values()["norm/moving_mean"], means.mean(0), rtol=1e-8)


# -- random numbers in functions -------------------------------------------------------------


def test_each_worker_draws_its_own_in_a_loop():
    """Noise that a loop draws with a seeded op of TensorFlow 1: other numbers for every worker, the first's as alone."""

    def make():
        w = tf.Variable(1.0, name="w")

        def step(x):
            noise = tf.zeros([])
            for _ in tf.range(2):
                noise = noise + v1.random_uniform([], seed=3)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x * w))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return {"loss": loss, "noise": noise}

        return step

    armodel = caramel.ARModel(caramel.capture(make(), [tf.TensorSpec([None], name="x")]), 3)
    with armodel.session(in_process()) as session:
        found = [session.step(np.ones(6, np.float32)).outputs["noise"] for _ in range(3)]
    values = np.array(found)
    assert len(np.unique(values)) == values.size
    names = {f.signature.name for f in armodel.graph_def.library.function}
    assert sum(name.endswith("_worker_1") for name in names) == 1
