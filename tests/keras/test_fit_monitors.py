"""What callbacks may monitor: whatever a step of the model's own returns, in training and in validation."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, FEATURES, arrays, compiled_as, dataset, same

import caramel
from caramel.keras.validation import validation_names

pytestmark = pytest.mark.usefixtures("double")


class OwnLogs(keras.Model):
    """Returns the results of its metrics, those that it is compiled with as a dict among them."""

    def train_step(self, batch):
        inputs, labels = batch
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            loss = self.compute_loss(y=labels, y_pred=outputs)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights))
        for metric in self.metrics:
            metric.update_state(*([loss] if metric.name == "loss" else [labels, outputs]))
        return {metric.name: metric.result() for metric in self.metrics}


class OwnTest(keras.Model):
    """Unpacks two parts, and returns what the training knows nothing of."""

    def test_step(self, batch):
        inputs, labels = batch
        scores = self(inputs, training=False)
        return {"score": tf.reduce_mean(tf.abs(scores)), "more": {"largest": tf.reduce_max(scores)}}


def both(kind, monitor, workers):
    """Histories and models of trainings that end when a value has not fallen."""
    found = []
    for fit in (lambda m, *d, **o: m.fit(*d, **o), lambda m, *d, **o: caramel.fit(m, *d, workers=workers, **o)):
        more = {} if not found else {"cluster": AS_WRITTEN}
        model = compiled_as(kind, metrics=["accuracy"])
        stop = keras.callbacks.EarlyStopping(monitor, mode="min", patience=1, restore_best_weights=True)
        found.append(
            (fit(model, dataset(), epochs=4, validation_data=dataset(24), callbacks=[stop], verbose=0, **more), model)
        )
    return found


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("kind", "monitor"),
    [(OwnLogs, "accuracy"), (OwnLogs, "val_accuracy"), (OwnTest, "val_score"), (OwnTest, "val_largest")],
)
def test_logs_of_own_steps(kind, monitor, workers):
    want, got = both(kind, monitor, workers)
    assert monitor in want[0].history
    same(want, got)


@pytest.mark.parametrize(
    ("kind", "monitor", "validates", "advice"),
    [
        (OwnLogs, "acuracy", True, "did you mean 'accuracy'"),
        (OwnTest, "val_sore", True, "did you mean 'val_score'"),
        (OwnTest, "utterly", True, "there are .*loss"),
        (OwnTest, "val_los", False, "pass validation_data=; did you mean 'val_loss'"),
    ],
)
def test_what_no_step_returns(kind, monitor, validates, advice):
    model = compiled_as(kind, metrics=["accuracy"])
    more = {"validation_data": dataset(24)} if validates else {}
    with pytest.raises(caramel.InputError, match=f"monitors '{monitor}', which is no log of an epoch: {advice}"):
        caramel.fit(model, dataset(), callbacks=[keras.callbacks.EarlyStopping(monitor)], workers=2, verbose=0, **more)


def test_a_validation_that_there_is_not():
    """Trained as by Keras, which warns after each epoch; said before the first step."""
    model = compiled_as(OwnTest, metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping(patience=0)
    with pytest.warns(
        UserWarning, match="EarlyStopping monitors 'val_loss', which is no log .*: pass validation_data="
    ):
        history = caramel.fit(model, dataset(), epochs=2, callbacks=[stop], workers=2, verbose=0)
    assert len(history.history["loss"]) == 2


class Added(keras.callbacks.Callback):
    """Adds a log, which falls once and then no more."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_f1"] = max(2 - epoch, 1)


def test_a_log_that_another_callback_adds():
    stopped = []
    for fit in (lambda m, *d, **o: m.fit(*d, **o), lambda m, *d, **o: caramel.fit(m, *d, workers=2, **o)):
        stop = keras.callbacks.EarlyStopping("val_f1", mode="min", patience=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history = fit(
                compiled_as(OwnLogs, metrics=["accuracy"]), dataset(), epochs=6, callbacks=[Added(), stop], verbose=0
            )
        stopped.append(len(history.history["val_f1"]))
    assert stopped == [3, 3]


class InBatches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, number):
        return arrays(12, seed=number)


@pytest.mark.parametrize(
    "data",
    [dataset(24), arrays(24), InBatches(), (np.zeros([4, FEATURES], np.float32), np.zeros(4, np.int64))],
    ids=["dataset", "arrays", "Python", "float32"],
)
def test_names_of_a_validation(data):
    model = compiled_as(OwnTest, metrics=["accuracy"])
    stop = [keras.callbacks.EarlyStopping("val_score")]
    assert validation_names(model, data, ["loss"], stop) == ["loss", "score", "largest"]
    assert validation_names(model, data, ["loss"], []) == ["loss"]
    assert validation_names(model, None, ["loss"], stop) is None
    assert validation_names(model, iter([data]), ["loss"], stop) == ["loss"]


def test_a_stateful_network_on_one_worker():
    """Its state after a batch is that before the next one."""
    series = np.random.default_rng(0).normal(size=(32, 5, 3))
    data = tf.data.Dataset.from_tensor_slices((series, series.sum((1, 2))[:, None])).batch(8, drop_remainder=True)

    def build():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        inputs = keras.Input(batch_shape=(8, 5, 3))
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.SimpleRNN(4, stateful=True)(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    alone, distributed = build(), build()
    want = alone.fit(data, epochs=2, verbose=0)
    got = caramel.fit(distributed, data, epochs=2, verbose=0, workers=1, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed), rtol=1e-5)
