"""What TensorFlow tunes of a dataset: the numbers that it is left, and nothing else."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from caramel.data.dataset import training_data
from caramel.data.template import Sharding, make_template
from caramel.model import Input

Dataset = tf.data.Dataset
SLICES = Dataset.from_tensor_slices(np.arange(40.0))


def with_options(dataset, change):
    options = tf.data.Options()
    change(options)
    return dataset.with_options(options)


def doubled(x):
    return 2 * x


UNTUNED = {
    "batches": SLICES.batch(8),
    "without end": SLICES.repeat().batch(8),
    "all of it": SLICES.take(-1).batch(8),
    "a number of calls": SLICES.map(doubled, num_parallel_calls=3).batch(8).prefetch(2),
    "other options": with_options(SLICES.batch(8), lambda options: setattr(options, "deterministic", False)),
    "a number in a function": SLICES.map(lambda x: x + tf.cast(tf.constant(-1, tf.int64), x.dtype)).batch(8),
}

TUNED = {
    "elements ahead": SLICES.batch(8).prefetch(tf.data.AUTOTUNE),
    "calls at once": SLICES.map(doubled, num_parallel_calls=tf.data.AUTOTUNE).batch(8),
    "inside": SLICES.batch(4).flat_map(
        lambda x: Dataset.from_tensor_slices(x).map(doubled, num_parallel_calls=tf.data.AUTOTUNE).batch(2)
    ),
    "files at once": Dataset.range(4)
    .interleave(
        lambda x: Dataset.from_tensors(tf.cast(x, tf.float64)),
        cycle_length=tf.data.AUTOTUNE,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    .batch(2),
    "as the user says": with_options(SLICES.batch(8), lambda options: setattr(options.autotune, "cpu_budget", 2)),
}


def source(dataset):
    (found,) = training_data(dataset).sources(2)
    return found


def is_tuned_on_workers(dataset):
    """What the iterators' last options say."""
    made = source(dataset)
    shape = tuple(dataset.element_spec.shape)
    graph = make_template(made, [Input("x", "x", "float64", shape, True, component=0)], Sharding.SLICE).graph
    begin = next(node for node in graph if node.op == "MakeIterator")
    last = graph[begin.input[0]]
    if last.op != "OptionsDataset":
        return True
    options = dataset_options_pb2.Options.FromString(last.attr["serialized_options"].s)
    return not options.autotune_options.ListFields() or options.autotune_options.enabled


@pytest.mark.parametrize("name", UNTUNED)
def test_nothing_to_tune(name):
    assert not source(UNTUNED[name]).is_tuned and not is_tuned_on_workers(UNTUNED[name])


@pytest.mark.parametrize("name", TUNED)
def test_something_to_tune(name):
    assert source(TUNED[name]).is_tuned and is_tuned_on_workers(TUNED[name])
