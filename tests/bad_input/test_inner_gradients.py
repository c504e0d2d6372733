"""Gradients that no sum over the workers makes those of one device: refused, naming where they are taken."""

import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1
SPECS = [tf.TensorSpec([None, 4], name="x"), tf.TensorSpec([None], name="y")]


def loss_of(x, y, w):
    return tf.reduce_mean(tf.square(tf.linalg.matvec(x, w) - y))


def captured(change, **options):
    """A captured step; ``change`` gives the gradient and the loss."""
    weights = tf.Variable([1.0, -0.5, 0.25, 0.75], name="w")

    def step(x, y):
        gradient, loss = change(x, y, weights)
        weights.assign_sub(0.1 * gradient)
        return loss

    return caramel.capture(step, SPECS, **{"loss": "output", "loss_reduction": "mean", **options})


def gradient_of(x, y, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = loss_of(x, y, w)
    return tape.gradient(loss, w), loss


def of_the_norm(x, y, w):
    with tf.GradientTape() as tape:
        g, loss = gradient_of(x, y, w)
        total = loss + tf.reduce_sum(g * g)
    return tape.gradient(total, w), total


def in_a_function(x, y, w):
    @tf.function
    def total_of(x, y):
        g, loss = gradient_of(x, y, w)
        return loss + tf.reduce_sum(g * g)

    with tf.GradientTape() as tape:
        total = total_of(x, y)
    return tape.gradient(total, w), total


def through_an_inner_step(x, y, w):
    with tf.GradientTape() as tape:
        g, _ = gradient_of(x, y, w)
        loss = loss_of(x, y, w - 0.1 * g)
    return tape.gradient(loss, w), loss


def through_inner_steps_of_tensors(x, y, w):
    with tf.GradientTape() as tape:
        fast = tf.identity(w)
        for _ in range(2):
            fast = fast - 0.1 * gradient_of(x, y, fast)[0]
        loss = loss_of(x, y, fast)
    return tape.gradient(loss, w), loss


def at_a_point_from_a_gradient_by_a_tensor(x, y, w):
    g, _ = gradient_of(x, y, w.read_value())
    with tf.GradientTape() as tape:
        loss = loss_of(x, y, w + 0.1 * g / tf.norm(g))
    return tape.gradient(loss, w), loss


def times_the_hessian(x, y, w):
    with tf.GradientTape() as tape:
        g, loss = gradient_of(x, y, w)
    return tape.gradient(g, w, output_gradients=g), loss


def times_a_vector_of_its_own(x, y, w):
    with tf.GradientTape() as tape:
        g, loss = gradient_of(x, y, w)
        product = tf.reduce_sum(g * tf.reduce_sum(x, 0))
    return tape.gradient(product, w), loss


INEXACT = [
    of_the_norm,
    in_a_function,
    through_an_inner_step,
    through_inner_steps_of_tensors,
    at_a_point_from_a_gradient_by_a_tensor,
    times_the_hessian,
    times_a_vector_of_its_own,
]


@pytest.mark.parametrize("change", INEXACT, ids=lambda f: f.__name__)
def test_a_gradient_in_a_loss(refused, change):
    words = ["gradient", "test_inner_gradients.py:", "differentiated", "own examples", "stop_gradient"]
    with refused(caramel.UnsupportedError, *words):
        caramel.ARModel(captured(change), 2)


def test_inner_steps_in_a_loop(refused):
    def change(x, y, w):
        with tf.GradientTape() as tape:
            fast, rounds = tf.identity(w), 0
            while loss_of(x, y, fast) > 1.0 and rounds < 3:
                fast, rounds = fast - 0.1 * gradient_of(x, y, fast)[0], rounds + 1
            loss = loss_of(x, y, fast)
        return tape.gradient(loss, w), loss

    with refused(caramel.UnsupportedError, "test_inner_gradients.py:", "While", "differentiated", "own examples"):
        caramel.ARModel(captured(change), 2)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_gradient_in_the_loss_of_a_graph(refused, is_finished):
    def build():
        x, y = v1.placeholder(tf.float32, [None, 4], "x"), v1.placeholder(tf.float32, [None], "y")
        w = v1.get_variable("w", [4], initializer=v1.ones_initializer())
        loss = loss_of(x, y, w)
        (g,) = tf.gradients(loss, [w])
        loss = loss + tf.reduce_sum(g * g, name="penalty")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        return loss

    with tf.Graph().as_default() as graph:
        finished = caramel.capture(graph, loss=build(), loss_reduction="mean") if is_finished else None
    if finished is None:
        with caramel.capture(loss_reduction="mean") as finished:
            finished.loss = build()
    with refused(caramel.UnsupportedError, "gradient", "differentiated", "own examples", "stop_gradient"):
        caramel.ARModel(finished, 2)


# -- gradients of single examples ------------------------------------------------------------


def jacobian(x, y, w, **options):
    with tf.GradientTape() as tape:
        losses = tf.square(tf.linalg.matvec(x, w) - y)
    return tf.reduce_mean(tape.jacobian(losses, w, **options), 0), tf.reduce_mean(losses)


def in_a_map(x, y, w):
    gradients = tf.vectorized_map(lambda pair: gradient_of(pair[0][None], pair[1][None], w)[0], (x, y))
    return tf.reduce_mean(gradients, 0), loss_of(x, y, w)


@pytest.mark.parametrize(
    "change, what",
    [
        (jacobian, "GradientTape.jacobian"),
        (lambda x, y, w: jacobian(x, y, w, experimental_use_pfor=False), "GradientTape.jacobian"),
        (in_a_map, "tf.vectorized_map"),
    ],
    ids=["jacobian", "jacobian in a loop", "map"],
)
def test_gradients_of_single_examples(refused, change, what):
    with refused(caramel.UnsupportedError, "test_inner_gradients.py:", what, "variable", "GradientTape.gradient") as e:
        caramel.ARModel(captured(change), 2)
    assert "in user code" not in str(e.value)


# -- loops, branches and accumulators --------------------------------------------------------


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_a_sum_over_rounds_that_the_examples_decide(refused, kind):
    def change(x, y, w):
        total, loss, rounds = tf.zeros([4]), tf.zeros([]), tf.constant(0)
        while tf.cast(rounds, tf.float32) < 3.0 + tf.reduce_mean(x):
            g, loss = gradient_of(x, y, w)
            total, rounds = total + g, rounds + 1
        return total, loss

    with refused(caramel.UnsupportedError, "While", "'w'", "rounds", "differs between workers", "replicated="):
        caramel.ARModel(captured(change, loss_reduction=kind), 2)


def test_a_number_of_rounds_from_a_branch_that_only_some_workers_take(refused):
    """Of the constants, nothing but that they wait for a write tells in which branch they are."""
    seen = tf.Variable(0.0, name="seen", trainable=False)

    def change(x, y, w):
        def after_a_write(number):
            with tf.control_dependencies([seen.assign_add(1.0)]):
                return tf.constant(number)

        total, loss = tf.zeros([4]), tf.zeros([])
        for _ in tf.range(tf.cond(tf.reduce_mean(x) > 0.0, lambda: after_a_write(3), lambda: after_a_write(2))):
            g, loss = gradient_of(x, y, w)
            total = total + g
        return total, loss

    with refused(caramel.UnsupportedError, "While", "'w'", "rounds", "differs between workers", "replicated="):
        caramel.ARModel(captured(change), 2)


def test_a_mean_over_a_round_for_each_example(refused):
    def change(x, y, w):
        total, loss = tf.zeros([4]), tf.zeros([])
        for number in tf.range(tf.shape(x)[0]):
            g, loss = gradient_of(x[number : number + 1], y[number : number + 1], w)
            total = total + g
        return total, loss

    with refused(caramel.UnsupportedError, "While", "'w'", "rounds", "differs between workers"):
        caramel.ARModel(captured(change), 2)


@pytest.mark.parametrize("where", ["added", "emptied", "differentiated"])
def test_an_accumulator_in_a_branch_that_only_some_workers_take(refused, where):
    total = tf.Variable(tf.zeros([4]), name="total", trainable=False)
    count = tf.Variable(0, name="count", trainable=False)

    def change(x, y, w):
        g, loss = gradient_of(x, y, w)
        count.assign_add(1)
        if where == "emptied":
            total.assign_add(g)
        elif where == "added":
            tf.cond(tf.reduce_max(x) > 1.0, lambda: total.assign_add(g), lambda: total.read_value())
        else:
            tf.cond(
                tf.reduce_mean(x) > 0.0, lambda: total.assign_add(gradient_of(x, y, w)[0]), lambda: total.read_value()
            )
        found = tf.where(count % 3 == 0, total.read_value(), tf.zeros([4]))
        condition = tf.reduce_max(x) > 1.0 if where == "emptied" else tf.equal(count % 3, 0)
        tf.cond(condition, lambda: total.assign(tf.zeros([4])), lambda: total.read_value())
        return found, loss

    with refused(caramel.UnsupportedError, "branch", "condition differs between workers", "'x'"):
        caramel.ARModel(captured(change), 2)


def test_a_gradient_in_a_case_that_only_some_workers_take(refused):
    def change(x, y, w):
        branches = [lambda k=k: gradient_of(k * x, y, w) for k in (1.0, 2.0, 3.0)]
        least = tf.raw_ops.NthElement(input=tf.reduce_sum(x, 1), n=0)
        return tf.switch_case(tf.cast(least, tf.int32), branches)

    with refused(caramel.UnsupportedError, "'w'", "branch", "differs between workers", "'x'"):
        caramel.ARModel(captured(change), 2)
