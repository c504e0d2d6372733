"""Loops that do more with gradients than add them up, where it is known how many rounds they have."""

import exact_steps
import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process

import caramel

SPECS = [tf.TensorSpec([None, 3], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]
RNG = np.random.default_rng(2)
WEIGHTS = np.array([0.5, -1.0, 0.25])
K, SIZE = 3, 4


def batches(*rows):
    return [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in rows]


def gradient_of(w, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return loss, tape.gradient(loss, w)


def updating(w, seen, x, y):
    loss = tf.constant(0.0, tf.float64)
    for _ in tf.range(K):
        loss, gradient = gradient_of(w, x, y)
        w.assign_sub(0.1 * tf.clip_by_norm(gradient, 0.5))
        seen.assign_add([loss, tf.norm(gradient)])
    return loss


def updating_while(w, seen, x, y):
    """Rounds by twos, and a rate of each round."""
    count, last = tf.constant(0), tf.constant(0.0, tf.float64)
    while count < 5:
        last, gradient = gradient_of(w, x, y)
        w.assign_sub(0.1 * gradient / tf.cast(count + 1, tf.float64))
        seen.assign_add([1.0, tf.norm(gradient)])
        count += 2
    return last


def updating_by_micro_batches(w, seen, x, y):
    size, losses = tf.shape(x)[0] // K, tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        rows = slice(i * size, (i + 1) * size)
        loss, gradient = gradient_of(w, x[rows], y[rows])
        w.assign_sub(0.1 * gradient)
        seen.assign_add([1.0, tf.norm(gradient)])
        losses += loss
    return losses / K


def clipping_each(w, seen, x, y):
    size, total, losses = tf.shape(x)[0] // K, tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        rows = slice(i * size, (i + 1) * size)
        loss, gradient = gradient_of(w, x[rows], y[rows])
        total += tf.clip_by_norm(gradient, 0.3)
        losses += loss
    w.assign_sub(0.1 * total)
    seen.assign_add([1.0, tf.norm(total)])
    return losses / K


def rows_of(cut):
    """A step over micro-batches that a function takes out of a tensor by their number."""

    def step(w, seen, x, y):
        total, losses = tf.zeros_like(w), tf.constant(0.0, tf.float64)
        for i in tf.range(K):
            loss, gradient = gradient_of(w, cut(x, i), cut(y, i))
            total += gradient
            losses += loss
        w.assign_sub(0.1 * total / K)
        seen.assign_add([1.0, losses])
        return losses / K

    return step


def of_fixed_size(x, i):
    return x[i * SIZE : (i + 1) * SIZE]


def every_other(x, i):
    return x[i::K]


def rounded_up(x, i):
    size = (tf.shape(x)[0] + K - 1) // K
    return x[i * size : (i + 1) * size]


def by_places(w, seen, x, y):
    """The loop counts rows."""
    total, losses = tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for first in tf.range(0, K * SIZE, SIZE):
        loss, gradient = gradient_of(w, x[first : first + SIZE], y[first : first + SIZE])
        total += gradient
        losses += loss
    w.assign_sub(0.1 * total / K)
    seen.assign_add([1.0, losses])
    return losses / K


def in_a_branch(w, seen, x, y):
    total, loss = tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for number in tf.range(K):
        loss, gradient = tf.cond(number > 1, lambda: gradient_of(w, x, y), lambda: gradient_of(w, 2.0 * x, y))
        total += gradient
    w.assign_sub(0.1 * total)
    seen.assign_add([1.0, tf.norm(total)])
    return loss


def nested(w, seen, x, y):
    last = tf.constant(0.0, tf.float64)
    for i in tf.range(2):
        total = tf.zeros_like(w)
        for j in tf.range(2):
            last, gradient = gradient_of(w, x * tf.cast(i + j + 1, tf.float64), y)
            total += tf.clip_by_norm(gradient, 0.4)
        w.assign_sub(0.1 * total)
        seen.assign_add([1.0, tf.norm(total)])
    return last


def beyond_the_last(w, seen, x, y):
    """One round more than there are micro-batches: with what is left over, of which there must be some."""
    size, total, losses = tf.shape(x)[0] // K, tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for i in tf.range(K + 1):
        rows = slice(i * size, (i + 1) * size)
        loss, gradient = gradient_of(w, x[rows], y[rows])
        total += gradient
        losses += loss
    w.assign_sub(0.1 * total)
    seen.assign_add([1.0, losses])
    return losses


def moving(w, seen, x, y):
    """What follows from gradients is differentiated by itself, and no sum of them."""
    moved, loss = tf.identity(w), tf.constant(0.0, tf.float64)
    for _ in tf.range(K):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w + 0.1 * moved) - y) ** 2)
        moved -= 0.1 * tf.nn.l2_normalize(tape.gradient(loss, w))
    w.assign_sub(0.3 * (w - moved))
    seen.assign_add([1.0, tf.norm(moved)])
    return loss


def downwards(w, seen, x, y):
    """A loop that counts down, and one to a number that is the last."""
    loss, left = tf.constant(0.0, tf.float64), tf.constant(2)
    for i in tf.range(6, 0, -2):
        loss, gradient = gradient_of(w, x, y)
        w.assign_sub(0.02 * tf.cast(i, tf.float64) * gradient)
        seen.assign_add([1.0, tf.norm(gradient)])
    while left >= 1:
        loss, gradient = gradient_of(w, 2.0 * x, y)
        w.assign_sub(0.1 * gradient)
        left -= 1
    return loss


def in_a_branch_that_is_taken_at_times(w, seen, x, y):
    """In the other steps its ops would divide by zero, and its inner loop would not end."""
    number = tf.cast(seen[0], tf.int32) % 2
    seen.assign_add([1.0, 0.0])
    loss = tf.constant(0.0, tf.float64)
    if number > 0:
        for _ in tf.range(2):
            left, scale = tf.constant(4), tf.cast(2 // number, tf.float64)
            while left > 0:
                left -= number
                scale /= 2.0
            loss, gradient = gradient_of(w, x, y)
            w.assign_sub(scale * gradient)
    else:
        loss, gradient = gradient_of(w, 0.5 * x, y)
        w.assign_sub(0.1 * gradient)
    return loss


PROGRAMS = {
    "updates": updating,
    "updates in a while": updating_while,
    "updates by micro-batches": updating_by_micro_batches,
    "clipped each": clipping_each,
    "of a fixed size": rows_of(of_fixed_size),
    "every other row": rows_of(every_other),
    "rounded up": rows_of(rounded_up),
    "places": by_places,
    "a branch": in_a_branch,
    "nested": nested,
    "moving": moving,
    "downwards": downwards,
    "a branch around": in_a_branch_that_is_taken_at_times,
    "beyond the last": beyond_the_last,
}
DEALT = ("updates by micro-batches", "clipped each")


def program_of(step_of):
    def make():
        w = tf.Variable(WEIGHTS, name="w")
        seen = tf.Variable(np.zeros(2), name="seen", trainable=False)
        return exact_steps.Program(lambda x, y: step_of(w, seen, x, y), SPECS, {"w": w, "seen": seen})

    return make


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_one_device(name):
    """Batches of which the workers have other numbers of rows, and of which something is left over."""
    make = program_of(PROGRAMS[name])
    exact_steps.check(make, batches(13, 10, 14), [2, 4])
    assert (exact_steps.captured_once(make)[1].model.dealing.micro_batches == K) == (name in DEALT)


def test_an_optimizer_in_a_loop():
    """Several steps on one batch, as of reinforcement learning; the second function calls the first twice."""

    def make():
        keras.utils.set_random_seed(3)
        w, b = tf.Variable(WEIGHTS, name="w"), tf.Variable(np.float64(0.2), name="b")
        adam = keras.optimizers.Adam(0.05, global_clipnorm=0.5)
        adam.build([w, b])

        @tf.function
        def several(x, y, scale):
            last = tf.constant(0.0, tf.float64)
            for _ in tf.range(2):
                with tf.GradientTape() as tape:
                    last = tf.reduce_mean((tf.linalg.matvec(x, w) + b - scale * y) ** 2)
                adam.apply_gradients(zip(tape.gradient(last, [w, b]), [w, b]))
            return last

        def step(x, y):
            return several(x, y, tf.constant(1.0, tf.float64)) + several(x, y, tf.constant(0.5, tf.float64))

        return exact_steps.Program(step, SPECS, {v.name: v for v in [w, b]})

    exact_steps.check(make, batches(12, 7), [2, 3])


@pytest.mark.parametrize("seed", [0, 5])
def test_each_round_draws_numbers_of_its_own(seed):
    """With seeds, too: those of the first round are worker 0's as on one device."""

    def drawn(w, x, y):
        draws = tf.TensorArray(tf.float64, K)
        loss = tf.constant(0.0, tf.float64)
        for i in tf.range(K):
            loss, gradient = gradient_of(w, x, y)
            w.assign_sub(0.1 * gradient)
            draws = draws.write(i, tf.random.normal([], seed=seed, dtype=tf.float64))
        return {"loss": loss, "draws": draws.stack()}

    def stepping():
        keras.utils.set_random_seed(3)
        w = tf.Variable(WEIGHTS)
        return tf.function(lambda x, y: drawn(w, x, y), input_signature=SPECS)

    fed = batches(12)[0]
    want = stepping()(*fed)["draws"]
    context = caramel.capture(stepping(), SPECS)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        found = np.concatenate(session.step(*fed).outputs["draws"])
    assert len(set(found.tolist())) == 2 * K and found[0] == want[0]
    assert any("draw other numbers" in note for note in context.model.notes)


def test_loops_with_random_numbers_in_functions_stay():
    """All rounds would share the function, and draw the same."""

    def step_of(w, seen, x, y):
        loss = tf.constant(0.0, tf.float64)
        for _ in tf.range(K):
            noisy = tf.map_fn(lambda row: row + tf.random.normal([3], seed=1, dtype=tf.float64), x)
            loss, gradient = gradient_of(w, noisy, y)
            w.assign_sub(0.1 * gradient)
        return loss

    _, context = exact_steps.captured(program_of(step_of))
    with pytest.raises(caramel.UnsupportedError, match="add it to a sum"):
        context.model_for(2)


def test_several_steps_in_one_run():
    make, fed = program_of(updating_by_micro_batches), batches(12, 10, 12)
    losses, want = exact_steps.alone(make, fed)
    got_losses, got, _ = exact_steps.trained(make, fed, 2, lambda context: {}, together=3)
    np.testing.assert_allclose(got_losses, losses)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], err_msg=name)


def test_on_parameter_servers():
    make, fed = program_of(updating), batches(12, 9)
    losses, want = exact_steps.alone(make, fed)
    program, context = exact_steps.captured(make)
    with caramel.PSModel(context, 2, 1).session(in_process()) as session:
        got = [session.step(*batch).loss for batch in fed]
        session.write_back()
    np.testing.assert_allclose(got, losses)
    for name, value in exact_steps.values_of(program).items():
        np.testing.assert_allclose(value, want[name], err_msg=name)


@pytest.mark.parametrize("reduce, scale", [(tf.reduce_sum, -1), (tf.reduce_mean, 1)])
def test_gradients_scaled_in_a_loop_by_a_fixed_number_of_rows(reduce, scale):
    def make():
        w = tf.Variable(WEIGHTS, name="w")

        def step(x, y):
            rows, total = x.shape[0] // 2, tf.zeros_like(w)
            xs, ys, losses = tf.reshape(x, [2, rows, 3]), tf.reshape(y, [2, rows]), tf.constant(0.0, tf.float64)
            for i in tf.range(2):
                with tf.GradientTape() as tape:
                    loss = reduce((tf.linalg.matvec(xs[i], w) - ys[i]) ** 2)
                total += tape.gradient(loss, w) * tf.constant(float(rows**scale), tf.float64)
                losses += loss
            w.assign_sub(0.01 * total)
            return losses

        specs = [tf.TensorSpec([24, 3], tf.float64, "x"), tf.TensorSpec([24], tf.float64, "y")]
        return exact_steps.Program(step, specs, {"w": w})

    fed = batches(24, 24)
    _, want = exact_steps.alone(make, fed)
    for workers in (2, 3):
        program, context = exact_steps.captured(make)
        _, got, _ = exact_steps.distributed(program, context, fed, workers)
        np.testing.assert_allclose(got["w"], want["w"])


FIXED = [tf.TensorSpec([K * SIZE, 3], tf.float64, "x"), tf.TensorSpec([K * SIZE], tf.float64, "y")]


def of_fixed_batches(step_of):
    def make():
        program = program_of(step_of)()
        return exact_steps.Program(program.step, FIXED, program.variables)

    return make


def in_python(w, seen, x, y):
    """Two micro-batches of one size, and one of the double."""
    loss = tf.constant(0.0, tf.float64)
    for rows in (slice(None, SIZE // 2), slice(SIZE // 2, SIZE), slice(SIZE, None)):
        loss, gradient = gradient_of(w, x[rows], y[rows])
        w.assign_sub(0.1 * tf.clip_by_norm(gradient, 0.3))
        seen.assign_add([1.0, tf.norm(gradient)])
    return loss


@pytest.mark.parametrize("step_of", [rows_of(of_fixed_size), by_places, in_python])
def test_rows_by_their_numbers_of_batches_of_one_size(step_of):
    """Each worker has its rows of every micro-batch, and other batches are refused, as on one device."""
    make = of_fixed_batches(step_of)
    exact_steps.check(make, batches(12, 12), [2, 3])
    _, context = exact_steps.captured_once(make)
    assert context.model.dealing.rows == 12
    assert not [s for s in context.model.forward_sums if s.kind == "gather"]
    with (
        caramel.ARModel(context, 2).session(in_process()) as session,
        pytest.raises(caramel.InputError, match="a batch has 15 examples: .* batches of 12"),
    ):
        session.step(*batches(15)[0])


def test_rows_by_their_numbers_of_a_dataset():
    dataset = tf.data.Dataset.from_tensor_slices(batches(30)[0]).batch(12, drop_remainder=True)
    make = program_of(rows_of(of_fixed_size))
    losses, want = exact_steps.alone(make, list(dataset.as_numpy_iterator()))
    program = exact_steps.fresh(make)
    context = caramel.capture(program.step, SPECS, data=dataset)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        got = [session.step().loss for _ in losses]
        session.write_back()
    assert context.model.dealing.rows == 12
    np.testing.assert_allclose(got, losses)
    for name, value in exact_steps.values_of(program).items():
        np.testing.assert_allclose(value, want[name], err_msg=name)


def with_static_sizes(w, seen, x, y):
    """Other constants of the program follow from the sizes of these slices."""
    loss = tf.constant(0.0, tf.float64)
    for i in range(K):
        loss, gradient = gradient_of(w, tf.slice(x, [i * SIZE, 0], [SIZE, 3]), tf.slice(y, [i * SIZE], [SIZE]))
        w.assign_sub(0.1 * gradient)
        seen.assign_add([1.0, tf.norm(gradient)])
    return loss


def out_of_bounds(w, seen, x, y):
    """The last micro-batch has fewer rows."""
    loss = tf.constant(0.0, tf.float64)
    for i in range(K):
        loss, gradient = gradient_of(w, x[i * 5 : (i + 1) * 5], y[i * 5 : (i + 1) * 5])
        w.assign_sub(0.1 * gradient)
        seen.assign_add([1.0, tf.norm(gradient)])
    return loss


@pytest.mark.parametrize("step_of", [with_static_sizes, out_of_bounds])
def test_other_cuts_of_batches_of_one_size_are_gathered(step_of):
    make = of_fixed_batches(step_of)
    exact_steps.check(make, batches(12, 12), 2)
    assert exact_steps.captured_once(make)[1].model.dealing.rows is None


@pytest.mark.parametrize("workers", [1, 3])
def test_one_worker_keeps_the_loop(workers):
    """It has nothing to aggregate."""
    _, context = exact_steps.captured(program_of(updating))
    context.model_for(workers)
    loops = [node.name for node in context.model_for(workers).graph if node.op == "While"]
    assert bool(loops) == (workers == 1)
