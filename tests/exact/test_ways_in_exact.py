"""The three ways to capture a program give the same training: a with block, a finished graph, a step function."""

import numpy as np
import pytest
import tensorflow as tf
from exact_common import CLASSES, INPUTS, assert_bits, batches, in_process, serial_config, train

import caramel

v1 = tf.compat.v1
RATE, MOMENTUM = 0.05, 0.9
SHAPES = {"first/kernel": (INPUTS, 8), "first/bias": (8,), "last/kernel": (8, CLASSES), "last/bias": (CLASSES,)}


def initial(name):
    return np.random.default_rng(len(name)).normal(size=SHAPES[name]).astype(np.float32) / 4


def loss_of(variables, x, y):
    hidden = tf.tanh(tf.matmul(x, variables["first/kernel"]) + variables["first/bias"])
    logits = tf.matmul(hidden, variables["last/kernel"]) + variables["last/bias"]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def update(variables, slots, gradients):
    """Momentum by hand, after clipping; the ops that do it."""
    gradients, _ = tf.clip_by_global_norm(gradients, 0.3)
    done = []
    for (name, variable), gradient in zip(variables.items(), gradients):
        velocity = MOMENTUM * slots[name] + gradient
        done += [slots[name].assign(velocity), variable.assign_sub(RATE * velocity)]
    return done


def build():
    """The program in the default graph: its inputs, loss and train_op."""
    x = v1.placeholder(tf.float32, [None, INPUTS], name="x")
    y = v1.placeholder(tf.int64, [None], name="y")
    variables, slots = {}, {}
    for name in SHAPES:
        value = initial(name)
        variables[name] = v1.get_variable(name, initializer=value)
        slots[name] = v1.get_variable(f"{name}/velocity", initializer=np.zeros_like(value), trainable=False)
    loss = loss_of(variables, x, y)
    train_op = tf.group(*update(variables, slots, tf.gradients(loss, list(variables.values()))), name="train")
    return x, y, loss, train_op


def with_block():
    with caramel.capture(train_op="train") as context:
        build()
    return context


def finished_graph():
    graph = tf.Graph()
    with graph.as_default():
        build()
    return caramel.capture(graph, train_op="train")


def finished_graph_with_everything_said():
    graph = tf.Graph()
    with graph.as_default():
        _, _, loss, train_op = build()
    return caramel.capture(graph, loss=loss, train_op=train_op, loss_reduction="mean")


def step_function(wrap=lambda step: step):
    variables = {name: tf.Variable(initial(name), name=name) for name in SHAPES}
    slots = {
        name: tf.Variable(np.zeros_like(initial(name)), trainable=False, name=f"{name}/velocity") for name in SHAPES
    }

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, x, y)
        update(variables, slots, tape.gradient(loss, list(variables.values())))
        return loss

    specs = [tf.TensorSpec([None, INPUTS], tf.float32), tf.TensorSpec([None], tf.int64)]
    return caramel.capture(wrap(step), inputs=specs)


def traced_step_function():
    return step_function(tf.function)


@pytest.fixture(params=[(12, 3), (7, 2)], ids=lambda given: "-".join(map(str, given)), scope="module")
def wanted(request):
    """Batches, the number of workers, and what the with block gives."""
    total, workers = request.param
    data = batches(total, "float32")
    return data, workers, trained(with_block(), workers, data)


def trained(context, workers, data):
    with caramel.ARModel(context, workers).session(in_process()) as session:
        return train(session, data)


@pytest.mark.parametrize(
    "way", [finished_graph, finished_graph_with_everything_said, step_function, traced_step_function]
)
def test_gives_what_the_with_block_gives(way, wanted):
    data, workers, want = wanted
    got = trained(way(), workers, data)
    assert got.worker_losses == want.worker_losses
    assert got.losses == want.losses
    assert set(want.values) == {*SHAPES, *(f"{name}/velocity" for name in SHAPES)}
    assert_bits(got.values, want.values)


def test_the_with_block_gives_what_one_device_gives():
    data = batches(6, "float32")
    got = trained(with_block(), 1, data)
    with tf.Graph().as_default(), v1.Session(config=serial_config()) as session:
        x, y, loss, train_op = build()
        session.run(v1.global_variables_initializer())
        losses = [float(session.run([loss, train_op], {x: batch[0], y: batch[1]})[0]) for batch in data]
        values = {variable.op.name: session.run(variable) for variable in v1.global_variables()}
    assert got.losses == losses
    assert_bits(got.values, values)


@pytest.mark.parametrize("examples", [24, 20])
def test_a_gradient_by_the_examples_is_no_parameters(examples):
    """A finished graph does not say what a gradient is by; a worker's part may have as many rows as a variable."""

    def build():
        rng = np.random.default_rng(0)
        x = v1.placeholder(tf.float64, [None, 4], "x")
        first = v1.get_variable("first", initializer=rng.normal(size=(4, 8)) / 2, use_resource=True)
        second = v1.get_variable("second", initializer=rng.normal(size=(8, 4)) / 2, use_resource=True)

        def error(values):
            return tf.reduce_mean((tf.tanh(values @ first) @ second - x) ** 2)

        moved = tf.stop_gradient(x + 0.3 * tf.sign(tf.gradients(error(x), x)[0]))
        loss = tf.identity(error(moved), name="loss")
        return loss, v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    data = [np.random.default_rng(seed).normal(size=(examples, 4)) + np.arange(4) for seed in range(3)]
    with tf.Graph().as_default(), v1.Session() as session:
        loss, train_op = build()
        session.run(v1.global_variables_initializer())
        want = [session.run([loss, train_op], {"x:0": each})[0] for each in data]
    graph = tf.Graph()
    with graph.as_default():
        build()
    with pytest.raises(caramel.CaptureError, match="the number of examples"):
        _ = caramel.capture(graph, loss="loss:0").model
    with tf.Graph().as_default():
        with caramel.capture(loss="loss:0") as context:
            build()
        armodel = caramel.ARModel(context, 3)
    with armodel.session(in_process()) as session:
        found = [session.step({"x:0": each}).loss for each in data]
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert len(context.model.gradients) == 2
