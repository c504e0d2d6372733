"""Steps whose inputs have a fixed number of examples, or that use it as a number of Python: that is the whole batch's.

On N workers a step is traced for any number of examples, or else for those of a worker's part; it is that of one device
with the whole batch either way, whether arrays are fed or the workers read a dataset.
"""

import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, alone, captured, distributed, fresh, values_of
from variants import in_soak, mostly_in_soak

import caramel
from caramel.frontend.programs.step_inputs import inputs_of

BATCH, STEPS = 12, 3
rng = np.random.default_rng(29)
X = rng.normal(size=(STEPS, BATCH, 4))
Y = rng.normal(size=(STEPS, BATCH, 3))
NUMBERS = rng.normal(size=(20, 3))
FIXED = [tf.TensorSpec([BATCH, 4], tf.float64), tf.TensorSpec([BATCH, 3], tf.float64)]


class Step:
    """What the programs of this module have in common: a linear layer, and variables beside it."""

    def __init__(self):
        start = np.random.default_rng(1)
        self.w = tf.Variable(start.normal(size=(4, 3)), name="w")
        self.rows = tf.Variable(start.normal(size=(20, 3)), name="rows", trainable=False)
        self.place = tf.Variable(0, name="place", trainable=False)
        self.seen = tf.Variable(0.0, dtype=tf.float64, name="seen", trainable=False)

    def loss(self, e, x, y):
        raise NotImplementedError

    def update(self, e, x):
        """What is written beside the parameter."""

    def __call__(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss(x @ self.w - y, x, y)
        self.w.assign_sub(0.05 * tape.gradient(loss, self.w))
        self.update(x @ self.w, x)
        return loss


def mean_of(e):
    return tf.reduce_mean(tf.square(e))


class Plain(Step):
    def loss(self, e, x, y):
        return mean_of(e)


class CutTable(Step):
    def loss(self, e, x, y):
        return mean_of(e - tf.constant(NUMBERS)[: tf.shape(x)[0]])


class RestOfTable(Step):
    def loss(self, e, x, y):
        rest = tf.constant(NUMBERS)[self.number(x) :]
        return mean_of(e) + tf.reduce_mean(tf.square(rest @ tf.transpose(self.w)))

    def number(self, x):
        return tf.shape(x)[0]


class RestByNumber(RestOfTable):
    """Left open, the number is None, and all rows would be the rest."""

    def number(self, x):
        return x.shape[0]


class TakenApart(Step):
    """The common ways to handle sizes that may be known or not."""

    def loss(self, e, x, y):
        batch, width = e.shape
        sizes = [tf.shape(e)[n] if size is None else size for n, size in enumerate(e.shape.as_list())]
        return tf.reduce_mean(tf.square(tf.reshape(e, [*sizes, 1]))) * width + 0.0 * tf.cast(tf.shape(x)[1], e.dtype)


class TableOfBatch(Step):
    def loss(self, e, x, y):
        return mean_of(e - NUMBERS[:BATCH])


class CutByNumber(Step):
    def loss(self, e, x, y):
        return mean_of(e - self.rows[: x.shape[0]])


class OverNumber(Step):
    def loss(self, e, x, y):
        return tf.reduce_sum(tf.square(e)) / x.shape[0]


class InShapes(Step):
    def loss(self, e, x, y):
        ones = tf.ones([x.shape[0], 1], tf.float64)
        return tf.reduce_mean(tf.reduce_sum(tf.reshape(e + ones, [x.shape[0], 3, 1]) ** 2, [1, 2]))


class Queue(Plain):
    def loss(self, e, x, y):
        return mean_of(e) + mean_of(e - tf.reduce_mean(self.rows, 0))

    def number(self, x):
        return tf.shape(x)[0]

    def update(self, e, x):
        places = (self.place + tf.range(self.number(x))) % 20
        self.rows.scatter_nd_update(places[:, None], e)
        self.place.assign((self.place + self.number(x)) % 20)


class QueueByNumber(Queue):
    def number(self, x):
        return x.shape[0]


class Counted(Step):
    """The number of examples so far is in the loss."""

    def loss(self, e, x, y):
        return tf.reduce_sum(tf.square(e)) / x.shape[0] * tf.exp(-0.01 * self.seen)

    def update(self, e, x):
        self.seen.assign_add(tf.cast(x.shape[0], tf.float64))


class RateByCount(Counted):
    def loss(self, e, x, y):
        return mean_of(e) + 0 * x.shape[0]

    def update(self, e, x):
        super().update(e, x)
        self.w.assign(self.w * (1 - 1 / (1 + self.seen)))


def similarities(e):
    return 0.1 * tf.linalg.matmul(e, e, transpose_b=True)


class Gram(Step):
    def loss(self, e, x, y):
        others = 1 - tf.eye(x.shape[0], dtype=tf.float64)
        return mean_of(e) + tf.reduce_sum(similarities(e) * others) / (x.shape[0] * (x.shape[0] - 1))


class Contrastive(Step):
    def loss(self, e, x, y):
        labels = tf.range(x.shape[0])
        return tf.reduce_mean(
            tf.keras.losses.sparse_categorical_crossentropy(labels, similarities(e), from_logits=True)
        )


class ContrastiveOneHot(Step):
    def loss(self, e, x, y):
        labels = tf.one_hot(tf.range(x.shape[0]), x.shape[0], dtype=tf.float64)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, similarities(e)))


class Distances(Step):
    def loss(self, e, x, y):
        return tf.reduce_mean(tf.square(e[:, None] - e[None])) * x.shape[0]


class Attention(Step):
    """A literal mask of the whole batch."""

    def loss(self, e, x, y):
        hidden = 1e9 * (1 - tf.linalg.band_part(tf.ones([BATCH, BATCH], tf.float64), -1, 0))
        return mean_of(tf.nn.softmax(similarities(e) - hidden) @ e - y)


class OneByOne(Step):
    def loss(self, e, x, y):
        def of(number):
            return tf.reduce_sum(e[number] ** 2) * tf.cast(number + 1, tf.float64)

        return tf.reduce_mean(tf.map_fn(of, tf.range(tf.shape(x)[0]), fn_output_signature=tf.float64))


class LiteralAndNumber(Step):
    """The size of the batch as a literal and as a number, in a way that no two sizes tell."""

    def loss(self, e, x, y):
        return tf.reduce_sum(tf.reshape(e, [BATCH, 3]) ** 2) / max(x.shape[0], 8)


STEPS_OF = [
    Attention,
    OneByOne,
    LiteralAndNumber,
    Plain,
    CutTable,
    RestOfTable,
    RestByNumber,
    TakenApart,
    TableOfBatch,
    CutByNumber,
    OverNumber,
    InShapes,
    Queue,
    QueueByNumber,
    Counted,
    RateByCount,
    Gram,
    Contrastive,
    ContrastiveOneHot,
    Distances,
]


def program(kind, specs=FIXED):
    def make():
        step = kind()
        variables = {v.name.split(":")[0]: v for v in (step.w, step.rows, step.place, step.seen)}
        return Program(step, specs, variables)

    return make


def check_equal(got, want, workers):
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12, err_msg=f"losses of {workers} workers")
    for name, theirs in want[1].items():
        np.testing.assert_allclose(got[1][name], theirs, rtol=1e-11, atol=1e-13, err_msg=f"{name}, {workers} workers")


IN_EVERY_RUN = [
    Attention,
    LiteralAndNumber,
    TakenApart,
    CutByNumber,
    QueueByNumber,
    Counted,
    Gram,
    Contrastive,
]


@pytest.mark.parametrize("kind", mostly_in_soak(STEPS_OF, *IN_EVERY_RUN))
def test_fed_and_from_a_dataset(kind):
    make, batches = program(kind), list(zip(X, Y))
    want = alone(make, batches)
    check_equal(distributed(*captured(make), batches, 3), want, 3)
    data = tf.data.Dataset.from_tensor_slices((X, Y))  # each element is a batch
    read = fresh(program(kind))
    with caramel.ARModel(caramel.capture(read.step, data=data), 2).session() as session:
        losses = [result.loss for result in session.run()]
        session.write_back()
    check_equal((losses, values_of(read)), want, 2)


@pytest.mark.parametrize("workers", [1, *in_soak(4)])
def test_an_input_signature(workers):
    make, batches = program(Queue), list(zip(X, Y))
    made = fresh(make)
    context = caramel.capture(tf.function(made.step, input_signature=FIXED))
    check_equal(distributed(made, context, batches, workers), alone(make, batches), workers)


def test_any_number_of_examples_where_the_step_takes_it():
    """A step that does not use the number is not held to it: batches of other sizes are those of an open step."""
    batches = [(X[0], Y[0]), (X[1][:7], Y[1][:7]), (np.concatenate(X[:2]), np.concatenate(Y[:2]))]
    opened = [tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in FIXED]
    want = alone(program(CutTable, opened), batches[:2])
    check_equal(distributed(*captured(program(CutTable)), batches[:2], 3), want, 3)
    for kind in (Plain, TakenApart):
        want = alone(program(kind, opened), batches)
        check_equal(distributed(*captured(program(kind)), batches, 2), want, 2)


def test_what_every_worker_gets_whole_is_no_batch():
    rates = np.array([0.1, 0.2, 0.3])

    def make():
        step = Plain()

        def with_rates(x, y, rates):
            return step(x, y * rates)

        specs = [*FIXED, tf.TensorSpec([3], tf.float64)]
        return Program(with_rates, specs, {"w": step.w}, {"replicated": ["rates"]})

    batches = [(x, y, rates) for x, y in zip(X, Y)]
    check_equal(distributed(*captured(make), batches, 3), alone(make, batches), 3)


@pytest.mark.parametrize(
    "specs, replicated, examples",
    [
        (FIXED, (), BATCH),
        ([FIXED[0], tf.TensorSpec([None, 3], tf.float64)], (), None),
        ([FIXED[0], tf.TensorSpec([], tf.float64)], (), BATCH),
        ([FIXED[0], tf.TensorSpec([3], tf.float64)], (), None),
        ([FIXED[0], tf.TensorSpec([3], tf.float64)], ["y"], BATCH),
        ([FIXED[0], tf.TensorSpec([3], tf.float64, name="rates")], ["rates"], BATCH),
    ],
)
def test_the_number_of_examples_of_specs(specs, replicated, examples):
    found = inputs_of(lambda x, y: None, specs, None, None, replicated)
    assert found.examples == examples
    first = [spec.shape[0] for spec in found.specs if spec.shape.rank]
    assert first[0] == (None if examples else BATCH)


def test_a_batch_that_does_not_divide_and_a_step_that_needs_it():
    made, context = captured(program(OverNumber))
    with pytest.raises(caramel.CaptureError, match="the 12 examples of a batch do not divide between 5 workers"):
        caramel.ARModel(context, 5)
    check_equal(distributed(made, context, [(X[0], Y[0])], 4), alone(program(OverNumber), [(X[0], Y[0])]), 4)
    refused = pytest.raises(caramel.InputError, match="3 examples on each worker, so a step takes 12, not 8")
    with caramel.ARModel(context, 4).session() as session, refused:
        session.step(X[0][:8], Y[0][:8])


def test_a_step_with_ops_for_each_example_says_so():
    class Loop(Step):
        def loss(self, e, x, y):
            return tf.add_n([tf.reduce_sum(tf.square(e[i])) for i in range(x.shape[0])])

    _, context = captured(program(Loop))
    with pytest.raises(caramel.CaptureError, match="makes other ops.* for one number of examples than for another"):
        caramel.ARModel(context, 2)
    check_equal(distributed(*captured(program(Loop)), [(X[0], Y[0])], 1), alone(program(Loop), [(X[0], Y[0])]), 1)


class Swapped(Step):
    def loss(self, e, x, y):
        first, second = (e, tf.tanh(e)) if x.shape[0] > 10 else (tf.tanh(e), e)
        return mean_of(first) + 0.5 * tf.reduce_mean(second**4)


class Spelled(Step):
    def loss(self, e, x, y):
        return mean_of(tf.einsum("ij,kj->ik" if x.shape[0] > 10 else "ij,kj->i", e, self.w))


class Either(Step):
    def loss(self, e, x, y):
        return mean_of(e) if x.shape[0] > 10 else 2 * mean_of(e)


@pytest.mark.parametrize("kind", [Swapped, Spelled, Either])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_step_that_is_another_for_a_part_is_refused(kind, workers):
    _, context = captured(program(kind))
    with pytest.raises(caramel.CaptureError, match="for one number of examples"):
        caramel.ARModel(context, workers)


def test_one_example_on_each_worker():
    batches = [(x[:2], y[:2]) for x, y in zip(X, Y)]
    specs = [tf.TensorSpec([2, *spec.shape[1:]], spec.dtype) for spec in FIXED]
    for kind in (OverNumber, Counted):
        want = alone(program(kind, specs), batches)
        check_equal(distributed(*captured(program(kind, specs)), batches, 2), want, 2)


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_row_for_each_example_in_a_graph_of_a_fixed_batch(is_constant):
    """A finished graph is not traced once more: rows that are each example's own are not those of another part."""
    with caramel.capture() as context:
        x = tf.compat.v1.placeholder(tf.float64, [6, 4], "x")
        w = tf.compat.v1.get_variable("w", [4, 3], tf.float64)
        table = tf.constant(NUMBERS) if is_constant else tf.compat.v1.get_variable("t", [20, 3], tf.float64)
        loss = mean_of(x @ w - table[: x.shape[0]])
        tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with pytest.raises(caramel.CaptureError, match="a row of its own for each example of a part"):
        caramel.ARModel(context, 2)
    assert caramel.ARModel(context, 1).plan.workers == 1


def test_an_input_that_is_said_to_be_replicated_later():
    """Also where the step is traced once more, for the rows of a part."""
    w = tf.Variable(np.ones(4), name="w")
    table = np.arange(12.0).reshape(3, 4)

    def step(x, table):
        with tf.GradientTape() as tape:
            rows = tf.reshape(x, [x.shape[0], 1, 4]) * table[None]
            loss = tf.reduce_mean(tf.linalg.matvec(rows, w) ** 2)
        w.assign_sub(1e-4 * tape.gradient(loss, w))
        return loss

    specs = [tf.TensorSpec([BATCH, 4], tf.float64, "x"), tf.TensorSpec([3, 4], tf.float64, "table")]
    context = caramel.capture(step, specs)
    context.replicated = ["table"]
    want = float(step(tf.constant(X[0]), tf.constant(table)))
    w.assign(np.ones(4))
    with caramel.ARModel(context, 2).session() as session:
        np.testing.assert_allclose(session.step(X[0], table).loss, want)


def test_the_cause_of_a_refusal_is_kept():
    """The place in the user's own code."""

    def step(x, y):
        raise KeyError("of the user")

    with pytest.raises(caramel.CaptureError) as refused:
        caramel.ARModel(caramel.capture(step, FIXED), 2)
    assert isinstance(refused.value.__cause__, KeyError)
