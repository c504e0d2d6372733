"""All that Keras has for a compiled model, in `caramel.fit` and in Keras' own fit on one device: the same numbers.

A sample runs with every test run, all of it in `make soak`.
"""

import keras
import numpy as np
import pytest
import sweep_cases as cases
from fit_common import same
from variants import in_soak

import caramel

WORKERS = [1, 3]


@pytest.fixture(autouse=True)
def _double():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


def sampled(names, *fast):
    """All names, of which these are not marked for `make soak`."""
    return [*fast, *in_soak(*(name for name in names if name not in fast))]


def trained(make, data, workers, epochs=2, callbacks=list, **options):
    """History and model of a training, Keras' own without a number of workers."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(4)
    model = make()
    keras.utils.set_random_seed(5)
    options = {"epochs": epochs, "verbose": 0, "callbacks": callbacks(), **options}
    if workers is None:
        return model.fit(data, **options), model
    return caramel.fit(model, data, workers=workers, **options), model


def check(make, data, options=None, workers=WORKERS):
    want = trained(make, data, None, **(options or {}))
    for number in workers:
        same(want, trained(make, data, number, **(options or {})))
    return want


# -- layers --------------------------------------------------------------------------------------

OF_EACH_WORKER = [name for name, one in cases.LAYERS.items() if one.own]
THE_SAME_EVERYWHERE = [name for name, one in cases.LAYERS.items() if not one.own]


@pytest.mark.parametrize("name", sampled(OF_EACH_WORKER, "Sampling add_loss", "RandomFlip"))
def test_layers_with_random_numbers_or_statistics_on_one_worker(name):
    """The bits, too: nothing is drawn before the first step."""
    want, got = (trained(*cases.with_layer(name), workers) for workers in (None, 1))
    assert got[0].history == want[0].history
    for mine, theirs in zip(got[1].variables, want[1].variables):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs), err_msg=mine.path)


@pytest.mark.parametrize("workers", sampled(WORKERS, 3))
@pytest.mark.parametrize("name", sampled(THE_SAME_EVERYWHERE, "Counting", "Conv2D in groups"))
def test_layers_that_are_the_same_on_every_worker(name, workers):
    check(*cases.with_layer(name), workers=[workers])


# -- losses --------------------------------------------------------------------------------------


OF_THE_BATCH = ["Circle", "Dice", "Tversky"]
"""Losses that compare examples, or put them together otherwise than by a mean or a sum."""


NOT_OF_SEQUENCES = [*OF_THE_BATCH, "Dice axis", "CategoricalHinge", "CategoricalGeneralizedCrossEntropy"]
"""Of these Keras takes no sequences, or none with weights."""


@pytest.mark.parametrize("reduction", sampled(cases.REDUCTIONS, "sum_over_batch_size"))
@pytest.mark.parametrize("weights", sampled([w for w in cases.WEIGHTS if w != "weights of steps"], "weights"))
@pytest.mark.parametrize("name", sampled([n for n in cases.LOSSES if n not in OF_THE_BATCH], "Huber"))
def test_losses(name, weights, reduction):
    check(*cases.with_loss(name, weights, reduction), workers=[3])


@pytest.mark.soak
@pytest.mark.parametrize("reduction", cases.REDUCTIONS)
@pytest.mark.parametrize("weights", ["no weights", "weights of steps"])
@pytest.mark.parametrize("name", [n for n in cases.LOSSES if n not in NOT_OF_SEQUENCES])
def test_losses_of_sequences(name, weights, reduction):
    check(*cases.with_loss(name, weights, reduction, sequences=True), workers=[3])


@pytest.mark.parametrize("name", sampled(OF_THE_BATCH, "Circle"))
def test_losses_that_are_no_mean_over_the_examples(name):
    check(*cases.with_loss(name), workers=[3])


# -- metrics -------------------------------------------------------------------------------------


@pytest.mark.soak  # as test_fit_reports.py
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("name", cases.METRICS)
def test_metrics(name, is_weighted):
    if is_weighted and name in ("function", "Worst", "MeanMetricWrapper of one's own"):
        is_weighted = False
    check(*cases.with_metric(name, "zeros" if is_weighted else "weights", is_weighted), workers=[3])


# -- optimizers ----------------------------------------------------------------------------------

SAMPLE = [("Adagrad", "schedule")]  # those of test_matrix_exact.py are alike


NOT_KERAS = {("Muon", "schedule")}
"""Names and options that Keras' own fit refuses: it multiplies numbers of double precision with a schedule's."""

REST = [(n, o) for n in cases.OPTIMIZERS for o in cases.OPTIONS if (n, o) not in (*SAMPLE, *NOT_KERAS)]


@pytest.mark.parametrize("name, option", [*SAMPLE, *in_soak(*REST)])
def test_optimizers(name, option):
    check(*cases.with_optimizer(name, option), workers=[3])


@pytest.mark.soak  # as test_scaled_losses in test_fit_models.py
@pytest.mark.parametrize("wrapped", cases.WRAPPED)
@pytest.mark.parametrize("option", ["plain", "clipnorm", "use_ema", "gradient_accumulation_steps"])
@pytest.mark.parametrize("name", ["Adam", "SGD", "SGD momentum", "RMSprop", "Lion"])
def test_optimizers_in_others(name, option, wrapped):
    check(*cases.with_optimizer(name, option, wrapped), workers=[3])


# -- callbacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sampled(cases.CALLBACKS))
def test_callbacks(name):
    check(*cases.with_callback(name), workers=[3])
