"""Metrics that a step of one's own updates count all examples, as on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel
from caramel.model import VariableClass

AS_WRITTEN = caramel.InProcess(options=caramel.RunOptions(optimize_graph=False))
"""Without TensorFlow's graph optimizers, which would take as long as all the rest."""

rng = np.random.default_rng(3)
X = rng.normal(size=(59, 4))
Y = np.argmax(X[:, :3], 1)
BATCHES = [(X[start : start + 12], Y[start : start + 12]) for start in range(0, 59, 12)]
BATCHES.append((X[:3], Y[:3]))  # fewer examples than workers


def program(loss_kind="mean"):
    """A classifier, its step, and metrics of several kinds."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    network = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    metrics = {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        "loss": keras.metrics.Mean(name="mean_loss"),
        "auc": keras.metrics.AUC(name="auc", from_logits=True),
        "f1": keras.metrics.F1Score(name="f1"),
        "weighted": keras.metrics.SparseCategoricalAccuracy(name="weighted"),
    }
    seen = tf.Variable(0, dtype=tf.int64, name="examples_seen")
    largest = tf.Variable(0.0, dtype=tf.float64, name="sum_of_largest")
    by_class = tf.Variable(tf.zeros([3]), name="by_class")

    def step(x, y):
        with tf.GradientTape() as tape:
            logits = network(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses) if loss_kind == "mean" else tf.reduce_sum(losses)
        for variable, gradient in zip(network.trainable_variables, tape.gradient(loss, network.trainable_variables)):
            variable.assign_sub(0.01 * gradient)
        metrics["accuracy"].update_state(y, logits)
        metrics["loss"].update_state(loss)
        metrics["auc"].update_state(tf.cast(y == 0, tf.float32), logits[:, 0])
        metrics["f1"].update_state(tf.one_hot(y, 3), tf.nn.softmax(logits))
        metrics["weighted"].update_state(y, logits, sample_weight=tf.abs(x[:, 0]))
        seen.assign_add(tf.shape(x, tf.int64)[0])
        largest.assign_add(tf.reduce_sum(tf.cast(tf.reduce_max(x, 1), tf.float64)))
        by_class.assign_add(tf.reduce_sum(tf.one_hot(y, 3), 0))
        return loss

    of_keras = [*network.variables, *(v for metric in metrics.values() for v in metric.variables)]
    variables = [v.value for v in of_keras] + [seen, largest, by_class]
    return step, metrics, variables


SPECS = [tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int64)]


def as_fed(batch):
    return batch[0].astype(np.float32), batch[1]


def alone(kind="mean", batches=BATCHES):
    step, metrics, variables = program(kind)
    compiled = tf.function(step)
    for batch in batches:
        compiled(*map(tf.constant, as_fed(batch)))
    return metrics, variables


@pytest.mark.parametrize(
    "workers, kind", [(2, "sum"), (4, "mean"), *in_soak((1, "mean"), (1, "sum"), (2, "mean"), (4, "sum"))]
)
def test_metrics_in_a_loop_of_ones_own(workers, kind):
    want, want_variables = alone(kind)
    step, metrics, variables = program(kind)
    context = caramel.capture(step, inputs=SPECS)
    with caramel.ARModel(context, workers).session(AS_WRITTEN) as session:
        session.run(map(as_fed, BATCHES))
        session.write_back()
    for one, other in zip(variables, want_variables):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=1e-6, err_msg=one.name)
    for name, metric in metrics.items():
        np.testing.assert_allclose(metric.result(), want[name].result(), rtol=2e-5, err_msg=name)
    totals = {v.name for v in context.model_for(2).variables_of(VariableClass.TOTAL)}
    assert {"examples_seen", "sum_of_largest", "by_class"} <= totals


def test_over_the_workers_data():
    """The last batch has fewer examples than workers, which count nothing then."""
    _, want = alone()
    step, _, variables = program()
    arrays = [np.concatenate(parts) for parts in zip(*map(as_fed, BATCHES[:-1]))]
    data = tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(12)
    data = data.concatenate(tf.data.Dataset.from_tensors(as_fed(BATCHES[-1])))
    with caramel.ARModel(caramel.capture(step, data=data), 4).session(AS_WRITTEN) as session:
        session.run()
        session.write_back()
    for one, other in zip(variables, want):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=1e-6, err_msg=one.name)


@pytest.mark.parametrize("restored", [3, *in_soak(2, 4)])
def test_a_checkpoint_has_the_sums(tmp_path, restored):
    """Saved by four workers, and gone on with by others."""
    _, want = alone()
    step, _, _ = program()
    with caramel.ARModel(caramel.capture(step, inputs=SPECS), 4).session(AS_WRITTEN) as session:
        session.run(map(as_fed, BATCHES[:3]))
        session.save(tmp_path / "saved")
    step, _, variables = program()
    with caramel.ARModel(caramel.capture(step, inputs=SPECS), restored).session(AS_WRITTEN) as session:
        session.restore(tmp_path / "saved")
        session.run(map(as_fed, BATCHES[3:]))
        session.write_back()
    for one, other in zip(variables, want):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=2e-5, atol=1e-6, err_msg=one.name)


def test_a_loss_that_depends_on_a_total_is_no_total():
    total = tf.Variable(1.0, name="total")
    w = tf.Variable([1.0, 2.0], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2) * total
        w.assign_sub(0.1 * tape.gradient(loss, w))
        total.assign_add(tf.reduce_sum(x))
        return loss

    model = caramel.capture(step, inputs=[tf.TensorSpec([None, 2])], loss_reduction="mean").model
    assert model.variable_by_name["total"].kind is VariableClass.STATISTICS


@pytest.mark.parametrize("trainable", [False, True])
def test_what_is_no_sum_is_no_total(trainable):
    w, moving = tf.Variable([1.0, 2.0], name="w"), tf.Variable(0.0, name="moving", trainable=trainable)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(x))
        return loss

    model = caramel.capture(step, inputs=[tf.TensorSpec([None, 2])]).model
    assert model.variable_by_name["moving"].kind is VariableClass.HYPERPARAMETER and not model.addends


@pytest.mark.parametrize("workers", [1, 2])
def test_a_count_that_another_variable_reads_is_no_total(workers):
    """A running mean divides by the count of each worker, which begins with the count so far on all of them."""
    count, mean, w = tf.Variable(1000.0, name="count"), tf.Variable(3.5, name="mean"), tf.Variable([[0.0]], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, w) - 1.0) ** 2)
        w.assign_sub(0.01 * tape.gradient(loss, w))
        count.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        mean.assign_add(tf.reduce_sum(x - mean) / count)
        return loss

    model = caramel.ARModel(caramel.capture(step, inputs=[tf.TensorSpec([None, 1])]), workers, statistics="mean")
    with model.session(AS_WRITTEN) as session:
        session.step(np.arange(8, dtype=np.float32)[:, None])
        session.write_back()
    part = 8 // workers
    means = [3.5 + np.sum(np.arange(part) + rank * part - 3.5) / (1000 + part) for rank in range(workers)]
    assert mean.numpy() == pytest.approx(np.mean(means), rel=1e-5)


def test_means_beside_gradients_of_a_sum():
    """Workers have other numbers of examples, by which means are weighted and sums are not."""

    def program():
        w, added = tf.Variable([1.0, -0.5, 0.2, 0.1]), tf.Variable(0.0, trainable=False)
        metric = keras.metrics.Mean()

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf.linalg.matvec(x, w) - tf.cast(y, tf.float32)) ** 2)
            w.assign_sub(0.001 * tape.gradient(loss, w))
            added.assign_add(tf.reduce_mean(x))
            metric.update_state(tf.reduce_mean(x[:, 0]))
            return loss

        return step, [w, added, *(v.value for v in metric.variables)]

    step, want = program()
    for batch in BATCHES:
        tf.function(step, input_signature=SPECS)(*batch)
    step, got = program()
    with caramel.ARModel(caramel.capture(step, SPECS), 4).session(AS_WRITTEN) as session:
        session.run(BATCHES, progress=False)
        session.write_back()
    for ours, theirs in zip(got, want):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
