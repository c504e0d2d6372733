"""Evaluations that loop, branch and look values up: what one device that saw the whole batches computes.

The statistics of the program are a moving average of its inputs, so that the mean over workers with equally
many examples is exactly what one device has.
"""

import numpy as np
import pytest
import tensorflow as tf
from exact_common import RTOL, in_process
from variants import in_soak, mostly_in_soak

import caramel

v1 = tf.compat.v1
ROWS, STEPS, WORKERS = 4, 3, 3
INPUT = [tf.TensorSpec([None, ROWS], tf.float64, "x")]


class Program:
    """Linear regression with a moving average of its inputs; rows are looked up, too."""

    def __init__(self):
        self.w = tf.Variable(np.arange(1.0, ROWS + 1), name="w")
        self.seen = tf.Variable(tf.zeros([ROWS], tf.float64), name="seen", trainable=False)

    def step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, self.w) - 1.0))
        self.w.assign_sub(0.01 * tape.gradient(loss, self.w))
        self.seen.assign(0.8 * self.seen + 0.2 * tf.reduce_mean(x, 0))
        return loss

    def loop(self, x):
        """A function of its own for each round, in which variables are read."""
        return tf.map_fn(lambda row: tf.reduce_sum(row * self.w * self.seen), x)

    def lookup(self, x):
        return tf.gather(self.seen, [2, 0]), tf.gather_nd(self.seen, [[1], [3]]), self.seen.read_value()

    def lookup_in_a_loop(self, x):
        """The loop takes the variables' handles and reads by row."""
        total = tf.zeros([], tf.float64)
        for row in tf.range(tf.shape(x)[0]):
            total += tf.gather(self.seen, row) * tf.gather(self.w, row) + self.seen[row + 1]
        return total

    def branch(self, x):
        """An If, and a Case, in a function that is called."""
        return tf.function(lambda x: tf.cond(x[0, 0] > 9.0, lambda: self.w[0], lambda: self.seen[1]))(
            x
        ), tf.switch_case(tf.constant(1), [lambda: self.w[0], lambda: tf.gather(self.seen, 1), lambda: self.seen[2]])


def batches():
    rng = np.random.default_rng(3)
    return [rng.normal(size=(2 * WORKERS, ROWS)) for _ in range(STEPS)]


HELD_OUT = np.random.default_rng(4).normal(size=(3, ROWS))
WHAT = ["loop", "lookup", "lookup_in_a_loop", "branch"]


@pytest.fixture(scope="module")
def device():
    """The program after its training on one device."""
    program = Program()
    for x in batches():
        program.step(tf.constant(x))
    return program


def check(got, want):
    got, want = tf.nest.flatten(got), tf.nest.flatten(want)
    assert len(got) == len(want)
    for mine, theirs in zip(got, want):
        np.testing.assert_allclose(mine, theirs, rtol=RTOL)


@pytest.mark.parametrize("what", mostly_in_soak(WHAT, "lookup_in_a_loop", "branch"))
def test_a_declared_evaluation(what, device):
    program = Program()
    context = caramel.capture(program.step, INPUT, evaluation=getattr(program, what), evaluation_inputs=INPUT)
    with caramel.ARModel(context, WORKERS, statistics="mean").session(in_process()) as session:
        early = session.evaluate(HELD_OUT)
        for x in batches():
            session.step(x)
        check(session.evaluate(HELD_OUT), getattr(device, what)(tf.constant(HELD_OUT)))
        with pytest.raises(AssertionError):  # the values are those of now
            check(session.evaluate(HELD_OUT), early)


@pytest.fixture(scope="module")
def session():
    """A session after the same training."""
    program = Program()
    context = caramel.capture(program.step, INPUT)
    with caramel.ARModel(context, WORKERS, statistics="mean").session(in_process()) as session:
        for x in batches():
            session.step(x)
        yield program, session


@pytest.mark.parametrize("what", [*WHAT, "loop"])
def test_an_evaluation_that_is_added_to_a_running_graph(what, device, session):
    program, running = session
    function = tf.function(getattr(program, what), input_signature=INPUT)
    check(running.evaluate(HELD_OUT, fetches=function), getattr(device, what)(tf.constant(HELD_OUT)))
    running.values()  # the variables and the graph are still in order


@pytest.mark.slow
@pytest.mark.processes
def test_an_evaluation_that_is_added_in_processes(device):
    program = Program()
    context = caramel.capture(program.step, INPUT, evaluation=program.loop, evaluation_inputs=INPUT)
    armodel = caramel.ARModel(context, WORKERS, statistics="mean")
    with armodel.session(caramel.LocalProcesses()) as session:
        for x in batches():
            session.step(x)
        check(session.evaluate(HELD_OUT), device.loop(tf.constant(HELD_OUT)))
        for what in WHAT[1:]:
            function = tf.function(getattr(program, what), input_signature=INPUT)
            check(session.evaluate(HELD_OUT, fetches=function), getattr(device, what)(tf.constant(HELD_OUT)))


@pytest.mark.parametrize("layer", ["LSTM", *in_soak("GRU")])
def test_a_recurrent_model(layer):
    """Keras' own loop over time, which differs between training and prediction."""
    tf.keras.utils.set_random_seed(3)
    model = tf.keras.Sequential([tf.keras.Input((5, 2)), getattr(tf.keras.layers, layer)(3), tf.keras.layers.Dense(1)])

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)[:, 0] - y))
        for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            variable.assign_sub(0.1 * gradient)
        return loss

    inputs = [tf.TensorSpec([None, 5, 2]), tf.TensorSpec([None])]
    predict = tf.function(lambda x: model(x, training=False), input_signature=inputs[:1])
    x, y = np.random.default_rng(1).normal(size=(6, 5, 2)).astype(np.float32), np.ones(6, np.float32)
    with caramel.ARModel(caramel.capture(step, inputs), 2).session(in_process()) as session:
        session.step(x, y)
        got = session.evaluate(x, fetches=predict)
        session.write_back()
    np.testing.assert_allclose(got, predict(x), rtol=1e-5)


# -- graphs ----------------------------------------------------------------------------------


def build():
    x = v1.placeholder(tf.float64, [None, ROWS], "x")
    w = v1.get_variable("w", [ROWS], tf.float64, v1.ones_initializer(), use_resource=True)
    seen = v1.get_variable("seen", [ROWS], tf.float64, v1.zeros_initializer(), trainable=False, use_resource=True)
    loss = tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - 1.0))
    with tf.control_dependencies([seen.assign(0.8 * seen + 0.2 * tf.reduce_mean(x, 0))]):
        train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
    return x, w, seen, train_op


def fetched(x, w, seen):
    """What to fetch: a lookup, and a loop that looks up."""
    _, total = tf.while_loop(
        lambda row, total: row < tf.shape(x)[0],
        lambda row, total: (row + 1, total + tf.gather(seen, row) * tf.gather(w, row)),
        (tf.constant(0), tf.zeros([], tf.float64)),
    )
    return [tf.gather(seen, [1, 2]), total, tf.map_fn(lambda row: tf.reduce_sum(row * seen), x)]


def test_a_graph_that_is_built_on_after_its_capture():
    """The functions of its loops are not in the graph that trains."""
    with tf.Graph().as_default(), v1.Session() as device:
        x, w, seen, train_op = build()
        wanted = fetched(x, w, seen)
        device.run(v1.global_variables_initializer())
        for batch in batches():
            device.run(train_op, {x: batch})
        want = device.run(wanted, {x: HELD_OUT})
    with caramel.capture() as context:
        x, w, seen, _ = build()
    with caramel.ARModel(context, WORKERS, statistics="mean").session(in_process()) as session:
        for batch in batches():
            session.step(batch)
        with context.graph.as_default():
            wanted = fetched(x, w, seen)
        check(session.evaluate(HELD_OUT, fetches=wanted), want)


def test_a_refused_evaluation_leaves_nothing_behind():
    program, other = Program(), tf.Variable(np.ones(ROWS), name="other")
    late = tf.function(lambda x: tf.reduce_sum(x * other), input_signature=INPUT)
    known = tf.function(lambda x: tf.reduce_sum(x * program.seen), input_signature=INPUT)
    context = caramel.capture(program.step, INPUT)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        session.evaluate(HELD_OUT, fetches=known)
        for _ in range(2):
            with pytest.raises(caramel.CaptureError, match="variable 'other', which the captured program does not"):
                session.evaluate(HELD_OUT, fetches=late)
        session.evaluate(HELD_OUT, fetches=known)
        session.evaluate(HELD_OUT, fetches=tf.function(program.loop, input_signature=INPUT))
        session.write_back()
    assert set(context.live_variables) == {"w", "seen"}


# -- what an evaluation must not change ------------------------------------------------------


def test_what_only_worker_0_has_may_be_written():
    """A metric that only the evaluation uses."""
    program, count = Program(), tf.Variable(0, name="count")

    def counting(x):
        return count.assign_add(1), tf.reduce_sum(program.w)

    context = caramel.capture(program.step, INPUT, evaluation=counting, evaluation_inputs=INPUT)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        assert [int(session.evaluate(HELD_OUT)[0]) for _ in range(3)] == [1, 2, 3]


def test_what_each_worker_has_for_itself_may_be_written():
    """Worker 0 goes on with another value than the others anyway."""
    program, largest = Program(), tf.Variable(tf.zeros([ROWS], tf.float64), name="largest", trainable=False)

    def step(x):
        largest.assign(tf.maximum(largest, tf.reduce_max(x, 0)))
        return program.step(x)

    def writing(x):
        largest.assign(x[0])
        return tf.reduce_sum(program.w)

    context = caramel.capture(step, INPUT, evaluation=writing, evaluation_inputs=INPUT)
    caramel.ARModel(context, 2)
    with pytest.raises(caramel.UnsupportedError, match=r"evaluation writes .*'largest'"):
        caramel.ARModel(context, 2, statistics="mean")


@pytest.mark.parametrize("statistics", ["local", "mean"])
@pytest.mark.parametrize("which", ["w", "seen"])
def test_what_all_workers_have_must_not_be_written(which, statistics):
    """Worker 0 would go on with another value than the others."""
    program = Program()

    def writing(x):
        tf.cond(x[0, 0] > 9.0, lambda: x[0], lambda: getattr(program, which).assign(x[0]))
        return tf.reduce_sum(program.w)

    context = caramel.capture(program.step, INPUT, evaluation=writing, evaluation_inputs=INPUT)
    caramel.ARModel(context, 1, statistics=statistics)
    with pytest.raises(caramel.UnsupportedError, match=rf"evaluation writes .*'{which}'.*Session\.assign"):
        caramel.ARModel(context, 2, statistics=statistics)
    late = caramel.capture(program.step, INPUT)
    with caramel.ARModel(late, 2, statistics=statistics).session(in_process()) as session:
        with pytest.raises(caramel.UnsupportedError, match=f"evaluation writes .*'{which}'"):
            session.evaluate(HELD_OUT, fetches=tf.function(writing, input_signature=INPUT))
        session.step(batches()[0])
