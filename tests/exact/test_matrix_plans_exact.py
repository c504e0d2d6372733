"""Keras optimizers and features under plans of all kinds: the bits of a training in which nothing is planned.

Here some optimizers with one feature, and Adam with some of the features that wrap updates or are control flow; `make
soak` runs the cross product.
"""

import numpy as np
import pytest
from exact_matrix import FEATURE, OPTIMIZERS, batches, program
from exact_plans import random_plan
from exact_steps import distributed, fresh
from variants import mostly_in_soak

import caramel


def bits(make, data, workers, seed):
    """Losses, values and the plan of a training under a random plan; under none for None."""
    made = fresh(make)
    context = caramel.capture(made.step, made.specs, **made.options)
    plan = None if seed is None else random_plan(context, workers, seed, deterministic=True)
    options = {"deterministic": True} if plan is None else {"plan": plan}
    return distributed(made, context, data, workers, **options)


def check_bits(optimizer, feature, workers, seed):
    make, data = program(optimizer, feature), batches(FEATURE[feature], steps=5)
    losses, want, _ = bits(make, data, workers, None)
    got_losses, got, armodel = bits(make, data, workers, seed)
    np.testing.assert_array_equal(got_losses, losses)  # some are not numbers where a step overflows
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    return armodel.plan


SOME_OPTIMIZERS = ("sgd", "nesterov", "amsgrad", "rmsprop_centered", "adafactor", "ftrl", "lamb")


@pytest.mark.parametrize("optimizer", mostly_in_soak(SOME_OPTIMIZERS, "sgd", "adafactor"))
def test_optimizer(optimizer):
    plan = check_bits(optimizer, "schedule", 3, seed=1)
    assert plan.postponed and max(len(pieces) for pieces in plan.pieces.values()) > 1


SOME_FEATURES = (
    "ema_overwrite",
    "everything",
    "loss_scaling",
    "constraint",
    "embedding_clipped",
    "recurrent",
    "branch",
    "loop",
    "two_losses",
)


@pytest.mark.parametrize(
    "feature", mostly_in_soak(SOME_FEATURES, "loss_scaling", "embedding_clipped", "loop", "two_losses")
)
def test_feature(feature):
    check_bits("adam", feature, 2, seed=2)


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("feature", FEATURE)
def test_all(feature, optimizer):
    for workers, seed in ((2, 3), (3, 4), (5, 5)):
        check_bits(optimizer, feature, workers, seed)
