"""`steps_per_execution` of compiled models: steps that are one run, with the values and logs of as many runs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN
from variants import in_soak

import caramel
from caramel.runtime.training_steps import TrainingSteps

X = np.random.default_rng(0).normal(size=(59, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def model(at_once):
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=2),
        keras.layers.Dense(2),
    ]
    made = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile("adam", loss, metrics=["accuracy"], steps_per_execution=at_once)
    return made


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(59, seed=3).batch(8)


def generated():
    while True:
        for begin in range(0, 56, 8):
            yield X[begin : begin + 8], Y[begin : begin + 8]


GIVEN = {  # with numbers of steps that divide into runs: otherwise Keras makes more of them
    "dataset": lambda: {"x": dataset()},
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 8},
    "unknown length": lambda: {"x": dataset().filter(lambda x, y: True)},
    "generator": lambda: {"x": generated(), "steps_per_epoch": 30},
    "some steps": lambda: {"x": dataset().repeat(), "steps_per_epoch": 30},
}


@pytest.mark.parametrize("given", ["dataset", "generator", *in_soak("arrays", "unknown length", "some steps")])
@pytest.mark.parametrize("at_once", [3, *in_soak(2, 5)])
@pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:the batches are made in this process")
def test_values_and_logs_are_those_of_single_runs(given, at_once, monkeypatch):
    """Also where an epoch does not divide into such runs."""
    runs = []
    together = TrainingSteps._run_together

    def counted(session, steps, batches, **options):
        results = together(session, steps, batches, **options)
        runs.append(len(results))
        return results

    monkeypatch.setattr(TrainingSteps, "_run_together", counted)

    def trained(count):
        made = model(count)
        history = caramel.fit(
            made, **GIVEN[given](), epochs=3, verbose=0, workers=3, cluster=AS_WRITTEN, deterministic=True
        )
        return history.history, made.get_weights()

    history, want = trained(1)
    assert not runs
    got_history, got = trained(at_once)
    assert set(runs) >= {at_once}
    assert got_history.keys() == history.keys()
    for name in history:
        if given != "unknown length" or name != "accuracy":
            assert got_history[name] == history[name], name
    for mine, theirs in zip(got, want):
        np.testing.assert_array_equal(mine, theirs)


def test_reports_and_timelines(tmp_path):
    """Traced steps are runs of their own; others are steps of a run."""
    made = model(4)
    files = {"timeline": tmp_path / "step.json", "report": tmp_path / "report.html"}
    caramel.fit(made, X, Y, batch_size=8, epochs=6, verbose=0, workers=2, **files)
    assert all(path.stat().st_size > 1000 for path in files.values())
