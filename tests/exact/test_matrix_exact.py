"""Keras optimizers and features: N workers equal one device with the whole batch.

Here an optimizer of each kind of update on one model, and most features with SGD, some with Adam; `make soak` runs the
cross product, with other numbers of workers, too.
"""

import numpy as np
import pytest
import tensorflow as tf
from exact_matrix import FEATURE, OPTIMIZERS, batches, program
from exact_steps import check, fresh


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "lion", "nadam", "ftrl", "lamb"])
def test_optimizer(optimizer):
    check(program(optimizer, "uneven"), batches(FEATURE["uneven"]), [3], unmoved=None)


WITH_ADAM = ("loss_scaling", "everything", "embedding")
ELSEWHERE = ("recurrent", "function", "branch", "loop", "ema", "clipnorm", "clipvalue", "loss_scale_factor")
"""Those that are in test_functions_exact.py or, in `caramel.fit`, test_sequences, too, or that are like others."""


@pytest.mark.parametrize(
    "feature, optimizer, workers",
    [
        *((feature, "sgd", 3) for feature in FEATURE if feature not in (*WITH_ADAM, *ELSEWHERE)),
        *((feature, "adam", 2) for feature in WITH_ADAM),
    ],
)
def test_feature(feature, optimizer, workers):
    check(program(optimizer, feature), batches(FEATURE[feature]), [workers], unmoved=None)


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("feature", FEATURE)
def test_all(feature, optimizer):
    check(program(optimizer, feature), batches(FEATURE[feature]), [1, 2, 3, 4, 5], unmoved=None)


def test_the_feature_loss_scaling_skips():
    feature = FEATURE["loss_scaling"]
    made = fresh(program("sgd", "loss_scaling"))
    skipped = []
    for batch in batches(feature):
        before = {k: v.numpy() for k, v in made.variables.items()}
        tf.function(made.step)(*batch)
        changed = {k for k, v in made.variables.items() if not np.array_equal(before[k], v.numpy())}
        skipped.append(not any("kernel" in name for name in changed))
    assert [n for n, skip in enumerate(skipped) if skip] == [step for step, _ in feature.overflows]
