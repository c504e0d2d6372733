"""Steps that cut their batch into micro-batches: each worker takes its rows of every one of them."""

import exact_steps
import keras
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process

import caramel
from caramel.dealing import WHOLE, Dealing

SPECS = [tf.TensorSpec([None, 3], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]
RNG = np.random.default_rng(0)
WEIGHTS = np.array([0.5, -1.0, 0.25])
K = 3


def batches(*rows):
    return [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in rows]


def of_a_micro_batch(w, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return loss, tape.gradient(loss, w)


def size_of(x):
    return tf.shape(x)[0] // K


def slices(x):
    return [x[i * size_of(x) : (i + 1) * size_of(x)] for i in range(K)]


def slices_by_place(x):
    size = size_of(x)
    return [tf.slice(x, [i * size] + [0] * (len(x.shape) - 1), [size] + [-1] * (len(x.shape) - 1)) for i in range(K)]


def parts(x):
    return tf.split(x, K)


def axis(x):
    return tf.unstack(tf.reshape(x, tf.concat([[K, -1], tf.shape(x)[1:]], 0)), K)


def axis_of_size(x):
    return tf.unstack(tf.reshape(x, tf.concat([[K, size_of(x)], tf.shape(x)[1:]], 0)), K)


def program_of(step_of, **options):
    """A program whose step is `step_of`, called with the weights, the number of steps so far and the batch."""

    def make():
        w = tf.Variable(WEIGHTS, name="w")
        seen = tf.Variable(np.zeros(2), name="seen", trainable=False)

        def step(x, y):
            return step_of(w, seen, x, y)

        return exact_steps.Program(step, SPECS, {"w": w, "seen": seen}, options)

    return make


def added_up(cut):
    def step(w, seen, x, y):
        losses, total = [], tf.zeros_like(w)
        for part in zip(cut(x), cut(y)):
            loss, gradient = of_a_micro_batch(w, *part)
            losses.append(loss)
            total += gradient / K
        w.assign_sub(0.1 * tf.clip_by_norm(total, 0.5))
        seen.assign_add([1.0, 1.0])
        return tf.add_n(losses) / K

    return step


def in_a_loop(w, seen, x, y):
    size, total, sum_of_losses = size_of(x), tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        loss, gradient = of_a_micro_batch(w, x[i * size : (i + 1) * size], y[i * size : (i + 1) * size])
        sum_of_losses += loss
        total += gradient / K
    w.assign_sub(0.1 * tf.clip_by_norm(total, 0.5))
    seen.assign_add([1.0, 1.0])
    return sum_of_losses / K


def in_a_loop_from_places(w, seen, x, y):
    x, size, total = tf.cast(x, tf.float64) / 2.0, size_of(x), tf.zeros_like(w)
    sum_of_losses = tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        start = i * size
        part = tf.slice(x, [start, 0], [size, 3]), y[start : start + size]
        loss, gradient = of_a_micro_batch(w, *part)
        sum_of_losses += loss
        total += gradient
    w.assign_sub(0.1 * total)
    seen.assign_add([1.0, 1.0])
    return sum_of_losses / K


def in_a_loop_over_an_axis(w, seen, x, y):
    xs, ys, total = tf.reshape(x, [K, -1, 3]), tf.reshape(y, [K, -1]), tf.zeros_like(w)
    sum_of_losses = tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        loss, gradient = of_a_micro_batch(w, xs[i], ys[i])
        sum_of_losses += loss
        total += gradient
    w.assign_sub(0.1 * total)
    seen.assign_add([1.0, 1.0])
    return sum_of_losses / K


def sums_in_a_loop(w, seen, x, y):
    size, total, sum_of_losses = size_of(x), tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        with tf.GradientTape() as tape:
            errors = tf.linalg.matvec(x[i * size : (i + 1) * size], w) - y[i * size : (i + 1) * size]
            loss = tf.reduce_sum(errors**2)
        sum_of_losses += loss
        total += tape.gradient(loss, w)
    w.assign_sub(0.01 * total)
    seen.assign_add([1.0, 1.0])
    return sum_of_losses


def each_trained_on(w, seen, x, y):
    """An update for each micro-batch, one after the other, with a gradient that is cut by its own norm."""
    losses = []
    for part in zip(slices(x), slices(y)):
        loss, gradient = of_a_micro_batch(w, *part)
        w.assign_sub(0.1 * tf.clip_by_norm(gradient, 0.5))
        seen.assign_add(tf.stack([tf.constant(1.0, tf.float64), tf.norm(gradient)]))
        losses.append(loss)
    return tf.add_n(losses) / K


def compared(w, seen, x, y):
    """One part of the batch against another: what stands in the same row of both belongs together."""
    first, second, third = slices(x)
    with tf.GradientTape() as tape:
        closer = tf.linalg.matvec((first - second) ** 2, w) - tf.linalg.matvec((first - third) ** 2, w)
        loss = tf.reduce_mean(tf.nn.softplus(closer)) + tf.reduce_mean(slices(y)[0] * tf.linalg.matvec(first, w))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    seen.assign_add([1.0, 1.0])
    return loss


LEAVES_REST = {
    "slices": added_up(slices),
    "slices_by_place": added_up(slices_by_place),
    "loop": in_a_loop,
    "loop_from_places": in_a_loop_from_places,
    "loop_of_sums": sums_in_a_loop,
    "updates": each_trained_on,
    "compared": compared,
}
DIVIDES = {
    "split": added_up(parts),
    "reshape": added_up(axis),
    "reshape_to_size": added_up(axis_of_size),
    "loop_over_an_axis": in_a_loop_over_an_axis,
}


@pytest.mark.parametrize("name", [*LEAVES_REST, *DIVIDES])
def test_as_on_one_device(name):
    """Whole and uneven parts, and fewer rows in a micro-batch than workers."""
    step_of = {**LEAVES_REST, **DIVIDES}[name]
    exact_steps.check(program_of(step_of), batches(24, 27, 9), [2, 4])


@pytest.mark.parametrize("name", LEAVES_REST)
def test_rows_that_are_left_over(name):
    exact_steps.check(program_of(LEAVES_REST[name]), batches(24, 25, 11, 5), [2, 4])
    _, context = exact_steps.captured_once(program_of(LEAVES_REST[name]))
    assert context.model.dealing == Dealing(K, leaves_remainder=True)


@pytest.mark.parametrize("name", DIVIDES)
def test_what_one_device_cannot_cut(name):
    make = program_of(DIVIDES[name])
    program, context = exact_steps.captured(make)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        tf.function(program.step, input_signature=SPECS)(*batches(10)[0])
    with caramel.ARModel(context, 2).session(in_process()) as session:
        with pytest.raises(caramel.InputError, match="a batch has 10 examples: .* a multiple of 3"):
            session.step(*batches(10)[0])
        session.step(*batches(12)[0])


@pytest.mark.parametrize("name", [*LEAVES_REST, *DIVIDES])
def test_what_the_caller_says_of_the_loss_changes_nothing(name):
    step_of = {**LEAVES_REST, **DIVIDES}[name]
    rows = (9, 15) if name in DIVIDES else (9, 16)
    reduction = "sum" if step_of is sums_in_a_loop else "mean"
    exact_steps.check(program_of(step_of, loss_reduction=reduction), batches(*rows), 2)


@pytest.mark.parametrize("workers", [2, 4])
def test_parts_of_fixed_batches(workers):
    """Micro-batches of a number of rows that Python knows, where each worker's part can be cut so."""

    def make():
        w = tf.Variable(WEIGHTS, name="w")

        def step(x, y):
            size, losses, total = x.shape[0] // K, [], tf.zeros_like(w)
            for i in range(K):
                loss, gradient = of_a_micro_batch(w, x[i * size : (i + 1) * size], y[i * size : (i + 1) * size])
                losses.append(loss)
                total += gradient / K
            w.assign_sub(0.1 * tf.clip_by_norm(total, 0.5))
            return tf.add_n(losses) / K

        specs = [tf.TensorSpec([24, 3], tf.float64, "x"), tf.TensorSpec([24], tf.float64, "y")]
        return exact_steps.Program(step, specs, {"w": w})

    fed = batches(24, 24)
    losses, want = exact_steps.alone(make, fed)
    program, context = exact_steps.captured(make)
    got_losses, got, _ = exact_steps.distributed(program, context, fed, workers)
    np.testing.assert_allclose(got_losses, losses)
    np.testing.assert_allclose(got["w"], want["w"])
    assert context.for_workers(workers).model_for(workers).dealing.micro_batches == K


def of_datasets(rows, size, **options):
    dataset = tf.data.Dataset.from_tensor_slices(batches(rows)[0]).batch(size)
    make = program_of(in_a_loop)
    want = exact_steps.alone(make, list(dataset.as_numpy_iterator()))
    program = exact_steps.fresh(make)
    return want, program, caramel.capture(program.step, SPECS, data=dataset, **options)


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("workers", [2, 4])
def test_data_on_workers(workers, together):
    """Batches of 10, 10, 10 and 4 rows."""
    (losses, want), program, context = of_datasets(34, 10)
    with caramel.ARModel(context, workers).session(in_process()) as session:
        results = session.run(steps=4, steps_per_execution=together, progress=False)
        session.write_back()
    np.testing.assert_allclose([result.loss for result in results], losses)
    got = exact_steps.values_of(program)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], err_msg=name)


def test_batches_that_a_worker_has_for_itself():
    """There no remainder can be left out as on one device, which has another one."""
    _, _, context = of_datasets(20, 10)
    with (
        caramel.ARModel(context, 2, sharding="batches").session(in_process()) as session,
        pytest.raises(caramel.DataError, match="batch 0 of the data has 10 examples: .* a multiple of 3"),
    ):
        session.step()


def test_too_few_rows():
    _, context = exact_steps.captured(program_of(in_a_loop))
    with (
        caramel.ARModel(context, 2).session(in_process()) as session,
        pytest.raises(caramel.InputError, match="a batch has 2 examples: .* at least one example for each"),
    ):
        session.step(*batches(2)[0])


def test_too_few_rows_in_the_data():
    _, _, context = of_datasets(5, 3)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        session.step()
        with pytest.raises(caramel.DataError, match="batch 1 of the data has 2 examples: .* at least one example"):
            session.step()


@pytest.mark.parametrize("servers", [1, 2])
def test_on_parameter_servers(servers):
    make, fed = program_of(each_trained_on), batches(12, 11)
    losses, want = exact_steps.alone(make, fed)
    program, context = exact_steps.captured(make)
    with caramel.PSModel(context, 2, servers).session(in_process()) as session:
        got = [session.step(*batch).loss for batch in fed]
        session.write_back()
    np.testing.assert_allclose(got, losses)
    for name, value in exact_steps.values_of(program).items():
        np.testing.assert_allclose(value, want[name], err_msg=name)


def halves_of_all(w, seen, x, y):
    """Two halves in a loop, and all rows."""
    size, total = tf.shape(x)[0] // 2, tf.zeros_like(w)
    for i in tf.range(2):
        end = (i + 1) * size
        _, gradient = of_a_micro_batch(w, x[i * size : end], y[i * size : end])
        total += gradient
    loss, gradient = of_a_micro_batch(w, x, y)
    w.assign_sub(0.1 * (total + gradient))
    seen.assign_add([1.0, 1.0])
    return loss


@pytest.mark.parametrize("step_of, rows", [(in_a_loop_over_an_axis, 9), (halves_of_all, 13)])
def test_one_worker_takes_any_batch(step_of, rows):
    """Also where several were asked for before: there is nothing to deal."""
    make, fed = program_of(step_of), batches(rows)
    losses, want = exact_steps.alone(make, fed)
    program, context = exact_steps.captured(make)
    caramel.ARModel(context, 2)
    with caramel.ARModel(context, 1).session(in_process()) as session:
        np.testing.assert_allclose([session.step(*batch).loss for batch in fed], losses)
        session.write_back()
    for name, value in exact_steps.values_of(program).items():
        np.testing.assert_allclose(value, want[name], err_msg=name)


def test_a_step_that_needs_all_rows_needs_whole_micro_batches():
    make = program_of(halves_of_all)
    exact_steps.check(make, batches(8, 14), [2, 3])
    _, context = exact_steps.captured(make)
    with (
        caramel.ARModel(context, 2).session(in_process()) as session,
        pytest.raises(caramel.InputError, match="a batch has 13 examples: .* a multiple of 2"),
    ):
        session.step(*batches(13)[0])


def test_a_fixed_batch_that_cannot_be_cut():
    """Each worker computes all of it, as it does where the loop is written in Python."""

    def make():
        w, seen = tf.Variable(WEIGHTS, name="w"), tf.Variable(np.zeros(2), name="seen", trainable=False)
        specs = [tf.TensorSpec([13, 3], tf.float64, "x"), tf.TensorSpec([13], tf.float64, "y")]
        return exact_steps.Program(lambda x, y: halves_of_all(w, seen, x, y), specs, {"w": w, "seen": seen})

    exact_steps.check(make, batches(13, 13), 2)


def test_a_trace_of_one_worker_of_a_job():
    """It has the rows that this worker has in training."""
    _, context = exact_steps.captured(program_of(in_a_loop))
    trace = caramel.trace(context, *batches(33)[0], workers=2, workers_on_host=1, runs=1, steps=1)
    assert trace.examples == 18  # of 11 rows in each of three micro-batches the first worker has 6


def test_complex_constants():
    """They are no numbers of micro-batches, and no reason to fail."""
    w = tf.Variable([1.0, 2.0, 3.0])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return {"loss": loss, "size": tf.cast(tf.shape(x)[0], tf.complex64) / tf.constant(2j, tf.complex64)}

    context = caramel.capture(step, [tf.TensorSpec([None, 3], tf.float32)], loss_reduction="mean")
    assert context.model.dealing == WHOLE


MATRIX = [tf.TensorSpec([None, None], tf.float64, "x"), tf.TensorSpec([None], tf.float64, "y")]


def square_program(step_of):
    def make():
        b = tf.Variable(np.float64(0.3), name="b")

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = step_of(b, x, y)
            b.assign_sub(0.01 * tape.gradient(loss, b))
            return loss

        return exact_steps.Program(step, MATRIX, {"b": b})

    return make


def corner(b, x, y):
    n = tf.shape(x)[0]
    return tf.reduce_mean((tf.reduce_sum(x[:n, :n], 1) * b - y) ** 2)


def corner_by_slice(b, x, y):
    n = tf.shape(x)[0]
    return tf.reduce_mean((tf.reduce_sum(tf.slice(x, [0, 0], [n, n]), 1) * b - y) ** 2)


def last_of_as_many(b, x, y):
    n = tf.shape(x)[0]
    return tf.reduce_mean((x[0:n, n - 1] * b - y) ** 2)


def blocks(b, x, y):
    losses, size = [], size_of(x)
    for i in range(K):
        rows = slice(i * size, (i + 1) * size)
        losses.append(tf.reduce_mean((tf.reduce_sum(x[rows, rows], 1) * b - y[rows]) ** 2))
    return tf.add_n(losses)


@pytest.mark.parametrize("step_of", [corner, corner_by_slice, last_of_as_many, blocks])
def test_columns_by_the_number_of_rows(step_of):
    """There are as many as the batch has rows, and not as many as a worker has."""
    fed = [(RNG.normal(size=(n, n)), RNG.normal(size=n)) for n in (12, 9)]
    exact_steps.check(square_program(step_of), fed, [2, 3])


def test_blocks_in_a_loop_are_refused():
    def in_a_loop(b, x, y):
        loss, size = tf.constant(0.0, tf.float64), size_of(x)
        for i in tf.range(K):
            rows = slice(i * size, (i + 1) * size)
            loss += tf.reduce_mean((tf.reduce_sum(x[rows, rows], 1) * b - y[rows]) ** 2)
        return loss

    with pytest.raises(caramel.CaptureError, match="bounds that are not constant"):
        exact_steps.captured_once(square_program(in_a_loop))


@pytest.mark.parametrize("reduce, scale", [(tf.reduce_sum, -1), (tf.reduce_mean, 1)])
@pytest.mark.parametrize("cut", [lambda x: tf.split(x, 2), lambda x: [x, x]], ids=["parts", "whole"])
def test_gradients_scaled_by_a_fixed_number_of_rows(cut, reduce, scale):
    """The number is another one on a worker, so that its gradients are no sums that are scaled alike."""

    def make():
        w = tf.Variable(WEIGHTS, name="w")

        def step(x, y):
            total, rows = tf.zeros_like(w), cut(x)[0].shape[0]
            for own_x, own_y in zip(cut(x), cut(y)):
                with tf.GradientTape() as tape:
                    loss = reduce((tf.linalg.matvec(own_x, w) - own_y) ** 2)
                total += tape.gradient(loss, w) * rows**scale
            w.assign_sub(0.01 * total)
            return loss

        specs = [tf.TensorSpec([24, 3], tf.float64, "x"), tf.TensorSpec([24], tf.float64, "y")]
        return exact_steps.Program(step, specs, {"w": w})

    fed = batches(24, 24)
    _, want = exact_steps.alone(make, fed)
    for workers in (2, 3):
        program, context = exact_steps.captured(make)
        _, got, _ = exact_steps.distributed(program, context, fed, workers)
        np.testing.assert_allclose(got["w"], want["w"])


def test_arrays_of_python_for_each_row_of_a_part():
    """A worker's rows have other numbers than those of one device, and no array says which."""
    w = tf.Variable(WEIGHTS)

    def step(x, y):
        size, total = x.shape[0] // K, tf.zeros_like(w)
        for own_x, own_y in zip(tf.split(x, K), tf.split(y, K)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(own_x, w) - own_y * np.linspace(0.0, 1.0, size)) ** 2)
            total += tape.gradient(loss, w)
        w.assign_sub(0.1 * total)
        return loss

    specs = [tf.TensorSpec([24, 3], tf.float64, "x"), tf.TensorSpec([24], tf.float64, "y")]
    with (
        pytest.raises(caramel.CaptureError, match="fixed number of examples"),
        caramel.ARModel(caramel.capture(step, specs), 2).session(in_process()) as session,
    ):
        session.step(*batches(24)[0])


def test_what_reads_all_rows_leaves_none_over():
    def with_the_number(w, seen, x, y):
        loss = in_a_loop(w, seen, x, y)
        seen.assign_add(tf.stack([tf.cast(tf.shape(x)[0], tf.float64), 0.0]))
        return loss

    def with_rows(w, seen, x, y):
        loss = in_a_loop(w, seen, x, y)
        seen.assign_add([tf.reduce_sum(x), 0.0])
        return loss

    for step_of in (with_the_number, with_rows):
        make = program_of(step_of)
        exact_steps.check(make, batches(9, 15), [2, 4])
        assert exact_steps.captured_once(make)[1].model.dealing == Dealing(K)


class Accumulating(keras.Model):
    """A model that adds up the gradients of its micro-batches."""

    def train_step(self, data):
        x, y = data
        size, totals = tf.shape(x)[0] // 4, [tf.zeros_like(w) for w in self.trainable_weights]
        for i in range(4):
            with tf.GradientTape() as tape:
                predicted = self(x[i * size : (i + 1) * size], training=True)
                loss = self.compute_loss(y=y[i * size : (i + 1) * size], y_pred=predicted)
            gradients = tape.gradient(loss, self.trainable_weights)
            totals = [total + gradient / 4 for total, gradient in zip(totals, gradients)]
        self.optimizer.apply(totals, self.trainable_weights)
        return {"loss": loss}


def test_a_train_step_of_keras():
    """32 and 22 examples: the last two of the second batch are left over."""
    x, y = np.random.default_rng(3).normal(size=(54, 5)), np.random.default_rng(4).normal(size=(54, 1))

    def fitted(fit):
        keras.utils.set_random_seed(7)
        inputs = keras.Input([5], dtype="float64")
        hidden = keras.layers.Dense(8, activation="tanh", dtype="float64")(inputs)
        model = Accumulating(inputs, keras.layers.Dense(1, dtype="float64")(hidden))
        model.compile(keras.optimizers.Adam(0.01), "mean_squared_error")
        history = fit(model, x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], model.get_weights()

    losses, want = fitted(keras.Model.fit)
    got_losses, got = fitted(lambda model, *args, **options: caramel.fit(model, *args, workers=2, **options))
    np.testing.assert_allclose(got_losses, losses, rtol=1e-6)
    for theirs, ours in zip(want, got):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
