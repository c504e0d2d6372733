"""Datasets of which no element can fail, and those that may."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from caramel.data.dataset import training_data

Dataset = tf.data.Dataset


def source(dataset):
    (found,) = training_data(dataset).sources(2)
    return found


IMAGES, LABELS = np.zeros([40, 5], np.float32), np.arange(40) % 3
SLICES = Dataset.from_tensor_slices((IMAGES, LABELS))


def looked_up(rows):
    """Rows of arrays at the numbers of a dataset, as `caramel.fit` looks them up."""
    numbers = Dataset.range(rows).shuffle(rows, seed=1).batch(8)
    arrays = Dataset.from_tensors((IMAGES, LABELS)).repeat()
    return Dataset.zip((numbers, arrays)).map(lambda at, each: tuple(tf.gather(array, at) for array in each))


SURE = {
    "slices": SLICES.batch(8),
    "shuffled": SLICES.shuffle(40).batch(8, drop_remainder=True).prefetch(2),
    "repeated": SLICES.batch(8).repeat(3).skip(1).take(4),
    "in memory": SLICES.batch(8).cache(),
    "numbers": Dataset.range(10).batch(4),
    "scaled": SLICES.map(lambda image, label: (image / 255.0 - 0.5, tf.one_hot(label, 3))).batch(8),
    "scaled batches": SLICES.batch(8).map(lambda image, label: (tf.cast(image, tf.float64) * 2.0, label)),
    "both columns": Dataset.from_tensor_slices((IMAGES, IMAGES)).batch(8).map(lambda a, b: a + b),
    "rows": looked_up(40),
    "fewer rows": looked_up(7),
    "the same for all": Dataset.from_tensors(0).map(lambda _: tf.random.stateless_normal([8, 5], [1, 2])).repeat(),
}

MAY_FAIL = {
    "a file": Dataset.from_tensor_slices(["a", "b"]).map(tf.io.read_file).batch(2),
    "more rows than there are": looked_up(41),
    "rows by labels": SLICES.map(lambda image, label: tf.gather(tf.constant([1.0, 2.0]), label)).batch(8),
    "parsed": Dataset.from_tensor_slices(["1", "x"]).map(tf.strings.to_number).batch(2),
    "divided": Dataset.range(4).map(lambda n: 8 // n).batch(2),
    "checked": SLICES.map(lambda image, label: (tf.debugging.check_numerics(image, "image"), label)).batch(8),
    "sizes that differ": Dataset.range(1, 4).map(tf.range).batch(2),
    "beside a batch's size": SLICES.batch(8).map(lambda image, label: image * tf.ones([8, 5])),
    "batches of two lengths": Dataset.zip((Dataset.range(10).batch(4), Dataset.range(12).batch(4))).map(tf.add),
    "columns of unknown length": Dataset.from_tensor_slices(["a b", "c"]).map(lambda text: tf.strings.split(text)[0]),
    "cached in a file": SLICES.cache("file").batch(8),
    "filtered": SLICES.filter(lambda image, label: label > 0).batch(8),
    "asserted": SLICES.apply(tf.data.experimental.assert_cardinality(39)).batch(8),
}


@pytest.mark.parametrize("name", list(SURE))
def test_nothing_can_fail(name):
    found = source(SURE[name])
    assert found.cannot_fail
    for _ in SURE[name].take(10):
        pass


@pytest.mark.parametrize("name", list(MAY_FAIL))
def test_something_may_fail(name):
    assert not source(MAY_FAIL[name]).cannot_fail


def test_a_shuffle_that_is_repeated_draws_when_an_element_is_taken():
    """No element is taken ahead: whoever begins another pass would find another order."""
    assert source(SLICES.shuffle(40).repeat().batch(8)).draws == "often"


def test_preprocessing_layers():
    layer = keras.layers.Rescaling(1 / 255)
    assert source(SLICES.map(lambda image, label: (layer(image), label)).batch(8)).cannot_fail
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    assert not source(Dataset.from_tensor_slices(["a", "b"]).map(lookup).batch(2)).cannot_fail
