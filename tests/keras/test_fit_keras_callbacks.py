"""Keras' own callbacks in `caramel.fit`, against Keras' own fit on one device."""

import keras
import numpy as np
import pytest
from fit_common import AS_WRITTEN, both, compiled, dataset, same

import caramel


def test_schedules_and_other_callbacks():
    def callbacks():
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.03 / (1 + epoch)),
            keras.callbacks.EarlyStopping("loss", patience=0, min_delta=0.2, restore_best_weights=True),
        ]

    first, second = both(dataset(), epochs=8, callbacks=callbacks)
    same(first, second)
    assert len(first[0].history["loss"]) < 8
    assert len(set(first[0].history["learning_rate"])) > 1


@pytest.mark.soak  # as schedules
def test_reducing_the_rate_on_a_plateau():
    def callbacks():
        return [keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)]

    first, second = both(dataset(), epochs=5, callbacks=callbacks)
    same(first, second)
    assert first[0].history["learning_rate"][-1] < 0.02


@pytest.mark.soak  # as test_checkpoints_in_the_middle_of_an_epoch in test_fit_callbacks.py
def test_checkpoints_of_keras(tmp_path):
    histories = []

    def callbacks():
        histories.append(len(histories))
        name = str(tmp_path / f"{len(histories)}-{{epoch}}.weights.h5")
        return [keras.callbacks.ModelCheckpoint(name, save_weights_only=True)]

    both(dataset(), epochs=2, callbacks=callbacks)
    for epoch in (1, 2):
        models = []
        for kind in (1, 2):
            model = compiled()
            model.load_weights(tmp_path / f"{kind}-{epoch}.weights.h5")
            models.append(model)
        for mine, theirs in zip(models[1].variables, models[0].variables):
            np.testing.assert_allclose(mine, theirs, rtol=1e-8)


def test_an_interrupted_training_goes_on(tmp_path):
    """Keras' own BackupAndRestore: what it has loaded before training is what the workers begin with."""

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def callbacks(interrupted):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        return [backup, *([Interrupt()] if interrupted else [])]

    options = {"workers": 2, "epochs": 4, "verbose": 0, "cluster": AS_WRITTEN}
    with pytest.raises(KeyboardInterrupt):
        caramel.fit(compiled(), dataset(), callbacks=callbacks(True), **options)
    second = compiled()
    history = caramel.fit(second, dataset(), callbacks=callbacks(False), **options)
    whole = compiled()
    whole.fit(dataset(), epochs=4, verbose=0)
    assert len(history.history["loss"]) == 2
    for mine, theirs in zip(second.variables, whole.variables):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8)


@pytest.mark.soak  # as test_hooks_are_called_in_keras_order in test_fit_callbacks.py
def test_logs(tmp_path):
    callbacks = [keras.callbacks.CSVLogger(str(tmp_path / "log.csv")), keras.callbacks.TerminateOnNaN()]
    caramel.fit(compiled(), dataset(), workers=2, epochs=2, verbose=0, callbacks=callbacks)
    assert (tmp_path / "log.csv").read_text().count("\n") == 3


@pytest.mark.soak  # as test_what_is_changed_after_the_last_batch_of_an_epoch_stays in test_fit_callbacks.py
def test_a_callback_after_every_batch_sees_and_changes_values():
    seen = []

    class Shrinking(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.trainable_variables[0]
            seen[-1].append((float(logs["loss"]), float(np.sum(kernel))))
            if batch == 1:
                kernel.assign(kernel * 0.5)

    def callbacks():
        seen.append([])
        return [Shrinking()]

    same(*both(dataset(), epochs=2, callbacks=callbacks))
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-7)
    assert len(seen[0]) == 10


@pytest.mark.soak  # as "stopped in an epoch" in test_fit_shuffles.py
def test_a_callback_that_stops_in_an_epoch():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    same(*both(dataset(), epochs=2, callbacks=lambda: [Stop()]))


@pytest.mark.parametrize(
    "callback",
    [keras.callbacks.EarlyStopping("val_loss"), keras.callbacks.ModelCheckpoint("x.keras", save_best_only=True)],
)
def test_a_callback_that_waits_for_a_validation(callback, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=f"{type(callback).__name__} monitors 'val_loss'.* pass validation_data="):
        caramel.fit(compiled(), dataset(), workers=2, verbose=0, callbacks=[callback])


def test_a_callback_that_waits_for_what_never_comes():
    with pytest.raises(caramel.InputError, match="ReduceLROnPlateau monitors 'accurasy'.*did you mean 'accuracy'"):
        callback = keras.callbacks.ReduceLROnPlateau("accurasy")
        caramel.fit(compiled(), dataset(), workers=2, verbose=0, callbacks=[callback])
