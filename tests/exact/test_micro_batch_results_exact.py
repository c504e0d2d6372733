"""What a step gives back that cuts its batch into micro-batches: in the order of the batch, and of all of its rows."""

import exact_steps
import numpy as np
import pytest
import tensorflow as tf
from exact_common import in_process
from test_micro_batches_exact import SPECS, WEIGHTS, K, batches, parts, slices

import caramel

RNG = np.random.default_rng(1)


def giving_all(w, x, y):
    """Results of all rows beside micro-batches."""
    first = parts(x)[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(first, w) - parts(y)[0]) ** 2)
    predicted = tf.linalg.matvec(x, w)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    return {"loss": loss, "predicted": predicted, "columns": tf.transpose(x), "rows": tf.shape(x)[0]}


@pytest.mark.parametrize("rows", [24, 15, 6])
def test_results_of_all_rows_are_in_their_order(rows):
    fed, w = batches(rows)[0], tf.Variable(WEIGHTS)
    want = giving_all(tf.Variable(WEIGHTS), *fed)
    context = caramel.capture(lambda x, y: giving_all(w, x, y), SPECS)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        result = session.step(*fed)
    assert context.model.dealing.micro_batches == K
    shares = result.worker_examples
    assert [len(part) for part in result.outputs["predicted"] if len(part)] == [s or K for s in shares]
    own = [rank for rank, share in enumerate(shares) if share]
    for name, axis in (("predicted", 0), ("columns", 1)):
        got = np.concatenate([result.outputs[name][rank] for rank in own], axis)
        np.testing.assert_allclose(got, want[name], err_msg=name)
    assert sum(int(result.outputs["rows"][rank]) for rank in own) == rows


def test_results_of_a_micro_batch():
    """What each example of a micro-batch gives is that of all workers, in the order of one device."""
    fed = batches(21)[0]

    def step_of(w):
        def step(x, y):
            first = slices(x)[0]
            outputs = tf.linalg.matvec(first, w)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(first, w) - slices(y)[0]) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return {"loss": loss, "outputs": outputs}

        return step

    want = step_of(tf.Variable(WEIGHTS))(*fed)
    context = caramel.capture(step_of(tf.Variable(WEIGHTS)), SPECS)
    with caramel.ARModel(context, 4).session(in_process()) as session:
        result = session.step(*fed)
    np.testing.assert_allclose(result.loss, want["loss"])
    np.testing.assert_allclose(np.concatenate(result.outputs["outputs"]), want["outputs"])


# -- results that a loop puts together ---------------------------------------------------------


def predicted_in_a_loop(w, x, y, begin, with_one_more):
    """A step over micro-batches in a loop that puts what it predicts for each into one thing.

    Args:
        begin: that, before the first round.
        with_one_more: function from it, the number of the round and what that predicts to it.
    """
    size, total, losses, found = tf.shape(x)[0] // K, tf.zeros_like(w), tf.constant(0.0, tf.float64), begin
    for i in tf.range(K):
        own = x[i * size : (i + 1) * size]
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(own, w)
            loss = tf.reduce_mean((predicted - y[i * size : (i + 1) * size]) ** 2)
        total, losses = total + tape.gradient(loss, w), losses + loss
        found = with_one_more(found, i, predicted)
    w.assign_sub(0.1 * total / K)
    return losses, found


def in_a_list(w, x, y):
    empty = tf.TensorArray(tf.float64, K, infer_shape=False)
    losses, found = predicted_in_a_loop(w, x, y, empty, lambda found, i, each: found.write(i, each))
    return losses, found.concat()


def in_a_growing_list(w, x, y):
    empty = tf.TensorArray(tf.float64, 0, dynamic_size=True, element_shape=[None])
    losses, found = predicted_in_a_loop(w, x, y, empty, lambda found, i, each: found.write(i, each))
    return losses, found.concat()


def one_behind_the_other(w, x, y):
    size, total, losses = tf.shape(x)[0] // K, tf.zeros_like(w), tf.constant(0.0, tf.float64)
    found = tf.zeros([0], tf.float64)
    for i in tf.range(K):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(found, tf.TensorShape([None]))])
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(x[i * size : (i + 1) * size], w)
            loss = tf.reduce_mean((predicted - y[i * size : (i + 1) * size]) ** 2)
        total, losses = total + tape.gradient(loss, w), losses + loss
        found = tf.concat([found, predicted], 0)
    w.assign_sub(0.1 * total / K)
    return losses, found


def in_a_list_of_python(w, x, y):
    found, total, losses = tf.TensorArray(tf.float64, K, infer_shape=False), tf.zeros_like(w), []
    for i, (own, want) in enumerate(zip(slices(x), slices(y))):
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(own, w)
            loss = tf.reduce_mean((predicted - want) ** 2)
        losses.append(loss)
        total += tape.gradient(loss, w)
        found = found.write(i, predicted)
    w.assign_sub(0.1 * total / K)
    return tf.add_n(losses), found.concat()


def stepping(put_together):
    """The step, and its weights."""
    w = tf.Variable(WEIGHTS, name="w")
    return tf.function(lambda x, y: dict(zip(["loss", "predicted"], put_together(w, x, y))), input_signature=SPECS), w


def some_of_them(w, x, y):
    """Two of three micro-batches, and each twice."""
    losses, found = in_a_list_of_python(w, x, y)
    size, found = tf.shape(x)[0] // K, tf.ensure_shape(found, [None])
    return losses, tf.concat([found[size : 3 * size], 2.0 * found[size : 3 * size]], 0)


@pytest.mark.parametrize(
    "put_together", [in_a_list, in_a_growing_list, one_behind_the_other, in_a_list_of_python, some_of_them]
)
def test_results_of_all_micro_batches_are_in_their_order(put_together):
    """Whole and uneven parts, rows that are left over, and fewer rows in a micro-batch than workers."""
    alone, _ = stepping(put_together)
    context = caramel.capture(stepping(put_together)[0], SPECS)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        for fed in batches(27, 25, 5):
            want = alone(*fed)["predicted"]
            result = session.step(*fed)
            own = [part for part, share in zip(result.outputs["predicted"], result.worker_examples) if share]
            np.testing.assert_allclose(np.concatenate(own), want, err_msg=f"{len(fed[0])} rows")
    assert not [note for note in context.model.notes if "the order of its parts" in note]


def test_results_of_data_on_workers_are_in_their_order():
    dataset = tf.data.Dataset.from_tensor_slices(batches(40)[0]).batch(20)
    alone, _ = stepping(in_a_list)
    context = caramel.capture(stepping(in_a_list)[0], SPECS, data=dataset)
    with caramel.ARModel(context, 2).session(in_process()) as session:
        for fed in dataset.as_numpy_iterator():
            want = alone(*fed)["predicted"]
            np.testing.assert_allclose(np.concatenate(session.step().outputs["predicted"]), want)


def test_batches_one_behind_the_other():
    """Micro-batches as an axis of the inputs, and a batch that is joined with itself: each is divided by itself."""
    x, y = RNG.normal(size=(7, K, 3)), RNG.normal(size=(7, K))

    def step_of(w, x, y):
        losses, predicted = tf.constant(0.0, tf.float64), tf.TensorArray(tf.float64, K, infer_shape=False)
        for i in range(K):
            with tf.GradientTape() as tape:
                each = tf.linalg.matvec(x[:, i], w)
                loss = tf.reduce_mean((each - y[:, i]) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            losses += loss
            predicted = predicted.write(i, each)
        return {"loss": losses, "predicted": predicted.concat(), "twice": tf.concat([x, -x], 0)}

    specs = [tf.TensorSpec([None, K, 3], tf.float64, "x"), tf.TensorSpec([None, K], tf.float64, "y")]
    w = tf.Variable(WEIGHTS)
    context = caramel.capture(lambda x, y: step_of(w, x, y), specs)
    want = step_of(tf.Variable(WEIGHTS), x, y)
    with caramel.ARModel(context, 3).session(in_process()) as session:
        result = session.step(x, y)
    for name in ("predicted", "twice"):
        np.testing.assert_allclose(np.concatenate(result.outputs[name]), want[name], err_msg=name)


def last_first(w, x, y):
    """An order that is not followed."""
    empty = tf.TensorArray(tf.float64, K, infer_shape=False)
    losses, found = predicted_in_a_loop(w, x, y, empty, lambda found, i, each: found.write(K - 1 - i, each))
    return losses, found.concat()


def test_an_order_that_cannot_be_told_is_said():
    context = caramel.capture(stepping(last_first)[0], SPECS)
    assert context.model.dealing.micro_batches == K
    (note,) = [note for note in context.model.notes if "the order of its parts" in note]
    assert "results predicted cannot be told" in note


def sum_over_the_number_of_rows(w, x, y):
    """The mean of the whole batch, from sums of its micro-batches."""
    size, rows = tf.shape(x)[0] // K, tf.cast(tf.shape(x)[0], tf.float64)
    total, sum_of_losses = tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for i in tf.range(K):
        with tf.GradientTape() as tape:
            errors = tf.linalg.matvec(x[i * size : (i + 1) * size], w) - y[i * size : (i + 1) * size]
            loss = tf.reduce_sum(errors**2)
        sum_of_losses += loss
        total += tape.gradient(loss, w)
    w.assign_sub(0.1 * total / rows)
    return sum_of_losses / rows


def test_the_loss_is_that_of_one_device():
    def make():
        w = tf.Variable(WEIGHTS, name="w")
        return exact_steps.Program(lambda x, y: sum_over_the_number_of_rows(w, x, y), SPECS, {"w": w})

    exact_steps.check(make, batches(24, 9), [2, 4])
    _, context = exact_steps.captured_once(make)
    assert context.model.dealing.micro_batches == K
    assert not [note for note in context.model.notes if "cannot be told" in note]
