"""`caramel.fit` against Keras' own fit on one device."""

import inspect
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, FEATURES, arrays, both, compiled, compiled_as, dataset, dense, made, same
from variants import in_soak

import caramel


def adam():
    return compiled(lambda: keras.optimizers.Adam(0.02))


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
def test_it_trains_as_keras_does(workers):
    """61 examples: the last batch has one, so two workers of three repeat one that counts for nothing."""
    first, second = both(
        dataset(61), adam, workers, epochs=2, validation_data=dataset(20, seed=8), cluster=caramel.InProcess()
    )
    same(first, second)
    assert first[0].history["loss"][-1] < first[0].history["loss"][0]
    assert set(first[0].history) == {"loss", "accuracy", "val_loss", "val_accuracy"}


@pytest.mark.soak  # as test_it_trains_as_keras_does
def test_a_last_batch_that_is_smaller_than_the_number_of_workers():
    same(*both(dataset(61), workers=3, epochs=2))


@pytest.mark.soak  # nor do those of other tests, on two workers
def test_a_last_batch_that_does_not_divide():
    same(*both(dataset(58), workers=3, epochs=2))


@pytest.mark.soak  # as test_sample_weights, and test_metrics_with_several_values in test_fit_reports.py
def test_metrics_of_many_kinds():
    def make():
        one_hot = [
            keras.metrics.SparseCategoricalAccuracy("hits"),
            keras.metrics.SparseCategoricalCrossentropy("entropy", from_logits=True),
        ]
        return compiled(metrics=one_hot, weighted=["accuracy"])

    same(*both(dataset(), make=make, epochs=2))


def test_sample_weights():
    x, y = arrays()
    weights = np.random.default_rng(1).uniform(0.2, 2.0, len(y))
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(10)
    same(*both(data, make=lambda: compiled(weighted=["accuracy"]), epochs=2))


@pytest.mark.soak  # as "stopped at the last of some steps" in test_fit_shuffles.py
def test_steps_per_epoch_go_on_in_the_dataset():
    same(*both(dataset().repeat(), epochs=4, steps_per_epoch=3))


@pytest.mark.parametrize(
    "data", [*in_soak(dataset), lambda: dataset().filter(lambda x, y: True)], ids=["known", "unknown"]
)
def test_the_warning_of_an_epoch_that_is_cut_short_names_the_callers_line(data):
    model = compiled()
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(UserWarning, match="the data ended before the 7 steps") as caught:
        caramel.fit(model, data(), workers=2, verbose=0, steps_per_epoch=7)
    assert [(w.filename, w.lineno) for w in caught if "the data ended" in str(w.message)] == [(__file__, line)]


def test_a_training_step_of_the_users_own():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.cast(self.compute_loss(x, y, self(x, training=True)), tf.float64)
                loss += tf.reduce_mean(tf.square(self(2.0 * x)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply([0.5 * g for g in gradients], self.trainable_variables)
            for metric in self.metrics:
                metric.update_state(tf.cast(loss, tf.float32)) if metric.name == "loss" else metric.update_state(
                    y, self(x)
                )
            return {m.name: m.result() for m in self.metrics}

    def make():
        return compiled_as(Own, metrics=["accuracy"])

    (want, alone), (got, distributed) = both(dataset(), make=make, epochs=2)
    for mine, theirs in zip(distributed.variables, alone.variables):
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-12)


def test_options_of_the_optimizer():
    def make():
        return compiled(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, use_ema=True, clipnorm=0.5))

    same(*both(dataset(), make=make, epochs=2))


@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_on_processes():
    same(*both(dataset(), workers=2, epochs=2, cluster=caramel.LocalProcesses()))


# -- bad input -------------------------------------------------------------------------------


def refused(words, *args, **options):
    with pytest.raises(caramel.InputError) as caught:
        caramel.fit(*args, **{"workers": 2, "verbose": 0, **options})
    for word in words:
        assert word in str(caught.value)


def test_a_model_that_is_not_compiled():
    refused(["not compiled", "model.compile"], keras.Sequential([keras.layers.Dense(1)]), dataset())


@pytest.mark.parametrize(
    "name, least", [("epochs", 0), ("initial_epoch", 0), ("steps_per_epoch", 1), ("workers", 1), ("validation_freq", 1)]
)
@pytest.mark.parametrize("value", ["1", 1.5, True, -1])
def test_numbers_that_are_not_whole(name, least, value):
    refused([f"{name} must be a whole number of at least {least}", repr(value)], compiled(), dataset(), **{name: value})


def test_something_else_than_a_model():
    refused(["keras.Model", "str"], "model", dataset())


def test_a_model_that_runs_eagerly():
    refused(["run_eagerly"], compiled(run_eagerly=True), dataset())


@pytest.mark.parametrize(("name", "hint"), [("nework", "did you mean 'network'?"), ("dataset", "the data is x")])
def test_arguments_that_it_lacks(name, hint):
    """The message says what to do, also where no data is given."""
    refused([f"fit() has no argument {name!r}: {hint}"], compiled(), **{name: 1})


@pytest.mark.parametrize("name", ["y", "validation_split", "sample_weight"])
def test_what_goes_with_arrays(name):
    refused([f"{name} goes with arrays, and x is no array"], compiled(), dataset(), **{name: 1})


def test_a_dataset_that_is_not_batched():
    refused(["Expected shape (None, ", "is dataset.batch(size) missing?"], compiled(), dataset().unbatch())


def test_batches_that_do_not_fit():
    with pytest.raises(caramel.InputError, match=r"found shape=\(None, 4\)") as caught:
        caramel.fit(compiled(), dataset().map(lambda x, y: (x[:, :-1], y)), workers=2, verbose=0)
    assert "batch(size)" not in str(caught.value)


def test_an_infinite_dataset():
    refused(["no end", "steps_per_epoch"], compiled(), dataset().repeat())


@pytest.mark.parametrize("empty", [lambda: dataset().take(0), lambda: dataset().filter(lambda x, y: False)])
def test_an_empty_dataset(empty):
    """Whether its length is known, or only seen when it is read."""
    with pytest.raises((caramel.InputError, caramel.DataError), match="the dataset is empty"):
        caramel.fit(compiled(), empty(), workers=2, verbose=0)


@pytest.mark.parametrize("options", [{}, {"class_weight": {0: 2.0}}], ids=["plain", "weighted"])
@pytest.mark.parametrize("given", [[], lambda workers, rank: dataset()], ids=["list", "function"])
def test_a_function_that_returns_no_dataset(options, given):
    words = ["data(1, 0)", "tf.data.Dataset", type(given).__name__]
    refused(words, compiled(), lambda workers, rank: given, **options)


def test_a_first_batch_that_fails():
    data = dataset().map(lambda x, y: (tf.debugging.check_numerics(x / 0, "no numbers"), y))
    with pytest.raises(caramel.DataError, match="batch 0 of pass 0: .*no numbers"):
        caramel.fit(compiled(), data, workers=2, verbose=0)


def test_elements_that_do_not_fit():
    data = tf.data.Dataset.from_tensor_slices((np.zeros([4, 2]), np.zeros(4))).batch(2)
    refused(["cannot take", "TensorSpec"], compiled(), data)


def test_elements_with_too_many_parts():
    data = tf.data.Dataset.from_tensors((np.zeros([4, FEATURES]), np.zeros(4), np.zeros(4), np.zeros(4)))
    refused(["4 parts", "sample_weight"], compiled(), data)


def test_what_fit_says_is_in_log_files(caplog, capsys):
    """Also where it is printed: a log file has all."""
    with caplog.at_level(logging.INFO, "caramel"):
        caramel.fit(compiled(), dataset(), workers=2, cluster=AS_WRITTEN, verbose=2)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("caramel: 2 workers"))
    assert line in caplog.messages


@pytest.mark.parametrize("statistics", ["local", "mean"])
def test_moving_averages_of_one_worker_or_of_all(statistics):
    """The mean of the workers' moving means is that of one device, as their parts are equally large."""
    make = made(lambda: dense(keras.layers.BatchNormalization(momentum=0.5)))
    (_, alone), (_, model) = both(dataset(60), make=make, epochs=2, statistics=statistics)
    (wanted,) = (v for v in alone.non_trainable_variables if v.name == "moving_mean")
    (found,) = (v for v in model.non_trainable_variables if v.name == "moving_mean")
    assert np.allclose(found, wanted, rtol=1e-5) == (statistics == "mean")
