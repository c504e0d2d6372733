"""Callbacks in `caramel.fit`: called in Keras' order, and what they change counts from the next step on."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import arrays, both, compiled, compiled_as, dataset, same
from variants import in_soak

import caramel

HOOKS = sorted(name for name, _ in inspect.getmembers(keras.callbacks.Callback) if name.startswith("on_"))


class Recording(keras.callbacks.Callback):
    """Remembers every hook, its number, the names of its logs, and the rate and a weight at that moment."""

    def __init__(self):
        super().__init__()
        self.seen = []


def _recorder(hook):
    def record(self, *args, **kwargs):
        logs = kwargs.get("logs", args[-1] if args and not isinstance(args[-1], int) else None)
        number = args[0] if args and isinstance(args[0], int) else None
        values = [round(float(v), 9) for v in (self.model.optimizer.learning_rate, np.sum(self.model.weights[0]))]
        self.seen.append((hook, number, sorted(logs or {}), values))

    return record


for name in HOOKS:
    setattr(Recording, name, _recorder(name))


def unknown(count=60, batch=12):
    return dataset(count, batch).filter(lambda x, y: True)


DATA = {
    "known": (lambda: dataset(59), {}),
    "unknown": (unknown, {}),
    "fewer": (lambda: dataset(59), {"steps_per_epoch": 3, "epochs": 4}),
    "fewer of unknown": (unknown, {"steps_per_epoch": 3, "epochs": 4}),
    "more": (lambda: dataset(59), {"steps_per_epoch": 7, "epochs": 2}),
    "endless": (lambda: dataset(59).repeat(), {"steps_per_epoch": 3}),
    "validated": (lambda: dataset(), {"validation_data": dataset(20, seed=8), "validation_freq": 2, "epochs": 3}),
    "some validated": (
        lambda: dataset(),
        {"validation_data": dataset(20, seed=8), "validation_freq": [2], "epochs": 3},
    ),
    "later": (lambda: dataset(), {"initial_epoch": 2, "epochs": 4}),
    "none": (lambda: dataset(), {"initial_epoch": 2, "epochs": 2}),
}


@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:the data ended")
@pytest.mark.parametrize(
    "case, at_once",
    [
        *((case, 1) for case in ("fewer of unknown", "some validated", "none")),
        ("more", 2),
        *in_soak(
            *((case, 1) for case in ("known", "unknown", "endless", "fewer", "validated", "more", "later")),
            ("known", 2),
            ("unknown", 2),
        ),
    ],
)
def test_hooks_are_called_in_keras_order(case, at_once):
    make, options = DATA[case]
    recorded = []

    def callbacks():
        recorded.append(Recording())
        return [recorded[-1]]

    def model():
        return compiled(lambda: keras.optimizers.SGD(0.1), steps_per_execution=at_once)

    first, second = both(make(), model, callbacks=callbacks, **{"epochs": 2, **options})
    want, got = (r.seen for r in recorded)
    assert [entry[:3] for entry in got] == [entry[:3] for entry in want]
    for mine, theirs in zip(got, want):
        np.testing.assert_allclose(mine[3], theirs[3], rtol=1e-7, err_msg=str(theirs))
    assert recorded[0].params == recorded[1].params
    if "unknown" not in case:  # at the end of such data Keras counts one step that has not taken place
        same(first, second)


@pytest.mark.soak  # as test_hooks_given_as_functions
def test_a_rate_that_is_set_before_a_batch_is_that_of_its_step():
    class Warming(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate = 0.05 / (1 + batch)

    first, second = both(
        dataset(), lambda: compiled(lambda: keras.optimizers.SGD(0.3)), epochs=2, callbacks=lambda: [Warming()]
    )
    same(first, second)


@pytest.mark.soak  # as test_hooks_given_as_functions and the next test
def test_weights_that_are_set_before_a_batch_are_those_of_its_step():
    class Halving(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                self.model.layers[1].kernel.assign(self.model.layers[1].kernel * 0.5)

    same(*both(dataset(), epochs=2, callbacks=lambda: [Halving()]))


def test_what_is_changed_after_the_last_batch_of_an_epoch_stays():
    class Shrinking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                self.model.layers[1].kernel.assign(self.model.layers[1].kernel * 0.5)

    same(*both(dataset(), epochs=2, callbacks=lambda: [Shrinking()], validation_data=dataset(20, seed=8)))


@pytest.mark.parametrize("workers, words", [(1, "1 worker in"), (2, "2 workers in")])
def test_it_is_said_where_workers_are(workers, words, capsys):
    caramel.fit(compiled(), *arrays(12), batch_size=6, workers=workers, verbose=2)
    assert f"caramel: {words} this process, 6 examples in a step\n" in capsys.readouterr().out


def test_it_is_said_that_a_look_at_each_batch_costs_something(capsys):
    class Looking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    for callbacks, is_said in ((Looking(), True), (keras.callbacks.LambdaCallback(on_epoch_end=print), False)):
        model = compiled()
        caramel.fit(model, dataset(), workers=2, verbose=2, callbacks=[callbacks])
        assert ("caramel: Looking may look at the model in each batch" in capsys.readouterr().out) == is_said


@pytest.mark.soak  # as test_an_evaluation_between_batches
def test_metrics_that_a_callback_resets():
    class Resetting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 2:
                self.model.reset_metrics()

    same(*both(dataset(59), epochs=2, callbacks=lambda: [Resetting()]))


def test_an_evaluation_between_batches():
    class Evaluating(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.evaluate(dataset(20, seed=8), verbose=0)

    same(*both(dataset(59), epochs=2, callbacks=lambda: [Evaluating()]))


@pytest.mark.soak  # as "SwapEMAWeights of batches" in test_fit_sweep.py
def test_the_mean_of_weights_at_the_end_of_an_epoch():
    def make():
        return compiled(lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8))

    def callbacks():
        return [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]

    same(*both(dataset(), make, callbacks=callbacks, epochs=3, validation_data=dataset(20, seed=8)))


@pytest.mark.soak  # as test_schedules_and_other_callbacks in test_fit_keras_callbacks.py
def test_the_best_weights_are_put_back():
    def callbacks():
        return [keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)]

    def make():
        return compiled(lambda: keras.optimizers.SGD(6.0))

    first, second = both(dataset(), make, epochs=9, callbacks=callbacks, validation_data=dataset(20, seed=8))
    same(first, second)
    assert len(first[0].history["loss"]) < 9


def test_hooks_given_as_functions():
    rates = []

    def callbacks():
        seen = []
        rates.append(seen)
        model = []

        def begin(batch, logs):
            model[0].optimizer.learning_rate = 0.01 * (batch + 1)

        def end(batch, logs):
            seen.append(float(logs["loss"]))

        callback = keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_train_batch_end=end)
        original = callback.set_model
        callback.set_model = lambda given: (model.append(given), original(given))
        return [callback]

    same(*both(dataset(), epochs=2, callbacks=callbacks))
    np.testing.assert_allclose(rates[1], rates[0], rtol=1e-6)


@pytest.mark.parametrize("kind", [*in_soak(keras.callbacks.CSVLogger), keras.callbacks.ModelCheckpoint])
def test_a_hook_of_its_own_beside_those_of_keras(kind, tmp_path):
    seen = []

    class Own(kind):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            seen.append(float(np.sum(self.model.layers[1].kernel)))

    both(dataset(), epochs=2, callbacks=lambda: [Own(str(tmp_path / "logs.keras"))])
    np.testing.assert_allclose(seen[10:], seen[:10], rtol=1e-8)


def test_it_ends_at_a_loss_that_is_no_number():
    x, y = arrays()
    x[30] = np.nan
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
    first, second = both(data, epochs=3, callbacks=lambda: [keras.callbacks.TerminateOnNaN()])
    assert len(first[0].history["loss"]) == len(second[0].history["loss"]) == 1
    assert np.isnan(second[0].history["loss"]).all()


def test_checkpoints_in_the_middle_of_an_epoch(tmp_path):
    def callbacks():
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        name = str(directory / "{epoch}-{batch}.weights.h5")
        return [keras.callbacks.ModelCheckpoint(name, save_weights_only=True, save_freq=2)]

    both(dataset(), epochs=2, callbacks=callbacks)
    names = sorted(p.name for p in (tmp_path / "0").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "1").iterdir()) and len(names) == 5
    for name in names[:2]:
        want, got = compiled(), compiled()
        want.load_weights(tmp_path / "0" / name)
        got.load_weights(tmp_path / "1" / name)
        for mine, theirs in zip(got.variables, want.variables):
            np.testing.assert_allclose(mine, theirs, rtol=1e-8)


@pytest.mark.soak  # as test_logs_of_a_training_step_of_the_users_own in test_fit_reports.py
def test_a_log_of_the_users_own_can_be_waited_for():
    class Own(keras.Model):
        def train_step(self, data):
            logs = super().train_step(data)
            return {**logs, "twice": 2 * tf.reduce_mean(tf.square(data[0]))}

    def make():
        return compiled_as(Own)

    def callbacks():
        return [keras.callbacks.EarlyStopping("twice", patience=0, mode="min")]

    first, second = both(dataset(59), make, epochs=4, callbacks=callbacks)
    same(first, second)
    assert list(first[0].history) == ["loss", "twice"]
    assert len(first[0].history["twice"]) == 2


CONTAINERS = {
    "one": lambda model, callback: callback,
    "a list in a list": lambda model, callback: [[callback]],
    "a CallbackList": lambda model, callback: keras.callbacks.CallbackList([callback], add_history=True, model=model),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_callbacks_as_keras_takes_them(name):
    """Of `fit`, `evaluate` and `predict`: one, or lists of them, or a finished CallbackList."""
    model, x = compiled(), arrays(20)[0]
    begun = []
    callback = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: begun.append("fit"))
    callback.on_test_begin = callback.on_predict_begin = lambda logs=None: begun.append("other")
    given = CONTAINERS[name](model, callback)
    history = caramel.fit(model, *arrays(20), workers=2, verbose=0, callbacks=given)
    assert len(history.history["loss"]) == 1
    caramel.evaluate(model, *arrays(20), workers=2, verbose=0, callbacks=given)
    caramel.predict(model, x, workers=2, verbose=0, callbacks=given)
    assert begun == ["fit", "other", "other"]


def test_the_monitor_of_a_callback_by_itself_is_checked():
    with pytest.warns(UserWarning, match="EarlyStopping monitors 'val_loss'"):
        caramel.fit(compiled(), dataset(20), workers=2, callbacks=keras.callbacks.EarlyStopping())


def test_an_evaluation_when_an_epoch_begins():
    """It leaves its counts in the metrics of the epoch, in Keras, too."""
    x, y = arrays(8)

    def evaluating(model):
        return keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: model.evaluate(x, y, batch_size=8, verbose=0)
        )

    alone, distributed = compiled(), compiled()
    want = alone.fit(dataset(), epochs=2, verbose=0, callbacks=[evaluating(alone)])
    got = caramel.fit(distributed, dataset(), workers=2, epochs=2, verbose=0, callbacks=[evaluating(distributed)])
    same((want, alone), (got, distributed))
