"""Gradients that later differentiations use, in ways that are exact: N workers equal one device."""

import numpy as np
import pytest
import tensorflow as tf
from exact_steps import Program, check
from variants import in_soak, mostly_in_soak

import caramel

SPECS = [tf.TensorSpec([None, 4], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]
VECTOR = np.array([1.0, -2.0, 3.0, 0.5])


def examples(count=12, steps=4, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(count, 4)), rng.normal(size=count)) for _ in range(steps)]


def loss_of(x, y, a, b):
    return tf.reduce_mean(tf.square(tf.tanh(tf.linalg.matvec(x, a) + b) - y))


def program(change, **options):
    """A step of two parameters; ``change`` gives their gradients and the loss."""

    def make():
        a = tf.Variable([1.0, -0.5, 0.25, 0.75], dtype=tf.float64, name="a")
        b = tf.Variable(0.5, dtype=tf.float64, name="b")

        def step(x, y):
            gradients, loss = change(x, y, [a, b])
            for v, g in zip([a, b], gradients):
                v.assign_sub(0.1 * g)
            return loss

        return Program(step, SPECS, {"a": a, "b": b}, {"loss": "output", **options})

    return make


def gradients_of(x, y, values, variables=None):
    with tf.GradientTape() as tape:
        loss = loss_of(x, y, *values)
    return tape.gradient(loss, variables or values), loss


def moved(variables, gradients, by=0.1):
    """The point of sharpness-aware minimisation."""
    norm = tf.linalg.global_norm(gradients)
    return [v + by * g / norm for v, g in zip(variables, gradients)]


def outside_the_tape(x, y, variables):
    gradients, loss = gradients_of(x, y, variables)
    shift = [m - v for m, v in zip(moved(variables, gradients), variables)]
    with tf.GradientTape() as tape:
        second = loss_of(x, y, *(v + s for v, s in zip(variables, shift)))
    return tape.gradient(second, variables), loss


def stopped_inside_the_tape(x, y, variables):
    with tf.GradientTape() as tape:
        gradients, loss = gradients_of(x, y, variables)
        second = loss_of(x, y, *moved(variables, [tf.stop_gradient(g) for g in gradients]))
    return tape.gradient(second, variables), loss


def in_a_function(x, y, variables):
    @tf.function
    def ascend(x, y):
        gradients, loss = gradients_of(x, y, variables)
        return [0.1 * g / tf.linalg.global_norm(gradients) for g in gradients], loss

    with tf.GradientTape() as tape:
        shift, loss = ascend(x, y)
        second = loss_of(x, y, *(v + tf.stop_gradient(s) for v, s in zip(variables, shift)))
    return tape.gradient(second, variables), loss


def adapted_by_two_inner_steps(x, y, variables):
    """First-order meta-learning."""
    shift = [tf.zeros_like(v) for v in variables]
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, *(v + s for v, s in zip(variables, shift)))
        gradients = tape.gradient(loss, variables)
        shift = [s - 0.1 * g for s, g in zip(shift, gradients)]
    return gradients, loss


def a_weight_of_a_loss(x, y, variables):
    """The ratio of the norms of two losses' gradients, as generative models balance their losses."""
    with tf.GradientTape(persistent=True) as tape:
        one, other = loss_of(x, y, *variables), tf.reduce_mean(tf.abs(tf.linalg.matvec(x, variables[0])))
        norms = [tf.linalg.norm(tape.gradient(loss, variables[0])) for loss in (one, other)]
        loss = one + tf.stop_gradient(norms[0] / norms[1]) * other
    return tape.gradient(loss, variables), one


CONSTANTS = [outside_the_tape, stopped_inside_the_tape, in_a_function, adapted_by_two_inner_steps, a_weight_of_a_loss]


@pytest.mark.parametrize(
    "change", mostly_in_soak(CONSTANTS, in_a_function, a_weight_of_a_loss), ids=lambda f: f.__name__
)
def test_a_gradient_that_is_a_constant_to_the_next(change):
    armodel = check(program(change), examples(), [2, 3])
    assert len(armodel.plan.pieces) > 2
    check(program(change, loss_reduction="mean"), examples(7), 3)


def trained_in_a_graph(moved, batches):
    """What a graph of TensorFlow 1 trains by the loss at ``moved(a, gradient)``, and its captures: watched, and finished."""
    v1 = tf.compat.v1

    def build():
        x, y = v1.placeholder(tf.float64, [None, 4], "x"), v1.placeholder(tf.float64, [None], "y")
        a = v1.get_variable("a", [4], tf.float64, initializer=v1.constant_initializer([1.0, -0.5, 0.25, 0.75]))
        (g,) = tf.gradients(loss_of(x, y, a, 0.5), [a])
        loss = loss_of(x, y, moved(a, g), 0.5)
        return loss, v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    with tf.Graph().as_default() as graph, v1.Session() as session:
        loss, train = build()
        session.run(v1.global_variables_initializer())
        for x, y in batches:
            session.run(train, {"x:0": x, "y:0": y})
        want = session.run(v1.global_variables()[0])
    with caramel.capture() as watched:
        watched.loss, _ = build()
    return want, watched, caramel.capture(graph, loss=loss)


def assert_trains_so(context, workers, batches, want, rtol):
    with caramel.ARModel(context, workers).session() as session:
        for x, y in batches:
            session.step({"x": x, "y": y})
        np.testing.assert_allclose(session.values()["a"], want, rtol=rtol)


def test_the_same_in_a_graph():
    batches = examples()
    want, *contexts = trained_in_a_graph(lambda a, g: a + tf.stop_gradient(0.1 * g / tf.norm(g)), batches)
    for context in contexts:
        assert_trains_so(context, 2, batches, want, 1e-8)


def a_product_with_a_vector(x, y, variables):
    with tf.GradientTape() as tape:
        (g, _), loss = gradients_of(x, y, variables)
        product = tf.reduce_sum(g * VECTOR)
    return tape.gradient(product, variables), loss


def a_product_in_the_loss(x, y, variables):
    with tf.GradientTape() as tape:
        (g, _), loss = gradients_of(x, y, variables)
        loss = loss + tf.squeeze(tf.matmul(g[None], VECTOR[:, None]))
    return tape.gradient(loss, variables), loss


def a_product_and_the_gradient_itself(x, y, variables):
    """The gradient stays as it is inside the second loss, and is aggregated for the update."""
    with tf.GradientTape() as tape:
        gradients, loss = gradients_of(x, y, variables)
    products = tape.gradient(gradients[0], variables, output_gradients=tf.constant(VECTOR))
    return [p + tf.clip_by_norm(g, 0.5) for p, g in zip(products, gradients)], loss


PRODUCTS = [a_product_with_a_vector, a_product_in_the_loss, a_product_and_the_gradient_itself]


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize(
    "change", mostly_in_soak(PRODUCTS, a_product_and_the_gradient_itself), ids=lambda f: f.__name__
)
def test_a_loss_that_is_linear_in_a_gradient(change, workers):
    check(program(change), examples(), workers)
    check(program(change), examples(7), 3)


def by_the_examples(x, y, variables):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            predicted = tf.tanh(tf.linalg.matvec(x, variables[0]) + variables[1])
        slopes = inner.gradient(predicted, x)
        loss = tf.reduce_mean(tf.square(predicted - y)) + tf.reduce_mean(tf.square(tf.norm(slopes, axis=1) - 1.0))
    return tape.gradient(loss, variables), loss


def by_the_examples_one_by_one(x, y, variables):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            predicted = tf.tanh(x * variables[0] + variables[1])
        slopes = inner.batch_jacobian(predicted, x)
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(predicted, 1) - y) + tf.reduce_sum(tf.square(slopes), [1, 2]))
    return tape.gradient(loss, variables), loss


def of_a_term_without_examples(x, y, variables):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            term = tf.reduce_sum(variables[0] ** 4)
        slope = inner.gradient(term, variables[0])
        loss = loss_of(x, y, *variables) + 0.01 * tf.reduce_sum(tf.square(slope))
    return tape.gradient(loss, variables), loss


@pytest.mark.parametrize(
    "change", [by_the_examples, by_the_examples_one_by_one, of_a_term_without_examples], ids=lambda f: f.__name__
)
def test_a_penalty_on_a_gradient(change):
    armodel = check(program(change), examples(7), 3)
    assert len(armodel.plan.pieces) == 2


def slopes_of(x, y, values):
    """The gradient of a mean by the inputs: of each example, divided by the number of all."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(x, y, *values)
    return tape.gradient(loss, x)


def attacked(x, y, variables):
    """Examples on which the loss is larger, found in steps of a length that depends on the gradient."""
    moved = x
    for _ in range(2):
        slopes = slopes_of(moved, y, variables)
        moved = tf.clip_by_value(moved + slopes / (0.1 + tf.norm(slopes, axis=1, keepdims=True)), x - 0.3, x + 0.3)
    return moved


def on_attacked_examples(x, y, variables):
    moved = tf.stop_gradient(attacked(x, y, variables))
    with tf.GradientTape() as tape:
        loss = loss_of(moved, y, *variables)
    return tape.gradient(loss, variables), loss


def through_attacked_examples(x, y, variables):
    with tf.GradientTape() as tape:
        loss = loss_of(attacked(x, y, variables), y, *variables)
    return tape.gradient(loss, variables), loss


def through_a_function_that_attacks(x, y, variables):
    attack = tf.function(lambda x, y: x + 0.1 * tf.tanh(5.0 * slopes_of(x, y, variables)))
    with tf.GradientTape() as tape:
        loss = loss_of(attack(attack(x, y), y), y, *variables)
    return tape.gradient(loss, variables), loss


def on_attacked_examples_in_a_ratio(x, y, variables):
    with tf.GradientTape() as tape:
        moved = x + 0.1 * tf.tanh(5.0 * slopes_of(x, y, variables))
        squares = tf.square(tf.linalg.matvec(moved, variables[0]) + variables[1] - y)
        loss = tf.reduce_sum(tf.square(y) * squares) / tf.reduce_sum(tf.square(y))
    return tape.gradient(loss, variables), loss


def with_a_penalty_on_the_slopes_of_a_mean(x, y, variables):
    with tf.GradientTape() as tape:
        slopes = slopes_of(x, y, variables)
        loss = loss_of(x, y, *variables) + tf.reduce_mean(tf.sqrt(0.1 + tf.reduce_sum(tf.square(slopes), 1)))
    return tape.gradient(loss, variables), loss


def by_a_hidden_value(x, y, variables):
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            hidden = tf.tanh(tf.linalg.matvec(x, variables[0]) + variables[1])
            inner.watch(hidden)
            losses = [tf.reduce_mean(tf.square(hidden - y)), tf.reduce_mean(tf.exp(-hidden))]
        loss = tf.reduce_mean(tf.square(hidden + tf.tanh(5.0 * inner.gradient(losses, hidden)) - y))
    return tape.gradient(loss, variables), loss


ATTACKS = [
    on_attacked_examples,
    through_attacked_examples,
    through_a_function_that_attacks,
    on_attacked_examples_in_a_ratio,
    with_a_penalty_on_the_slopes_of_a_mean,
    by_a_hidden_value,
]


@pytest.mark.parametrize("change", ATTACKS, ids=lambda f: f.__name__)
def test_the_gradient_of_a_mean_by_the_examples(change):
    """Parts of 3, 2 and 2 examples: each worker's mean has another number of them than that of the whole batch."""
    check(program(change), examples(7), 3)


def at_moved_values(x, y, variables):
    """First-order meta-learning: the gradient is by values that all workers have, and updates the variables."""
    moved = list(variables)
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(moved)
            loss = loss_of(x, y, *moved)
        moved = [tf.stop_gradient(m - 0.1 * g) for m, g in zip(moved, tape.gradient(loss, moved))]
    with tf.GradientTape() as tape:
        tape.watch(moved)
        loss = loss_of(x, y, *moved)
    return [tf.clip_by_norm(g, 0.5) for g in tape.gradient(loss, moved)], loss


def by_a_variable_and_by_a_value(x, y, variables):
    value = tf.identity(variables[1])
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = loss_of(x, y, variables[0], value)
    return tape.gradient(loss, [variables[0], value]), loss


@pytest.mark.parametrize("change", [at_moved_values, by_a_variable_and_by_a_value], ids=lambda f: f.__name__)
def test_the_gradient_by_values_that_all_workers_have(change):
    check(program(change), examples(7), [2, 3])


def after(x, y, values, rate=0.3, loss_at=loss_of):
    """The values after a step of descent, through which a later differentiation may go."""
    with tf.GradientTape() as tape:
        tape.watch(values)
        loss = loss_at(x, y, *values)
    return [value - rate * g for value, g in zip(values, tape.gradient(loss, values))]


def through_a_step(x, y, variables):
    """Meta-learning of second order."""
    with tf.GradientTape() as tape:
        loss = loss_of(x, y, *after(x[:, ::-1], y, variables))
    return tape.gradient(loss, variables), loss


def through_several_steps(x, y, variables):
    with tf.GradientTape() as tape:
        values = list(variables)
        for n in range(3):
            values = after(x + n, y, values)
        loss = loss_of(x, y, *values)
    return tape.gradient(loss, variables), loss


def through_a_step_on_a_sum(x, y, variables):
    def total(x, y, a, b):
        return tf.reduce_sum(tf.square(tf.linalg.matvec(x, a) + b - y))

    with tf.GradientTape() as tape:
        loss = loss_of(x, y, *after(x, y, variables, rate=0.01, loss_at=total))
    return tape.gradient(loss, variables), loss


def through_a_function_that_is_called_twice(x, y, variables):
    @tf.function
    def moved(x, y):
        return after(x, y, variables)

    with tf.GradientTape() as tape:
        loss = loss_of(x, y, *moved(x, y)) + loss_of(x, y, *moved(2.0 * x, y))
    return tape.gradient(loss, variables), loss


def with_a_penalty_on_its_norm(x, y, variables):
    """The gradient is part of the update besides."""
    with tf.GradientTape() as tape:
        gradients, loss = gradients_of(x, y, variables)
        loss = loss + 0.1 * tf.linalg.global_norm(gradients) + 0.01 * tf.nn.l2_loss(variables[0])
    return [g + 0.5 * h for g, h in zip(gradients, tape.gradient(loss, variables))], loss


def with_a_penalty_on_the_slope_by_a_scale(x, y, variables):
    """Invariant risk minimisation, of two environments."""
    with tf.GradientTape() as tape:
        losses = []
        for n in range(2):
            scale = tf.constant(1.0, tf.float64)
            with tf.GradientTape() as inner:
                inner.watch(scale)
                risk = loss_of(x + n, y, scale * variables[0], variables[1])
            losses += [risk, inner.gradient(risk, scale) ** 2]
        loss = tf.add_n(losses)
    return tape.gradient(loss, variables), loss


THROUGH = [
    through_a_step,
    through_several_steps,
    through_a_step_on_a_sum,
    through_a_function_that_is_called_twice,
    with_a_penalty_on_its_norm,
    with_a_penalty_on_the_slope_by_a_scale,
]


@pytest.mark.parametrize("change", THROUGH, ids=lambda f: f.__name__)
def test_a_loss_that_is_not_linear_in_a_gradient(change):
    check(program(change), examples(7), 3)


def test_the_same_of_a_graph():
    batches = examples(7)
    want, watched, _ = trained_in_a_graph(lambda a, g: a - 0.3 * g, batches)
    assert_trains_so(watched, 3, batches, want, 1e-9)


def through_two_levels(x, y, variables):
    """What enters the first gradient is differentiated itself, which no sum of it would be part of."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as middle:
            loss = loss_of(x, y, *after(x, y, variables))
        gradients = middle.gradient(loss, variables)
        loss = loss_of(x, y, *(v - 0.2 * g for v, g in zip(variables, gradients)))
    return outer.gradient(loss, variables), loss


def of_single_rows(x, y, variables):
    """A sparse gradient."""
    rows = tf.cast(y > 0, tf.int64)
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(tf.square(tf.gather(variables[0], rows) - y))
        gradient = tf.convert_to_tensor(inner.gradient(loss, variables[0]))
        loss = loss_of(x, y, variables[0] - 0.3 * gradient**2, variables[1])
    return tape.gradient(loss, variables), loss


@pytest.mark.parametrize("change", [through_two_levels, of_single_rows], ids=lambda f: f.__name__)
def test_what_no_sum_makes_exact_is_refused(change):
    one = program(change)()
    with pytest.raises(caramel.UnsupportedError, match="is part of what is differentiated"):
        caramel.ARModel(caramel.capture(one.step, one.specs, **one.options), 2)


@pytest.mark.parametrize("kind, divided", [("mean", True), ("sum", False)])
def test_gradients_that_the_caller_weights(kind, divided):
    def change(x, y, variables):
        with tf.GradientTape() as tape:
            squares = tf.square(tf.linalg.matvec(x, variables[0]) + variables[1] - y)
        weights = tf.ones_like(squares)
        weights = weights / tf.cast(tf.shape(x)[0], tf.float64) if divided else 0.05 * weights
        loss = tf.reduce_sum(squares * weights)
        return tape.gradient(squares, variables, output_gradients=weights), loss

    armodel = check(program(change), examples(7), 3)
    assert armodel.plan.reduction == kind


def test_transfers_are_in_an_order_that_goes():
    """On GPUs TensorFlow's own all-reduce runs one after the other: none before what it depends on."""
    one = program(outside_the_tape)()
    context = caramel.capture(one.step, one.specs, **one.options)
    devices = ["/job:worker/task:0/GPU:0", "/job:worker/task:1/GPU:0"]
    armodel = caramel.ARModel(context, 2, algorithm="native", device_list=devices)
    assert [t.gradients for t in armodel.plan.transfers] == [("b", "a"), ("b#2", "a#2")]
