"""What `caramel.fit` reports, metrics and logs, against Keras' own fit on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import CLASSES, FEATURES, arrays, both, same
from variants import in_soak

pytestmark = pytest.mark.usefixtures("double")


def built(outputs=1, loss="mse", units=2, optimizer=None, **options):
    """A model with one output or several."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(6, "tanh")(inputs)
    names = ["first", "second", "third"][:outputs]
    given = [keras.layers.Dense(units, name=name)(hidden) for name in names]
    model = keras.Model(inputs, given if outputs > 1 else given[0])
    model.compile(optimizer or keras.optimizers.SGD(0.01), loss, **options)
    return model


def regression(count=59, batch=12, outputs=1, units=2):
    """Batches of 12 whose last has 11: 6 and 5 examples for two workers."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, FEATURES))
    y = tuple(rng.normal(size=(count, units)) for _ in range(outputs))
    return tf.data.Dataset.from_tensor_slices((x, y if outputs > 1 else y[0])).batch(batch)


class Seen(keras.callbacks.Callback):
    """Remembers the logs after every batch."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))


def same_logs(data, make, workers=2, **options):
    """The same training, and the same logs after every batch and every epoch."""
    seen = []

    def callbacks():
        seen.append(Seen())
        return [seen[-1]]

    same(*both(data, make=make, workers=workers, callbacks=callbacks, **options))
    want, got = (s.logs for s in seen)
    assert len(want) == len(got) > 0
    for mine, theirs in zip(got, want):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            np.testing.assert_allclose(mine[name], value, rtol=1e-10, err_msg=name)


def test_a_loss_that_is_a_sum():
    same_logs(regression(), lambda: built(loss=keras.losses.MeanSquaredError(reduction="sum")), epochs=2)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", *in_soak("sum")])
def test_each_outputs_loss(reduction):
    def losses():
        return [
            keras.losses.MeanSquaredError(reduction=reduction),
            keras.losses.MeanAbsoluteError(reduction=reduction),
        ]

    def make():
        return built(outputs=2, loss=losses(), loss_weights=[1.0, 0.5], metrics=["mae"] * 2)

    same_logs(regression(outputs=2), make, epochs=2)


class Largest(keras.metrics.Metric):
    """The largest error of an epoch."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y, predicted, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y - predicted))
        self.value.assign(keras.ops.maximum(self.value, error))

    def result(self):
        return self.value


class Last(Largest):
    """The mean error of the last batch."""

    def update_state(self, y, predicted, sample_weight=None):
        self.value.assign(keras.ops.mean(keras.ops.abs(y - predicted)))


@pytest.mark.parametrize("metric", [Largest, *in_soak(Last)])
def test_a_metric_that_does_not_add_up(metric):
    same_logs(regression(), lambda: built(metrics=[metric()]), epochs=2)


def test_functions_as_metrics():
    def spread(y, predicted):
        return keras.ops.max(predicted) - keras.ops.min(predicted)

    def error(y, predicted):
        return keras.ops.mean(keras.ops.abs(y - predicted))

    def each(y, predicted):
        return keras.ops.max(keras.ops.abs(y - predicted), -1)

    same_logs(regression(58), lambda: built(metrics=[spread, error, each]), workers=3, epochs=2)


def one_hot(count=59, batch=12):
    x, y = arrays(count)
    return tf.data.Dataset.from_tensor_slices((x, np.eye(CLASSES)[y])).batch(batch)


@pytest.mark.soak
def test_metrics_with_several_values():
    def make():
        return built(
            units=CLASSES,
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=[
                keras.metrics.F1Score(average=None, threshold=0.1),
                keras.metrics.FBetaScore(average="macro", threshold=0.1, name="beta"),
                keras.metrics.AUC(from_logits=True, num_thresholds=20),
                keras.metrics.MeanIoU(CLASSES, sparse_y_true=False, sparse_y_pred=False),
                keras.metrics.R2Score(class_aggregation=None),
            ],
        )

    (want, _), (got, _) = both(one_hot(), make=make, epochs=2, validation_data=one_hot(20))
    assert list(got.history) == list(want.history)
    for name, values in want.history.items():
        np.testing.assert_allclose(got.history[name], values, rtol=1e-9, err_msg=name)
    assert np.shape(got.history["f1_score"]) == (2, CLASSES)


def test_logs_of_a_training_step_of_the_users_own():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = tf.reduce_mean(tf.square(y - predicted))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            self.compiled_mae.update_state(y, predicted)
            return {
                "loss": loss,
                "mae": self.compiled_mae.result(),
                "total": tf.reduce_sum(tf.abs(y - predicted)),
                "norm": tf.linalg.global_norm(gradients),
            }

        @property
        def metrics(self):
            return [self.compiled_mae]

    def make():
        base = built()
        model = Own(base.inputs, base.outputs)
        model.compiled_mae = keras.metrics.MeanAbsoluteError(name="mae")
        model.compile(keras.optimizers.SGD(0.1))
        return model

    same_logs(regression(), make, epochs=2)
