"""Sparse gradients: N workers equal one device, and nothing is made dense."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, check
from variants import each_once, in_soak, mostly_in_soak

v1 = tf.compat.v1
ROWS, WIDTH = 11, 3
SPECS = [tf.TensorSpec([None, 2], tf.int32, "rows"), tf.TensorSpec([None], tf.float64, "y")]


def examples(count=12, steps=6, seed=3):
    """Few rows, so that examples of one worker, and of several, share them."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, ROWS - 1, (count, 2)).astype(np.int32), rng.normal(size=count)) for _ in range(steps)]


def table_of(shape=(ROWS, WIDTH), name="table"):
    return tf.Variable(np.random.default_rng(1).normal(size=shape), name=name, dtype=tf.float64)


def loss_of(table, rows, y):
    return tf.reduce_mean(tf.square(tf.reduce_sum(tf.gather(table, rows), [1, 2]) - y))


def scattered():
    table = table_of()

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, y)
        g = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
        return loss

    return Program(step, SPECS, {"table": table})


def made_dense_by_the_user():
    table = table_of()

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, y)
        table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
        return loss

    return Program(step, SPECS, {"table": table})


def clipped():
    table, w = table_of(), tf.Variable(1.5, dtype=tf.float64, name="w")

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, w * y)
        (g, h), _ = tf.clip_by_global_norm(tape.gradient(loss, (table, w)), 1.0)
        table.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
        w.assign_sub(0.1 * h)
        return loss

    return Program(step, SPECS, {"table": table, "w": w})


def sparse_and_dense():
    """One parameter that is looked up and multiplied by: TensorFlow adds both gradients up."""
    table = table_of()

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, y) + 0.01 * tf.reduce_mean(tf.square(y[:, None, None] * table))
        g = tape.gradient(loss, table)
        table.assign_sub(0.1 * tf.convert_to_tensor(g))
        return loss

    return Program(step, SPECS, {"table": table})


def sparse_and_dense_apart():
    """Two losses, two gradients of one parameter: one sparse, one dense."""
    table = table_of()

    def step(rows, y):
        with tf.GradientTape(persistent=True) as tape:
            first = loss_of(table, rows, y)
            second = 0.01 * tf.reduce_mean(tf.square(y[:, None, None] * table))
        g, h = tape.gradient(first, table), tape.gradient(second, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
        table.assign_sub(0.1 * h)
        return first

    return Program(step, SPECS, {"table": table}, {"loss": "output"})


def in_a_function():
    table = table_of()

    @tf.function
    def differentiate(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, y)
        return loss, tape.gradient(loss, table)

    def step(rows, y):
        loss, g = differentiate(rows, y)
        table.scatter_sub(tf.IndexedSlices(0.1 * g.values, g.indices))
        return loss

    return Program(step, SPECS, {"table": table})


def looked_up_in_a_function():
    table = table_of()
    look_up = tf.function(lambda rows: tf.gather(table, rows))

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(look_up(rows), [1, 2]) - y))
        g = tape.gradient(loss, table)
        table.assign_sub(0.1 * tf.convert_to_tensor(g))
        return loss

    return Program(step, SPECS, {"table": table})


def keras_with(optimizer):
    def make():
        layers = keras.layers
        rows = keras.Input([2], dtype="int32")
        hidden = layers.Embedding(ROWS, WIDTH, dtype="float64", name="embedding")(rows)
        hidden = layers.Flatten(dtype="float64")(hidden)
        outputs = layers.Dense(1, dtype="float64", name="dense")(hidden)
        model = keras.Model(rows, outputs)
        chosen = optimizer()
        chosen.build(model.trainable_variables)

        def step(rows, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(rows, training=True)[:, 0] - y))
            chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        return Program(step, SPECS, {v.path: v for v in [*model.variables, *chosen.variables]})

    return make


def only_its_values():
    """A norm for which the rows do not matter."""
    table, w = table_of(), tf.Variable(1.5, dtype=tf.float64, name="w")

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, w * y)
        g, h = tape.gradient(loss, (table, w))
        table.assign(0.9 * table)
        w.assign_sub(0.1 * h / (1.0 + tf.norm(g.values)))
        return loss

    return Program(step, SPECS, {"table": table, "w": w})


PROGRAMS = {
    f.__name__: f
    for f in (
        only_its_values,
        scattered,
        made_dense_by_the_user,
        clipped,
        sparse_and_dense,
        sparse_and_dense_apart,
        in_a_function,
        looked_up_in_a_function,
    )
}
KERAS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "clipped": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
}


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_a_step_with(make, workers):
    """On even batches, then on uneven ones."""
    check(make, [*examples(), *examples(count=7)], workers)


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("optimizer", mostly_in_soak(list(KERAS), "adam", "clipped"))
def test_an_embedding_in_keras_with(optimizer, workers):
    check(keras_with(KERAS[optimizer]), examples(), workers)


def test_nothing_is_made_dense():
    armodel = check(scattered, examples(), 3)
    (transfer,) = armodel.plan.transfers
    assert (transfer.algorithm, transfer.size_bytes) == ("all_gather", None)
    assert "all_gather" in armodel.plan.table() and "sparse" in armodel.plan.table()
    assert "rows of all workers" in armodel.plan.explain("table")
    made = [n.op for n in armodel.graph_def.node if n.name.startswith("caramel/transfer")]
    assert set(made) <= {"ConcatV2", "Const", "RealDiv", "Identity", "PlaceholderWithDefault"}


# -- rows that no example chooses ----------------------------------------------------------------

WORDS, PLACES = 13, 6


class Embedded(keras.layers.Layer):
    """The vector of a word plus that of its place; places are ``rows(x)``."""

    def __init__(self, rows, tables=2):
        super().__init__(dtype="float64")
        self.words = keras.layers.Embedding(WORDS, WIDTH, dtype="float64", name="words")
        self.places = (
            self.words if tables == 1 else keras.layers.Embedding(WORDS, WIDTH, dtype="float64", name="places")
        )
        self.rows = rows

    def call(self, x):
        return self.words(x) + self.places(self.rows(x))


ROWS_OF_PLACES = {
    "constant": lambda x: keras.ops.arange(PLACES),
    "twice the same": lambda x: keras.ops.arange(PLACES) // 2,
    "as many as a sentence is long": lambda x: tf.range(tf.shape(x)[1]),
    "one for each example": lambda x: tf.zeros_like(x) + tf.range(PLACES),
}
"""Rows to look up, by a word for them; of these no example chooses any, but in the last each has slices of its own."""


def sentences(lengths=(PLACES,) * 4, count=12, seed=5):
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, WORDS, (count, n)).astype(np.int32), rng.normal(size=count)) for n in lengths]


def with_places(optimizer, rows, tables=2, length=PLACES):
    def make():
        sentence = keras.Input([length], dtype="int32")
        hidden = keras.ops.tanh(Embedded(rows, tables)(sentence))
        hidden = keras.layers.GlobalAveragePooling1D(dtype="float64")(hidden)
        model = keras.Model(sentence, keras.layers.Dense(1, bias_initializer="ones", dtype="float64")(hidden))
        chosen = optimizer()
        chosen.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True)[:, 0] - y))
            chosen.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
            return loss

        specs = [tf.TensorSpec([None, length], tf.int32), tf.TensorSpec([None], tf.float64)]
        return Program(step, specs, {v.path: v for v in [*model.variables, *chosen.variables]})

    return make


NOT_LINEAR_IN_SLICES = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05),
    "adamax": lambda: keras.optimizers.Adamax(0.05),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lamb": lambda: keras.optimizers.Lamb(0.05),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.01),
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.001),
    "global clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.01),
}


@pytest.mark.parametrize("optimizer", mostly_in_soak(list(NOT_LINEAR_IN_SLICES), "adafactor", "global clipnorm"))
def test_rows_that_no_example_chooses_are_added_up_for(optimizer):
    """On even batches, then on uneven ones."""
    make = with_places(NOT_LINEAR_IN_SLICES[optimizer], ROWS_OF_PLACES["constant"])
    unused = ("bias",) if optimizer == "adafactor" else ()  # it keeps no rows and columns of a vector's squares
    armodel = check(make, [*sentences(), *sentences(count=7)], 3, unmoved=unused)
    gradients = armodel.model.gradients
    assert [g.shape for g in gradients if not g.is_sparse and len(g.shape) == 2] == [(PLACES, WIDTH), (WIDTH, 1)]
    assert [(g.shape, g.shared_rows) for g in gradients if g.is_sparse] == [((WORDS, WIDTH), False)]


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("rows, tables", each_once(list(ROWS_OF_PLACES), [1, 2]))
def test_rows_of_every_kind_in_adam(rows, tables, workers):
    """In a table of their own, or in that of the words: then one gradient has slices of both kinds."""
    check(with_places(NOT_LINEAR_IN_SLICES["adam"], ROWS_OF_PLACES[rows], tables), sentences(), workers)


@pytest.mark.parametrize("tables", [*in_soak(1), 2])
def test_sentences_of_any_length(tables):
    make = with_places(NOT_LINEAR_IN_SLICES["adam"], lambda x: tf.range(tf.shape(x)[1]), tables, length=None)
    armodel = check(make, sentences(lengths=(3, 6, 2, 5)), [2, 3, 5])
    assert [g.shared_rows for g in armodel.model.gradients if g.is_sparse].count(True) == 1


def counted():
    """What is not a sum of slices: how often a row was there, and the mean of their squares."""
    table, counts = table_of(), tf.Variable(tf.zeros([ROWS], tf.float64), name="counts", trainable=False)

    def step(rows, y):
        with tf.GradientTape() as tape:
            loss = loss_of(table, rows, y)
        g = tape.gradient(loss, table)
        counts.scatter_add(tf.IndexedSlices(tf.ones_like(g.values[:, 0]), g.indices))
        size = tf.sqrt(tf.reduce_mean(tf.square(g.values)) + 1e-3)
        rates = 0.1 / tf.gather(counts, g.indices)[:, None]
        table.scatter_sub(tf.IndexedSlices(rates * g.values / size, g.indices))
        return loss

    return Program(step, SPECS, {"table": table, "counts": counts})


@pytest.mark.parametrize("options", [{}, {"servers": 1}, {"servers": 2}], ids=["gathered", "server", "servers"])
def test_workers_without_examples_have_no_slices(options):
    """Each computes with an example that is not its own, whose rows would be there once more."""
    batches = [examples(count, steps=1, seed=count)[0] for count in (7, 2, 3, 1, 5)]
    check(counted, batches, 4, **options)
