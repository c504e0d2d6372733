"""Classes of variables, and programs whose replicas would drift apart."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.errors import UnsupportedError

v1 = tf.compat.v1
PARAMETER, SLOT = "parameter", "optimizer slot"
HYPER, STATISTICS, RANDOM = "hyperparameter or counter", "statistics", "random state"


def classes(context):
    return {v.name: v.kind.value for v in context.model.variables}


def graph_context(build, **options):
    with caramel.capture(**options) as context:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        build(x)
    return context


def weights(shape=(3, 1), name="w"):
    return v1.get_variable(name, shape, initializer=v1.zeros_initializer())


def test_tf1_adam_with_everything():
    def build(x):
        w = weights()
        unused = weights((2,), "unused")
        mean = v1.get_variable("mean", [3], trainable=False, initializer=v1.zeros_initializer())
        v1.get_variable("frozen", [2], trainable=False, initializer=v1.zeros_initializer())
        step = v1.train.get_or_create_global_step()
        update = mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        loss = tf.reduce_mean(tf.square(tf.matmul(x - mean, w) - 1.0))
        average = tf.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies([update]):
            train = v1.train.AdamOptimizer(v1.train.exponential_decay(0.1, step, 10, 0.9)).minimize(loss, step)
        with tf.control_dependencies([train]):
            v1.add_to_collection("ema", average.apply([w]))
        return unused

    context = graph_context(build, loss_reduction="mean")  # each worker has a "mean" of its own
    context.train_op = context.graph.get_collection("ema")[0]
    found = classes(context)
    assert found == {
        "w": PARAMETER,
        "unused": PARAMETER,
        "mean": STATISTICS,
        "frozen": HYPER,
        "global_step": HYPER,
        "beta1_power": HYPER,
        "beta2_power": HYPER,
        "w/Adam": SLOT,
        "w/Adam_1": SLOT,
        "w/ExponentialMovingAverage": SLOT,
    }


def test_integer_step_that_is_trainable_by_default_is_a_counter():
    def build(x):
        step = tf.Variable(0, name="step")  # trainable is the default
        loss = tf.reduce_mean(tf.matmul(x, weights()))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)

    assert classes(graph_context(build))["step"] == HYPER


def test_two_strings_are_no_seed():
    def build(x):
        names = v1.get_variable("names", initializer=["a", "b"], trainable=False)
        with tf.control_dependencies([names.assign(names + "c")]):
            loss = tf.reduce_mean(tf.matmul(x, weights()))
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    found = classes(graph_context(build))
    assert found == {"w": PARAMETER, "names": HYPER}


def test_a_loop_that_only_reads_a_parameter_makes_no_slot():
    w, b = (tf.Variable(tf.ones([3]), name=name) for name in "wb")
    largest = tf.Variable(0.0, name="largest", trainable=False)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w + b, 1) - 1.0))
        for v, g in zip((w, b), tape.gradient(loss, (w, b))):
            v.assign_sub(0.1 * g)
        for number in tf.range(3):
            largest.assign(tf.maximum(largest, w[number] + b[number]))

    context = caramel.capture(step, [tf.TensorSpec([None, 3])])
    assert classes(context) == {"w": PARAMETER, "b": PARAMETER, "largest": HYPER}


def test_keras_with_batch_normalisation_and_dropout():
    layers = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    found = classes(caramel.capture(step, [tf.TensorSpec([None, 3])]))
    by_kind = {
        kind: sorted(n.rpartition("/")[2] for n, k in found.items() if k == kind) for kind in set(found.values())
    }
    assert by_kind[PARAMETER] == ["beta", "bias", "bias", "gamma", "kernel", "kernel"]
    assert by_kind[STATISTICS] == ["moving_mean", "moving_variance"]
    assert by_kind[RANDOM] == ["seed_generator_state"]
    assert by_kind[HYPER] == ["iteration", "learning_rate"]
    assert len(by_kind[SLOT]) == 12


def test_generator_state_is_random_state():
    generator = tf.random.Generator.from_seed(3)
    w = tf.Variable(np.zeros((3, 1), np.float32), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x + generator.normal(tf.shape(x)), w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    found = classes(caramel.capture(step, [tf.TensorSpec([None, 3])]))
    assert found == {"w": PARAMETER, "StateVar": RANDOM}


def test_a_counter_used_as_a_seed_stays_a_counter():
    w = tf.Variable(np.zeros((3, 1), np.float32), name="w")
    count = tf.Variable(0, trainable=False, name="count")

    def step(x):
        noise = tf.random.stateless_normal(tf.shape(x), seed=tf.stack([1, count.assign_add(1)]))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.matmul(x + noise, w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    assert classes(caramel.capture(step, [tf.TensorSpec([None, 3])])) == {"w": PARAMETER, "count": HYPER}


DRIFTING = {
    "learning rate from the local examples": lambda x, loss, g: 0.1 * tf.reduce_max(x) * g,
    "noise added to the gradient": lambda x, loss, g: g + tf.random.normal(tf.shape(g), seed=1),
    "scaled by an example": lambda x, loss, g: g * x[0, 0],
    "not a gradient at all": lambda x, loss, g: g + x[0, 0],
}


@pytest.mark.parametrize("name", DRIFTING)
def test_updates_from_local_values_are_refused(name):
    def build(x):
        w = weights()
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        (gradient,) = tf.gradients(loss, [w])
        train = w.assign_sub(0.1 * DRIFTING[name](x, loss, gradient), name="drift")
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, train.op)

    with pytest.raises(UnsupportedError, match=r"op 'drift' updates parameter 'w'.*differs between workers"):
        graph_context(build).model  # noqa: B018


def test_drift_through_a_slot_is_found():
    def build(x):
        w = weights()
        speed = v1.get_variable("speed", [3, 1], trainable=False, initializer=v1.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
        (gradient,) = tf.gradients(loss, [w])
        moved = speed.assign(0.9 * speed + gradient + x[0, 0])
        train = w.assign_sub(0.1 * moved, name="drift")
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, train.op)

    with pytest.raises(UnsupportedError, match=r"op 'drift' updates parameter 'w'"):
        graph_context(build).model  # noqa: B018


def test_gradients_inside_the_loss_are_not_aggregated():
    """A loss that is linear in them has the gradients that add up."""

    def build(x):
        w = weights()
        output = tf.matmul(x, w)
        (inner,) = tf.gradients(tf.reduce_mean(tf.square(output)), [w])
        loss = tf.reduce_mean(tf.square(output - 1.0)) + 0.1 * tf.reduce_sum(inner * [[1.0], [2.0], [3.0]])
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    model = graph_context(build).model
    assert [g.name for g in model.gradients] == ["w"]
    assert model.loss == "add:0"


@pytest.mark.parametrize("resource", [False, True], ids=["references", "resources"])
def test_what_a_branch_of_tensorflow_1_writes(resource, old_control_flow):
    """It gets the variables through Switches."""

    def build(x):
        seen, rounds = (
            v1.get_variable(name, [], initializer=v1.zeros_initializer(), trainable=False, use_resource=resource)
            for name in ("seen", "rounds")
        )

        def written():
            with tf.control_dependencies([v1.assign_add(seen, tf.reduce_sum(x)), v1.assign_add(rounds, 1.0)]):
                return tf.constant(1.0)

        one = v1.cond(v1.placeholder(tf.bool, [], "wanted"), written, lambda: tf.constant(1.0))
        loss = tf.reduce_mean(tf.matmul(x, weights()) * one)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    assert classes(graph_context(build)) == {"w": PARAMETER, "seen": HYPER, "rounds": HYPER}
