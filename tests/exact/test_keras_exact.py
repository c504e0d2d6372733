"""Keras 3 training steps on N workers against one device, and against one device with micro-batches."""

import exact_keras
import exact_matrix
import pytest
import tensorflow as tf
from exact_common import (
    BATCH,
    LOCAL,
    SAME,
    Case,
    assert_equivalent,
    assert_moved,
    assert_same,
    batches,
    serial_functions,
)
from exact_keras import MicroBatches, OneDevice, distributed
from variants import in_soak, mostly_in_soak

import caramel


@pytest.fixture(autouse=True)
def _kernels_as_written():
    with serial_functions():
        yield


@pytest.mark.parametrize(
    "optimizer, workers", [*in_soak(("momentum", 1), ("momentum", 2), ("momentum", 4)), ("adam", 3)]
)
def test_equals_one_device_with_the_whole_batch(optimizer, workers):
    case = Case(optimizer, SAME)
    data = batches(BATCH, case.dtype)
    device = OneDevice(case)
    initial = device.program.values()
    want = device.train(data)
    unused = ["unused/kernel", "unused/bias"]
    assert_moved(initial, want.values, but=unused)
    assert_equivalent(distributed(case, workers, data), want)


@pytest.mark.soak  # as all of them together in the test above
@pytest.mark.parametrize("feature", ["unused", "convolution"])  # the others are in test_matrix_exact.py
def test_each_feature_equals_one_device_with_the_whole_batch(feature):
    case = Case("adam", (feature,), clip=1.0)
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, 3, data), OneDevice(case).train(data))


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("feature", LOCAL)
@pytest.mark.parametrize("optimizer", [o for o in exact_matrix.OPTIMIZERS if o not in ("adafactor", "nadam")])
def test_local_state_with_every_optimizer(optimizer, feature, workers, monkeypatch):
    """Not with Adafactor and Nadam, whose variables have not all a name of their own for the oracle to go by."""
    make = exact_matrix.OPTIMIZERS[optimizer]
    monkeypatch.setitem(exact_keras.OPTIMIZERS, optimizer, lambda rate, **options: make(**options))
    monkeypatch.setitem(exact_keras.RATES, optimizer, 1.0)
    case = Case(optimizer, (feature,))
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, workers, data), MicroBatches(case, workers).train(data))


@pytest.mark.parametrize("feature, workers", [("dropout", 3), *in_soak(("norm", 3), (LOCAL[0], 1), (LOCAL[-1], 2))])
def test_local_state_equals_micro_batches(feature, workers):
    case = Case("momentum", (feature, "clip", "schedule"), clip=1.5)
    data = batches(BATCH, case.dtype)
    assert_equivalent(distributed(case, workers, data), MicroBatches(case, workers).train(data))


@pytest.mark.parametrize(
    "optimizer, workers",
    [*in_soak(("momentum", 1)), ("momentum", 3), *in_soak(("adam", 2), ("adam", 4))],
)
def test_has_the_bits_of_micro_batches(optimizer, workers):
    case = Case(optimizer, SAME + LOCAL, "float32", clip=1.9)
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, workers, data), MicroBatches(case, workers).train(data))


@pytest.mark.parametrize("feature", mostly_in_soak([*SAME, *LOCAL], "norm"))
def test_each_feature_has_the_bits_of_micro_batches(feature):
    case = Case("adam", (feature,), "float32", clip=1.0)
    data = batches(BATCH, case.dtype)
    assert_same(distributed(case, 3, data), MicroBatches(case, 3).train(data))


def test_has_the_bits_of_micro_batches_with_the_graph_optimizers_on():
    case = Case("adam", ("convolution", "norm", "dropout", "clip"), "float32", clip=2.0)
    data = batches(BATCH, case.dtype)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    oracle = MicroBatches(case, 3).train(data)
    assert_same(distributed(case, 3, data, caramel.InProcess()), oracle)


@pytest.mark.parametrize("seed", [*in_soak(0), 2**32 - 1])
def test_random_state_of_any_seed(seed):
    case = Case("sgd", ("dropout",), "float32", seed=seed)
    data = batches(BATCH, case.dtype, steps=4)
    assert_same(distributed(case, 4, data), MicroBatches(case, 4).train(data))


@pytest.mark.parametrize(("total", "workers"), [*in_soak((10, 4)), (7, 3)])
def test_uneven_batches_equal_the_whole_batch(total, workers):
    case = Case("adam", ("clip", "decay", "tied", "schedule"))
    data = batches(total, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


@pytest.mark.parametrize(("total", "workers"), [(10, 4)])
def test_a_summed_loss_equals_the_whole_batch(total, workers):
    case = Case("nesterov", ("clip", "tied", "schedule"), reduction="sum", clip=9.0)
    data = batches(total, case.dtype)
    assert_equivalent(distributed(case, workers, data), OneDevice(case).train(data))


@pytest.mark.parametrize(("total", "workers", "reduction"), [*in_soak((10, 4, "mean")), (7, 3, "sum")])
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
