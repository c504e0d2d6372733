"""From arrays to feeds: matching them with the inputs, and cutting the batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.errors import InputError
from caramel.runtime.feeds import Batch, bound_arrays, split_batch
from caramel.signature import Feed, Signature


def feed(name, shape, dtype="float32", split=True, optional=False, workers=2):
    return Feed(name, dtype, shape, split, optional, tuple(f"worker_{r}/{name}:0" for r in range(workers)))


def signature(workers, *feeds, reduction="mean", weighted=True):
    def everywhere(name):
        return tuple(f"worker_{r}/{name}" for r in range(workers))

    return Signature(
        workers=workers,
        devices=everywhere("device"),
        reduction=reduction,
        feeds=feeds,
        weights=everywhere("weight:0") if weighted else (),
        losses=everywhere("loss:0"),
        outputs=(),
        step=everywhere("step"),
        restore_prefix="restore:0",
        restore=("a", "b"),
        restore_unsaved="c",
        restore_local="d",
        local_keys=(),
        save_prefix="save:0",
        save_steps="",
        steps_key="",
        save="e",
        group_leader="",
        flush=(),
        checkpoint_names=(),
        evaluation=None,
    )


X = feed("x", (None, 2))
LABELS = feed("labels", (None,), "int64")
RATE = feed("rate", (), split=False, optional=True)
FEEDS = (X, LABELS, RATE)

ARRAY = np.arange(8, dtype=np.float32).reshape(4, 2)
NUMBERS = np.arange(4)


class Placeholder:
    """What has a name, as a tensor has."""

    def __init__(self, name):
        self.name = name


# -- bind ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, kwargs",
    [
        ((ARRAY, NUMBERS), {}),
        ((), {"x": ARRAY, "labels": NUMBERS}),
        (({"x": ARRAY, "labels": NUMBERS},), {}),
        (({"labels:0": NUMBERS, "x:0": ARRAY},), {}),
        (({Placeholder("x:0"): ARRAY, Placeholder("labels:0"): NUMBERS},), {}),
        (({"x": ARRAY},), {"labels": NUMBERS}),
        (((ARRAY, NUMBERS),), {}),
        (([ARRAY, NUMBERS],), {}),
        ((ARRAY.tolist(), NUMBERS.tolist()), {}),
    ],
    ids=[
        "in order",
        "by keyword",
        "dict",
        "dict of tensor names",
        "dict of placeholders",
        "dict and keyword",
        "tuple",
        "list of arrays",
        "lists of numbers",
    ],
)
def test_bind(args, kwargs):
    bound = bound_arrays(FEEDS, args, kwargs)
    assert bound.keys() == {"x", "labels"}
    np.testing.assert_array_equal(bound["x"], ARRAY)
    np.testing.assert_array_equal(bound["labels"], NUMBERS)
    assert (bound["x"].dtype, bound["labels"].dtype) == (np.float32, np.int64)


def test_bind_an_optional_input():
    assert bound_arrays(FEEDS, (ARRAY, NUMBERS, 0.5), {})["rate"] == np.float32(0.5)
    assert bound_arrays(FEEDS, (ARRAY, NUMBERS), {"rate": 0.5})["rate"].dtype == np.float32
    assert "rate" not in bound_arrays(FEEDS, (ARRAY, NUMBERS), {})


def test_bind_by_position_with_inputs_that_the_step_does_not_use():
    order = ("before", "x", "between", "labels")
    unused = ("before", "between")
    bound = bound_arrays(FEEDS, (NUMBERS, ARRAY, None, NUMBERS), {}, unused, order)
    assert bound.keys() == {"x", "labels"}
    np.testing.assert_array_equal(bound["x"], ARRAY)
    assert bound_arrays(FEEDS, (ARRAY, NUMBERS), {}, unused, order).keys() == {"x", "labels"}
    with pytest.raises(InputError, match="3 arrays"):
        bound_arrays(FEEDS[:1], (NUMBERS, ARRAY, NUMBERS), {}, unused, order)


def test_bind_a_nest_in_tensorflow_s_order():
    """A dict argument of a step is flattened by sorted keys, wherever it was made."""
    feeds = (feed("inputs", (None,)), feed("inputs_1", (None,)), feed("y", (None,)))
    a, b, y = np.ones(3, np.float32), np.full(3, 2, np.float32), np.full(3, 3, np.float32)
    bound = bound_arrays(feeds, ({"b": b, "a": a}, y), {})
    assert [bound[f.name][0] for f in feeds] == [1, 2, 3]


def test_bind_no_inputs():
    assert bound_arrays((), (), {}) == {}
    with pytest.raises(InputError, match="none"):
        bound_arrays((), (ARRAY,), {})


@pytest.mark.parametrize(
    "dtype, value, works",
    [
        ("float32", np.float64, True),
        ("float32", np.int64, True),
        ("float32", np.bool_, True),
        ("float64", np.float32, True),
        ("int64", np.int32, True),
        ("int32", np.uint8, True),
        ("int64", np.float32, False),
        ("int64", np.float64, False),
        ("float32", np.complex64, False),
        ("bool", np.int64, False),
        ("float32", "U1", False),
        ("int32", "U1", False),
        ("float32", object, False),
    ],
)
def test_bind_converts_dtypes_of_the_same_kind_only(dtype, value, works):
    array = np.array([0, 1, 1]).astype(value)
    item = feed("x", (None,), dtype)
    if works:
        bound = bound_arrays((item,), (array,), {})["x"]
        assert bound.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(bound, [0, 1, 1])
    else:
        with pytest.raises(InputError, match=f"'x' takes {dtype}, got"):
            bound_arrays((item,), (array,), {})


def test_bind_whole_numbers_that_are_too_large():
    """Never silently another number."""
    with pytest.raises(InputError, match="'x' takes int32"):
        bound_arrays((feed("x", (None,), "int32"),), (np.array([1, 2**40]),), {})


def test_bind_text():
    item = feed("x", (None,), "string")
    for value in (["a", "bc"], np.array(["a", "bc"]), np.array([b"a", b"bc"]), np.array(["a", "bc"], object)):
        bound = bound_arrays((item,), ([np.asarray(value)],), {})["x"]
        assert [v.decode() if isinstance(v, bytes) else v for v in bound] == ["a", "bc"]


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 1), ()])
def test_bind_checks_shapes(shape):
    with pytest.raises(InputError, match="'x'"):
        bound_arrays((X,), (np.zeros(shape, np.float32),), {})


def test_bind_leaves_the_batch_dimension_to_split():
    fixed = feed("x", (3, 2))
    assert bound_arrays((fixed,), (np.zeros((6, 2), np.float32),), {})["x"].shape == (6, 2)
    whole = feed("x", (3, 2), split=False)
    with pytest.raises(InputError, match="'x'"):
        bound_arrays((whole,), (np.zeros((6, 2), np.float32),), {})


def test_bind_unknown_rank():
    whole = feed("x", None, split=False)
    for shape in ((), (3,), (2, 2, 2)):
        assert bound_arrays((whole,), (np.zeros(shape, np.float32),), {})["x"].shape == shape


# -- split -----------------------------------------------------------------------------------


@given(workers=st.integers(1, 13), more=st.integers(0, 40))
def test_split_gives_every_example_to_one_worker(workers, more):
    examples = workers + more
    x, labels = np.arange(examples * 2.0).reshape(-1, 2), np.arange(examples)
    batch = split_batch(
        signature(workers, feed("x", (None, 2), workers=workers), feed("labels", (None,), "int64", workers=workers)),
        {"x": x, "labels": labels},
    )
    parts = [batch.feeds[f"worker_{r}/x:0"] for r in range(workers)]
    np.testing.assert_array_equal(np.concatenate(parts), x)
    np.testing.assert_array_equal(np.concatenate([batch.feeds[f"worker_{r}/labels:0"] for r in range(workers)]), labels)
    assert tuple(len(part) for part in parts) == batch.shares
    assert max(batch.shares) - min(batch.shares) <= 1
    assert sum(batch.shares) == examples
    assert sum(batch.weights) == pytest.approx(workers)
    # Weighted means of the parts make the mean of the whole.
    means = [w * part.mean(axis=0) for w, part in zip(batch.weights, parts)]
    np.testing.assert_allclose(np.sum(means, axis=0) / workers, x.mean(axis=0))


@pytest.mark.parametrize(
    "examples, workers, shares", [(7, 2, (4, 3)), (7, 3, (3, 2, 2)), (8, 3, (3, 3, 2)), (5, 5, (1,) * 5), (9, 1, (9,))]
)
def test_split_of_odd_sizes(examples, workers, shares):
    batch = split_batch(signature(workers, feed("x", (None,), workers=workers)), {"x": np.arange(examples)})
    assert batch.shares == shares
    assert batch.weights == tuple(workers * share / examples for share in shares)


def test_split_evenly_has_weights_of_exactly_one():
    for workers in (2, 3, 5, 7, 13):
        for share in (1, 3, 10, 49):
            assert Batch({}, (share,) * workers).weights == (1.0,) * workers


@pytest.mark.parametrize("examples", [1, 2])
def test_split_of_fewer_examples_than_workers(examples):
    """Those without one compute with another worker's, which does not count."""
    item = feed("x", (None,), workers=3)
    batch = split_batch(signature(3, item), {"x": 5 + np.arange(examples)})
    assert batch.shares == (1, 1, 0)[:examples] + (0,) * (3 - examples)
    assert [batch.feeds[name].tolist() for name in item.placeholders] == [[5], [6] if examples == 2 else [5], [5]]
    assert batch.weights == tuple(3 * share / examples for share in batch.shares)
    with pytest.raises(InputError, match=f"{examples} examples .* 3 workers"):
        split_batch(replace(signature(3, item), weights=()), {"x": np.arange(examples)})


def test_split_of_no_examples():
    with pytest.raises(InputError, match="at least one example"):
        split_batch(signature(3, feed("x", (None,), workers=3)), {"x": np.arange(0)})


def test_split_of_inputs_that_disagree():
    with pytest.raises(InputError, match="'labels' has 3 examples, .* 4"):
        split_batch(signature(2, X, LABELS), {"x": ARRAY, "labels": NUMBERS[:3]})


def test_split_without_weights():
    uneven, even = {"x": np.arange(5.0)}, {"x": np.arange(4.0)}
    item = feed("x", (None,))
    assert split_batch(signature(2, item, weighted=False), even).shares == (2, 2)
    with pytest.raises(InputError, match="5 examples .* evenly .* multiple of 2"):
        split_batch(signature(2, item, weighted=False), uneven)
    assert split_batch(signature(2, item, weighted=False, reduction="sum"), uneven).shares == (3, 2)


def test_split_of_a_static_batch():
    item = feed("x", (3, 2))
    assert split_batch(signature(2, item), {"x": np.zeros((6, 2))}).shares == (3, 3)
    for examples in (3, 5, 7, 12):
        with pytest.raises(InputError, match=f"3 examples on each worker, so a step takes 6, not {examples}"):
            split_batch(signature(2, item), {"x": np.zeros((examples, 2))})


def test_split_gives_every_worker_the_whole_of_a_replicated_input():
    rate = np.float32(0.5)
    batch = split_batch(signature(2, X, RATE), {"x": ARRAY, "rate": rate})
    assert batch.feeds["worker_0/rate:0"] is rate
    assert batch.feeds["worker_1/rate:0"] is rate
    assert batch.shares == (2, 2)


def test_split_where_nothing_is_split():
    batch = split_batch(signature(3, RATE), {})
    assert batch == Batch({}, (0, 0, 0))
    assert batch.weights == (1.0, 1.0, 1.0)


def test_split_leaves_out_what_is_not_fed():
    optional = feed("mask", (None,), optional=True)
    assert "worker_0/mask:0" not in split_batch(signature(2, X, optional), {"x": ARRAY}).feeds
