"""TensorFlow 1 programs on N workers against one device, and against one device with micro-batches."""

import itertools

import pytest
import tensorflow as tf
from exact_common import BATCH, LOCAL, SAME, Case, assert_equivalent, assert_moved, assert_same, batches
from exact_tf1 import FURTHER_OPTIMIZERS, OPTIMIZERS, MicroBatches, OneDevice, distributed
from variants import each_once, in_soak, mostly_in_soak

import caramel

WORKERS = [1, 2, 3, 4]
FURTHER_IN_EVERY_RUN = ("adagrad da", "centered rmsprop", "ftrl", "proximal gradient descent")


@pytest.mark.parametrize("optimizer, workers", each_once([*OPTIMIZERS], WORKERS))
def test_equals_one_device_with_the_whole_batch(optimizer, workers):
    case = Case(optimizer, SAME)
    data = batches(BATCH, case.dtype)
    device = OneDevice(case)
    initial = device.values()
    want = device.train(data)
    assert_moved(initial, want.values, but=["unused"])
    assert_equivalent(distributed(case, workers, data), want)


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
@pytest.mark.parametrize("optimizer", mostly_in_soak(list(FURTHER_OPTIMIZERS), *FURTHER_IN_EVERY_RUN))
def test_the_other_optimizers_equal_one_device_with_the_whole_batch(optimizer, workers):
    case = Case(optimizer, ("schedule", "tied") if optimizer != "proximal gradient descent" else ("tied",))
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("feature", ["plain", *SAME, *LOCAL])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *FURTHER_OPTIMIZERS])
def test_all(optimizer, feature, workers):
    """In float64 against one device, or micro-batches; in float32 bit for bit against micro-batches."""
    features = () if feature == "plain" else (feature,)
    if feature == "clip":
        pytest.skip("no one norm is exceeded in some steps and not in others with every optimizer; see the tests below")
    for dtype in ("float64", "float32"):
        case = Case(optimizer, features, dtype, clip=1.0)
        data = batches(BATCH + 1, dtype)
        got = distributed(case, workers, data)
        if dtype == "float32":
            assert_same(got, MicroBatches(case, workers).train(data))
        elif feature in LOCAL:
            assert_equivalent(got, MicroBatches(case, workers).train(data))
        else:
            assert_equivalent(got, OneDevice(case).train(data))


@pytest.mark.parametrize("feature", mostly_in_soak(SAME, "clip"))  # all at once above
def test_each_feature_equals_one_device_with_the_whole_batch(feature):
    case = Case("adam", (feature,), clip=1.0)
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, 3, data), OneDevice(case).train(data))


@pytest.mark.parametrize(
    "feature, workers", [("norm", 3), *in_soak(*((f, n) for f in LOCAL for n in WORKERS if (f, n) != ("norm", 3)))]
)
def test_local_state_equals_micro_batches(feature, workers):
    case = Case("momentum", (feature, "clip", "schedule"), clip=1.15)
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, workers, data), MicroBatches(case, workers).train(data))


@pytest.mark.parametrize(
    "optimizer, workers",
    [("adam", 3), *in_soak(*((o, n) for o in OPTIMIZERS for n in WORKERS if (o, n) != ("adam", 3)))],
)
def test_has_the_bits_of_micro_batches(optimizer, workers):
    case = Case(optimizer, SAME + LOCAL, "float32", clip=1.4)
    data = batches(BATCH, case.dtype)
    oracle = MicroBatches(case, workers)
    initial = oracle.values()
    want = oracle.train(data)
    assert_moved(initial, want.values, but=["unused"])
    assert_same(distributed(case, workers, data), want)


@pytest.mark.parametrize("feature", mostly_in_soak([*SAME, *LOCAL], "clip"))
def test_each_feature_has_the_bits_of_micro_batches(feature):
    case = Case("adam", (feature,), "float32", clip=1.0)
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, 3, data), MicroBatches(case, 3).train(data))


@pytest.mark.parametrize(
    "sizes, features",
    each_once([(7, 3), (3, 3)], [("clip", "decay", "tied"), ("convolution", "schedule")])
    + in_soak(*itertools.product([(10, 4), (5, 2)], [("clip", "decay", "tied"), ("convolution", "schedule")])),
)
def test_uneven_batches_equal_the_whole_batch(sizes, features):
    total, workers = sizes
    case = Case("adam", features)
    data = batches(total, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


def test_batches_of_changing_size_equal_the_whole_batch():
    case = Case("nesterov", ("clip", "decay"))
    data = [batches(total, case.dtype, seed=total, steps=1)[0] for total in (12, 10, 4, 9, 5, 8, 11, 6)]
    assert_equivalent(distributed(case, 4, data), OneDevice(case).train(data))


@pytest.mark.parametrize(("total", "workers"), [*in_soak((12, 3), (10, 4)), (7, 3)])
def test_a_summed_loss_equals_the_whole_batch(total, workers):
    case = Case("momentum", ("clip", "tied", "schedule"), reduction="sum", clip=9.0)
    data = batches(total, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


@pytest.mark.parametrize(
    ("total", "workers", "reduction"), [*in_soak((10, 4, "mean"), (12, 3, "sum"), (7, 3, "sum")), (7, 3, "mean")]
)
def test_uneven_and_summed_batches_have_the_bits_of_micro_batches(total, workers, reduction):
    case = Case(
        "momentum",
        ("clip", "tied", "norm", "dropout"),
        "float32",
        reduction,
        clip=1.2 if reduction == "mean" else BATCH,
    )
    data = batches(total, case.dtype)
    assert_same(distributed(case, workers, data), MicroBatches(case, workers).train(data))


@pytest.mark.parametrize(
    "features, workers",
    [(SAME + LOCAL, 3), *in_soak((SAME + LOCAL, 2), (("convolution", "clip"), 2), (("convolution", "clip"), 3))],
)
def test_has_the_bits_of_micro_batches_with_the_graph_optimizers_on(features, workers):
    case = Case("adam", features, "float32", clip=1.15)
    data = batches(BATCH, case.dtype)
    oracle = MicroBatches(case, workers, tf.compat.v1.ConfigProto())
    assert_same(distributed(case, workers, data, caramel.InProcess()), oracle.train(data))
